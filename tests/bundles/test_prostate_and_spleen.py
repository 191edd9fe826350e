"""The bundles for the prostate and the spleen train, score and predict on their data sets' own formats and grids."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser, ConfigWorkflow
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from monai_spct.data import (
    Split,
    decathlon_cases,
    split_cases,
    write_promise12_phantom,
    write_spleen_phantom,
)
from monai_spct.data.metaimage import open_metaimage
from monai_spct.handlers import read_history
from monai_spct.workflow import bundles_folder

pytestmark = [
    pytest.mark.filterwarnings("ignore:parsing config_file:UserWarning"),  # what MONAI says of every config
    pytest.mark.filterwarnings("ignore:parsing meta_file:UserWarning"),
]

PATIENTS = 5  # 1 labeled, 3 others to train on or to validate with, 1 for testing
LITTLE = {
    "crop_size": 32,
    "labeled_batch_size": 2,
    "unlabeled_batch_size": 2,
    "labeled_patients": 1,
    "epoch_length": 1,
    "max_epochs": 2,
    "num_workers": 0,
}


def config(bundle: str, name: str) -> str:
    return str(bundles_folder() / bundle / "configs" / f"{name}.json")


def run(bundle: str, name: str, **settings: object) -> ConfigWorkflow:
    kind = "train" if name == "train" else "infer"
    result = ConfigWorkflow([config(bundle, name)], workflow_type=kind, logging_file=False, **settings)
    result.initialize()
    result.run()
    return result


@pytest.fixture(scope="module")
def prostate(tmp_path_factory) -> tuple[Path, Path]:
    """Data, and what a training, an evaluation and a prediction wrote."""
    pytest.importorskip("itk")
    base = tmp_path_factory.mktemp("prostate")
    data = write_promise12_phantom(base / "data", patients=PATIENTS, size=(40, 44), spacing=(2.3, 2.5), slices=(4, 5))
    where = {"dataset_dir": str(data), "output_dir": str(base / "output")}
    run("prostate", "train", **where, **LITTLE, num_validation=1, val_interval=2)
    run("prostate", "evaluate", **where, num_validation=1)
    run("prostate", "inference", **where, uncertainty=True, max_pictures=1)
    return data, base / "output"


@pytest.fixture(scope="module")
def spleen(tmp_path_factory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("spleen")
    data = write_spleen_phantom(base / "data", patients=PATIENTS, size=(48, 52), spacing=(6.7, 7.0), slices=(4, 5))
    where = {"dataset_dir": str(data), "output_dir": str(base / "output"), "image_size": 40}
    run("spleen", "train", **where, **LITTLE, num_test=1, cache_dir=str(base / "cache"))
    run("spleen", "evaluate", **where, num_test=1)
    run("spleen", "inference", **where, max_pictures=1)
    return data, base / "output"


def summary(output: Path) -> dict[str, dict[str, float]]:
    return json.loads((output / "eval" / "summary.json").read_text())


def test_the_prostate_is_scored_in_its_test_patient(prostate):
    _, output = prostate
    scores = summary(output)
    assert list(scores) == ["prostate", "mean"]
    assert scores["mean"]["n_volumes"] == 1
    assert 0 <= scores["mean"]["dsc_mean"] <= 1


def test_predictions_for_metaimage_are_nifti_on_its_grid(prostate):
    data, output = prostate
    names = {path.name for path in (output / "predictions").glob("*.nii.gz")}
    assert names == {f"Case{n:02d}{end}.nii.gz" for n in range(PATIENTS) for end in ("", "_uncertainty")}
    header = open_metaimage(data / "Case01.mhd")
    for end, dtype in (("", np.uint8), ("_uncertainty", np.float32)):
        image = nib.load(output / "predictions" / f"Case01{end}.nii.gz")
        assert image.shape == header.shape
        assert image.get_data_dtype() == dtype
        np.testing.assert_allclose(image.affine, header.affine, atol=1e-5)
        np.testing.assert_allclose(image.get_qform(), header.affine, atol=1e-5)
        assert int(image.header["sform_code"]) == int(image.header["qform_code"]) == 1
    assert len(list((output / "predictions" / "pictures").glob("*.png"))) == 1


def test_prostates_may_come_as_nifti_for_prediction(prostate, tmp_path):
    _, output = prostate
    nib.save(nib.Nifti1Image(np.arange(36 * 40 * 3).reshape(36, 40, 3).astype(np.int16), np.eye(4)), tmp_path / "a.nii")
    shutil.copytree(output / "models", tmp_path / "output" / "models")
    run("prostate", "inference", dataset_dir=str(tmp_path), output_dir=str(tmp_path / "output"))
    assert nib.load(tmp_path / "output" / "predictions" / "a.nii.gz").shape == (36, 40, 3)


def test_the_spleen_is_scored_and_predicted_on_the_original_grid(spleen):
    data, output = spleen
    assert summary(output)["mean"]["n_volumes"] == 1
    cases = decathlon_cases(data)
    assert {path.name for path in (output / "predictions").glob("*.nii.gz")} == {
        f"{case['case']}.nii.gz" for case in cases
    }  # and none for the labels
    for case in cases:
        image, mask = nib.load(case["image"]), nib.load(output / "predictions" / f"{case['case']}.nii.gz")
        assert mask.shape == image.shape
        assert mask.get_data_dtype() == np.uint8
        np.testing.assert_allclose(mask.affine, image.affine, atol=1e-5)


def test_a_second_training_on_the_spleen_finds_its_volumes_prepared(spleen, tmp_path):
    """In another process, with another seed, other hashes and other networks."""
    data, output = spleen
    cache = output.parent / "cache"
    before = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    options = {**LITTLE, "max_epochs": 1, "num_test": 1, "image_size": 40, "seed": 3, "num_views": 3}
    options |= {"dataset_dir": data, "output_dir": tmp_path, "cache_dir": cache}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [
        sys.executable,
        "-m",
        "monai.bundle",
        "run",
        "training",
        "--config_file",
        config("spleen", "train"),
        *words,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": "3"}
    )
    assert done.returncode == 0, done.stderr
    for found in ("1 of 1 labeled", "3 of 3 unlabeled"):
        assert f"cache: {found} volumes from {cache}, which now holds 0.00 GB" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == before
    assert len(before) == 5  # and one label


def test_trainings_leave_curves_and_validations_their_scores_and_pictures(prostate, spleen):
    for _, output in (prostate, spleen):
        assert min(matplotlib.image.imread(output / "eval" / "curves.png").shape[:2]) > 500
    _, output = prostate
    rows = read_history(output / "eval" / "history.csv")
    assert ["validation_mean_dsc" in row for row in rows] == [False, True]
    events = EventAccumulator(str(output / "eval"))
    events.Reload()
    assert len(events.Tags()["images"]) == 1
    assert len(list((output / "eval" / "pictures").glob("*.png"))) == 1


class Bright(torch.nn.Module):
    """Says 1 where a slice is bright."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.cat([0.5 - image, image - 0.5], 1)


