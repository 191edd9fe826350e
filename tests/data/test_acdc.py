import os
import re
from pathlib import Path

import pytest

from monai_spct.data.acdc import acdc_cases


def touch(patient: Path, *names: str) -> None:
    patient.mkdir(parents=True, exist_ok=True)
    for name in names:
        (patient / name).touch()


def official(folder: Path, patients: dict[int, tuple[int, int]], *, info: bool = True) -> None:
    for number, (ed, es) in patients.items():
        name = f"patient{number:03d}"
        patient = folder / "training" / name
        touch(patient, f"{name}_4d.nii.gz")
        for frame in (ed, es):
            touch(patient, f"{name}_frame{frame:02d}.nii.gz", f"{name}_frame{frame:02d}_gt.nii.gz")
        if info:
            text = f"ED: {ed}\nES: {es}\nGroup: DCM\nHeight: 184.0\nNbFrame: 30\nWeight: 95.0"
            (patient / "Info.cfg").write_text(text, encoding="utf-8")


def test_p06_the_official_layout_gives_two_cases_for_each_patient(tmp_path):
    official(tmp_path, {1: (1, 12), 2: (1, 9)})
    training = tmp_path / "training"
    cases = acdc_cases(str(tmp_path))
    assert [case["case"] for case in cases] == [
        "patient001_frame01",
        "patient001_frame12",
        "patient002_frame01",
        "patient002_frame09",
    ]
    assert cases[1] == {
        "patient": "patient001",
        "frame": "12",
        "case": "patient001_frame12",
        "phase": "ES",
        "image": str(training / "patient001" / "patient001_frame12.nii.gz"),
        "label": str(training / "patient001" / "patient001_frame12_gt.nii.gz"),
    }


def test_p06_the_phase_is_read_and_not_taken_from_the_order_of_frames(tmp_path):
    official(tmp_path, {90: (11, 4)})
    assert {case["frame"]: case["phase"] for case in acdc_cases(tmp_path)} == {"11": "ED", "04": "ES"}


def test_without_info_there_is_no_phase(tmp_path):
    official(tmp_path, {90: (11, 4)}, info=False)
    assert all("phase" not in case for case in acdc_cases(tmp_path))


@pytest.mark.parametrize(
    "info",
    [b"", b"\xff\xfe\x00", b"ED: one\nES:", b"ED: 1.5\nES: -4", b"NEED: 1"],
    ids=["empty", "binary", "words", "numbers", "another-key"],
)
def test_an_unreadable_info_tells_no_phase(tmp_path, info):
    official(tmp_path, {1: (1, 12)})
    (tmp_path / "training" / "patient001" / "Info.cfg").write_bytes(info)
    assert all("phase" not in case for case in acdc_cases(tmp_path))


@pytest.mark.parametrize(
    ("info", "phases"),
    [
        (b"ED: 1\r\nES: 12\r\nGroup: DCM\r\n", ["ED", "ES"]),
        (b"\xef\xbb\xbfED: 1\nES: 12\n", ["ED", "ES"]),
        (b"Group: DCM\n  ES :12 \n\n\tED:  01", ["ED", "ES"]),
        (b"ED: 1\nGroup: DCM\n", ["ED", None]),
        (b"ED: 1\nES: 13\n", ["ED", None]),
        (b"ES: 1\nED: 12\n", ["ES", "ED"]),
    ],
    ids=["Windows lines", "byte order mark", "other blanks and order", "no ES", "ES of another frame", "ES first"],
)
def test_p06_each_frame_has_the_phase_that_info_tells_and_no_other(tmp_path, info, phases):
    official(tmp_path, {1: (1, 12)})
    (tmp_path / "training" / "patient001" / "Info.cfg").write_bytes(info)
    assert [case.get("phase") for case in acdc_cases(tmp_path)] == phases


@pytest.mark.parametrize("inside", [".", "training"], ids=["above-training", "training-itself"])
def test_the_folder_may_hold_training_or_the_patients(tmp_path, inside):
    official(tmp_path, {1: (1, 12)})
    assert acdc_cases(tmp_path / inside) == acdc_cases(tmp_path)


def test_patients_beside_an_empty_training_folder_are_found(tmp_path):
    (tmp_path / "training").mkdir()
    touch(tmp_path / "patient007", "patient007_frame01.nii.gz")
    assert [case["case"] for case in acdc_cases(tmp_path)] == ["patient007_frame01"]


