"""U-Net against the numbers of its papers, and MONAI's own U-Net."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from monai.networks.nets import BasicUNet
from monai.networks.nets.basic_unet import UpCat
from torch import Tensor

from monai_spct.networks import UNet


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def settled(network: UNet, image: Tensor) -> UNet:
    """The network in evaluation mode, with running statistics that are not the initial ones."""
    with torch.no_grad():
        network.train()(image)
    return network.eval()


# Architecture


@pytest.mark.parametrize(
    ("spatial_dims", "in_channels", "out_channels"), [(2, 1, 4), (2, 3, 19), (3, 1, 2)], ids=["2d", "rgb", "3d"]
)
def test_parameters_add_up_to_the_layers_of_the_figure(spatial_dims, in_channels, out_channels):
    cube, square = 3**spatial_dims, 2**spatial_dims

    def two_convs(before: int, after: int) -> int:
        return cube * before * after + 2 * after + cube * after * after + 2 * after

    expected = sum(two_convs(*pair) for pair in pairwise([in_channels, 64, 128, 256, 512, 1024]))
    for before, after in pairwise([1024, 512, 256, 128, 64]):
        expected += square * before * after + after + two_convs(before, after)
    expected += 64 * out_channels + out_channels
    with torch.device("meta"):
        networks = UNet(spatial_dims, in_channels, out_channels), UNet()
    counts = [sum(p.numel() for p in network.parameters()) for network in networks]
    assert counts == [expected, 31_036_676]  # the latter as published


def test_the_levels_have_the_channels_and_the_resolution_of_the_figure():
    seen = []
    with torch.device("meta"):
        network = UNet().eval()
        for block in [*network.encoder, network.bottleneck, *network.decoder, network.head]:
            block.register_forward_hook(lambda _, __, out: seen.append(tuple(out.shape[1:])))
        network(torch.zeros(1, 1, 64, 128))
    down = [(64, 64, 128), (128, 32, 64), (256, 16, 32), (512, 8, 16)]
    assert seen == [*down, (1024, 4, 8), *reversed(down), (4, 64, 128)]


@pytest.mark.parametrize(("spatial_dims", "size"), [(2, (48, 32)), (3, (16, 32, 16))], ids=["2d", "3d"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_at_multiples_of_sixteen_it_says_what_monais_network_says(spatial_dims, size, training):
    """MONAI's, but for its last upsampling, which does not halve the channels."""
    image = torch.randn(2, 2, *size)
    network = settled(UNet(spatial_dims, in_channels=2, out_channels=3, features=4), image)
    settings = {"act": ("relu", {}), "norm": "batch", "bias": False}
    monais = BasicUNet(spatial_dims, in_channels=2, out_channels=3, features=(4, 8, 16, 32, 64, 4), **settings)
    monais.upcat_1 = UpCat(spatial_dims, 8, 4, 4, **settings, halves=True)
    names = list(monais.state_dict())
    monais.load_state_dict(dict(zip(names, network.state_dict().values(), strict=True)))
    network.train(training)
    monais.train(training)
    torch.testing.assert_close(network(image), monais(image))


# Any size


def test_what_is_upsampled_is_cropped_and_not_shifted():
    network = UNet(features=2)
    upsampled, taken = [], []
    for block in network.decoder:
        block.upsample.register_forward_hook(lambda _, __, out: upsampled.append(out))
        block.convs.register_forward_pre_hook(lambda _, args: taken.append(args[0]))
    network(torch.randn(2, 1, 37, 41))
    assert [tuple(x.shape[2:]) for x in taken] == [(5, 6), (10, 11), (19, 21), (37, 41)]
    for whole, x in zip(upsampled, taken, strict=True):
        assert torch.equal(x[:, x.shape[1] // 2 :], whole[:, :, : x.shape[2], : x.shape[3]])


# Training


def test_dropout_acts_behind_the_bottleneck_in_training_alone():
    network = UNet(features=4, dropout=0.75)
    image = torch.randn(2, 1, 64, 64)
    before, after = [], []
    network.bottleneck.register_forward_hook(lambda _, __, out: before.append(out))
    network.decoder[0].register_forward_pre_hook(lambda _, args: after.append(args[0]))
    network(image)
    kept = after[0] != 0
    torch.testing.assert_close(after[0][kept], 4 * before[0][kept])
    assert kept.sum() / (before[0] != 0).sum() == pytest.approx(0.25, abs=0.05)
    assert not torch.equal(network(image), network(image))
    network.eval()
    assert torch.equal(network(image), network(image))
