"""Plans: what is found and chosen of data of all kinds, and bundles that run as they are written."""

import json
import os
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from typer.testing import CliRunner

from monai_spct.cli import app
from monai_spct.data import acdc_cases, folder_cases, read_datalist
from monai_spct.plan import Machine, choose, held_out, survey
from tests.forks import forked

GIB = 2**30
CPU, GPU = Machine(False, 8 * GIB, 8 * GIB), Machine(True, 16 * GIB, 64 * GIB)


def volume(seed: int, shape, *, channels: int = 1, values=(1,), low: float = 0, pieces: int = 1):
    """Noise in which one box, or two, of each value are bright."""
    random = np.random.default_rng(seed)
    label = np.zeros(shape, np.int16)
    axes = np.argsort(shape)[::-1]
    for number, value in enumerate(values):
        for piece in range(pieces):
            first, second = 2 + 6 * number, 2 + 12 * piece
            label.transpose(axes)[first : first + 5, second : second + 8, 1:-1] = value
    image = random.normal(0, 20, (channels, *shape)) + low + 100 * (label > 0)
    return image.astype(np.int16), label


def write(path: Path, voxels, spacing=(1.0, 1.0, 5.0), codes: str = "LPS") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    world = {letter: axis for axis, pair in enumerate(("LR", "PA", "IS")) for letter in pair}
    affine = np.zeros((4, 4))
    for axis, letter in enumerate(codes):
        affine[world[letter], axis] = spacing[axis] * (1 if letter in "RAS" else -1)
    affine[3, 3] = 1
    nib.save(nib.Nifti1Image(voxels, affine), path)


def made(
    folder: Path, *, cases: int = 4, labels: int = 2, shape=(48, 40, 6), spacing=(1.0, 1.0, 5.0), codes="LPS", **how
):
    """A folder of cases, some of which have labels."""
    for n in range(cases):
        image, label = volume(n, shape, **how)
        for channel, voxels in enumerate(image):
            write(folder / "imagesTr" / f"scan{n}_{channel:04d}.nii.gz", voxels, spacing, codes)
        if n < labels:
            write(folder / "labelsTr" / f"scan{n}.nii.gz", label, spacing, codes)
    return folder


def chosen(folder: Path, machine: Machine = CPU) -> dict:
    return {choice.key: choice.value for choice in choose(survey(folder_cases(folder)), machine)}


def plan(folder: Path, to: Path, *words: str):
    return CliRunner().invoke(app, ["plan", str(folder), "--to", str(to), *words])


# What is chosen


def test_thick_slices_are_learned_as_slices_and_each_file_of_an_image_is_a_channel(tmp_path):
    found = chosen(made(tmp_path, channels=2))
    assert (found["spatial_dims"], found["in_channels"], found["crop_size"]) == (2, 2, 48)
    assert found["structures"] == {"1": "1"}
    assert "resampling" not in found
    assert "intensity" not in found


@pytest.mark.parametrize(
    ("shape", "spacing", "machine", "crop"),
    [
        ((96, 96, 64), (1.0, 1.0, 1.0), CPU, [64, 64, 48]),
        ((96, 96, 64), (1.0, 1.0, 1.0), GPU, [96, 96, 64]),
        ((96, 96, 20), (1.0, 1.0, 2.5), CPU, [64, 64, 32]),
        ((40, 30, 70), (1.0, 1.0, 1.0), CPU, [48, 48, 80]),
    ],
    ids=["alike", "gpu", "thicker", "long"],
)
def test_voxels_about_as_thick_as_wide_are_learned_as_volumes(tmp_path, shape, spacing, machine, crop):
    found = chosen(made(tmp_path, shape=shape, spacing=spacing, labels=1, cases=2), machine)
    assert (found["spatial_dims"], found["crop_size"]) == (3, crop)


def test_slices_along_another_axis_are_put_last(tmp_path):
    found = chosen(made(tmp_path, shape=(6, 48, 40), spacing=(5.0, 1.0, 1.0)))
    [turned] = found["resampling"]
    assert (turned["_target_"], turned["axcodes"]) == ("Orientationd", "PSL")
    assert found["spatial_dims"] == 2


