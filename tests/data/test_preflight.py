"""Each fault that a file or a list may have is found, named, and found together with all others."""

import os
import re
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from monai.transforms import LoadImaged, MapLabelValued

from monai_spct.data import Split, VolumeReader, acdc_cases, check_split, refuse_bad_headers, split_cases
from monai_spct.data.synthetic import save_metaimage
from monai_spct.transforms import CheckCased

SHAPE, SPACING = (8, 6, 4), (1.5, 1.5, 5.0)
AFFINE = np.diag([-1.5, -1.5, 5.0, 1.0])


def write(path: Path, voxels: np.ndarray, affine: np.ndarray = AFFINE) -> str:
    nib.save(nib.Nifti1Image(voxels, affine), path)
    return str(path)


def image_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 1000, SHAPE).astype(np.int16)


def label_of() -> np.ndarray:
    label = np.zeros(SHAPE, np.uint8)
    label[2:5, 2:4, 1:] = 1
    label[3, 2:4, 2] = 2
    return label


@pytest.fixture
def split(tmp_path) -> Split:
    """Two labeled cases and one of each other kind; plain, so that a test can spoil bytes."""
    cases = []
    for number, name in enumerate("abcde"):
        image = write(tmp_path / f"{name}.nii", image_of(number))
        label = write(tmp_path / f"{name}_gt.nii", label_of())
        cases.append({"patient": name, "case": name, "image": image, "label": label})
    cases[2].pop("label")
    return Split(cases[:2], cases[2:3], cases[3:4], cases[4:])


def look(split: Split, **more: object):
    return check_split(split, **{"num_classes": 3, "in_channels": 1, **more})


def test_sound_cases_give_nothing_but_a_table(split):
    found = look(split)
    assert found.findings == []
    assert found.summary.splitlines()[1].split() == [
        *("labeled", "2", "2", "8", "8", "x", "6", "x", "4", "1.5", "x", "1.5", "x", "5")
    ]
    assert look(split, voxels=False).findings == []


# One fault each, in the first case


def other_axes(case):
    affine = AFFINE.copy()
    affine[:3, 3] += affine[:3, 0] * (SHAPE[0] - 1)
    affine[:3, 0] *= -1
    write(case["label"], label_of()[::-1], affine)


def zero_spacing(case):
    with Path(case["image"]).open("r+b") as file:
        file.seek(76 + 4 * 3)  # pixdim[3]
        file.write(np.float32(0).tobytes())


def centimeters(case):
    for key, voxels in (("image", image_of(0)), ("label", label_of())):
        write(case[key], voxels, np.diag([-0.15, -0.15, 0.45, 1]))


def other_pixdim(case):
    for key, voxels in (("image", image_of(0)), ("label", label_of())):
        image = nib.Nifti1Image(voxels, AFFINE)
        image.header["pixdim"][3] = 8
        nib.save(image, case[key])


def channels(case):
    case["image"] = [case["image"], write(Path(case["image"]).with_name("a2.nii"), image_of(9))]


def frames(case):
    write(case["image"], np.stack([image_of(0)] * 3, -1))


def no_file(case):
    Path(case["image"]).unlink()


OF_HEADERS = {
    "no file": (no_file, r"error: .*a\.nii does not exist"),
    "frames": (frames, r"error: .*a\.nii is 4-D \(3 frames\)"),
    "shape": (
        lambda case: write(case["label"], label_of()[:-1]),
        r"error: image and label of a must have the same shape, got \(8, 6, 4\) and \(7, 6, 4\).*a_gt\.nii",
    ),
    "affine": (
        lambda case: write(case["label"], label_of(), np.eye(4) * 1.5),
        r"warning: image and label of a have the same shape but different affines.*a_gt\.nii",
    ),
    "axes": (other_axes, r"warning: image and label of a cover the same voxels, .* label is turned .*a_gt\.nii"),
    "no spacing": (
        zero_spacing,
        r"warning: the voxel sizes of .*a\.nii must be above 0, got .* x 0 mm; .* with .* 5 mm",
    ),
    "cm": (centimeters, r"warning: the spacing of a, 0\.15 x 0\.15 x 0\.45 mm, is more than 10 times off the median"),
    "pixdim": (
        other_pixdim,
        r"note: 2 files have other voxel sizes .*a\.nii: 1\.5 x 1\.5 x 8 mm and 1\.5 x 1\.5 x 5 mm",
    ),
    "channels": (channels, r"error: the image of a must have `in_channels` = 1 channels, got 2"),
    "no label": (lambda case: case.pop("label"), r"error: a of `labeled` must have a `label`.*a\.nii"),
    "no image": (lambda case: case.pop("image"), r"error: a of `labeled` must have an `image`"),
}


