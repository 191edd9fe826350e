"""One command makes a datalist of a folder, or says why not."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from monai_spct.data import read_datalist

FILES = [f"p{n}/{t}{end}.nii" for n in range(8) for t in "ab" for end in ("", "_gt")]


@pytest.fixture
def folder(tmp_path) -> Path:
    """Eight patients with two labeled cases each; one of them and another one have unlabeled cases."""
    for name in (*FILES, *(f"p{n}/c.nii" for n in range(8)), "p9/d.nii"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).touch()
    return tmp_path / "data"


def test_labels_are_kept_and_images_without_one_are_unlabeled(folder, tmp_path, capsys):
    datalist(str(folder), to=str(tmp_path / "my.json"))
    split = read_datalist(tmp_path / "my.json")
    assert [len(getattr(split, name)) for name in ("labeled", "unlabeled", "validation", "test")] == [12, 7, 0, 4]
    said = capsys.readouterr().out
    assert said.startswith(str(split))
    assert "left out: unlabeled images of patients for validation or test, 2\n" in said
    assert said.splitlines()[-1].endswith(f"train.json --datalist {tmp_path / 'my.json'}")


def test_nobody_is_on_two_sides(folder, tmp_path):
    datalist(str(folder), to=str(tmp_path / "my.json"), labeled_patients=2, num_validation=2, num_test=1, seed=3)
    split = read_datalist(tmp_path / "my.json")  # which refuses such a patient
    assert [len({case["patient"] for case in part}) for part in (split.labeled, split.validation, split.test)] == [
        2,
        2,
        1,
    ]
    assert len({case["patient"] for case in split.unlabeled}) == 2 + 3 + 1


def test_what_lies_below_the_list_is_named_from_there(folder, tmp_path):
    datalist(str(folder), to=str(tmp_path / "my.json"))
    lists = json.loads((tmp_path / "my.json").read_text())
    assert all(case["image"].startswith("data/p") for cases in lists.values() for case in cases)


def test_channels_come_as_fire_gives_them(tmp_path, capsys):
    for name in ("a_t1.nii", "a_t2.nii", "a_gt.nii", "b_t1.nii", "b_t2.nii", "b_gt.nii"):
        (tmp_path / name).touch()
    for number, given in enumerate(("_t1,_t2", ("_t1", "_t2"))):
        datalist(str(tmp_path), to=str(tmp_path / f"{number}.json"), channels=given)
        said = capsys.readouterr().out
        assert said.endswith(" --in_channels 2\n")
        assert "each image counts as a patient of its own" in said
        assert "plain supervised training" in said


@pytest.mark.parametrize(
    ("more", "options", "message"),
    [
        ((), {"test_ratio": 1}, "`test_ratio` must be at least 0 and below 1"),
        ((), {"label": "_roi"}, "none of the 41 images in .* has a label; `--label` says how"),
        (("other",), {}, "one folder at a time: what is 'other'"),
        ((), {"label_ratio": 1}, "no option `--label_ratio`. Did you mean `--labeled_ratio`"),
    ],
    ids=["setting", "no label", "two folders", "mistyped"],
)
def test_a_mistake_leaves_no_file(folder, tmp_path, capsys, more, options, message):
    with pytest.raises(SystemExit):
        datalist(str(folder), *more, to=str(tmp_path / "my.json"), **options)
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "my.json").exists()


def test_it_is_a_command_that_replaces_no_file(folder, tmp_path):
    (tmp_path / "my.json").write_text("mine")
    words = [sys.executable, "-m", "monai_spct.data", "datalist", str(folder), "--to", "my.json"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=240)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1] == f"{tmp_path / 'my.json'} exists: give another name, or move it away."
    assert (tmp_path / "my.json").read_text() == "mine"
