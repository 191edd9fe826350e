import os
from pathlib import Path

import pytest

from monai_spct.data import promise12_cases, write_promise12_phantom


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_promise12_phantom(tmp_path / "promise12", patients=3, size=(64, 64), slices=(4, 4))


def test_cases_are_listed_with_absolute_paths(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    cases = promise12_cases("promise12")
    assert [case["patient"] for case in cases] == ["Case00", "Case01", "Case02"]
    assert cases[1] == {
        "patient": "Case01",
        "case": "Case01",
        "image": str(folder / "Case01.mhd"),
        "label": str(folder / "Case01_segmentation.mhd"),
    }


def test_the_parts_of_the_download_are_one_data_set(folder):
    expected = [case["case"] for case in promise12_cases(folder)]
    for number in range(3):
        part = folder / f"TrainingData_Part{3 - number}"
        part.mkdir()
        for path in folder.glob(f"Case{number:02d}*"):
            path.rename(part / path.name)
    assert [case["case"] for case in promise12_cases(folder)] == expected


def test_a_case_of_the_challenge_has_no_label(folder):
    for path in folder.glob("Case02_segmentation.*"):
        path.unlink()
    assert [("label" in case) for case in promise12_cases(folder)] == [True, True, False]


def test_hidden_and_stray_files_are_passed_over(folder):
    before = promise12_cases(folder)
    for name in ("._Case00.mhd", "Case.mhd", "Case00_prediction.mhd", "notes.txt", "__MACOSX/._Case01.mhd"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    (folder / ".trash").mkdir()
    (folder / ".trash" / "Case09.mhd").touch()
    assert promise12_cases(folder) == before


@pytest.mark.parametrize(
    ("make", "why"),
    [(lambda _: None, "there is no such folder"), (lambda path: path.mkdir(), "it holds none"),
     (lambda path: path.touch(), "there is no such folder")],
    ids=["missing", "empty", "a-file"],
)  # fmt: skip
def test_a_folder_without_cases_is_explained(tmp_path, monkeypatch, make, why):
    make(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=why) as error:
        promise12_cases("data")
    for part in (str(tmp_path / "data"), "CaseNN_segmentation.mhd", "promise12.grand-challenge.org", "phantom.json"):
        assert part in str(error.value)


def test_all_that_is_wrong_is_said_at_once(folder):
    (folder / "Case00.raw").unlink()
    data = folder / "Case01_segmentation.raw"
    data.write_bytes(data.read_bytes()[:100])
    (folder / "Case02.mhd").unlink()
    (folder / "again").mkdir()
    for name in ("Case01.mhd", "Case01.raw"):
        (folder / "again" / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(ValueError, match=r"\w") as error:
        promise12_cases(folder)
    lines = str(error.value).splitlines()
    assert len(lines) == 4
    for part in (
        f"{folder / 'Case00.mhd'} has its voxels in Case00.raw, which does not exist",
        f"{data} is truncated: it has 100 bytes, and Case01_segmentation.mhd tells of 16384.",
        f"label without its image: {folder / 'Case02_segmentation.mhd'}.",
        f"Case01 is there twice: {folder / 'Case01.mhd'} and {folder / 'again' / 'Case01.mhd'}",
    ):
        assert any(line.startswith(part) for line in lines), (part, lines)


@pytest.mark.real_data
@pytest.mark.skipif("SPCT_DATA_DIR" not in os.environ, reason="SPCT_DATA_DIR does not name the data")
def test_the_public_training_set_has_50_labeled_cases():
    folder = Path(os.environ["SPCT_DATA_DIR"], "promise12")
    if not folder.is_dir():
        pytest.skip("no promise12 folder")
    cases = promise12_cases(folder)
    assert len(cases) == 50
    assert all("label" in case for case in cases)
