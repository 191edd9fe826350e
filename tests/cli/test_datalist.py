"""One command makes a datalist of a folder, or says why not."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from monai_spct.cli import app
from monai_spct.data import read_datalist

FILES = [f"p{n}/{t}{end}.nii" for n in range(8) for t in "ab" for end in ("", "_gt")]


@pytest.fixture
def folder(tmp_path) -> Path:
    """Eight patients with two labeled cases and an unlabeled one each; a ninth has an unlabeled case alone."""
    for name in (*FILES, *(f"p{n}/c.nii" for n in range(8)), "p9/d.nii"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).touch()
    return tmp_path / "data"


def datalist(folder: Path, to: Path, **options: object):
    given = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    return CliRunner().invoke(app, ["datalist", str(folder), "--to", str(to), *given])


def test_labels_are_kept_and_images_without_one_are_unlabeled(folder, tmp_path):
    said = datalist(folder, tmp_path / "my.json").stdout
    split = read_datalist(tmp_path / "my.json")
    assert [len(getattr(split, name)) for name in ("labeled", "unlabeled", "validation", "test")] == [12, 7, 0, 4]
    assert said.startswith(str(split))
    assert "left out: unlabeled images of patients for validation or test, 2\n" in said
    assert said.splitlines()[-1].endswith(f"train.json --datalist {tmp_path / 'my.json'}")
    # what lies below the list is named from there
    lists = json.loads((tmp_path / "my.json").read_text())
    assert all(case["image"].startswith("data/p") for cases in lists.values() for case in cases)


def test_nobody_is_on_two_sides(folder, tmp_path):
    datalist(folder, tmp_path / "my.json", labeled_patients=2, num_validation=2, num_test=1, seed=3)
    split = read_datalist(tmp_path / "my.json")  # which refuses such a patient
    patients = [{case["patient"] for case in part} for part in (split.labeled, split.validation, split.test)]
    assert list(map(len, patients)) == [2, 2, 1]
    assert len({case["patient"] for case in split.unlabeled}) == 2 + 3 + 1


def test_channels_are_counted_in_the_command_for_the_training(tmp_path):
    for name in ("a_t1.nii", "a_t2.nii", "a_gt.nii", "b_t1.nii", "b_t2.nii", "b_gt.nii"):
        (tmp_path / name).touch()
    said = datalist(tmp_path, tmp_path / "my.json", channels="_t1,_t2").stdout
    assert said.endswith(" --in_channels 2\n")
    assert "each image counts as a patient of its own" in said
    assert "plain supervised training" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_ratio": 1}, "`test_ratio` must be at least 0 and below 1"),
        ({"label": "_roi"}, "none of the 41 images in"),
    ],
    ids=["setting", "no label"],
)
def test_a_mistake_leaves_no_file(folder, tmp_path, options, message):
    done = datalist(folder, tmp_path / "my.json", **options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (tmp_path / "my.json").exists()


def test_no_file_is_replaced(folder, tmp_path):
    (tmp_path / "my.json").write_text("mine")
    done = datalist(folder, tmp_path / "my.json")
    assert done.exit_code == 2
    assert done.stderr.strip() == f"{tmp_path / 'my.json'} exists: give another name, or move it away."
    assert (tmp_path / "my.json").read_text() == "mine"
