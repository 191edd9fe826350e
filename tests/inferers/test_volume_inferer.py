import re

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.inferers import sliding_window_inference
from torch import nn

from monai_spct.inferers import VolumeInferer
from monai_spct.networks import build_ensemble

AFFINE = np.diag([-1.25, -1.25, 10.0, 1.0])


def network() -> nn.Module:
    return build_ensemble(lambda: nn.Conv2d(1, 3, 3, padding=1), num_views=2, seed=0).eval()


@pytest.mark.parametrize("batch", [1, 2], ids=lambda n: f"{n} volumes")
@pytest.mark.parametrize("batch_size", [1, 3, 5, 100], ids=lambda n: f"{n} at once")
def test_each_slice_goes_through_the_network_by_itself(batch, batch_size):
    volumes, vote = torch.rand(batch, 1, 9, 7, 5), network()
    expected = torch.empty(batch, 3, 9, 7, 5)
    for b in range(batch):
        for d in range(5):
            expected[b, ..., d] = vote(volumes[b : b + 1, ..., d])[0]
    torch.testing.assert_close(VolumeInferer(batch_size=batch_size)(volumes, vote), expected, rtol=0, atol=1e-6)


def test_the_network_sees_no_more_slices_at_once_than_asked_for():
    sizes = []

    def seen(slices):
        sizes.append(tuple(slices.shape))
        return slices

    volumes = torch.rand(2, 1, 9, 7, 5)
    assert torch.equal(VolumeInferer(batch_size=4)(volumes, seen), volumes)
    assert sizes == [(4, 1, 9, 7), (4, 1, 9, 7), (2, 1, 9, 7)]


def test_the_geometry_of_the_input_stays():
    plain = torch.rand(1, 1, 9, 7, 5)
    volume = MetaTensor(plain, affine=AFFINE, meta={"filename_or_obj": "patient007.nii.gz"})
    types = []

    def seen(slices):
        types.append(type(slices))
        return network()(slices)

    result = VolumeInferer()(volume, seen)
    np.testing.assert_array_equal(result.affine, AFFINE)
    assert result.meta["filename_or_obj"] == "patient007.nii.gz"
    assert set(types) == {torch.Tensor}  # the network has no use for it
    torch.testing.assert_close(result.as_tensor(), VolumeInferer()(plain, network()))


EIGHT = [(turns, flip) for turns in range(4) for flip in (False, True)]


def seen_as(volume: torch.Tensor, turns: int, flip: bool) -> torch.Tensor:
    turned = torch.rot90(volume, turns, (2, 3))
    return torch.flip(turned, (3,)) if flip else turned


@pytest.mark.parametrize("size", [(8, 8), (9, 6)], ids=str)
def test_augmented_at_test_time_it_is_the_mean_of_eight_views(size):
    volume, vote, inferer = torch.rand(2, 1, *size, 3), network(), VolumeInferer(augment=True, batch_size=4)
    expected = torch.zeros(2, 3, *size, 3)
    for turns, flip in EIGHT:
        said = VolumeInferer()(seen_as(volume, turns, flip), vote)
        back = torch.flip(said, (3,)) if flip else said
        expected += torch.rot90(back, -turns, (2, 3)) / 8
    torch.testing.assert_close(inferer(volume, vote), expected)
    assert (inferer(volume, vote) - VolumeInferer()(volume, vote)).abs().max() > 1e-3
    for view in EIGHT:  # whatever way a patient lies
        torch.testing.assert_close(inferer(seen_as(volume, *view), vote), seen_as(expected, *view))


def test_further_arguments_reach_the_network():
    volume = torch.rand(1, 1, 9, 7, 5)
    result = VolumeInferer()(volume, lambda slices, factor, *, shift: factor * slices + shift, 2.0, shift=1.0)
    torch.testing.assert_close(result, 2 * volume + 1)


def test_slices_are_refused():
    with pytest.raises(ValueError, match=r"`inputs` must be volumes \(B, C, H, W, D\), got the shape \(1, 1, 9, 7\)"):
        VolumeInferer()(torch.rand(1, 1, 9, 7), network())


# Windows


@pytest.mark.parametrize("size", [(20, 18, 9), (8, 8, 4), (5, 11, 3)], ids=str)
@pytest.mark.parametrize("window", [(8, 8), (8, 8, 4)], ids=["2d", "3d"])
def test_windows_say_of_a_volume_what_the_network_says_of_all_of_it(window, size):
    """Where the network looks at one voxel only; images smaller than a window are padded."""
    volume, convolution = torch.rand(2, 1, *size), nn.Conv2d if len(window) == 2 else nn.Conv3d
    pointwise = build_ensemble(lambda: convolution(1, 3, 1), num_views=2, seed=0).eval()
    whole = VolumeInferer()(volume, pointwise) if len(window) == 2 else pointwise(volume)
    torch.testing.assert_close(VolumeInferer(patch_size=window, batch_size=3)(volume, pointwise), whole)


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("window", [(8, 8), (8, 8, 4)], ids=["2d", "3d"])
def test_windows_are_those_of_monai(window, augment):
    volume, convolution = torch.rand(1, 1, 13, 12, 9), nn.Conv2d if len(window) == 2 else nn.Conv3d
    vote = build_ensemble(lambda: convolution(1, 3, 3, padding=1), num_views=2, seed=0).eval()

    def predict(windows):
        views = EIGHT if augment else [(0, False)]
        said = [(vote(seen_as(windows, turns, flip)), turns, flip) for turns, flip in views]
        return torch.stack(
            [torch.rot90(each.flip(3) if flip else each, -turns, (2, 3)) for each, turns, flip in said]
        ).mean(0)

    def in_windows(images):
        return sliding_window_inference(images, window, 4, predict, overlap=0.25, mode="gaussian")

    slices = [in_windows(volume[..., n]) for n in range(9)] if len(window) == 2 else []
    expected = torch.stack(slices, -1) if slices else in_windows(volume)
    inferer = VolumeInferer(patch_size=window, overlap=0.25, augment=augment)
    torch.testing.assert_close(inferer(volume, vote), expected)


@pytest.mark.parametrize(("window", "count"), [((8, 8), [4] * 18), ((8, 8, 8), [4, 4, 1])], ids=["2d", "3d"])
def test_the_network_sees_no_more_windows_at_once_than_asked_for_and_each_once(window, count):
    sizes = []

    def seen(windows):
        sizes.append(tuple(windows.shape))
        return windows

    volume = torch.rand(1, 1, 16, 16, 8)
    torch.testing.assert_close(VolumeInferer(patch_size=window, batch_size=4)(volume, seen), volume)
    assert [size[0] for size in sizes] == count  # 3 x 3 windows that overlap by a half
    assert {size[1:] for size in sizes} == {(1, *window)}


@pytest.mark.parametrize("window", [8, (8,), (8, 8, 8, 8)])
def test_windows_of_other_axes_are_refused(window):
    with pytest.raises(
        ValueError, match=rf"`patch_size` must be \(H, W\) or \(H, W, D\), got {re.escape(str(window))}\.$"
    ):
        VolumeInferer(patch_size=window)


def test_windows_without_extent_are_refused():
    with pytest.raises(ValueError, match=r"`patch_size` must be a whole number of at least 1, got 0"):
        VolumeInferer(patch_size=(8, 0))
