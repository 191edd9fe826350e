import math
import re

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import Compose, LoadImaged, Orientationd, ScaleIntensityd

from monai_spct.transforms import CheckCased

LPS = np.diag([-1.25, -1.25, 10.0, 1.0])
OBLIQUE = np.array([[-1.2, 0.3, 0, 11], [0.3, 1.2, 0, -7], [0, 0, 10, 3], [0, 0, 0, 1]])


def case_of(image=None, label=None, **more):
    image = torch.rand(1, 6, 5, 3) if image is None else image
    label = torch.randint(4, (1, 6, 5, 3)) if label is None else label
    return {"image": image, "label": label, "case": "patient007_frame01", **more}


def test_a_sound_case_passes_as_it_is():
    case = case_of(patient="patient007")
    checked = CheckCased(num_classes=4)(case)
    assert checked == case
    assert checked is not case


def test_a_case_without_a_label_passes():
    image = torch.rand(1, 6, 5, 3)
    assert CheckCased(num_classes=4)({"image": image})["image"] is image


def test_a_label_of_another_shape_is_refused():
    with pytest.raises(
        ValueError, match=re.escape("image and label of patient007_frame01 must have the same shape")
    ) as e:
        CheckCased(num_classes=4)(case_of(label=torch.zeros(1, 6, 3, 5)))
    assert "(6, 5, 3) and (6, 3, 5)" in str(e.value)


def test_channels_are_no_part_of_the_shape():
    case = case_of(image=torch.rand(2, 6, 5, 3))
    assert CheckCased(num_classes=4)(case)["image"] is case["image"]


@pytest.mark.parametrize(("expected", "given"), [(1, 2), (2, 1), (3, 4)])
def test_an_image_with_another_number_of_channels_is_refused(expected, given):
    message = rf"the image of patient007_frame01 must have `in_channels` = {expected} channels, got {given}\."
    with pytest.raises(ValueError, match=message):
        CheckCased(num_classes=4, in_channels=expected)(case_of(image=torch.rand(given, 6, 5, 3)))
    CheckCased(num_classes=4, in_channels=given)(case_of(image=torch.rand(given, 6, 5, 3)))


@pytest.mark.parametrize("value", [4, -1, 1.5, math.nan, math.inf], ids=str)
def test_a_label_value_that_is_no_class_is_refused(value):
    label = torch.zeros(1, 6, 5, 3)
    label[0, 2, 2, 1] = value
    with pytest.raises(ValueError, match="label of patient007_frame01 must hold whole numbers from 0 to 3") as e:
        CheckCased(num_classes=4)(case_of(label=label))
    assert str(e.value).endswith(f"got [{float(value)}].")


def test_the_largest_class_is_a_class():
    label = torch.full((1, 6, 5, 3), 3.0)
    assert CheckCased(num_classes=4)(case_of(label=label))["label"] is label
    with pytest.raises(ValueError, match="from 0 to 2"):
        CheckCased(num_classes=3)(case_of(label=label))


@pytest.mark.parametrize("num_classes", [1, 0, 2.5], ids=str)
def test_fewer_than_two_classes_are_refused(num_classes):
    with pytest.raises(ValueError, match="`num_classes` must be a whole number of at least 2"):
        CheckCased(num_classes=num_classes)


def test_a_label_with_another_affine_takes_that_of_its_image():
    image = MetaTensor(torch.rand(1, 6, 5, 3), affine=LPS)
    label = MetaTensor(torch.randint(4, (1, 6, 5, 3)), affine=np.eye(4))
    with pytest.warns(UserWarning, match="patient007_frame01 have the same shape but different affines"):
        checked = CheckCased(num_classes=4)(case_of(image, label))
    np.testing.assert_array_equal(checked["label"].affine, LPS)
    np.testing.assert_array_equal(checked["image"].affine, LPS)


