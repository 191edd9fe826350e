"""SegNet against the numbers of its papers, and a plain version with torch's own unpooling."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from monai_spct.networks import SegNet

VGG16 = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def settled(network: SegNet, image: Tensor) -> SegNet:
    """The network in evaluation mode, with running statistics that are not the initial ones."""
    with torch.no_grad():
        network.train()(image)
    return network.eval()


def plain(network: SegNet, x: Tensor) -> Tensor:
    """What SegNet is, in two dimensions, with torch's unpooling and the network's own numbers."""
    numbers = [value for value in network.state_dict().values() if value.dim() > 0]  # not the counts of batches
    pools = []

    def layers(x: Tensor, how_many: int) -> Tensor:
        for _ in range(how_many):
            weight, bias, gamma, beta, mean, variance = (numbers.pop(0) for _ in range(6))
            x = F.conv2d(x, weight, bias, padding=1)
            x = F.batch_norm(x, mean.clone(), variance.clone(), gamma, beta, training=network.training).relu()
        return x

    for how_many in (2, 2, 3, 3, 3):
        x = layers(x, how_many)
        size = x.shape[2:]
        x, indices = F.max_pool2d(x, 2, ceil_mode=True, return_indices=True)
        pools.append((indices, size))
    for how_many in (3, 3, 3, 2, 1):
        indices, size = pools.pop()
        x = layers(F.max_unpool2d(x, indices, 2, output_size=size), how_many)
    weight, bias = numbers
    return F.conv2d(x, weight, bias, padding=1)


# Architecture


@pytest.mark.parametrize(
    ("spatial_dims", "in_channels", "out_channels"), [(2, 1, 4), (2, 3, 12), (3, 1, 2)], ids=["2d", "rgb", "3d"]
)
def test_parameters_add_up_to_the_layers_of_vgg16_and_their_mirror_image(spatial_dims, in_channels, out_channels):
    cube = 3**spatial_dims
    encoder = sum(cube * before * after + 3 * after for before, after in pairwise([in_channels, *VGG16]))
    decoder = sum(cube * before * after + 3 * after for before, after in pairwise(VGG16[::-1]))
    with torch.device("meta"):
        networks = SegNet(spatial_dims, in_channels, out_channels), SegNet()
    counts = [sum(p.numel() for p in network.parameters()) for network in networks]
    # with its running statistics the default network has the published 29.46 million
    assert counts == [encoder + decoder + cube * 64 * out_channels + out_channels, 29_444_164]


def test_the_blocks_have_the_channels_and_the_resolution_of_the_figure():
    seen = []
    with torch.device("meta"):
        network = SegNet().eval()
        for block in [*network.encoder, *network.decoder, network.head]:
            block.register_forward_hook(lambda _, __, out: seen.append(tuple(out.shape[1:])))
        network(torch.zeros(1, 1, 64, 128))
    down = [(64, 64, 128), (128, 32, 64), (256, 16, 32), (512, 8, 16), (512, 4, 8)]
    up = [(512, 4, 8), (256, 8, 16), (128, 16, 32), (64, 32, 64), (64, 64, 128)]
    assert seen == [*down, *up, (4, 64, 128)]


@pytest.mark.parametrize("size", [(32, 64), (37, 50), (1, 70)], ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_it_says_what_a_plain_version_says(size, training):
    image = torch.randn(2, 2, *size, dtype=torch.float64)
    network = settled(SegNet(in_channels=2, out_channels=3, features=4).double(), image).train(training)
    torch.testing.assert_close(network(image), plain(network, image))


# Training


def test_dropout_acts_in_the_deepest_three_levels_of_encoder_and_decoder():
    network = SegNet(features=4, dropout=0.75)
    image = torch.randn(2, 1, 64, 64)
    inputs, outputs, blocks = [], [], []
    network.dropout.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    network.dropout.register_forward_hook(lambda _, __, out: outputs.append(out))
    for block in [*network.encoder, *network.decoder]:
        block.register_forward_hook(lambda _, __, out: blocks.append(out))
    network(image)
    assert [tuple(x.shape[1:]) for x in inputs] == [
        *[(16, 8, 8), (32, 4, 4), (32, 2, 2)],
        *[(32, 4, 4), (16, 8, 8), (8, 16, 16)],
    ]
    for dropped, block in zip(inputs, [*blocks[2:5], *blocks[5:8]], strict=True):
        assert torch.equal(dropped, block if dropped.shape == block.shape else F.max_pool2d(block, 2))
    kept = torch.cat([out[x != 0] != 0 for x, out in zip(inputs, outputs, strict=True)])
    assert kept.float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert not torch.equal(network(image), network(image))
    network.eval()
    assert torch.equal(network(image), network(image))