def test_images_whose_axes_go_in_several_ways_are_put_in_one(tmp_path):
    made(tmp_path, cases=3)
    image, label = volume(9, (48, 40, 6))
    write(tmp_path / "imagesTr" / "scan9_0000.nii.gz", image[0], codes="RAS")
    write(tmp_path / "labelsTr" / "scan9.nii.gz", label, codes="RAS")
    assert chosen(tmp_path)["resampling"][0]["axcodes"] == "LPS"


def test_different_spacings_become_the_median_and_large_slices_coarser(tmp_path):
    made(tmp_path / "a", cases=2, spacing=(1.0, 1.0, 5.0))
    made(tmp_path / "b", cases=2, spacing=(1.5, 1.5, 5.0))
    made(tmp_path / "c", cases=1, spacing=(1.5, 1.5, 5.0), labels=0)
    assert chosen(tmp_path)["resampling"][0]["pixdim"] == [1.5, 1.5, -1.0]
    made(tmp_path / "large", cases=1, labels=1, shape=(512, 300, 3), spacing=(0.5, 0.5, 5.0))
    found = chosen(tmp_path / "large")
    assert found["resampling"][0]["pixdim"] == [1.0, 1.0, -1.0]
    assert found["crop_size"] == 128


def test_ct_gets_a_window_about_its_structures(tmp_path):
    made(tmp_path, low=-900)
    found = chosen(tmp_path)["intensity"][0]
    assert found["_target_"] == "ScaleIntensityRanged"
    assert found["a_min"] < -860 < -740 < found["a_max"]


def test_values_of_labels_are_counted_from_one_and_named_by_them(tmp_path):
    found = chosen(made(tmp_path, values=(205, 420)))
    assert found["label_values"] == [205, 420]
    assert found["structures"] == {"1": "205", "2": "420"}


def test_twenty_structures_are_found(tmp_path):
    found = chosen(made(tmp_path, shape=(128, 40, 6), values=tuple(range(1, 21))))
    assert len(found["structures"]) == 20
    assert "label_values" not in found


@pytest.mark.parametrize(("pieces", "kept"), [(1, True), (2, False)])
def test_only_structures_in_one_piece_lose_what_is_apart(tmp_path, pieces, kept):
    assert chosen(made(tmp_path, pieces=pieces))["largest_component"] is kept


def test_images_that_do_not_fit_into_memory_stay_on_the_disk(tmp_path):
    made(tmp_path)
    assert "cache_dir" in chosen(tmp_path, Machine(False, 8 * GIB, 10_000))
    assert "cache_dir" not in chosen(tmp_path)


@pytest.mark.parametrize(("patients", "numbers"), [(1, (0, 0)), (9, (0, 0)), (10, (2, 1)), (75, (15, 7))])
def test_few_patients_are_all_learned_from(patients, numbers):
    assert held_out(patients) == numbers


@pytest.mark.real_data
@pytest.mark.skipif("SPCT_DATA_DIR" not in os.environ, reason="SPCT_DATA_DIR names the folder of the data sets")
@pytest.mark.parametrize(
    ("name", "spatial_dims", "crop_size"),
    [("acdc", 2, 128), ("promise12", 2, 128), ("chaos_spleen_mr", 2, 128), ("atrium", 3, [64, 64, 48])],
)
def test_real_data_are_planned_as_their_own_bundles_train_them(name, spatial_dims, crop_size):
    folder = Path(os.environ["SPCT_DATA_DIR"], name)
    cases = acdc_cases(folder) if name == "acdc" else folder_cases(folder)
    for case in cases[10:]:
        case.pop("label", None)
    found = {choice.key: choice.value for choice in choose(survey(cases), CPU)}
    assert (found["spatial_dims"], found["crop_size"]) == (spatial_dims, crop_size)
    assert found["largest_component"]
    assert "intensity" not in found


# The bundle


