"""The bundles for the prostate and the spleen train, score and predict on their data sets' own formats and grids."""

import json
import math
import os
import shutil
import sys
from pathlib import Path

import matplotlib.image
import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from monai_spct.data import Split, decathlon_cases, write_promise12_phantom, write_spleen_phantom
from monai_spct.data.metaimage import open_metaimage
from monai_spct.handlers import read_history
from tests.bundles.little import LITTLE, config, failure, part, predicting, python, trained, typed, workflow, written

PATIENTS = 5  # 1 labeled, 3 others to train on or to validate with, 1 for testing
SHORT = {"epoch_length": 1}


@pytest.fixture(scope="module")
def prostate(tmp_path_factory) -> tuple[Path, Path]:
    """Data, and what a training, an evaluation and a prediction wrote."""
    pytest.importorskip("itk")
    base = tmp_path_factory.mktemp("prostate")
    data = write_promise12_phantom(base / "data", patients=PATIENTS, size=(40, 44), spacing=(2.3, 2.5), slices=(4, 5))
    trained(data, base / "output", bundle="prostate", draws=True, **SHORT, num_validation=1, val_interval=2)
    for name, settings in (("evaluate", {"num_validation": 1}), ("inference", {"uncertainty": True})):
        predicting(name, data, base / "output", bundle="prostate", max_pictures=1, **settings).run()
    return data, base / "output"


@pytest.fixture(scope="module")
def spleen(tmp_path_factory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("spleen")
    data = write_spleen_phantom(base / "data", patients=PATIENTS, size=(48, 52), spacing=(6.7, 7.0), slices=(4, 5))
    more = {"image_size": 40, "bundle": "spleen"}
    trained(data, base / "output", **SHORT, **more, num_test=1, cache_dir=base / "cache")
    predicting("evaluate", data, base / "output", **more, num_test=1).run()
    predicting("inference", data, base / "output", **more).run()
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
    with pytest.warns(UserWarning, match=r"the voxels of a are 1 x 1 x 1 mm, those that the networks have seen 2\.4"):
        predicting("inference", tmp_path, tmp_path / "output", bundle="prostate").run()
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
    settings = {**LITTLE, **SHORT, "max_epochs": 1, "num_test": 1, "image_size": 40, "seed": 3, "num_views": 3}
    words = typed(
        *("training", config("train", "spleen")), dataset_dir=data, output_dir=tmp_path, cache_dir=cache, **settings
    )
    done = python(words, cwd=tmp_path, PYTHONHASHSEED="3")
    assert done.returncode == 0, done.stderr
    for found in ("1 of 1 labeled", "3 of 3 unlabeled"):
        assert f"cache: {found} volumes from {cache}, which now holds 0.00 GB" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == before
    assert len(before) == 5  # and one label


def test_a_training_leaves_curves_and_its_validations_scores_and_pictures(prostate):
    _, output = prostate
    assert min(matplotlib.image.imread(output / "eval" / "curves.png").shape[:2]) > 500
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
        for brightness, case in enumerate("ab", start=1):  # two images: of copies, both would be tested or none
            array = voxels * brightness if name == "imagesTr" else (voxels > 0).astype(np.uint8)
            nib.save(nib.Nifti1Image(array, np.diag([2.0, 2, 5, 1])), tmp_path / "data" / name / f"{case}.nii.gz")
    entries = [{"image": f"imagesTr/{case}.nii.gz", "label": f"labelsTr/{case}.nii.gz"} for case in "ab"]
    (tmp_path / "data" / "dataset.json").write_text(json.dumps({"training": entries}))
    predicting("evaluate", tmp_path / "data", tmp_path, bundle="spleen", num_test=1, network=Bright()).run()
    assert summary(tmp_path)["mean"]["dsc_mean"] > 0.98
    assert summary(tmp_path)["mean"]["hd_mean"] <= 2 * math.sqrt(2) + 1e-6


# Patients and gammas of the paper

PATIENTS_OF = {"prostate": 50, "spleen": 41}


def split_of(bundle: str, **settings: object) -> tuple[Split, float]:
    """The split, and the first pace that follows from it."""
    parser = ConfigParser()
    parser.read_config(str(config("train", bundle)))
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
    content = json.loads(config("train", bundle).read_text())
    expected = {"prostate": (0.1, 4, 1e-4 * 300), "spleen": (0.5, 12, 3e-5 * 300)}[bundle]
    keys = ("co_training_weight", "consistency_weight", "learning_rate")
    assert [content[key] for key in keys] == pytest.approx(list(expected))


def test_without_itk_training_says_what_to_install_before_it_begins(tmp_path, monkeypatch):
    data = write_promise12_phantom(tmp_path / "data", patients=3, size=(40, 40), spacing=(2.3, 2.3), slices=(4, 4))
    monkeypatch.setitem(sys.modules, "itk", None)
    said = failure(lambda: trained(data, tmp_path / "output", bundle="prostate", test_ratio=0))
    assert 'pip install "monai-spct[itk]"' in said
    assert written(tmp_path / "output") == set()


# Real data


def real(name: str) -> str:
    folder = Path(os.environ.get("SPCT_DATA_DIR", "nowhere"), name)
    if not folder.is_dir():
        pytest.skip(f"SPCT_DATA_DIR names no folder with {name}")
    return str(folder)


@pytest.mark.real_data
def test_real_prostates_train_as_in_the_paper_with_four_of_40_labeled(tmp_path):
    pytest.importorskip("itk")
    where = {"dataset_dir": real("promise12"), "output_dir": tmp_path}
    run = workflow("train", bundle="prostate", **where, max_epochs=1, epoch_length=2, num_workers=0)
    run.run()
    split = part(run, "split")
    assert [len(cases) for cases in (split.labeled, split.unlabeled, split.test)] == [4, 36, 10]
    assert all(value.isfinite().all() for value in torch.load(tmp_path / "models" / "model.pt").values())
