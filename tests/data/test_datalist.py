"""A datalist is read as it is meant, and whatever is wrong with it is said at once."""

import gzip
import json
import os
import shutil
from pathlib import Path

import pytest

from monai_spct.data import read_datalist, read_or_split, write_datalist


def a(image, label=None, **more):
    return {"image": image, **({} if label is None else {"label": label}), **more}


GOOD = {
    "labeled": [a("p2/image.nii", "p2/label.nii", patient="p2"), a("p1/image.nii", "p1/label.nii", patient=1)],
    "unlabeled": [a("p1/late.nii", patient=1), a("c.nii", "nowhere.nii")],
    "validation": [a("d.nii", "d_gt.nii")],
    "test": [a("e.nii", "e_gt.nii", case="last")],
}


def written(folder: Path, lists, *, touch: bool = True) -> Path:
    for entry in (entry for entries in lists.values() for entry in entries) if touch else ():
        images = entry["image"] if isinstance(entry["image"], list) else [entry["image"]]
        for name in (*images, *([entry["label"]] if "label" in entry else [])):
            if name != "nowhere.nii":
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).touch()
    path = folder / "my.json"
    path.write_text(json.dumps(lists), encoding="utf-8")
    return path


def packed(source: Path, target: Path) -> None:
    target.write_bytes(gzip.compress(source.read_bytes()))


def test_lists_patients_names_and_paths_are_what_the_file_says(tmp_path, monkeypatch):
    written(tmp_path / "lists", GOOD)
    monkeypatch.chdir(tmp_path)
    split = read_datalist("lists/my.json")
    assert [case["image"] for case in split.labeled] == [
        str(tmp_path / "lists" / "p1" / "image.nii"),
        str(tmp_path / "lists" / "p2" / "image.nii"),
    ]
    assert [(case["patient"], case["case"]) for case in split.labeled] == [("1", "p1/image"), ("p2", "p2/image")]
    assert [(case["patient"], case["case"]) for case in split.unlabeled] == [("1", "p1/late"), ("c", "c")]
    assert [(case["patient"], case["case"]) for case in split.test] == [("last", "last")]
    assert split.labeled_share == pytest.approx(2 / 3)  # who has both kinds of cases counts once
    assert split.datalist == str(tmp_path / "lists" / "my.json")
    assert all("label" not in case for case in split.unlabeled)  # so that it cannot leak


def test_for_prediction_no_label_is_asked_for_or_kept(tmp_path):
    split = read_datalist(written(tmp_path, {"test": [a("a.nii"), a("b.nii", "nowhere.nii")]}), with_labels=False)
    assert [set(case) for case in split.test] == [{"image", "case", "patient"}] * 2


def test_channels_stay_in_their_order(tmp_path):
    path = written(tmp_path, {"labeled": [a(["t2.nii", "t1.nii"], "gt.nii")]})
    [case] = read_datalist(path).labeled
    assert case["image"] == [str(tmp_path / "t2.nii"), str(tmp_path / "t1.nii")]
    assert case["case"] == "t2"


def test_a_file_of_a_windows_editor_is_read(tmp_path):
    path = written(tmp_path, {"test": [a("é.nii", "gt.nii")]})
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"test": [a("é.nii", "gt.nii")]}, ensure_ascii=False).encode())
    assert [case["case"] for case in read_datalist(path).test] == ["é"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON: "),
        ("[]", "must hold an object of lists"),
        ('{"labeled": {}}', "must hold an object of lists"),
        ('{"test": [], "test": []}', "test is there twice"),
        ("[" * 100_000, "is not JSON: "),
    ],
    ids=["cut", "list", "no list", "twice", "nested without end"],
)
def test_a_file_of_another_kind_is_refused(tmp_path, text, message):
    (tmp_path / "my.json").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_datalist(tmp_path / "my.json")
    assert str(tmp_path / "my.json") in str(error.value)


