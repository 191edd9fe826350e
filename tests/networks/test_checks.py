"""A network is tried on the size of the crops before a training starts."""

from functools import partial

import pytest
import torch
from monai.networks import nets

from monai_spct.networks import ENet, ResidualUNet, UNet, build_ensemble, check_crop_size

DYNAMIC = partial(nets.DynUNet, 3, 1, 2, [3] * 4, [1, 2, 2, 2], [2] * 3, filters=[4, 8, 8, 8])
SEG_RES = partial(nets.SegResNet, spatial_dims=3, in_channels=1, out_channels=2)
PLAIN = partial(nets.UNet, 3, 1, 2, [4] * 5, [2] * 4, num_res_units=1)


@pytest.mark.parametrize(
    ("network", "size"),
    [
        (ENet, (33, 21)),
        (partial(ENet, 3), (33, 21, 7)),
        (partial(ResidualUNet, 3), (33, 21, 7)),
        (partial(nets.VNet, 3, 1, 2), (64, 48, 32)),
        (SEG_RES, (56, 56, 40)),
        (DYNAMIC, (56, 56, 40)),
        (partial(DYNAMIC, deep_supervision=True), (56, 56, 40)),
        (PLAIN, (64, 48, 32)),
    ],
)
def test_sizes_that_fit_pass_and_leave_the_network_as_it_is(network, size):
    ensemble = build_ensemble(network, num_views=2, seed=0).eval()
    before = {name: value.clone() for name, value in ensemble.state_dict().items()}
    check_crop_size(ensemble, crop_size=size, in_channels=1, batch_size=2)
    assert not ensemble.training
    torch.testing.assert_close(dict(ensemble.state_dict()), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("network", "size", "nearest"),
    [
        (SEG_RES, (56, 56, 43), "56 x 56 x 40"),
        (DYNAMIC, (57, 56, 40), "56 x 56 x 40"),
        (PLAIN, (56, 56, 40), "48 x 48 x 32 or 64 x 64 x 48"),
    ],
)
def test_the_nearest_sizes_that_fit_are_named_and_do_fit(network, size, nearest):
    check = partial(check_crop_size, build_ensemble(network, num_views=1, seed=0), in_channels=1, batch_size=2)
    given = " x ".join(map(str, size))
    with pytest.raises(ValueError, match=rf"^`crop_size` {given} does not fit .*: take {nearest}\.$"):
        check(crop_size=size)
    for other in nearest.split(" or "):
        check(crop_size=[int(length) for length in other.split(" x ")])


@pytest.mark.parametrize(("network", "batch"), [(UNet, 1), (partial(nets.UNet, 2, 1, 2, [4] * 5, [2] * 4), 2)])
def test_crops_of_which_one_value_is_left_are_refused(network, batch):
    with pytest.raises(ValueError, match=f"`crop_size` 16 x 16 is too small for a batch of {batch}:"):
        check_crop_size(network(), crop_size=(16, 16), in_channels=1, batch_size=batch)


@pytest.mark.parametrize(
    ("network", "channels", "said"),
    [
        (UNet, 1, r"cannot take 32 x 32 x 32 with 1 channel: UNet with `spatial_dims` = 2 takes .* got 5 axes"),
        (partial(nets.UNet, 3, 1, 2, [4, 8], [2]), 2, r"cannot take 32 x 32 x 32 with 2 channels: .*channel"),
    ],
    ids=["axes", "channels"],
)
def test_images_that_fit_no_network_at_any_size_are_refused(network, channels, said):
    with pytest.raises(ValueError, match=said):
        check_crop_size(network(), crop_size=(32, 32, 32), in_channels=channels, batch_size=2)


class Scaled(torch.nn.Module):
    """A network that needs numbers."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image / image.abs().max().item()


def test_a_network_that_needs_numbers_cannot_be_tried_and_is_let_through():
    check_crop_size(Scaled(), crop_size=(32, 32), in_channels=1, batch_size=2)


def test_outputs_of_several_sizes_are_refused():
    ensemble = build_ensemble(partial(nets.SegResNetDS, 3, 8, out_channels=2, dsdepth=2), num_views=1, seed=0)
    with pytest.raises(ValueError, match=r"several outputs .* deep supervision needs them in one size"):
        check_crop_size(ensemble, crop_size=(32, 32, 32), in_channels=1, batch_size=2)
