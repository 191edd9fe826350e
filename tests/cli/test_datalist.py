"""One command makes a datalist of a folder, or says why not."""

import json
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from typer.testing import CliRunner

from monai_spct.cli import app
from monai_spct.data import read_datalist


def written(folder: Path, *names: str, values: tuple[int, ...] = (0, 1)) -> Path:
    """Images that all differ, and labels."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        voxels = np.full((3, 3, 2), len(list(folder.rglob("*.nii"))), np.int16)
        if "_gt" in name:
            voxels = np.resize(values, (3, 3, 2)).astype(np.uint8)
        nib.save(nib.Nifti1Image(voxels, np.eye(4)), path)
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    """Eight patients with two labeled cases and an unlabeled one each; a ninth has an unlabeled case alone."""
    cases = [f"p{n}/{t}{end}.nii" for n in range(8) for t in "ab" for end in ("", "_gt")]
    return written(tmp_path / "data", *cases, *(f"p{n}/c.nii" for n in range(8)), "p9/d.nii")


def datalist(folder: Path, to: Path, **options: object):
    given = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    return CliRunner().invoke(app, ["datalist", str(folder), "--to", str(to), *given])


def test_labels_are_kept_and_images_without_one_are_unlabeled(folder, tmp_path):
    said = datalist(folder, tmp_path / "my.json").stdout
    split = read_datalist(tmp_path / "my.json")
    assert [len(getattr(split, name)) for name in ("labeled", "unlabeled", "validation", "test")] == [12, 7, 0, 4]
    assert said.startswith(str(split))
    assert "left out: unlabeled images of patients for validation or test, or copies of theirs, 2\n" in said
    # what lies below the list is named from there
    lists = json.loads((tmp_path / "my.json").read_text())
    assert all(case["image"].startswith("data/p") for cases in lists.values() for case in cases)


def test_nobody_is_on_two_sides(folder, tmp_path):
    datalist(folder, tmp_path / "my.json", labeled_patients=2, num_validation=2, num_test=1, seed=3)
    split = read_datalist(tmp_path / "my.json")  # which refuses such a patient
    patients = [{case["patient"] for case in part} for part in (split.labeled, split.validation, split.test)]
    assert list(map(len, patients)) == [2, 2, 1]
    assert len({case["patient"] for case in split.unlabeled}) == 2 + 3 + 1


def test_an_unlabeled_copy_of_a_test_image_is_left_out(folder, tmp_path):
    assert datalist(folder, tmp_path / "first.json").exit_code == 0
    shutil.copy(read_datalist(tmp_path / "first.json").test[0]["image"], folder / "p9" / "d.nii")
    assert "copies of theirs, 3\n" in datalist(folder, tmp_path / "my.json").stdout
    assert all(case["patient"] != "p9" for case in read_datalist(tmp_path / "my.json").unlabeled)


@pytest.mark.parametrize(
    ("values", "named", "note"),
    [
        ((0, 1), """ --structures "{'1': '1'}\"""", None),
        ((0, 1, 2), """ --structures "{'1': '1', '2': '2'}\"""", None),
        ((0, 1, 2, 4), """ --structures "{'1': '1', '2': '2', '3': '4'}" --label_values "[1, 2, 4]\"""", None),
        ((0,), "", "labels hold background alone"),
    ],
)
def test_the_command_for_the_training_names_structures_and_channels(tmp_path, values, named, note):
    files = [f"{name}_{end}.nii" for name in "ab" for end in ("t1", "t2", "gt")]
    said = datalist(written(tmp_path / "data", *files, values=values), tmp_path / "my.json", channels="_t1,_t2").stdout
    assert said.splitlines()[-1] == (
        "python -m monai.bundle run training --config_file bundles/acdc/configs/train.json "
        f"--datalist {tmp_path / 'my.json'}{named} --in_channels 2"
    )
    assert ("labels hold" in said) is (note is not None)
    assert note is None or note in said
    assert "each image counts as a patient of its own" in said
    assert "plain supervised training" in said


def test_a_folder_without_labels_becomes_a_list_to_predict_on(tmp_path):
    said = datalist(written(tmp_path / "data", "a.nii", "b.nii"), tmp_path / "my.json").stdout
    split = read_datalist(tmp_path / "my.json", with_labels=False)
    assert [case["case"] for case in split.unlabeled] == ["a", "b"]
    assert "no image has a label; `--label` says how the names of labels end" in said
    assert said.splitlines()[-1] == (
        "python -m monai.bundle run inferring --config_file bundles/acdc/configs/inference.json "
        f"--predicted unlabeled --datalist {tmp_path / 'my.json'}"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_ratio": 1}, "`test_ratio` must be at least 0 and below 1"),
        ({"label": "_roi"}, "has a label that ends in _roi"),
        ({}, "a_gt.nii"),
    ],
    ids=["setting", "no label", "damaged label"],
)
def test_a_mistake_leaves_no_file(folder, tmp_path, options, message):
    if not options:
        (folder / "p3" / "a_gt.nii").write_bytes(b"damaged")
    done = datalist(folder, tmp_path / "my.json", **options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (tmp_path / "my.json").exists()
