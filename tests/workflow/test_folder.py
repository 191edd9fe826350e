"""Copies of bundles."""

import json
from pathlib import Path

import pytest

from monai_spct.workflow import bundles_folder, copy


@pytest.mark.parametrize("name", ["acdc", "prostate", "spleen"])
def test_a_copy_has_all_of_the_bundle_and_the_overlays(tmp_path, name):
    line = copy(name, tmp_path / "mine")
    assert line.startswith("python -m monai.bundle run training ")
    assert str(tmp_path / "mine" / "configs" / "train.json") in line
    for source, there in (
        (f"{name}/configs", "configs"),
        *((name, name) for name in ("augmentations", "methods", "networks")),
    ):
        files = {path.name: path.read_bytes() for path in (bundles_folder() / source).iterdir()}
        assert files
        assert {path.name: path.read_bytes() for path in (tmp_path / "mine" / there).iterdir()} == files


def test_a_copy_leaves_out_what_runs_have_written(tmp_path, monkeypatch):
    folder = tmp_path / "bundles"
    for made in (
        *("heart/configs/train.json", "methods/labeled_only.json", "networks/unet.json", "heart/models/model.pt"),
        *("augmentations/strong.json", "heart/output/models/model.pt", "heart/output/eval/scores.csv"),
        *(f"heart/{name}" for name in ("cache/a.npy", "mlruns.db", "mlruns/1/config.json")),
        *("heart/config_20260101_120000.json", "heart/phantom/data/a.nii", "heart/scripts/__pycache__/a.pyc"),
    ):
        (folder / made).parent.mkdir(parents=True, exist_ok=True)
        (folder / made).write_text(json.dumps({}))
    monkeypatch.setattr("monai_spct.workflow.folder.bundles_folder", lambda: folder)
    copy("heart", tmp_path / "mine")
    files = sorted(path.relative_to(tmp_path / "mine").as_posix() for path in (tmp_path / "mine").rglob("*.*"))
    overlays = ["methods/labeled_only.json", "models/model.pt", "networks/unet.json"]
    assert files == ["augmentations/strong.json", "configs/train.json", *overlays]


@pytest.mark.parametrize("name", ["acd", "methods", "ACDC", "acdc/configs"])
def test_an_unknown_bundle_is_named_beside_those_that_there_are(tmp_path, name):
    with pytest.raises(ValueError, match=rf"`name` must be one of \[.*'acdc'.*\], got '{name}'"):
        copy(name, tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_a_place_that_is_taken_stays_as_it_is(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=str(tmp_path)):
        copy("acdc", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