def test_rounding_of_an_affine_is_no_difference():
    image = MetaTensor(torch.rand(1, 6, 5, 3), affine=LPS)
    label = MetaTensor(torch.randint(4, (1, 6, 5, 3)), affine=LPS + 1e-5)
    np.testing.assert_array_equal(CheckCased(num_classes=4)(case_of(image, label))["label"].affine, LPS + 1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_voxels_that_are_not_finite_become_the_smallest_finite_value(value):
    image = torch.rand(1, 6, 5, 3) + 3
    image[0, 1, 1, 1] = image[0, 2, 2, 2] = value
    smallest = image[image.isfinite()].min()
    before = image.clone()
    with pytest.warns(UserWarning, match="the image of patient007_frame01 has 2 voxels that are not finite"):
        checked = CheckCased(num_classes=4)(case_of(image))["image"]
    assert checked[0, 1, 1, 1] == checked[0, 2, 2, 2] == smallest
    assert torch.equal(checked[image.isfinite()], image[image.isfinite()])
    torch.testing.assert_close(image, before, equal_nan=True, rtol=0, atol=0)  # the argument stays


def test_the_geometry_survives_the_mending():
    image = MetaTensor(torch.rand(1, 6, 5, 3), affine=LPS)
    image[0, 0, 0, 0] = math.nan
    with pytest.warns(UserWarning, match="not finite"):
        checked = CheckCased(num_classes=4)({"image": image})["image"]
    np.testing.assert_array_equal(checked.affine, LPS)


def test_an_image_without_a_finite_voxel_becomes_zeros():
    with pytest.warns(UserWarning, match="patient007") as warned:
        checked = CheckCased(num_classes=4)(case_of(torch.full((1, 6, 5, 3), math.nan)))
    assert torch.equal(checked["image"], torch.zeros(1, 6, 5, 3))
    assert len(warned) == 2
    assert "constant" in str(warned[1].message)


def test_a_constant_image_is_told():
    image = torch.full((1, 6, 5, 3), 7.0)
    with pytest.warns(UserWarning, match="the image of patient007_frame01 is constant"):
        assert torch.equal(CheckCased(num_classes=4)(case_of(image))["image"], image)


def test_keys_may_have_other_names():
    case = {"mr": torch.rand(1, 4, 4), "truth": torch.full((1, 4, 4), 9)}
    with pytest.raises(ValueError, match="the label of this case must hold"):
        CheckCased(num_classes=4, image_key="mr", label_key="truth")(case)


def write(path, array, affine):
    nib.save(nib.Nifti1Image(array, affine), path)
    return str(path)


def test_p03_a_label_file_with_another_affine_stays_aligned_when_reoriented(tmp_path):
    voxels = np.arange(6 * 5 * 3, dtype=np.int16).reshape(6, 5, 3)
    case = {
        "image": write(tmp_path / "image.nii.gz", voxels, LPS),
        "label": write(tmp_path / "label.nii.gz", (voxels % 4).astype(np.uint8), np.eye(4)),
    }
    keys = ["image", "label"]
    pipeline = Compose(
        [
            LoadImaged(keys, ensure_channel_first=True),
            CheckCased(num_classes=4),
            Orientationd(keys, axcodes="RAS", labels=None),
        ]
    )
    with pytest.warns(UserWarning, match=r"image\.nii\.gz have the same shape but different affines"):
        done = pipeline(case)
    np.testing.assert_array_equal(done["image"][0].numpy(), voxels[::-1, ::-1])
    np.testing.assert_array_equal(done["label"].numpy(), done["image"].numpy() % 4)


SHIFTED = LPS.copy()
SHIFTED[:3, 3] = 40, -30, 7


def moved(millimeters):
    affine = SHIFTED.copy()
    affine[:3, 3] += millimeters
    return affine


@pytest.mark.parametrize("image_affine", [LPS, SHIFTED, OBLIQUE], ids=["LPS", "with an origin", "oblique"])
@pytest.mark.parametrize("flips", [(0,), (1,), (2,), (0, 1), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("swapped", [False, True], ids=["", "swapped"])
def test_p03_a_label_saved_with_other_axes_is_turned_to_its_image(tmp_path, image_affine, flips, swapped):
    voxels = np.arange(5 * 5 * 3, dtype=np.int16).reshape(5, 5, 3)  # so that two axes may be swapped
    image = nib.Nifti1Image(voxels, image_affine)
    turned, affine = (voxels % 4).astype(np.uint8), image_affine.copy()
    if swapped:
        turned, affine = turned.swapaxes(0, 1), affine[:, [1, 0, 2, 3]]
    for axis in flips:
        turned = np.flip(turned, axis)
        affine[:3, 3] += affine[:3, axis] * (voxels.shape[axis] - 1)
        affine[:3, axis] *= -1
    nib.save(image, tmp_path / "image.nii.gz")
    nib.save(nib.Nifti1Image(np.ascontiguousarray(turned), affine), tmp_path / "label.nii.gz")
    case = {key: str(tmp_path / f"{key}.nii.gz") for key in ("image", "label")}
    pipeline = Compose([LoadImaged(["image", "label"], ensure_channel_first=True), CheckCased(num_classes=4)])
    with pytest.warns(UserWarning, match=r"image and label of .*image\.nii\.gz cover the same voxels, .* is turned"):
        done = pipeline(case)
    np.testing.assert_array_equal(done["label"].numpy(), done["image"].numpy() % 4)
    np.testing.assert_array_equal(done["label"].affine, done["image"].affine)


@pytest.mark.parametrize(
    "affine",
    [
        np.diag([1.25, 1.25, 10, 1]),  # flipped, without the origin that would say so
        np.diag([-1.0, -1, 1, 1]),
        moved((0.5, 0, 0)),
        moved((0, 0, 10)),
        moved((1.25, -1.25, 0)),
        np.full((4, 4), 0.0),
    ],
    ids=["flipped", "other sizes", "part of a voxel", "a slice", "a voxel", "nothing"],
)
def test_p03_a_label_that_lies_elsewhere_keeps_its_voxels_and_is_named(affine):
    label = torch.randint(4, (1, 6, 5, 3))
    case = case_of(MetaTensor(torch.rand(1, 6, 5, 3), affine=SHIFTED), MetaTensor(label, affine=affine))
    with pytest.warns(UserWarning, match="patient007_frame01 have the same shape but different affines; the image's"):
        checked = CheckCased(num_classes=4)(case)
    assert torch.equal(checked["label"].as_tensor(), label)
    np.testing.assert_array_equal(checked["label"].affine, SHIFTED)


def test_a_slice_that_lies_elsewhere_is_named_too():
    image = MetaTensor(torch.rand(1, 6, 5), affine=LPS)
    label = MetaTensor(torch.randint(4, (1, 6, 5)), affine=np.diag([1.25, 1.25, 10, 1]))
    with pytest.warns(UserWarning, match="different affines"):
        checked = CheckCased(num_classes=4)(case_of(image, label))
    assert torch.equal(checked["label"].as_tensor(), label.as_tensor())


def test_a_constant_file_is_told_and_scaled_to_finite_values(tmp_path):
    path = write(tmp_path / "flat.nii.gz", np.full((6, 5, 3), 5, np.int16), np.eye(4))
    pipeline = Compose(
        [LoadImaged("image", ensure_channel_first=True), CheckCased(num_classes=4), ScaleIntensityd("image")]
    )
    with pytest.warns(UserWarning, match=r"flat\.nii\.gz is constant"):
        image = pipeline({"image": path})["image"]
    assert torch.equal(image.as_tensor(), torch.zeros(1, 6, 5, 3))


def test_a_file_with_nan_is_mended_and_scaled(tmp_path):
    voxels = np.arange(6 * 5 * 3, dtype=np.float32).reshape(6, 5, 3)
    voxels[-1, -1, -1] = np.nan
    pipeline = Compose(
        [LoadImaged("image", ensure_channel_first=True), CheckCased(num_classes=4), ScaleIntensityd("image")]
    )
    with pytest.warns(UserWarning, match=r"holes\.nii\.gz has 1 voxels"):
        image = pipeline({"image": write(tmp_path / "holes.nii.gz", voxels, np.eye(4))})["image"]
    expected = np.nan_to_num(voxels, nan=0.0) / np.nanmax(voxels)
    np.testing.assert_allclose(image[0].numpy(), expected, atol=1e-6)