@pytest.mark.parametrize(
    ("shape", "spacing", "crop"),
    [((6, 48, 40), (5.0, 1.0, 1.0), 32), ((36, 34, 20), (1.0, 1.0, 1.0), [32, 32, 16])],
    ids=["sagittal", "volumes"],
)
def test_a_folder_becomes_a_bundle_that_trains_scores_and_predicts_as_its_page_says(tmp_path, shape, spacing, crop):
    made(tmp_path / "data", cases=12, labels=10, shape=shape, spacing=spacing, channels=2, values=(3, 7))
    made(tmp_path / "new_scans", cases=1, labels=0, shape=shape, spacing=spacing, channels=2)
    done = plan(tmp_path / "data", tmp_path / "liver", "--names", "liver,tumor")
    assert done.exit_code == 0, done.output
    split = read_datalist(tmp_path / "liver" / "datalist.json")
    assert [len(getattr(split, name)) for name in ("labeled", "unlabeled", "validation", "test")] == [7, 2, 1, 2]
    page = (tmp_path / "liver" / "docs" / "README.md").read_text()
    assert len(list((tmp_path / "liver" / "docs").glob("*.png"))) == 3
    short = {"epoch_length": 1, "max_epochs": 1, "num_workers": 0, "crop_size": crop, "max_pictures": 0}
    for command in page.split("```bash\n")[1].split("```")[0].splitlines():
        words = command.split()
        own = json.loads(Path(words[6]).read_text())
        more = [str(word) for key, value in short.items() if key in own for word in (f"--{key}", value)]
        run = forked([*words[1:], *more], tmp_path)
        assert run.returncode == 0, run.stderr
        assert "settings differ" not in run.stderr
    output = tmp_path / "liver" / "output"
    assert set(json.loads((output / "eval" / "summary.json").read_text())) >= {"liver", "tumor"}
    [mask] = (output / "predictions").glob("*.nii.gz")
    new = nib.load(tmp_path / "new_scans" / "imagesTr" / "scan0_0000.nii.gz")
    assert nib.load(mask).shape == new.shape
    np.testing.assert_allclose(nib.load(mask).affine, new.affine, atol=1e-4)


# What cannot be planned


def said(folder: Path, to: Path, *words: str) -> str:
    done = plan(folder, to, *words)
    assert done.exit_code == 2
    assert list(to.parent.glob(f"*{to.name}*")) == ([to] if to.is_file() else [])
    return done.stderr


def test_a_folder_that_cannot_be_planned_is_refused_and_nothing_is_written(tmp_path):
    to = tmp_path / "liver"
    (tmp_path / "empty").mkdir()
    assert "no image" in said(tmp_path / "empty", to)
    made(tmp_path / "images", labels=0)
    assert "there must be an image with a label to learn from, and there is none" in said(tmp_path / "images", to)
    write(tmp_path / "labels" / "a_gt.nii.gz", volume(0, (8, 40, 6))[1])
    assert "no image" in said(tmp_path / "labels", to)
    made(tmp_path / "background", values=())
    assert "labels must show a structure, got 0 alone in all 2" in said(tmp_path / "background", to)
    made(tmp_path / "fine")
    assert "one name for each value of the labels (1), got a, b" in said(tmp_path / "fine", to, "--names", "a,b")
    assert "must leave a patient to train on" in said(tmp_path / "fine", to, "--num_test", "2")
    to.write_text("mine")
    assert "exists" in said(tmp_path / "fine", to)


def test_labels_of_fractions_or_of_images_are_refused(tmp_path):
    made(tmp_path)
    label = tmp_path / "labelsTr" / "scan0.nii.gz"
    write(label, np.full((48, 40, 6), 0.5, np.float32))
    assert f"labels must hold whole numbers from 0, got 0.5 in {label}" in said(tmp_path, tmp_path / "liver")
    write(label, np.arange(48 * 40 * 6).reshape(48, 40, 6).astype(np.int16))
    assert "at most 100 values, got 11519: are they images?" in said(tmp_path, tmp_path / "liver")


def test_cases_that_cannot_be_read_are_left_out_and_named(tmp_path):
    made(tmp_path / "data", cases=5, labels=3)
    (tmp_path / "data" / "imagesTr" / "scan0_0000.nii.gz").write_bytes(b"no image")
    write(tmp_path / "data" / "labelsTr" / "scan1.nii.gz", np.ones((9, 9, 9), np.uint8))
    done = plan(tmp_path / "data", tmp_path / "liver")
    assert done.exit_code == 0, done.output
    assert "left out: " in done.stdout
    assert "image and label of scan1 must have the same shape" in done.stdout
    split = read_datalist(tmp_path / "liver" / "datalist.json")
    assert [case["case"] for case in split.labeled + split.unlabeled] == ["scan2", "scan3", "scan4"]


def test_a_picture_that_fails_leaves_no_half_of_a_bundle(tmp_path, monkeypatch):
    made(tmp_path / "data")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    assert "No space left" in said(tmp_path / "data", tmp_path / "liver")
