"""What would train silently wrong is refused by name; what can be mended is mended aloud."""

import math
import re

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import Compose, LoadImaged, Orientationd

from monai_spct.transforms import CheckCased

LPS = np.diag([-1.25, -1.25, 10.0, 1.0])
OBLIQUE = np.array([[-1.2, 0.3, 0, 11], [0.3, 1.2, 0, -7], [0, 0, 10, 3], [0, 0, 0, 1]])
SHIFTED = LPS.copy()
SHIFTED[:3, 3] = 40, -30, 7
CHECK = CheckCased(num_classes=4)


def case_of(image=None, label=None):
    image = torch.rand(1, 6, 5, 3) if image is None else image
    label = torch.randint(4, (1, 6, 5, 3)) if label is None else label
    return {"image": image, "label": label, "case": "patient007_frame01"}


def test_a_sound_case_passes_as_it_is():
    case = case_of(torch.rand(2, 6, 5, 3))
    assert CheckCased(num_classes=4, in_channels=2)(case) == case
    del case["label"]
    assert CHECK(case) == case


def label_with(value):
    label = torch.zeros(1, 6, 5, 3)
    label[0, 2, 2, 1] = value
    return label


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            case_of(torch.rand(2, 6, 5, 3)),
            r"the image of patient007_frame01 must have `in_channels` = 1 channels, got 2\.",
        ),
        (case_of(torch.rand(1, 0, 5, 3)), r"the image of patient007_frame01 must have voxels, got the shape \(1, 0, 5"),
        (
            case_of(label=torch.zeros(1, 6, 3, 5)),
            r"label of patient007_frame01 must have the same shape, got \(6, 5, 3\) and \(6, 3, 5\)",
        ),
        *(
            (case_of(label=label_with(value)), rf"label of patient007_frame01 .* from 0 to 3 .*, got \[{value}\]\.")
            for value in (4.0, -1.0, 1.5, math.nan, math.inf)
        ),
        (case_of(label=torch.full((1, 6, 5, 3), 9)), r"got \[9\]\."),
    ],
    ids=["channels", "no voxels", "shape", "too large", "negative", "fraction", "nan", "inf", "whole"],
)
def test_what_cannot_be_trained_on_is_refused_by_name(case, message):
    with pytest.raises(ValueError, match=message):
        CheckCased(num_classes=4, in_channels=1)(case)


@pytest.mark.parametrize("num_classes", [1, 0, 2.5], ids=str)
def test_fewer_than_two_classes_are_refused(num_classes):
    with pytest.raises(ValueError, match="`num_classes` must be a whole number of at least 2"):
        CheckCased(num_classes=num_classes)


# Values of the image


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_voxels_that_are_not_finite_become_the_smallest_finite_value(value):
    image = MetaTensor(torch.rand(1, 6, 5, 3) + 3, affine=LPS)
    image[0, 1, 1, 1] = image[0, 2, 2, 2] = value
    smallest = image[image.isfinite()].min()
    before = image.clone()
    with pytest.warns(UserWarning, match="the image of patient007_frame01 has 2 voxels that are not finite"):
        checked = CHECK(case_of(image, MetaTensor(torch.zeros(1, 6, 5, 3), affine=LPS)))["image"]
    assert checked[0, 1, 1, 1] == checked[0, 2, 2, 2] == smallest
    assert torch.equal(checked[image.isfinite()], image[image.isfinite()])
    torch.testing.assert_close(image, before, equal_nan=True, rtol=0, atol=0)  # the argument stays
    np.testing.assert_array_equal(checked.affine, LPS)


def test_an_image_without_a_finite_voxel_becomes_zeros():
    with pytest.warns(UserWarning, match="patient007") as warned:
        checked = CHECK(case_of(torch.full((1, 6, 5, 3), math.nan)))
    assert torch.equal(checked["image"], torch.zeros(1, 6, 5, 3))
    assert [word for word in ("not finite", "constant") if any(word in str(w.message) for w in warned)] == [
        "not finite",
        "constant",
    ]


def test_a_channel_without_contrast_is_told():
    image = torch.rand(2, 6, 5, 3)
    image[1] = 7
    with pytest.warns(UserWarning, match="the image of patient007_frame01, channel 1, is constant"):
        assert torch.equal(CHECK(case_of(image))["image"], image)


@pytest.mark.filterwarnings("ignore:Divide by zero")  # MONAI's, which names no image
def test_an_image_of_almost_one_value_is_told():
    image = torch.zeros(1, 80, 80, 8)
    image.view(-1)[::200] = 1000  # 0.5 % of the voxels
    with pytest.warns(UserWarning, match=r"the image of p1 is 0 in 99\.50% of its voxels: percentiles of it are no"):
        CHECK({"image": image, "case": "p1"})
    image.view(-1)[::50] = 1000
    CHECK({"image": image, "case": "p1"})


# Geometry


def turned_label(voxels, affine, flips, swapped):
    """Labels of the same voxels as a program with other axes saves them, and their affine."""
    label, affine = (voxels % 4).astype(np.uint8), affine.copy()
    if swapped:
        label, affine = label.swapaxes(0, 1), affine[:, [1, 0, 2, 3]]
    for axis in flips:
        label = np.flip(label, axis)
        affine[:3, 3] += affine[:3, axis] * (voxels.shape[axis] - 1)
        affine[:3, axis] *= -1
    return MetaTensor(torch.from_numpy(label.copy())[None], affine=affine)


