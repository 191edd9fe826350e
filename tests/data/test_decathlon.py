import json
import os
from pathlib import Path

import pytest

from monai_spct.data import decathlon_cases


def dataset(folder: Path, names: list[str], *, tested: tuple[str, ...] = (), prefix: str = "./") -> Path:
    for kind in ("imagesTr", "labelsTr", "imagesTs"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / "imagesTr" / f"{name}.nii.gz").touch()
        (folder / "labelsTr" / f"{name}.nii.gz").touch()
    for name in tested:
        (folder / "imagesTs" / f"{name}.nii.gz").touch()
    listing(
        folder,
        training=[
            {"image": f"{prefix}imagesTr/{name}.nii.gz", "label": f"{prefix}labelsTr/{name}.nii.gz"} for name in names
        ],
        test=[f"{prefix}imagesTs/{name}.nii.gz" for name in tested],
    )
    return folder


def listing(folder: Path, **content: object) -> None:
    (folder / "dataset.json").write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("prefix", ["./", ""], ids=["as downloaded", "plain"])
def test_cases_are_those_of_the_list_in_the_order_of_their_names(tmp_path, monkeypatch, prefix):
    dataset(tmp_path / "data", ["spleen_9", "spleen_10"], tested=("spleen_7",), prefix=prefix)
    (tmp_path / "data" / "imagesTr" / "._spleen_9.nii.gz").touch()
    (tmp_path / "data" / "imagesTr" / "spleen_99.nii.gz").touch()
    monkeypatch.chdir(tmp_path)
    cases = decathlon_cases("data")
    assert [case["patient"] for case in cases] == ["spleen_10", "spleen_9"]
    assert cases[0] == {
        "patient": "spleen_10",
        "case": "spleen_10",
        "image": str(tmp_path / "data" / "imagesTr" / "spleen_10.nii.gz"),
        "label": str(tmp_path / "data" / "labelsTr" / "spleen_10.nii.gz"),
    }


def test_images_for_testing_come_without_a_label_if_asked_for(tmp_path):
    dataset(tmp_path, ["spleen_9"], tested=("spleen_7",))
    cases = decathlon_cases(tmp_path, with_test_images=True)
    assert [(case["case"], "label" in case) for case in cases] == [("spleen_7", False), ("spleen_9", True)]


@pytest.mark.parametrize("name", ["../secret.nii.gz", "/etc/hosts", "imagesTr/../../secret.nii.gz"])
def test_an_entry_that_leaves_the_folder_is_refused(tmp_path, name):
    folder = dataset(tmp_path / "data", ["a"])
    (tmp_path / "secret.nii.gz").touch()
    listing(folder, training=[{"image": name, "label": "./labelsTr/a.nii.gz"}])
    with pytest.raises(ValueError, match="files outside of its folder: ") as error:
        decathlon_cases(folder)
    assert name in str(error.value)


def test_all_missing_files_are_named_at_once(tmp_path):
    dataset(tmp_path, ["a", "b", "c"])
    gone = [tmp_path / "imagesTr" / "a.nii.gz", tmp_path / "labelsTr" / "c.nii.gz"]
    for path in gone:
        path.unlink()
    with pytest.raises(FileNotFoundError, match="files that do not exist") as error:
        decathlon_cases(tmp_path)
    assert str(error.value).splitlines()[1:] == [str(path) for path in gone]


def test_a_case_that_is_listed_twice_is_named(tmp_path):
    dataset(tmp_path, ["a", "b", "a"])
    with pytest.raises(ValueError, match="got twice: a"):
        decathlon_cases(tmp_path)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"training": 3}', '{"training": ["a"]}', '{"training": [{"image": "a"}]}', '{"training": {}}'],
)
def test_a_list_that_cannot_be_read_is_named(tmp_path, content):
    (tmp_path / "dataset.json").write_text(content)
    with pytest.raises(ValueError, match=r"dataset\.json .*`training`"):
        decathlon_cases(tmp_path)


@pytest.mark.parametrize("there", [True, False], ids=["empty", "missing"])
def test_a_folder_without_a_list_is_explained(tmp_path, there):
    folder = tmp_path / "data"
    if there:
        folder.mkdir()
    with pytest.raises(
        FileNotFoundError, match=r"dataset\.json does not exist" if there else "no such folder"
    ) as error:
        decathlon_cases(folder)
    for part in (str(folder), "imagesTr", "medicaldecathlon.com", "phantom.json"):
        assert part in str(error.value)


@pytest.mark.real_data
@pytest.mark.skipif("SPCT_DATA_DIR" not in os.environ, reason="SPCT_DATA_DIR does not name the data")
def test_a_public_data_set_in_this_layout_is_read():
    folder = Path(os.environ["SPCT_DATA_DIR"], "chaos_spleen_mr")
    if not folder.is_dir():
        pytest.skip("no chaos_spleen_mr folder")
    cases = decathlon_cases(folder)
    assert len(cases) == 12
    assert all("label" in case for case in cases)
