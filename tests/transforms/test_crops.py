"""Random crops of which a share shows a structure, against counting."""

import numpy as np
import pytest
import torch
from monai.transforms import RandSpatialCropd

from monai_spct.transforms import RandStructureCropd

KEYS = ["image", "label"]


def case(size: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Voxels with the number of each in the image; a large structure 1, and one voxel of a structure 2."""
    image = torch.arange(float(np.prod(size))).reshape(1, *size)
    label = torch.zeros(1, *size)
    label[:, : size[0] // 2] = 1
    label[(0, *(length - 2 for length in size))] = 2
    return {"image": image, "label": label}


@pytest.mark.parametrize("size", [(40, 30), (20, 30, 12)], ids=["2d", "3d"])
def test_without_a_share_it_is_the_crop_of_monai(size):
    roi = [8] * len(size)
    ours, monais = RandStructureCropd(KEYS, roi), RandSpatialCropd(KEYS, roi, random_size=False)
    for crop in (ours, monais):
        crop.set_random_state(seed=3)
    for _ in range(5):
        torch.testing.assert_close(ours(case(size)), monais(case(size)))


@pytest.mark.parametrize("size", [(40, 30), (20, 30, 12)], ids=["2d", "3d"])
def test_a_share_shows_a_structure_each_alike_however_small(size):
    crop = RandStructureCropd(KEYS, [4] * len(size), structure_share=0.5).set_random_state(seed=0)
    shown = []
    for _ in range(400):
        item = crop(case(size))
        assert item["label"].shape == item["image"].shape == (1, *[4] * len(size))
        number = item["image"].long()
        torch.testing.assert_close(item["label"].flatten(), case(size)["label"].flatten()[number.flatten()])
        shown.append(bool((item["label"] == 2).any()))
    # half of the half, and hardly ever by chance
    assert 0.18 < np.mean(shown) < 0.34


def test_the_voxel_is_the_center_or_the_crop_is_at_the_border():
    label = torch.zeros(1, 20, 20, 20)
    label[0, 10, 1, 18] = 1
    item = RandStructureCropd("label", (6, 6, 30), structure_share=1.0)({"label": label})
    assert item["label"].shape == (1, 6, 6, 20)
    assert item["label"].nonzero().tolist() == [[0, 3, 1, 18]]


def test_within_the_margin_the_voxel_is_the_center_and_zeros_are_beyond_the_image():
    label = torch.zeros(1, 20, 20, 20)
    label[0, 10, 1, 18] = 1
    crop = RandStructureCropd(["image", "label"], (6, 6, 8), structure_share=1.0, margin=(0, 2, 1))
    item = crop({"image": torch.ones_like(label), "label": label})
    assert item["label"].shape == item["image"].shape == (1, 6, 6, 8)
    assert item["label"].nonzero().tolist() == [[0, 3, 3, 5]]
    assert item["image"].sum() == 6 * 4 * 7
    assert not item["image"][:, :, :2].any()
    assert not item["image"][..., 7:].any()


@pytest.mark.parametrize("label", [None, torch.zeros(1, 12, 12)], ids=["none", "empty"])
def test_without_a_structure_crops_are_anywhere(label):
    item = {"image": case((12, 12))["image"], **({} if label is None else {"label": label})}
    crop = RandStructureCropd(KEYS, 4, structure_share=1.0, allow_missing_keys=True).set_random_state(seed=0)
    corners = {float(crop(item)["image"].min()) for _ in range(60)}
    assert len(corners) > 25


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_no_share_is_refused(share):
    with pytest.raises(ValueError, match="`structure_share` must lie between 0 and 1"):
        RandStructureCropd(KEYS, 4, structure_share=share)