@pytest.mark.parametrize(("spoil", "message"), OF_HEADERS.values(), ids=OF_HEADERS)
@pytest.mark.parametrize("voxels", [True, False])
def test_a_fault_of_a_header_is_found(split, spoil, message, voxels):
    spoil(split.labeled[0])
    [said] = map(str, look(split, voxels=voxels).findings)
    assert re.match(message, said), said


def test_channels_on_different_grids_are_found(split):
    case = split.unlabeled[0]
    case["image"] = [case["image"], write(Path(case["image"]).with_name("c2.nii"), image_of(9), np.eye(4))]
    split = Split([], [case], [], [])
    [said] = map(str, look(split, in_channels=2).findings)
    assert re.match(r"error: channels of one image must have the same affine, got .*c\.nii and .*c2\.nii", said)


def not_finite(case):
    image = image_of(0).astype(np.float32)
    image[0, 0, :2] = np.nan, np.inf
    write(case["image"], image)


def value_outside(case):
    write(case["label"], label_of() + 7 * (np.arange(SHAPE[2]) == 0).astype(np.uint8))


def constant(case):
    write(case["image"], np.full(SHAPE, 3, np.int16))


def almost_constant(case):
    image = np.zeros(SHAPE, np.int16)
    image[0, 0, 0] = 1000
    write(case["image"], image)