def test_hidden_and_stray_files_are_passed_over(tmp_path):
    official(tmp_path, {1: (1, 12)})
    before = acdc_cases(tmp_path)
    training = tmp_path / "training"
    touch(
        training / "patient001",
        "._patient001_frame01.nii.gz",
        "._patient001_frame07_gt.nii.gz",
        ".DS_Store",
        "patient001_frame05.nii.gz.part",
        "patient001_frame05_pred.nii.gz",
        "patient002_frame01.nii.gz",
        "patient001_4d.nii",
        "notes.txt",
    )
    (training / "patient001" / "patient001_frame20.nii.gz").mkdir()
    touch(training, "patient005", "._patient001", "MANDATORY_CITATION.md")
    touch(training / "patient006_old", "patient006_frame01.nii.gz")
    (training / "patient008").mkdir()
    assert acdc_cases(tmp_path) == before


def test_plain_nifti_is_read(tmp_path):
    touch(tmp_path / "patient003", "patient003_frame01.nii", "patient003_frame01_gt.nii")
    [case] = acdc_cases(tmp_path)
    assert (Path(case["image"]).name, Path(case["label"]).name) == (
        "patient003_frame01.nii",
        "patient003_frame01_gt.nii",
    )


def test_a_frame_that_lies_there_both_ways_is_listed_once(tmp_path):
    touch(tmp_path / "patient003", "patient003_frame01.nii", "patient003_frame01.nii.gz", "patient003_frame01_gt.nii")
    [case] = acdc_cases(tmp_path)
    assert case["image"].endswith(".nii.gz")
    assert case["label"].endswith("_gt.nii")


def test_a_case_without_truth_has_no_label(tmp_path):
    touch(tmp_path / "patient101", "patient101_frame01.nii.gz")
    [case] = acdc_cases(tmp_path)
    assert "label" not in case


def test_any_number_of_frames_is_listed_in_order(tmp_path):
    touch(tmp_path / "patient001", *(f"patient001_frame{frame:02d}.nii.gz" for frame in (9, 1, 30)))
    assert [case["frame"] for case in acdc_cases(tmp_path)] == ["01", "09", "30"]


def test_p11_the_list_does_not_depend_on_the_order_of_the_directory(tmp_path, monkeypatch):
    official(tmp_path, {number: (1, 10 + number) for number in (3, 1, 2)})
    expected = acdc_cases(tmp_path)
    iterdir = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda self: sorted(iterdir(self), reverse=True))
    assert acdc_cases(tmp_path) == expected
    assert [case["case"] for case in expected] == sorted(case["case"] for case in expected)


def test_paths_are_absolute(tmp_path, monkeypatch):
    official(tmp_path, {1: (1, 12)})
    monkeypatch.chdir(tmp_path)
    assert acdc_cases(".") == acdc_cases("training") == acdc_cases(tmp_path)
    assert all(Path(case[name]).is_absolute() for case in acdc_cases(".") for name in ("image", "label"))


def test_the_home_folder_is_understood(tmp_path, monkeypatch):
    official(tmp_path, {1: (1, 12)})
    monkeypatch.setenv("HOME", str(tmp_path))
    assert acdc_cases("~") == acdc_cases(tmp_path)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda _: None, "there is no such folder"),
        (lambda folder: folder.mkdir(), "it holds no patients"),
        (lambda folder: (folder / "training").mkdir(parents=True), "it holds no patients"),
        (lambda folder: touch(folder / "patient001", "patient001_4d.nii.gz"), "no ACDC frames"),
        (lambda folder: folder.touch(), "there is no such folder"),
    ],
    ids=["missing", "empty", "empty-training", "cine-only", "a-file"],
)
def test_a_folder_without_frames_is_explained(tmp_path, monkeypatch, make, why):
    make(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=why) as error:
        acdc_cases("data")
    message = str(error.value)
    assert str(tmp_path / "data") in message
    assert "training/patientNNN/patientNNN_frameFF.nii.gz" in message
    assert "https://www.creatis.insa-lyon.fr/Challenge/acdc/" in message
    assert "CC BY-NC-SA" in message
    assert (
        "python -m monai.bundle run training --config_file "
        "\"['bundles/acdc/configs/train.json','bundles/acdc/configs/phantom.json']\"" in message
    )


def test_a_label_without_its_image_is_named(tmp_path):
    official(tmp_path, {1: (1, 12)})
    orphan = tmp_path / "training" / "patient001" / "patient001_frame05_gt.nii.gz"
    orphan.touch()
    with pytest.raises(ValueError, match=re.escape(str(orphan))):
        acdc_cases(tmp_path)


@pytest.mark.real_data
@pytest.mark.skipif("SPCT_DATA_DIR" not in os.environ, reason="SPCT_DATA_DIR does not name the data")
def test_the_public_training_set_has_two_labeled_frames_of_each_of_100_patients():
    cases = acdc_cases(Path(os.environ["SPCT_DATA_DIR"], "acdc"))
    assert len(cases) == 200
    assert len({case["patient"] for case in cases}) == 100
    assert all("label" in case for case in cases)
