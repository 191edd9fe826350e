"""The weights that come with the bundle for ACDC predict at once, and say of what they know nothing."""

import json
import os
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import load

from monai_spct.data import acdc_cases, split_cases, write_acdc_phantom
from tests.bundles.little import BUNDLES, python, typed, workflow, written

MODELS = BUNDLES / "acdc" / "models"


@pytest.fixture(scope="module")
def scan(tmp_path_factory) -> Path:
    """A folder with one image."""
    folder = write_acdc_phantom(tmp_path_factory.mktemp("scan") / "data", patients=1)
    [path, *_] = sorted(folder.rglob("*_frame01.nii.gz"))
    (folder.parent / "images").mkdir()
    return path.rename(folder.parent / "images" / "a.nii.gz").parent


def test_the_command_of_the_readme_predicts_in_another_directory(scan, tmp_path):
    before = written(BUNDLES / "acdc")
    done = python(
        typed("inferring", BUNDLES / "acdc" / "configs" / "inference.json", dataset_dir=scan, output_dir="out"),
        tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "these are the weights that come with the bundle" in done.stdout + done.stderr
    image, mask = nib.load(scan / "a.nii.gz"), nib.load(tmp_path / "out" / "predictions" / "a.nii.gz")
    assert mask.shape == image.shape
    assert set(np.unique(np.asarray(mask.dataobj))) == {0, 1, 2, 3}
    assert written(BUNDLES / "acdc") == before


def test_a_scan_of_other_voxels_is_warned_of(scan, tmp_path):
    image = nib.load(scan / "a.nii.gz")
    image.header.set_zooms((5, 5, 10))
    (tmp_path / "images").mkdir()
    nib.save(image, tmp_path / "images" / "b.nii.gz")
    with pytest.warns(UserWarning, match="the voxels of b are 5 x 5 x 10 mm, those that the networks have seen 1.302"):
        workflow("inference", dataset_dir=tmp_path / "images", output_dir=tmp_path, max_pictures=0).run()


def test_scores_of_another_split_are_warned_of(data, tmp_path, caplog):
    with caplog.at_level("WARNING", logger="monai_spct"):
        workflow("evaluate", dataset_dir=data, output_dir=tmp_path, ckpt_path=MODELS / "model.pt", split_seed=1)
    assert "differ from those of the training: split_seed. Patients that it learned from may be scored." in caplog.text


def test_monai_loads_the_network_by_the_name_of_the_bundle():
    network = load("acdc", bundle_dir=BUNDLES, workflow_type="inference", device="cpu")
    weights = torch.load(MODELS / "model.pt", weights_only=True)
    torch.testing.assert_close(dict(network.state_dict()), dict(weights), rtol=0, atol=0)


@pytest.mark.real_data
@pytest.mark.skipif("SPCT_DATA_DIR" not in os.environ, reason="SPCT_DATA_DIR names the folder of the data sets")
def test_on_patients_that_they_have_not_seen_they_are_as_good_as_said(tmp_path):
    tested = split_cases(acdc_cases(Path(os.environ["SPCT_DATA_DIR"]) / "acdc"), labeled_ratio=1.0).test[:8]
    listed = [{key: case[key] for key in ("patient", "case", "image", "label")} for case in tested]
    (tmp_path / "list.json").write_text(json.dumps({"test": listed}))
    settings = {"datalist": tmp_path / "list.json", "ckpt_path": MODELS / "model.pt", "max_pictures": 0}
    workflow("evaluate", output_dir=tmp_path, **settings).run()
    summary = json.loads((tmp_path / "eval" / "summary.json").read_text())
    assert summary["RV"]["n_volumes"] == 8
    assert summary["mean"]["dsc_mean"] > 0.82