def cut_gzip(case):
    """So large that the header is whole."""
    image = np.random.default_rng(0).integers(0, 1000, (60, 60, 20)).astype(np.int16)
    label = np.zeros(image.shape, np.uint8)
    label[:8, :6, :4] = label_of()
    write(case["label"], label)
    case["image"] = write(Path(case["image"]).with_name("a.nii.gz"), image)
    os.truncate(case["image"], Path(case["image"]).stat().st_size * 3 // 4)


OF_VOXELS = [
    (value_outside, r"error: the label of a must hold whole numbers from 0 to 2 .*got \[7(\.0)?\].*a_gt\.nii"),
    (not_finite, r"warning: the image of a has 2 voxels that are not finite; .*a\.nii"),
    (constant, r"warning: the image of a is constant.*a\.nii"),
    (almost_constant, r"warning: the image of a is 0 in 99\.48% of its voxels: percentiles .*a\.nii"),
    (cut_gzip, r"error: .*a\.nii\.gz is truncated or damaged"),
]


@pytest.mark.parametrize(("spoil", "message"), OF_VOXELS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_of_voxels_is_found_when_they_are_read(split, spoil, message):
    spoil(split.labeled[0])
    [said] = map(str, look(split).findings)
    assert re.match(message, said), said
    assert look(split, voxels=False).findings == []


def test_a_class_that_no_labeled_case_has_is_named(split):
    [said] = map(str, look(split, num_classes=5).findings)
    assert said.startswith("warning: no labeled case has classes 3, 4 (`num_classes` is 5)")


# All cases together


def stored_along(axis: int, case: dict, *, isotropic: bool = False) -> None:
    """Six slices of 40 x 44 voxels, along another axis."""
    shape, sizes = [40, 44], [1.25, 1.25]
    shape.insert(axis, 6)
    sizes.insert(axis, 1.25 if isotropic else 8.0)
    for key in {"image", "label"} & case.keys():
        voxels = np.random.default_rng(ord(case["case"])).integers(0, 3, shape)
        write(case[key], voxels.astype(np.int16), np.diag([*sizes, 1]))


@pytest.mark.parametrize("isotropic", [False, True], ids=["thick", "as thick as wide"])
@pytest.mark.parametrize("voxels", [True, False])
def test_slices_along_another_axis_are_named(split, isotropic, voxels):
    cases = [*split.labeled, *split.unlabeled, *split.validation, *split.test]
    for number, case in enumerate(cases):
        stored_along(0 if number in (1, 3) else 2, case, isotropic=isotropic)
    [said] = [finding for finding in look(split, voxels=voxels).findings if "slices" in finding.message]
    assert said.level == "warning"
    assert re.match(r"slices lie along the last axis, and those of 2 of 5 images seem to lie along an", said.message)
    assert re.search(r": b \(6 x 40 x 44 voxels of .*\), d \(6 x 40 x 44 voxels", said.message)
    with pytest.warns(UserWarning, match=r"those of 2 of 5 images .* b \(6 x 40 x 44"):
        refuse_bad_headers(cases)
    for case in cases:
        stored_along(1, case, isotropic=isotropic)
    assert any("those of 5 of 5 images" in finding.message for finding in look(split, voxels=voxels).findings)


# Lists


def test_a_patient_on_two_sides_is_named(split):
    split.test[0]["patient"] = "a"
    [said] = map(str, look(split).findings)
    assert said == "error: patient a must be on one side, got `labeled` and `test`."


@pytest.mark.parametrize(("other", "level"), [("labeled", "warning"), ("unlabeled", "warning"), ("test", "error")])
@pytest.mark.parametrize("voxels", [True, False])
def test_a_scan_under_two_names_is_found(split, other, level, voxels):
    path = getattr(split, other)[-1]["image"]
    write(path, image_of(0))
    [said] = map(str, look(split, voxels=voxels).findings)
    assert re.match(rf"{level}: .*got the same content in .*a\.nii \(`labeled`\) and {path} \(`{other}`\)", said), said


def test_a_scan_that_was_stored_anew_is_found_by_its_voxels(split):
    split.test[0]["image"] = write(Path(split.test[0]["image"]).with_name("new.nii.gz"), image_of(0).astype(np.float32))
    assert [finding.level for finding in look(split).findings] == ["error"]


def test_everything_is_said_at_once_and_errors_first(split):
    constant(split.labeled[0])
    no_file(split.labeled[1])
    frames(split.unlabeled[0])
    value_outside(split.test[0])
    found = look(split)
    assert [finding.level for finding in found.findings] == ["error", "error", "error", "warning"]
    assert len(found.errors) == 3


def test_a_training_is_told_all_bad_headers_before_it_loads_anything(split):
    cases = [*split.labeled, *split.unlabeled]
    refuse_bad_headers(cases, in_channels=1)
    no_file(split.labeled[0])
    frames(split.unlabeled[0])
    with pytest.raises(ValueError, match=r"(?s)cannot be loaded:\n.*a\.nii does not exist.\n.*c\.nii is 4-D"):
        refuse_bad_headers(cases, in_channels=1)


def test_one_slice_is_no_volume_for_a_network_with_three_axes(split):
    write(split.labeled[0]["image"], image_of(0)[..., :1])
    cases = [{"case": case["case"], "image": case["image"]} for case in split.labeled]
    refuse_bad_headers(cases)
    with pytest.raises(ValueError, match=r"cannot be loaded:\nthe image of a must have several slices .*, 1\)\.$"):
        refuse_bad_headers(cases, spatial_dims=3)
    said = [finding.message for finding in check_split(split, num_classes=3, spatial_dims=3, voxels=False).errors]
    assert any(message.startswith("the image of a must have several slices") for message in said)


@pytest.mark.parametrize("voxels", [True, False])
def test_metaimage_is_looked_at_like_nifti(tmp_path, voxels):
    pytest.importorskip("itk")
    for number, name in enumerate("ab"):
        save_metaimage(tmp_path / f"{name}.mhd", image_of(number), SPACING)
    cases = [{"patient": name, "case": name, "image": str(tmp_path / f"{name}.mhd")} for name in "ab"]
    assert look(Split([], cases, [], []), voxels=voxels).findings == []
    (tmp_path / "b.raw").write_bytes((tmp_path / "a.raw").read_bytes())
    text = (tmp_path / "a.mhd").read_text()
    (tmp_path / "a.mhd").write_text(text.replace("1.5 1.5 5.0", "1.5 1.5 -5.0"))
    said = sorted(map(str, look(Split([], cases, [], []), voxels=voxels).findings))
    assert re.match(r"warning: an image should be there once, got the same content in .*a\.mhd .*b\.mhd", said[0])
    assert re.match(r"warning: the voxel sizes of .*a\.mhd must be above 0, got 1\.5 x 1\.5 x -5 mm", said[1])


# Real scans


@pytest.mark.real_data
@pytest.mark.skipif("SPCT_DATA_DIR" not in os.environ, reason="SPCT_DATA_DIR does not name the data")
def test_nothing_is_wrong_with_six_patients_of_acdc():
    cases = acdc_cases(Path(os.environ["SPCT_DATA_DIR"]) / "acdc")
    cases = [case for case in cases if case["patient"] <= "patient006"]
    split = split_cases(cases, labeled_ratio=1.0)
    found = look(split, num_classes=4)
    assert found.errors == []


def test_labels_with_other_values_are_checked_as_the_training_loads_them(split):
    for case in split.labeled:
        label = (label_of() > 0).astype(np.uint8) * 255
        write(Path(case["label"]), label)
    split = Split(split.labeled, split.unlabeled, [], [])
    [error, *_] = look(split, num_classes=2).errors
    assert "must hold whole numbers from 0 to 1 (`num_classes` is 2), got [255.0]" in error.message
    load = [
        LoadImaged(["image", "label"], reader=VolumeReader(), ensure_channel_first=True, allow_missing_keys=True),
        MapLabelValued("label", [0, 255], [0, 1], allow_missing_keys=True),
        CheckCased(num_classes=2),
    ]
    assert look(split, num_classes=2, load=load).findings == []
    Path(split.unlabeled[0]["image"]).write_bytes(b"text")
    [error] = look(split, num_classes=2, load=load).errors
    assert split.unlabeled[0]["image"] in error.message