def test_a_perfect_network_keeps_its_score_on_the_way_back_from_256(tmp_path):
    """Resized there and back, a structure of some voxels stays where it is."""
    voxels = np.zeros((100, 120, 3), np.int16)
    voxels[30:60, 50:90, 1] = 1000
    for name in ("imagesTr", "labelsTr"):
        (tmp_path / "data" / name).mkdir(parents=True)
        array = voxels if name == "imagesTr" else (voxels > 0).astype(np.uint8)
        for case in "ab":
            nib.save(nib.Nifti1Image(array, np.diag([2.0, 2, 5, 1])), tmp_path / "data" / name / f"{case}.nii.gz")
    entries = [{"image": f"imagesTr/{case}.nii.gz", "label": f"labelsTr/{case}.nii.gz"} for case in "ab"]
    (tmp_path / "data" / "dataset.json").write_text(json.dumps({"training": entries}))
    where = {"dataset_dir": str(tmp_path / "data"), "output_dir": str(tmp_path)}
    run("spleen", "evaluate", **where, num_test=1, network=Bright())
    assert summary(tmp_path)["mean"]["dsc_mean"] > 0.98
    assert summary(tmp_path)["mean"]["hd_mean"] <= 2 * math.sqrt(2) + 1e-6


# Patients and gammas of the paper

PATIENTS_OF = {"prostate": 50, "spleen": 41}