@pytest.mark.parametrize(
    ("lists", "messages"),
    [
        ({"labelled": [], "training": []}, ["no list `labelled`. Did you mean `labeled`?", "`training`"]),
        ({"labeled": ["a.nii"]}, ["case 1 of `labeled` must be an object such as", "got 'a.nii'"]),
        (
            {"labeled": [a("a.nii"), {"label": "b.nii"}], "test": [a("c.nii", ["d.nii"])]},
            [
                "case 1 of `labeled` must have a `label`, a file, got None beside 'a.nii'",
                "case 2 of `labeled` must have an `image`, a file or a list of files, got None",
                "case 1 of `test` must have a `label`, a file, got ['d.nii']",
            ],
        ),
        ({"unlabeled": [a([])]}, ["got []"]),
        ({"unlabeled": [a("a.nii", patients="p")]}, ["unknown entry `patients`. Did you mean `patient`?"]),
        ({"unlabeled": [a("a.nii", patient=None)]}, ["`patient` of case 1 of `unlabeled` must be a name, got None"]),
    ],
    ids=["list", "string", "missing", "no file", "unknown", "patient"],
)
def test_entries_that_say_too_little_are_all_named(tmp_path, lists, messages):
    with pytest.raises(ValueError, match="cannot be used") as error:
        read_datalist(written(tmp_path, lists, touch=False))
    for message in messages:
        assert message in str(error.value)


@pytest.mark.parametrize(
    ("lists", "messages"),
    [
        (
            {
                "labeled": [a("a.nii", "g.nii"), a("b.nii", "h.nii")],
                "unlabeled": [a("./a.nii")],
                "test": [a("x/../b.nii", "g.nii")],
            },
            [
                "a.nii is there 2 times, in `labeled` and `unlabeled`",
                "b.nii is there 2 times, in `labeled` and `test`",
                "patient b must",
            ],
        ),
        ({"unlabeled": [a(["a.nii", "a.nii"])]}, ["a.nii is there 2 times, in `unlabeled` and `unlabeled`"]),
        (
            {
                "labeled": [a("a.nii", "g.nii", patient="p"), a("b.nii", "g.nii", patient="q")],
                "validation": [a("c.nii", "g.nii", patient="q")],
                "test": [a("d.nii", "g.nii", patient="p")],
            },
            [
                "patient p must be on one side, got `labeled` and `test`",
                "patient q must be on one side, got `labeled` and `validation`",
            ],
        ),
        (
            {"unlabeled": [a("a.nii", patient="p")], "test": [a("b.nii", "g.nii", patient="p")]},
            ["patient p must be on one side, got `unlabeled` and `test`"],
        ),
        (
            {"unlabeled": [a("a.nii"), a("b.nii"), a(["c.nii", "d.nii"])]},
            ["same number of files, 1 as most of them, got others for c (2)"],
        ),
        ({"unlabeled": [a("a.nii", case="x"), a("b.nii", case="x")]}, ["one name, got x 2 times"]),
        ({"unlabeled": [a("a.nii", case="../x"), a("b.nii", case="/x")]}, ["got '../x'", "got '/x'"]),
    ],
    ids=["image", "channel", "patient", "unlabeled patient", "channels", "name", "place"],
)
def test_what_cannot_be_true_of_the_lists_is_all_named(tmp_path, lists, messages):
    with pytest.raises(ValueError, match="cannot be used") as error:
        read_datalist(written(tmp_path, lists))
    for message in messages:
        assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1 + len(messages)


@pytest.mark.parametrize("name", ["../secret.nii", "x/../../secret.nii"])
@pytest.mark.parametrize("key", ["image", "channel", "label"])
def test_a_relative_path_cannot_leave_the_folder_of_the_list(tmp_path, name, key):
    (tmp_path / "secret.nii").touch()
    (tmp_path / "data" / "x").mkdir(parents=True)
    case = {"image": a(name), "channel": a(["a.nii", name]), "label": a("a.nii", name)}[key]
    lists = {"labeled" if key == "label" else "unlabeled": [case]}
    with pytest.raises(
        ValueError, match=r"case 1 of .* must be below the folder of the list, or have its abs"
    ) as error:
        read_datalist(written(tmp_path / "data", lists, touch=False))
    assert repr(name) in str(error.value)