@pytest.mark.parametrize("affine", [LPS, SHIFTED, OBLIQUE], ids=["LPS", "with an origin", "oblique"])
@pytest.mark.parametrize("flips", [(0,), (1,), (2,), (0, 1), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("swapped", [False, True], ids=["", "swapped"])
def test_a_label_saved_with_other_axes_is_turned_to_its_image(affine, flips, swapped):
    voxels = np.arange(5 * 5 * 3, dtype=np.int16).reshape(5, 5, 3)  # so that two axes may be swapped
    image = MetaTensor(torch.from_numpy(voxels)[None], affine=affine)
    with pytest.warns(UserWarning, match="image and label of patient007_frame01 cover the same voxels, .* is turned"):
        done = CHECK(case_of(image, turned_label(voxels, affine, flips, swapped)))
    np.testing.assert_array_equal(done["label"].numpy(), done["image"].numpy() % 4)
    np.testing.assert_array_equal(done["label"].affine, affine)


def changed(place=None, by=0.0):
    affine = SHIFTED.copy()
    if place is not None:
        affine[place] += by
    return affine


ELSEWHERE = {
    "flipped, without the origin that would say so": np.diag([1.25, 1.25, 10, 1]),
    "other sizes": np.diag([-1.0, -1, 1, 1]),
    "part of a voxel": changed((0, 3), 0.5),
    "a slice": changed((2, 3), 10),
    "a voxel": changed((0, 3), 1.25),
    "a shear of nothing to speak of": changed((0, 1), 2e-3),
    "nothing": np.zeros((4, 4)),
}


@pytest.mark.parametrize("affine", ELSEWHERE.values(), ids=ELSEWHERE)
@pytest.mark.parametrize("axes", [2, 3])
def test_a_label_that_lies_elsewhere_keeps_its_voxels_and_is_named(affine, axes):
    label = torch.randint(4, (1, 6, 5, 3)[: axes + 1])
    case = case_of(MetaTensor(torch.rand(label.shape), affine=SHIFTED), MetaTensor(label, affine=affine))
    with pytest.warns(UserWarning, match="patient007_frame01 have the same shape but different affines; the image's"):
        checked = CHECK(case)
    assert torch.equal(checked["label"].as_tensor(), label)
    np.testing.assert_array_equal(checked["label"].affine, SHIFTED)


def test_rounding_of_an_affine_is_no_difference():
    image = MetaTensor(torch.rand(1, 6, 5, 3), affine=LPS)
    label = MetaTensor(torch.randint(4, (1, 6, 5, 3)), affine=LPS + 1e-5)
    np.testing.assert_array_equal(CHECK(case_of(image, label))["label"].affine, LPS + 1e-5)


def test_a_label_file_with_another_affine_stays_aligned_when_reoriented(tmp_path):
    voxels = np.arange(6 * 5 * 3, dtype=np.int16).reshape(6, 5, 3)
    keys = ["image", "label"]
    nib.save(nib.Nifti1Image(voxels, LPS), tmp_path / "image.nii.gz")
    nib.save(nib.Nifti1Image((voxels % 4).astype(np.uint8), np.eye(4)), tmp_path / "label.nii.gz")
    pipeline = Compose(
        [LoadImaged(keys, ensure_channel_first=True), CHECK, Orientationd(keys, axcodes="RAS", labels=None)]
    )
    with pytest.warns(UserWarning, match=r"image\.nii\.gz have the same shape but different affines"):
        done = pipeline({key: str(tmp_path / f"{key}.nii.gz") for key in keys})
    np.testing.assert_array_equal(done["image"][0].numpy(), voxels[::-1, ::-1])
    np.testing.assert_array_equal(done["label"].numpy(), done["image"].numpy() % 4)


# What networks have not seen

SEEN = {"spacing": [[0.7, 0.7, 5.0], [1.9, 1.9, 10.0]], "values": [0.0, 1000.0]}


@pytest.mark.parametrize(
    ("spacing", "values", "said"),
    [
        ((1.25, 1.25, 10.0), (0.0, 1.0), None),
        ((1.25, 1.25, 14.0), (-400.0, 1.0), None),
        ((0.3, 0.3, 5.0), (0.0, 1.0), "the voxels of patient007_frame01 are 0.3 x 0.3 x 5 mm, those that the networks"),
        ((1.25, 1.25, 16.0), (0.0, 1.0), "1.25 x 1.25 x 16 mm, .* have seen 0.7 x 0.7 x 5 mm to 1.9 x 1.9 x 10 mm"),
        (
            (1.25, 1.25, 10.0),
            (-1024.0, 1.0),
            "values of patient007_frame01 lie between -1024 and .* between 0 and 1000",
        ),
        ((1.25, 1.25, 10.0), (0.0, 0.01), "values of patient007_frame01 lie between 0 and 10"),
    ],
    ids=["alike", "nearly", "fine", "thick", "CT", "dark"],
)
def test_an_image_unlike_all_that_was_seen_is_warned_of(spacing, values, said, recwarn):
    lowest, scale = values
    image = scale * torch.linspace(0, 1000, 90).reshape(1, 6, 5, 3)
    image[0, 0, 0, 0] = lowest
    case = case_of(MetaTensor(image, affine=np.diag([*spacing, 1.0])))
    del case["label"]
    CheckCased(num_classes=4, seen=SEEN)(case)
    messages = [str(warning.message) for warning in recwarn]
    assert len(messages) == (said is not None)
    assert said is None or re.search(said, messages[0])
