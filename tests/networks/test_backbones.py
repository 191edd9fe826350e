"""What all backbones keep to: any size, finite and complete gradients, other forms of the module, clear refusals."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from monai.bundle import ConfigParser
from torch import Tensor, nn

from monai_spct.networks import ENet, SegNet, UNet
from monai_spct.workflow import bundles_folder

CONFIGS, OVERLAYS = bundles_folder() / "acdc" / "configs", bundles_folder() / "networks"


@dataclass(frozen=True)
class Backbone:
    """A network, and what its tests have to know of it.

    Attributes:
        network: class of the network.
        features: few, for speed.
        multiple: sizes that no pooling rounds up are multiples of it; above it the network can be exported.
        norm_levels: how many times halved the resolution is where there are norms.
        steps: of Adam until it has learned.
        to_learn: arguments without which it does not learn as fast.
        idle_biases: biases in front of a norm, which have no gradient.
        no_dropout: arguments to train without dropout, none where that is the default.
        dropout: arguments to train with dropout.
    """

    network: type[nn.Module]
    features: int
    multiple: int
    norm_levels: range
    steps: int = 30
    to_learn: dict[str, Any] = field(default_factory=dict)
    idle_biases: int = 0
    no_dropout: dict[str, Any] = field(default_factory=dict)
    dropout: dict[str, Any] = field(default_factory=lambda: {"dropout": 0.5})

    def __call__(self, spatial_dims: int = 2, **arguments: Any) -> nn.Module:
        return self.network(spatial_dims, **{"features": self.features, **arguments})

    @property
    def name(self) -> str:
        return self.network.__name__

    def settled(self, image: Tensor) -> nn.Module:
        """The network in evaluation mode, with running statistics that are not the initial ones."""
        network = self(image.dim() - 2)
        with torch.no_grad():
            network.train()(image)
        return network.eval()


ENET = Backbone(
    ENet,
    features=8,
    multiple=8,
    norm_levels=range(1, 4),
    to_learn={"features": 16},  # its bottlenecks work on a quarter of them
    no_dropout={"dropout": (0, 0)},
    dropout={"dropout": (0.01, 0.1)},
)
UNET = Backbone(UNet, features=4, multiple=16, norm_levels=range(5), steps=20)
SEGNET = Backbone(SegNet, features=4, multiple=32, norm_levels=range(5), idle_biases=25)
BACKBONES = [ENET, UNET, SEGNET]


def name_of(value: object) -> str | None:
    """Test id of a backbone, a size, or arguments; none for messages, which would only repeat the arguments."""
    if isinstance(value, Backbone):
        return value.name
    return "" if isinstance(value, str) else str(value)


def each(backbones: list[Backbone]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("backbone", backbones, ids=name_of)


each_backbone = each(BACKBONES)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


# Any size


@pytest.mark.parametrize(
    ("backbone", "size"),
    [
        (backbone, size)
        for backbone in BACKBONES
        for m in [backbone.multiple]
        for size in [
            (1, 1),
            (1, 9),
            (m - 1, m),
            (2 * m, 3 * m),
            (187, 201),
            (1, 1, 1),
            (5, 9, 7),
            (m, m // 2 + 1, m + 1),
        ]
    ],
    ids=name_of,
)
def test_the_output_has_the_size_of_the_image(backbone, size):
    image = torch.randn(2, 2, *size)
    logits = backbone(len(size), in_channels=2, out_channels=3).eval()(image)
    assert logits.shape == (2, 3, *size)
    assert logits.isfinite().all()
    logits.view(2, 3, -1)  # dense, so that a loss which uses `view` does not fail at odd sizes alone


@each_backbone
@pytest.mark.parametrize("size", [(17, 23), (41, 64)], ids=str)
def test_no_batch_norm_sees_more_than_the_image(backbone, size):
    network = backbone()
    seen = set()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_pre_hook(lambda _, args: seen.add(tuple(args[0].shape[2:])))
    network(torch.randn(2, 1, *size))
    assert seen == {tuple(math.ceil(n / 2**level) for n in size) for level in backbone.norm_levels}


# Training


@each_backbone
@pytest.mark.parametrize("size", [(17, 23), (187, 201)], ids=str)
@pytest.mark.parametrize("batch", [1, 2], ids="batch {}".format)
def test_odd_sizes_train(backbone, size, batch):
    network = backbone(**backbone.dropout).train()
    logits = network(torch.randn(batch, 1, *size))
    assert logits.shape == (batch, 4, *size)
    F.cross_entropy(logits, torch.randint(4, (batch, *size))).backward()
    assert all(p.grad.isfinite().all() for p in network.parameters())


@each_backbone
@pytest.mark.parametrize("size", [(33, 47), (17, 20, 19)], ids=["2d", "3d"])
def test_gradients_reach_every_parameter_but_biases_in_front_of_a_norm(backbone, size):
    # in double precision what rounding leaves of a gradient of zero is far below the others
    network = backbone(len(size)).double()
    network(torch.randn(2, 1, *size, dtype=torch.float64)).square().mean().backward()
    silent = [name for name, p in network.named_parameters() if p.grad is None or not p.grad.abs().max() > 1e-9]
    idle = [name for name, _ in network.named_parameters() if name.endswith(".conv.bias") and "head" not in name]
    assert len(idle) == backbone.idle_biases
    assert silent == idle


@each_backbone
def test_the_network_learns(backbone):
    network = backbone(out_channels=2, **backbone.to_learn)
    image = F.interpolate(torch.randn(4, 1, 4, 4), size=(24, 24), mode="bilinear")
    label = (image > 0).long()[:, 0]
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    losses = []
    for _ in range(backbone.steps):
        loss = F.cross_entropy(network(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.usefixtures("deterministic")
@each_backbone
@pytest.mark.parametrize("size", [(37, 29), (9, 17, 11)], ids=["2d", "3d"])
def test_forward_and_backward_run_under_deterministic_algorithms(backbone, size):
    network = backbone(len(size), **backbone.dropout)
    image = torch.randn(2, 1, *size)
    gradients = []
    for _ in range(2):
        torch.manual_seed(1)
        network.zero_grad()
        network(image).square().mean().backward()
        gradients.append([p.grad.clone() for p in network.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


# Evaluation


@each_backbone
def test_an_image_in_evaluation_does_not_depend_on_its_batch(backbone):
    images = torch.randn(3, 1, 21, 30)
    network = backbone.settled(images)
    torch.testing.assert_close(network(images)[1:2], network(images[1:2]), atol=1e-5, rtol=1e-5)


# Other forms


@each_backbone
@pytest.mark.parametrize("sizes", [[(17, 23), (1, 5), (64, 40)], [(9, 8, 7), (16, 8, 24)]], ids=["2d", "3d"])
@pytest.mark.parametrize("form", ["script", "trace"])
def test_the_scripted_and_the_traced_network_agree_at_other_sizes(backbone, form, sizes):
    example = torch.randn(2, 1, *(32 for _ in sizes[0]))
    network = backbone.settled(example)
    other = torch.jit.script(network) if form == "script" else torch.jit.trace(network, example)
    for size in sizes * 2:  # twice: torch optimizes a scripted graph after it has seen some inputs
        image = torch.randn(2, 1, *size)
        torch.testing.assert_close(other(image), network(image), atol=1e-6, rtol=1e-6)


@each_backbone
def test_the_exported_network_takes_other_batches_and_sizes(backbone):
    example = torch.randn(2, 1, 48, 40)
    network = backbone.settled(example)
    dynamic = dict.fromkeys((0, 2, 3), torch.export.Dim.DYNAMIC)
    exported = torch.export.export(network, (example,), dynamic_shapes=(dynamic,)).module()
    smallest = backbone.multiple + 1
    for batch, *size in [(1, smallest, smallest), (3, 37, 50), (2, 64, 2 * backbone.multiple)]:
        image = torch.randn(batch, 1, *size)
        torch.testing.assert_close(exported(image), network(image), atol=1e-6, rtol=1e-6)


@each_backbone
@pytest.mark.parametrize(
    ("size", "memory_format"),
    [((17, 23), torch.channels_last), ((32, 64), torch.channels_last), ((9, 8, 17), torch.channels_last_3d)],
    ids=["odd", "even", "3d"],
)
def test_memory_formats_agree(backbone, size, memory_format):
    network = backbone(len(size), **backbone.no_dropout).double()
    image = torch.randn(2, 2, *size, dtype=torch.float64)[:, :1].contiguous()
    expected = network(image)
    expected.square().mean().backward()
    gradients = [p.grad.clone() for p in network.parameters()]

    network.zero_grad()
    network.to(memory_format=memory_format)
    logits = network(image.to(memory_format=memory_format))
    logits.square().mean().backward()
    if len(size) == 2:  # torch has no channels-last convolution for volumes in double precision
        assert logits.is_contiguous(memory_format=memory_format)
    torch.testing.assert_close(logits, expected, atol=1e-10, rtol=1e-8, check_stride=False)
    torch.testing.assert_close([p.grad for p in network.parameters()], gradients, atol=1e-10, rtol=1e-8)


# Refusals


@each_backbone
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"spatial_dims": 4}, "`spatial_dims` must be 2 or 3, got 4."),
        ({"features": 0}, "`features` must be .*, got 0."),
        ({"dropout": 1}, "`dropout` must be .*, got .*1.*"),
        ({"dropout": math.nan}, "`dropout` must be .*, got .*nan.*"),
        ({"in_channels": 0}, "`in_channels` must be a whole number of at least 1, got 0."),
        ({"out_channels": 0}, "`out_channels` must be a whole number of at least 1, got 0."),
    ],
    ids=name_of,
)
def test_impossible_settings_are_refused(backbone, arguments, message):
    if backbone is ENET and "dropout" in arguments:  # which has two
        arguments = {"dropout": (0.1, arguments["dropout"])}
    with pytest.raises(ValueError, match=f"^{message}$"):
        backbone.network(**arguments)


@each_backbone
@pytest.mark.parametrize(("spatial_dims", "axes"), [(2, 3), (2, 5), (3, 4)], ids=["unbatched", "volume", "slice"])
def test_an_input_of_another_rank_is_refused(backbone, spatial_dims, axes):
    message = (
        rf"^{backbone.name} with `spatial_dims` = {spatial_dims} .* of {spatial_dims + 2} axes, got {axes} axes\.$"
    )
    with pytest.raises(ValueError, match=message):
        backbone(spatial_dims)(torch.zeros((1,) * axes))


# Overlay


@each_backbone
@pytest.mark.parametrize("config", ["train", "evaluate", "inference"])
def test_the_overlay_replaces_the_backbone_of_any_config(tmp_path, backbone, config):
    base = json.loads((CONFIGS / f"{config}.json").read_text())
    base["backbone"]["argument_of_another_network"] = 1
    (tmp_path / "base.json").write_text(json.dumps({**base, "in_channels": 2}))
    parser = ConfigParser()
    parser.read_config([str(tmp_path / "base.json"), str(OVERLAYS / f"{backbone.name.lower()}.json")])
    made = parser.get_parsed_content("backbone")
    assert made.func is backbone.network
    assert made.keywords == {"spatial_dims": 2, "in_channels": 2, "out_channels": 4}
