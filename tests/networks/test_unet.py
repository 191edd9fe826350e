"""U-Net against the numbers of its papers, MONAI's own U-Net, and itself in other forms."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from monai.bundle import ConfigParser
from monai.networks.nets import BasicUNet
from monai.networks.nets.basic_unet import UpCat
from torch import Tensor, nn

from monai_spct.bundles import bundles_folder
from monai_spct.networks import ENet, UNet

IGNORE_JIT = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
CONFIGS, OVERLAYS = bundles_folder() / "acdc" / "configs", bundles_folder() / "networks"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def settled(network: UNet, image: Tensor) -> UNet:
    """The network in evaluation mode, with running statistics that are not the initial ones."""
    with torch.no_grad():
        network.train()(image)
    return network.eval()


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


# Architecture


def test_the_default_network_has_the_published_number_of_parameters():
    with torch.device("meta"):
        assert count(UNet()) == 31_036_676
    assert round(31_036_676 / 1e6, 2) == 31.04


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
        assert count(UNet(spatial_dims, in_channels, out_channels)) == expected


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


@pytest.mark.parametrize("spatial_dims", [2, 3])
def test_weights_start_from_hes_distribution(spatial_dims):
    network = UNet(spatial_dims, in_channels=8, out_channels=32, features=16)
    deviations = {
        name: w.std().item() * math.sqrt(w[0].numel() / 2) for name, w in network.named_parameters() if w.dim() > 1
    }
    assert len(deviations) == 23
    assert {name: d for name, d in deviations.items() if d != pytest.approx(1, abs=0.15)} == {}


def test_features_are_about_as_large_from_below_as_from_the_side():
    network = UNet(features=16)
    seen = []
    for block in network.decoder:
        block.convs.register_forward_pre_hook(lambda _, args: seen.append(args[0].square().mean((0, 2, 3))))
    network(torch.randn(4, 1, 64, 64))
    for energy in seen:
        side, below = energy.chunk(2)
        assert 0.5 < side.mean() / below.mean() < 2


# Any size


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (2, 3), (15, 16), (16, 32), (17, 23), (187, 201)], ids=str)
def test_the_output_has_the_size_of_the_image(size):
    image = torch.randn(2, 1, *size)
    logits = UNet(out_channels=3, features=2).eval()(image)
    assert logits.shape == (2, 3, *size)
    assert logits.isfinite().all()
    logits.view(2, 3, -1)  # dense, so that a loss which uses `view` does not fail at odd sizes alone


@pytest.mark.parametrize("size", [(1, 1, 1), (5, 9, 7), (16, 17, 33)], ids=str)
def test_the_output_has_the_size_of_the_volume(size):
    logits = UNet(3, in_channels=2, out_channels=3, features=2)(torch.randn(2, 2, *size))
    assert logits.shape == (2, 3, *size)
    assert logits.isfinite().all()


@pytest.mark.parametrize("size", [(17, 23), (41, 64)], ids=str)
def test_no_batch_norm_sees_more_than_the_image(size):
    network = UNet(features=2)
    seen = set()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_pre_hook(lambda _, args: seen.add(tuple(args[0].shape[2:])))
    network(torch.randn(2, 1, *size))
    assert seen == {tuple(math.ceil(n / 2**level) for n in size) for level in range(5)}


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


def test_training_with_one_image_takes_more_than_sixteen_pixels_along_an_axis():
    network = UNet(features=2)
    assert network(torch.randn(1, 1, 5, 17)).shape == (1, 4, 5, 17)
    with pytest.raises(ValueError, match="more than 1 value per channel when training"):
        network(torch.randn(1, 1, 16, 16))


# Training


@pytest.mark.parametrize(("spatial_dims", "size"), [(2, (33, 47)), (3, (17, 20, 19))], ids=["2d", "3d"])
def test_gradients_reach_every_parameter(spatial_dims, size):
    network = UNet(spatial_dims, features=4)
    network(torch.randn(2, 1, *size)).square().mean().backward()
    silent = [name for name, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert silent == []


def test_the_network_learns():
    network = UNet(out_channels=2, features=4)
    image = F.interpolate(torch.randn(4, 1, 4, 4), size=(24, 24), mode="bilinear")
    label = (image > 0).long()[:, 0]
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        loss = F.cross_entropy(network(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize(("spatial_dims", "size"), [(2, (37, 29)), (3, (9, 17, 11))], ids=["2d", "3d"])
def test_forward_and_backward_run_under_deterministic_algorithms(spatial_dims, size):
    network = UNet(spatial_dims, features=4, dropout=0.5)
    image = torch.randn(2, 1, *size)
    gradients = []
    for _ in range(2):
        torch.manual_seed(1)
        network.zero_grad()
        network(image).square().mean().backward()
        gradients.append([p.grad.clone() for p in network.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


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


def test_without_dropout_training_repeats_itself_and_draws_no_random_numbers():
    network = UNet(features=2)
    image = torch.randn(2, 1, 40, 40)
    state = torch.get_rng_state()
    assert torch.equal(network(image), network(image))
    assert torch.equal(torch.get_rng_state(), state)


# Other forms


@IGNORE_JIT
@pytest.mark.parametrize(
    ("spatial_dims", "sizes"), [(2, [(17, 23), (1, 5), (64, 40)]), (3, [(9, 8, 7), (16, 8, 24)])], ids=["2d", "3d"]
)
@pytest.mark.parametrize("form", ["script", "trace"])
def test_the_scripted_and_the_traced_network_agree_at_other_sizes(form, spatial_dims, sizes):
    example = torch.randn(2, 1, *(32,) * spatial_dims)
    network = settled(UNet(spatial_dims, features=4), example)
    other = torch.jit.script(network) if form == "script" else torch.jit.trace(network, example)
    for size in sizes * 2:  # twice: torch optimizes a scripted graph after it has seen some inputs
        image = torch.randn(2, 1, *size)
        torch.testing.assert_close(other(image), network(image), atol=1e-6, rtol=1e-6)


@IGNORE_JIT
def test_the_scripted_network_has_the_same_gradients():
    network = UNet(features=4)
    image = torch.randn(2, 1, 24, 17)
    network(image).square().mean().backward()
    expected = [p.grad.clone() for p in network.parameters()]
    scripted = torch.jit.script(network)
    for _ in range(3):
        scripted.zero_grad()
        scripted(image).square().mean().backward()
        torch.testing.assert_close([p.grad for p in scripted.parameters()], expected, atol=1e-5, rtol=1e-4)


def test_the_exported_network_takes_other_batches_and_sizes():
    example = torch.randn(2, 1, 48, 40)
    network = settled(UNet(features=4), example)
    dynamic = dict.fromkeys((0, 2, 3), torch.export.Dim.DYNAMIC)
    exported = torch.export.export(network, (example,), dynamic_shapes=(dynamic,)).module()
    for batch, *size in [(1, 17, 17), (3, 33, 50), (2, 64, 32)]:
        image = torch.randn(batch, 1, *size)
        torch.testing.assert_close(exported(image), network(image), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("spatial_dims", "size", "memory_format"),
    [
        (2, (17, 23), torch.channels_last),
        (2, (32, 48), torch.channels_last),
        (3, (9, 8, 17), torch.channels_last_3d),
    ],
    ids=["odd", "even", "3d"],
)
def test_memory_formats_agree(spatial_dims, size, memory_format):
    network = UNet(spatial_dims, features=4).double()
    image = torch.randn(2, 2, *size, dtype=torch.float64)[:, :1].contiguous()
    expected = network(image)
    expected.square().mean().backward()
    gradients = [p.grad.clone() for p in network.parameters()]

    network.zero_grad()
    network.to(memory_format=memory_format)
    logits = network(image.to(memory_format=memory_format))
    logits.square().mean().backward()
    if spatial_dims == 2:  # torch has no channels-last convolution for volumes in double precision
        assert logits.is_contiguous(memory_format=memory_format)
    torch.testing.assert_close(logits, expected, atol=1e-10, rtol=1e-8, check_stride=False)
    torch.testing.assert_close([p.grad for p in network.parameters()], gradients, atol=1e-10, rtol=1e-8)


def test_bfloat16_autocast_stays_finite():
    network = UNet(features=4)
    image = 100 * torch.randn(2, 1, 33, 47)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = network(image)
    assert logits.dtype == torch.bfloat16
    assert logits.isfinite().all()
    logits.float().square().mean().backward()
    assert all(p.grad.isfinite().all() for p in network.parameters())


# Refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"spatial_dims": 1}, "`spatial_dims` must be 2 or 3, got 1."),
        ({"spatial_dims": 4}, "`spatial_dims` must be 2 or 3, got 4."),
        ({"in_channels": 0}, "`in_channels` must be a whole number of at least 1, got 0."),
        ({"out_channels": 0}, "`out_channels` must be a whole number of at least 1, got 0."),
        ({"features": 0}, "`features` must be a whole number of at least 1, got 0."),
        ({"features": 2.5}, "`features` must be a whole number of at least 1, got 2.5."),
        ({"dropout": 1}, r"`dropout` must be a probability in \[0, 1\), got 1."),
        ({"dropout": -0.1}, r"`dropout` must be a probability in \[0, 1\), got -0.1."),
        ({"dropout": math.nan}, r"`dropout` must be a probability in \[0, 1\), got nan."),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_impossible_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        UNet(**arguments)


@pytest.mark.parametrize(("spatial_dims", "axes"), [(2, 3), (2, 5), (3, 4)], ids=["unbatched", "volume", "slice"])
def test_an_input_of_another_rank_is_refused(spatial_dims, axes):
    with pytest.raises(ValueError, match=rf"of {spatial_dims + 2} axes, got {axes} axes\."):
        UNet(spatial_dims, features=1)(torch.zeros((1,) * axes))


@IGNORE_JIT
def test_the_scripted_network_also_refuses_another_rank():
    scripted = torch.jit.script(UNet(features=1))
    with pytest.raises(torch.jit.Error, match="of 4 axes, got 5 axes"):
        scripted(torch.zeros(1, 1, 8, 8, 8))


# Overlay


@pytest.mark.parametrize("config", ["train", "evaluate", "inference"])
@pytest.mark.parametrize(("overlay", "network"), [("enet", ENet), ("unet", UNet)], ids=["enet", "unet"])
def test_the_overlay_replaces_the_backbone_of_any_config(tmp_path, config, overlay, network):
    base = json.loads((CONFIGS / f"{config}.json").read_text())
    base["backbone"]["argument_of_another_network"] = 1
    (tmp_path / "base.json").write_text(json.dumps({**base, "in_channels": 2}))
    parser = ConfigParser()
    parser.read_config([str(tmp_path / "base.json"), str(OVERLAYS / f"{overlay}.json")])
    made = parser.get_parsed_content("backbone")
    assert made.func is network
    assert made.keywords == {"spatial_dims": 2, "in_channels": 2, "out_channels": 4}
