"""ENet against the table of its paper, and torch's own unpooling."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from monai_spct.networks.enet import ENet, max_unpool


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def parameters_by_hand(*, spatial_dims: int, in_channels: int, out_channels: int) -> int:
    """The paper's table 1, added up."""

    def normed(conv: int, channels: int, *, prelu: bool) -> int:
        return conv + 2 * channels + (channels if prelu else 0)

    def bottleneck(before: int, after: int, kernels: list[int], *, first: int = 1, prelu: bool = True) -> int:
        inner = after // 4
        total = normed(first * before * inner, inner, prelu=prelu)
        total += sum(normed(k * inner * inner, inner, prelu=prelu) for k in kernels)
        return total + normed(inner * after, after, prelu=prelu)

    cube, square = 3**spatial_dims, 2**spatial_dims
    regular, asymmetric = bottleneck(128, 128, [cube]), bottleneck(128, 128, [5] * spatial_dims)
    return (
        normed(cube * in_channels * (16 - in_channels), 16, prelu=True)
        + bottleneck(16, 64, [cube], first=square)
        + 4 * bottleneck(64, 64, [cube])
        + bottleneck(64, 128, [cube], first=square)
        + 2 * (6 * regular + 2 * asymmetric)
        + normed(128 * 64, 64, prelu=False)
        + bottleneck(128, 64, [cube], prelu=False)
        + 2 * bottleneck(64, 64, [cube], prelu=False)
        + normed(64 * 16, 16, prelu=False)
        + bottleneck(64, 16, [cube], prelu=False)
        + bottleneck(16, 16, [cube], prelu=False)
        + square * 16 * out_channels
        + out_channels
    )


@pytest.mark.parametrize(
    ("spatial_dims", "in_channels", "out_channels"), [(2, 1, 4), (2, 3, 19), (3, 1, 2)], ids=["2d", "rgb", "3d"]
)
def test_parameters_add_up_to_the_table(spatial_dims, in_channels, out_channels):
    expected = parameters_by_hand(spatial_dims=spatial_dims, in_channels=in_channels, out_channels=out_channels)
    networks = ENet(spatial_dims, in_channels, out_channels), ENet()
    counts = [sum(p.numel() for p in network.parameters()) for network in networks]
    assert counts == [expected, 362_811]  # with its running statistics the published 0.37 million


def test_the_stages_have_the_channels_and_the_resolution_of_the_table():
    network = ENet().eval()
    seen: dict[str, tuple[int, ...]] = {}
    for name, child in network.named_children():
        child.register_forward_hook(
            lambda _, __, out, name=name: seen.update(
                {name: tuple((out if isinstance(out, Tensor) else out[0]).shape[1:])}
            )
        )
    network(torch.randn(1, 1, 64, 128))
    assert seen == {
        "initial": (16, 32, 64),
        "down1": (64, 16, 32),
        "stage1": (64, 16, 32),
        "down2": (128, 8, 16),
        "stage2": (128, 8, 16),
        "stage3": (128, 8, 16),
        "up4": (64, 16, 32),
        "stage4": (64, 16, 32),
        "up5": (16, 32, 64),
        "stage5": (16, 32, 64),
        "head": (4, 64, 128),
    }


@pytest.mark.parametrize("stage", ["stage2", "stage3"])
@pytest.mark.parametrize(
    ("spatial_dims", "asymmetric"), [(2, [(5, 1), (1, 5)]), (3, [(5, 1, 1), (1, 5, 1), (1, 1, 5)])], ids=["2d", "3d"]
)
def test_the_context_stages_alternate_dilated_and_asymmetric_convolutions(stage, spatial_dims, asymmetric):
    plain = (3,) * spatial_dims
    found = [
        [(m.kernel_size, m.dilation[0]) for m in block.modules() if isinstance(m, nn.Conv2d | nn.Conv3d)][1:-1]
        for block in getattr(ENet(spatial_dims), stage)
    ]
    thin = [(kernel, 1) for kernel in asymmetric]
    assert found == [
        [(plain, 1)], [(plain, 2)], thin, [(plain, 4)], [(plain, 1)], [(plain, 8)], thin, [(plain, 16)]
    ]  # fmt: skip


@pytest.mark.parametrize(("spatial_dims", "kind"), [(2, nn.Dropout2d), (3, nn.Dropout3d)], ids=["2d", "3d"])
def test_every_bottleneck_drops_channels_little_at_first_and_more_later(spatial_dims, kind):
    rates = {
        name: [m.p for m in child.modules() if isinstance(m, kind)]
        for name, child in ENet(spatial_dims, dropout=(0.25, 0.5)).named_children()
    }
    assert rates["down1"] + rates["stage1"] == [0.25] * 5
    later = ("down2", "stage2", "stage3", "up4", "stage4", "up5", "stage5")
    assert list(itertools.chain(*(rates[name] for name in later))) == [0.5] * 22
    default = ENet(spatial_dims)
    assert {m.p for m in default.modules() if isinstance(m, kind)} == {0.01, 0.1}


@pytest.mark.parametrize(("in_channels", "convolved"), [(1, 15), (3, 13), (15, 1), (16, 16), (20, 16)])
def test_the_pooled_image_fills_the_initial_block_up_while_there_is_room(in_channels, convolved):
    network = ENet(in_channels=in_channels).eval()
    image = torch.randn(1, in_channels, 9, 8)
    assert network.initial.conv(image).shape[1] == convolved
    before_norm = []
    network.initial.norm.register_forward_pre_hook(lambda _, args: before_norm.append(args[0]))
    assert network(image).shape == (1, 4, 9, 8)
    assert before_norm[0].shape[1] == 16
    if in_channels < 16:
        assert torch.equal(before_norm[0][:, convolved:], F.max_pool2d(image, 2, ceil_mode=True))


@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels_last"])
@given(height=st.integers(1, 9), width=st.integers(1, 9), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_unpooling_agrees_with_torch(channels_last, height, width, seed):
    image = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(seed))
    if channels_last:
        image = image.to(memory_format=torch.channels_last)
    pooled, indices = F.max_pool2d(image, 2, ceil_mode=True, return_indices=True)
    expected = nn.MaxUnpool2d(2)(pooled, indices, output_size=[height, width])
    assert torch.equal(max_unpool(pooled, indices, [height, width]), expected)
