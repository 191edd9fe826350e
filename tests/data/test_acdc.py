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


def test_the_official_layout_gives_two_cases_for_each_patient(tmp_path):
    official(tmp_path, {1: (1, 12), 2: (1, 9)})
    training = tmp_path / "training"
    cases = acdc_cases(str(tmp_path))
    assert [f"{case['patient'][-1]} {case['frame']}" for case in cases] == ["1 01", "1 12", "2 01", "2 09"]
    assert cases[1] == {
        "patient": "patient001",
        "frame": "12",
        "case": "patient001_frame12",
        "phase": "ES",
        "image": str(training / "patient001" / "patient001_frame12.nii.gz"),
        "label": str(training / "patient001" / "patient001_frame12_gt.nii.gz"),
    }


@pytest.mark.parametrize(
    ("info", "phases"),
    [
        (b"ED: 1\r\nES: 12\r\nGroup: DCM\r\n", ["ED", "ES"]),
        (b"\xef\xbb\xbfED: 1\nES: 12\n", ["ED", "ES"]),
        (b"Group: DCM\n  ES :12 \n\n\tED:  01", ["ED", "ES"]),
        (b"ED: 1\nGroup: DCM\n", ["ED", None]),
        (b"ED: 1\nES: 13\n", ["ED", None]),
        (b"ES: 1\nED: 12\n", ["ES", "ED"]),
        (None, [None, None]),
        (b"\xff\xfe\x00", [None, None]),
        (b"ED: one\nES: -4\nNEED: 1", [None, None]),
        (b"ED:\n1\nES: 12\n", [None, "ES"]),
    ],
    ids=["Windows lines", "byte order mark", "other blanks and order", "no ES", "ES of another frame", "ES first",
         "no file", "binary", "no numbers", "a number on the next line"],
)  # fmt: skip
def test_each_frame_has_the_phase_that_info_tells_and_no_other(tmp_path, info, phases):
    official(tmp_path, {1: (1, 12)}, info=False)
    if info is not None:
        (tmp_path / "training" / "patient001" / "Info.cfg").write_bytes(info)
    assert [case.get("phase") for case in acdc_cases(tmp_path)] == phases


@pytest.mark.parametrize("inside", [".", "training"], ids=["above-training", "training-itself"])
def test_the_folder_may_hold_training_or_the_patients(tmp_path, inside):
    official(tmp_path, {1: (1, 12)})
    assert acdc_cases(tmp_path / inside) == acdc_cases(tmp_path)


def test_hidden_and_stray_files_are_passed_over(tmp_path):
    official(tmp_path, {1: (1, 12)})
    before = acdc_cases(tmp_path)
    training = tmp_path / "training"
    stray = (
        *(
            "._patient001_frame01.nii.gz",
            "._patient001_frame07_gt.nii.gz",
            ".DS_Store",
            "patient001_frame05.nii.gz.part",
        ),
        *("patient001_frame05_pred.nii.gz", "patient002_frame01.nii.gz", "patient001_4d.nii", "notes.txt"),
    )
    touch(training / "patient001", *stray)
    (training / "patient001" / "patient001_frame20.nii.gz").mkdir()
    touch(training, "patient005", "._patient001", "MANDATORY_CITATION.md")
    touch(training / "patient006_old", "patient006_frame01.nii.gz")
    (training / "patient008").mkdir()
    assert acdc_cases(tmp_path) == before


def test_frames_come_in_order_plain_or_packed_with_a_label_or_without(tmp_path):
    files = ("frame30.NII.GZ", "frame01.nii", "frame01.nii.gz", "frame01_gt.nii", "frame09.nii")
    touch(tmp_path / "patient003", *(f"patient003_{name}" for name in files))
    (tmp_path / "training").mkdir()  # in which there are no patients
    names = [[Path(case[key]).name[11:] for key in ("image", "label") if key in case] for case in acdc_cases(tmp_path)]
    assert names == [["frame01.nii.gz", "frame01_gt.nii"], ["frame09.nii"], ["frame30.NII.GZ"]]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda _: None, "there is no such folder"),
        (lambda folder: (folder / "training").mkdir(parents=True), "it holds no patients"),
        (lambda folder: touch(folder / "patient001", "patient001_4d.nii.gz"), "it holds no patients"),
    ],
    ids=["missing", "empty", "cine alone"],
)
def test_a_folder_without_frames_is_explained(tmp_path, make, why):
    make(tmp_path / "data")
    with pytest.raises(FileNotFoundError, match=why) as error:
        acdc_cases(tmp_path / "data")
    for part in (str(tmp_path / "data"), "training/patientNNN/patientNNN_frameFF.nii.gz", "phantom.json"):
        assert part in str(error.value)


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