def split_of(bundle: str, **settings: object) -> tuple[Split, float]:
    """The split, and the first pace that follows from it."""
    parser = ConfigParser()
    parser.read_config(config(bundle, "train"))
    cases = [{"patient": f"p{n:02d}", "image": f"{n}", "label": f"{n}"} for n in range(PATIENTS_OF[bundle])]
    parser.update({"cases": cases, **settings})
    gamma = parser.get_parsed_content("gamma")
    return parser.get_parsed_content("split"), gamma(0.0)


@pytest.mark.parametrize(
    ("bundle", "settings", "labeled", "trained", "tested", "gamma"),
    [
        ("prostate", {}, 4, 40, 10, 0.4),
        ("prostate", {"labeled_ratio": 0.05}, 2, 40, 10, 0.5),
        ("prostate", {"labeled_patients": 2}, 2, 40, 10, 0.5),
        ("prostate", {"labeled_ratio": 1}, 40, 40, 10, 0.4),
        ("spleen", {}, 3, 36, 5, 0.2),
        ("spleen", {"labeled_ratio": 0.07}, 2, 36, 5, 0.4),
        ("spleen", {"labeled_patients": 3}, 3, 36, 5, 0.2),
        ("spleen", {"labeled_ratio": 0.07, "gamma_start": 0.3}, 2, 36, 5, 0.3),
    ],
)
def test_patients_and_first_gamma_are_those_of_the_paper(bundle, settings, labeled, trained, tested, gamma):
    split, first = split_of(bundle, **settings)
    sizes = [len(part) for part in (split.labeled, [*split.labeled, *split.unlabeled], split.test)]
    assert sizes == [labeled, trained, tested]
    assert first == pytest.approx(gamma)


@pytest.mark.parametrize("bundle", PATIENTS_OF)
def test_weights_and_rates_are_those_of_the_paper(bundle):
    content = json.loads(Path(config(bundle, "train")).read_text())
    expected = {"prostate": (0.1, 4, 1e-4 * 300), "spleen": (0.5, 12, 3e-5 * 300)}[bundle]
    keys = ("co_training_weight", "consistency_weight", "learning_rate")
    assert [content[key] for key in keys] == pytest.approx(list(expected))


# Bad input


def causes(error: BaseException | None) -> list[str]:
    return [] if error is None else [str(error), *causes(error.__cause__)]


def test_without_itk_training_says_what_to_install_before_it_begins(tmp_path, monkeypatch):
    data = write_promise12_phantom(tmp_path / "data", patients=3, size=(40, 40), spacing=(2.3, 2.3), slices=(4, 4))
    monkeypatch.setitem(sys.modules, "itk", None)
    settings = {**LITTLE, "dataset_dir": str(data), "output_dir": str(tmp_path / "output"), "test_ratio": 0}
    with pytest.raises(RuntimeError) as error:
        run("prostate", "train", **settings)
    assert 'pip install "monai-spct[itk]"' in causes(error.value)[-1]
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize("key", ["image", "label"])
def test_half_a_nifti_file_is_named(tmp_path, key):
    data = write_spleen_phantom(tmp_path / "data", patients=3, size=(48, 48), spacing=(6.7, 6.7), slices=(4, 4))
    case = split_cases(decathlon_cases(data), num_test=1, labeled_patients=1).labeled[0]
    path = Path(case[key])
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    settings = {**LITTLE, "dataset_dir": str(data), "output_dir": str(tmp_path / "output"), "num_test": 1}
    with pytest.raises(RuntimeError) as error:
        run("spleen", "train", **settings, cache_dir=str(tmp_path / "cache"))
    assert any(text.startswith(f"{path} is truncated or damaged") for text in causes(error.value))


# Real data


def real(name: str) -> str:
    folder = Path(os.environ.get("SPCT_DATA_DIR", "nowhere"), name)
    if not folder.is_dir():
        pytest.skip(f"SPCT_DATA_DIR names no folder with {name}")
    return str(folder)


@pytest.mark.real_data
def test_real_prostates_train_as_in_the_paper_with_four_of_40_labeled(tmp_path):
    pytest.importorskip("itk")
    where = {"dataset_dir": real("promise12"), "output_dir": str(tmp_path)}
    done = run("prostate", "train", **where, max_epochs=1, epoch_length=2, num_workers=0)
    split = done.parser.get_parsed_content("split")
    assert [len(part) for part in (split.labeled, split.unlabeled, split.test)] == [4, 36, 10]
    assert all(value.isfinite().all() for value in torch.load(tmp_path / "models" / "model.pt").values())
