"""SegNet against the numbers of its papers, a plain version with torch's own unpooling, and itself in other forms."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from monai.bundle import ConfigParser
from torch import Tensor, nn

from monai_spct.bundles import bundles_folder
from monai_spct.networks import SegNet

IGNORE_JIT = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
CONFIGS, OVERLAY = bundles_folder() / "acdc" / "configs", bundles_folder() / "networks" / "segnet.json"

VGG16 = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def settled(network: SegNet, image: Tensor) -> SegNet:
    """The network in evaluation mode, with running statistics that are not the initial ones."""
    with torch.no_grad():
        network.train()(image)
    return network.eval()


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


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


def test_the_default_network_has_the_published_number_of_parameters_and_statistics():
    with torch.device("meta"):
        network = SegNet()
    assert count(network) == 29_444_164
    running = sum(b.numel() for b in network.buffers() if b.is_floating_point())
    assert round((29_444_164 + running) / 1e6, 2) == 29.46


def test_the_encoder_has_as_many_parameters_in_convolutions_as_vgg16():
    with torch.device("meta"):
        network = SegNet(in_channels=3)
    convolutions = [module for module in network.encoder.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 13
    assert sum(count(convolution) for convolution in convolutions) == 14_714_688  # without the dense layers


@pytest.mark.parametrize(
    ("spatial_dims", "in_channels", "out_channels"), [(2, 1, 4), (2, 3, 12), (3, 1, 2)], ids=["2d", "rgb", "3d"]
)
def test_parameters_add_up_to_the_layers_of_vgg16_and_their_mirror_image(spatial_dims, in_channels, out_channels):
    cube = 3**spatial_dims
    encoder = sum(cube * before * after + 3 * after for before, after in pairwise([in_channels, *VGG16]))
    decoder = sum(cube * before * after + 3 * after for before, after in pairwise(VGG16[::-1]))
    with torch.device("meta"):
        network = SegNet(spatial_dims, in_channels, out_channels)
    assert count(network) == encoder + decoder + cube * 64 * out_channels + out_channels


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


@pytest.mark.parametrize("spatial_dims", [2, 3])
def test_weights_start_from_hes_distribution(spatial_dims):
    network = SegNet(spatial_dims, in_channels=8, features=8)
    deviations = {
        name: w.std().item() * math.sqrt(w[0].numel() / 2) for name, w in network.named_parameters() if w.dim() > 1
    }
    assert len(deviations) == 26
    assert {name: d for name, d in deviations.items() if d != pytest.approx(1, abs=0.15)} == {}


# Any size


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (2, 3), (31, 32), (32, 64), (17, 23), (187, 201)], ids=str)
def test_the_output_has_the_size_of_the_image(size):
    image = torch.randn(2, 1, *size)
    logits = SegNet(out_channels=3, features=2).eval()(image)
    assert logits.shape == (2, 3, *size)
    assert logits.isfinite().all()
    logits.view(2, 3, -1)  # dense, so that a loss which uses `view` does not fail at odd sizes alone


@pytest.mark.parametrize("size", [(1, 1, 1), (5, 9, 7), (32, 17, 33)], ids=str)
def test_the_output_has_the_size_of_the_volume(size):
    logits = SegNet(3, in_channels=2, out_channels=3, features=2)(torch.randn(2, 2, *size))
    assert logits.shape == (2, 3, *size)
    assert logits.isfinite().all()


@pytest.mark.parametrize("size", [(17, 23), (41, 64)], ids=str)
def test_no_batch_norm_sees_more_than_the_image(size):
    network = SegNet(features=2)
    seen = set()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_pre_hook(lambda _, args: seen.add(tuple(args[0].shape[2:])))
    network(torch.randn(2, 1, *size))
    assert seen == {tuple(math.ceil(n / 2**level) for n in size) for level in range(5)}


def test_training_with_one_image_takes_more_than_sixteen_pixels_along_an_axis():
    network = SegNet(features=2)
    assert network(torch.randn(1, 1, 5, 17)).shape == (1, 4, 5, 17)
    with pytest.raises(ValueError, match="more than 1 value per channel when training"):
        network(torch.randn(1, 1, 16, 16))


# Training


@pytest.mark.parametrize(("spatial_dims", "size"), [(2, (33, 47)), (3, (17, 20, 19))], ids=["2d", "3d"])
def test_gradients_reach_every_parameter_but_biases_in_front_of_a_norm(spatial_dims, size):
    network = SegNet(spatial_dims, features=4).double()
    network(torch.randn(2, 1, *size, dtype=torch.float64)).square().mean().backward()
    silent = [name for name, p in network.named_parameters() if not p.grad.abs().max() > 1e-9]
    idle = [name for name, _ in network.named_parameters() if name.endswith("conv.bias") and "head" not in name]
    assert len(idle) == 25
    assert silent == idle


def test_the_network_learns():
    network = SegNet(out_channels=2, features=4)
    image = F.interpolate(torch.randn(4, 1, 4, 4), size=(24, 24), mode="bilinear")
    label = (image > 0).long()[:, 0]
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = F.cross_entropy(network(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize(("spatial_dims", "size"), [(2, (37, 29)), (3, (9, 17, 11))], ids=["2d", "3d"])
def test_forward_and_backward_run_under_deterministic_algorithms(spatial_dims, size):
    network = SegNet(spatial_dims, features=4, dropout=0.5)
    image = torch.randn(2, 1, *size)
    gradients = []
    for _ in range(2):
        torch.manual_seed(1)
        network.zero_grad()
        network(image).square().mean().backward()
        gradients.append([p.grad.clone() for p in network.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


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


def test_without_dropout_training_repeats_itself_and_draws_no_random_numbers():
    network = SegNet(features=2)
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
    network = settled(SegNet(spatial_dims, features=4), example)
    other = torch.jit.script(network) if form == "script" else torch.jit.trace(network, example)
    for size in sizes * 2:  # twice: torch optimizes a scripted graph after it has seen some inputs
        image = torch.randn(2, 1, *size)
        torch.testing.assert_close(other(image), network(image), atol=1e-6, rtol=1e-6)


@IGNORE_JIT
def test_the_scripted_network_has_the_same_gradients():
    network = SegNet(features=4).double()
    image = torch.randn(2, 1, 24, 17, dtype=torch.float64)
    network(image).square().mean().backward()
    expected = [p.grad.clone() for p in network.parameters()]
    scripted = torch.jit.script(network)
    for _ in range(3):
        scripted.zero_grad()
        scripted(image).square().mean().backward()
        torch.testing.assert_close([p.grad for p in scripted.parameters()], expected)


def test_the_exported_network_takes_other_batches_and_sizes():
    example = torch.randn(2, 1, 48, 40)
    network = settled(SegNet(features=4), example)
    dynamic = dict.fromkeys((0, 2, 3), torch.export.Dim.DYNAMIC)
    exported = torch.export.export(network, (example,), dynamic_shapes=(dynamic,)).module()
    for batch, *size in [(1, 33, 33), (3, 37, 50), (2, 64, 96)]:
        image = torch.randn(batch, 1, *size)
        torch.testing.assert_close(exported(image), network(image), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("spatial_dims", "size", "memory_format"),
    [
        (2, (17, 23), torch.channels_last),
        (2, (32, 64), torch.channels_last),
        (3, (9, 8, 17), torch.channels_last_3d),
    ],
    ids=["odd", "even", "3d"],
)
def test_memory_formats_agree(spatial_dims, size, memory_format):
    network = SegNet(spatial_dims, features=4).double()
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
    network = SegNet(features=4)
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
        SegNet(**arguments)


@pytest.mark.parametrize(("spatial_dims", "axes"), [(2, 3), (2, 5), (3, 4)], ids=["unbatched", "volume", "slice"])
def test_an_input_of_another_rank_is_refused(spatial_dims, axes):
    with pytest.raises(ValueError, match=rf"of {spatial_dims + 2} axes, got {axes} axes\."):
        SegNet(spatial_dims, features=1)(torch.zeros((1,) * axes))


@IGNORE_JIT
def test_the_scripted_network_also_refuses_another_rank():
    scripted = torch.jit.script(SegNet(features=1))
    with pytest.raises(torch.jit.Error, match="of 4 axes, got 5 axes"):
        scripted(torch.zeros(1, 1, 8, 8, 8))


# Overlay


@pytest.mark.parametrize("config", ["train", "evaluate", "inference"])
def test_the_overlay_replaces_the_backbone_of_any_config(tmp_path, config):
    base = json.loads((CONFIGS / f"{config}.json").read_text())
    base["backbone"]["argument_of_another_network"] = 1
    (tmp_path / "base.json").write_text(json.dumps({**base, "in_channels": 2}))
    parser = ConfigParser()
    parser.read_config([str(tmp_path / "base.json"), str(OVERLAY)])
    made = parser.get_parsed_content("backbone")
    assert made.func is SegNet
    assert made.keywords == {"spatial_dims": 2, "in_channels": 2, "out_channels": 4}