def test_an_absolute_path_and_a_link_are_the_hand_of_who_made_them(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    for name in "ab":
        (tmp_path / "elsewhere" / f"{name}.nii").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    lists = {"unlabeled": [a(str(tmp_path / "elsewhere" / "a.nii")), a("link/b.nii")]}
    assert [case["case"] for case in read_datalist(written(tmp_path / "data", lists, touch=False)).unlabeled] == [
        "a",
        "b",
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x" * 300, "names files that do not exist"),
        ("~nobody_of_this_name/a.nii", "names files that do not exist"),
        ("a\0b.nii", "`case` must be the name of a file"),
        ("\ud800.nii", "`case` must be the name of a file"),
    ],
    ids=["long", "unknown home", "null", "surrogate"],
)
def test_a_name_that_no_file_has_is_refused_with_that_of_the_list(tmp_path, name, message):
    with pytest.raises((FileNotFoundError, ValueError), match=rf"my\.json(.|\n)*{message}"):
        read_datalist(written(tmp_path, {"unlabeled": [a(name)]}, touch=False))


@pytest.mark.parametrize("copy", [os.link, shutil.copy, packed], ids=["link", "copy", "packed"])
@pytest.mark.parametrize(("first", "second"), [("validation", "test"), ("unlabeled", "test")])
def test_an_image_with_two_names_cannot_be_on_two_sides(tmp_path, copy, first, second):
    lists = {first: [a("a.nii", "g.nii"), a("b.nii", "g.nii")], second: [a("c.nii.gz", "g.nii")]}
    path = written(tmp_path, lists)
    for name in "ab":
        (tmp_path / f"{name}.nii").write_text(f"voxels of {name}")
    (tmp_path / "c.nii.gz").unlink()
    copy(tmp_path / "a.nii", tmp_path / "c.nii.gz")
    with pytest.raises(ValueError, match=r"my\.json cannot be used") as error:
        read_datalist(path)
    assert str(error.value).splitlines()[1:] == [
        f"an image must be on one side, got copies: {tmp_path / 'a.nii'} (`{first}`) and {tmp_path / 'c.nii.gz'} "
        f"(`{second}`)."
    ]


def test_blanks_around_a_patient_make_no_other_one(tmp_path):
    lists = {"labeled": [a("a.nii", "g.nii", patient="p3")], "test": [a("b.nii", "g.nii", patient="p3 ")]}
    with pytest.raises(ValueError, match="patient p3 must be on one side, got `labeled` and `test`"):
        read_datalist(written(tmp_path, lists))


def test_files_that_do_not_exist_are_all_named_with_their_list(tmp_path):
    path = written(tmp_path, GOOD)
    for name in ("p1/label.nii", "c.nii", "e.nii"):
        (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match="names files that do not exist") as error:
        read_datalist(path)
    assert str(error.value).splitlines()[1:] == [
        f"{tmp_path / 'p1' / 'label.nii'} (`label` in `labeled`)",
        f"{tmp_path / 'c.nii'} (`image` in `unlabeled`)",
        f"{tmp_path / 'e.nii'} (`image` in `test`)",
    ]


def test_an_empty_list_names_the_file_when_it_is_required(tmp_path):
    split = read_datalist(written(tmp_path, {"labeled": [a("a.nii", "g.nii")]}))
    with pytest.raises(ValueError, match=r"at least one test patient, got 0: the list `test` of .*my\.json decides"):
        split.require("test")


def test_what_is_written_is_read_again(tmp_path):
    split = read_datalist(written(tmp_path, GOOD))
    (tmp_path / "elsewhere").mkdir()
    for path in (tmp_path / "copy.json", tmp_path / "elsewhere" / "copy.json"):
        write_datalist(split, path)
        again = read_datalist(path)
        assert all(getattr(again, name) == getattr(split, name) for name in GOOD)
    # what lies below is named from there, all else by its whole path
    images = [
        json.loads((tmp_path / name).read_text())["test"][0]["image"] for name in ("copy.json", "elsewhere/copy.json")
    ]
    assert images == ["e.nii", str(tmp_path / "e.nii")]


def test_a_list_that_exists_stays(tmp_path):
    path = written(tmp_path, GOOD)
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match=r"my\.json exists"):
        write_datalist(read_datalist(path), path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(("given", "got"), [({}, "neither"), ({"cases": [], "datalist": "my.json"}, "both")])
def test_cases_and_a_datalist_exclude_each_other(given, got):
    with pytest.raises(ValueError, match=f"either `cases` or `datalist`, got {got}"):
        read_or_split(**given)
