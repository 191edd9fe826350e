import math

import pytest
import torch
from torch import nn

from monai_spct.functional import entropy
from monai_spct.inferers import MonteCarloDropout
from monai_spct.networks import ENet, Ensemble, build_ensemble, frozen_copy

CLASSES = 3
IMAGES = torch.rand(4, 1, 9, 7, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def with_dropout(p: float = 0.4) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(p)),
        *(nn.Dropout2d(p), nn.Conv2d(8, CLASSES, 1)),
    )


def without_dropout() -> nn.Module:
    return nn.Conv2d(1, CLASSES, 3, padding=1)


def teachers_of(network=with_dropout, count: int = 2) -> Ensemble:
    """With opinions, and with running statistics of their own."""
    ensemble = build_ensemble(network, num_views=count, seed=0).train()
    with torch.no_grad():
        for teacher in ensemble.networks:
            list(teacher.modules())[-1].weight.mul_(5)
        ensemble(3 * IMAGES - 1)
    return frozen_copy(ensemble)


def modes_of(module: nn.Module) -> list[bool]:
    return [part.training for part in module.modules()]


# What it is


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_it_is_the_entropy_of_the_mean_over_the_passes_by_hand(passes, noise):
    teachers = teachers_of()
    torch.manual_seed(5)
    uncertainty = MonteCarloDropout(passes=passes, noise=noise)(teachers, IMAGES)

    torch.manual_seed(5)
    by_hand = frozen_copy(teachers)
    for module in by_hand.modules():
        if isinstance(module, nn.Dropout | nn.Dropout2d):
            module.train()
    probs = []
    for _ in range(passes):
        noisy = IMAGES + (noise * torch.randn(IMAGES.shape)).clamp(-2 * noise, 2 * noise)
        probs.append(torch.stack([network(noisy).softmax(1) for network in by_hand.networks]))
    expected = torch.empty(2, 4, 9, 7)
    for k in range(2):
        for b in range(4):
            for y in range(9):
                for x in range(7):
                    mean = [sum(p[k, b, c, y, x].item() for p in probs) / passes for c in range(CLASSES)]
                    expected[k, b, y, x] = -sum(p * math.log(p) for p in mean)
    torch.testing.assert_close(uncertainty, expected, rtol=0, atol=1e-5)
    assert uncertainty.std() > 0.1


@pytest.mark.parametrize("classes", [2, 3, 9], ids=lambda c: f"{c} classes")
@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0], ids=["undecided", "unsure", "certain"])
def test_it_lies_between_certainty_and_the_logarithm_of_the_number_of_classes(classes, scale):
    teachers = teachers_of(lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.Dropout2d(0.5), nn.Conv2d(8, classes, 1)))
    with torch.no_grad():
        for parameter in teachers.parameters():
            parameter.mul_(scale)
    uncertainty = MonteCarloDropout(passes=5)(teachers, IMAGES)
    assert uncertainty.min() >= -1e-6
    assert uncertainty.max() <= math.log(classes) + 1e-6
    if scale == 0:
        torch.testing.assert_close(uncertainty, torch.full_like(uncertainty, math.log(classes)))


@pytest.mark.parametrize("count", [1, 3], ids=lambda k: f"{k} teachers")
def test_volumes_have_an_uncertainty_too(count):
    teachers = teachers_of(count=count)
    assert MonteCarloDropout(passes=2)(teachers, IMAGES).shape == (count, 4, 9, 7)
    network = build_ensemble(
        lambda: nn.Sequential(nn.Conv3d(1, CLASSES, 3, padding=1), nn.Dropout3d(0.5)), num_views=count, seed=0
    ).eval()
    assert MonteCarloDropout(passes=2)(network, torch.rand(2, 1, 6, 5, 4)).shape == (count, 2, 6, 5, 4)


# Where it comes from


def plain_entropy(teachers: Ensemble) -> torch.Tensor:
    return entropy(teachers.logits(IMAGES).log_softmax(2), dim=2)


@pytest.mark.parametrize("passes", [1, 3])
def test_dropout_is_live(passes):
    teachers = teachers_of()
    uncertain = MonteCarloDropout(passes=passes, noise=0.0)
    first, second = uncertain(teachers, IMAGES), uncertain(teachers, IMAGES)
    assert not torch.allclose(first, second, atol=1e-2)
    assert not torch.allclose(first, plain_entropy(teachers), atol=1e-2)


def test_the_dropout_of_the_own_network_is_found():
    """Which has it within MONAI's blocks, and in place."""
    teachers = frozen_copy(build_ensemble(lambda: ENet(features=4, dropout=(0.3, 0.3)), num_views=2, seed=0))
    images = torch.rand(2, 1, 32, 32)
    uncertain = MonteCarloDropout(passes=2, noise=0.0)
    assert torch.equal(teachers.logits(images), teachers.logits(images))
    assert not torch.equal(uncertain(teachers, images), uncertain(teachers, images))


@pytest.mark.parametrize("network", [without_dropout, lambda: with_dropout(0.0)], ids=["no dropout", "dropout of 0"])
def test_noise_alone_will_do(network):
    teachers = teachers_of(network)
    uncertain = MonteCarloDropout(passes=2, noise=0.2)
    first, second = uncertain(teachers, IMAGES), uncertain(teachers, IMAGES)
    assert not torch.allclose(first, second, atol=1e-2)
    assert not torch.allclose(first, plain_entropy(teachers), atol=1e-2)
    little = MonteCarloDropout(passes=2, noise=1e-6)(teachers, IMAGES)
    torch.testing.assert_close(little, plain_entropy(teachers), rtol=0, atol=1e-4)


def test_noise_is_gaussian_and_cut_off_at_twice_its_standard_deviation():
    teachers = teachers_of(without_dropout)
    images, noise = torch.full((4, 1, 50, 50), 0.5), []
    teachers.networks[0].register_forward_pre_hook(lambda module, inputs: noise.append(inputs[0] - 0.5))  # noqa: ARG005
    MonteCarloDropout(passes=3, noise=0.1)(teachers, images)
    assert len(noise) == 3
    assert all(not torch.equal(noise[0], other) for other in noise[1:])
    drawn = torch.stack(noise)
    assert drawn.abs().max().item() == pytest.approx(0.2, abs=1e-6)
    assert drawn.mean().abs() < 2e-3
    within = (drawn.abs() < 0.1).float().mean().item()
    assert within == pytest.approx(math.erf(1 / math.sqrt(2)), abs=0.01)  # 68 % lie within one standard deviation
    at_the_end = (drawn.abs() > 0.2 - 1e-6).float().mean().item()
    assert at_the_end == pytest.approx(1 - math.erf(2 / math.sqrt(2)), abs=0.01)


# What it leaves behind


def test_networks_are_left_as_they_were_bit_by_bit():
    teachers = teachers_of()
    before = {name: value.clone() for name, value in teachers.state_dict().items()}
    MonteCarloDropout(passes=3)(teachers, IMAGES)
    after = teachers.state_dict()
    assert after.keys() == before.keys()
    assert any("running_mean" in name for name in after)
    for name, value in before.items():
        assert torch.equal(after[name], value), name
    assert {parameter.grad for parameter in teachers.parameters()} == {None}


@pytest.mark.parametrize("learning", [None, 0, 1])
@pytest.mark.parametrize("fails", [False, True], ids=["to the end", "with an error in the middle"])
def test_each_module_is_left_in_the_mode_it_was_in(learning, fails):
    teachers = teachers_of()
    if learning is not None:
        teachers.networks[learning][3 * learning].train()  # a convolution, or a dropout
    before = modes_of(teachers)
    seen = []

    def breaks(module, inputs):  # noqa: ARG001
        seen.append(modes_of(teachers))
        if fails and len(seen) == 2:
            raise KeyError("the machine is gone")

    teachers.networks[1].register_forward_pre_hook(breaks)
    if fails:
        with pytest.raises(KeyError, match="the machine is gone"):
            MonteCarloDropout(passes=3)(teachers, IMAGES)
    else:
        MonteCarloDropout(passes=3)(teachers, IMAGES)
    assert len(seen) == (2 if fails else 3)
    assert modes_of(teachers) == before
    # in between dropout was on, and nothing else that was off
    modules = list(teachers.modules())
    for during in seen:
        expected = [
            mode or isinstance(module, nn.Dropout | nn.Dropout2d) for mode, module in zip(before, modules, strict=True)
        ]
        assert during == expected


# Numbers


class Loud(nn.Module):
    """Logits as large as its type allows, whose winner depends on the noise."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        largest = torch.finfo(self.dtype).max
        yes = torch.where(image > 0.5, largest, -largest)
        return torch.cat([yes, -yes, torch.zeros_like(yes)], 1).to(self.dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_logits_of_any_size_have_a_finite_uncertainty(dtype):
    uncertainty = MonteCarloDropout(passes=4)(Ensemble([Loud(dtype)]), IMAGES)
    assert uncertainty.isfinite().all()
    assert uncertainty.dtype == torch.float32
    sure = (IMAGES[:, 0] - 0.5).abs() > 0.21  # beyond the noise
    assert uncertainty[0][sure].abs().max() < 1e-6
    assert uncertainty[0][~sure].max() > 0.5  # two of four passes against the others


# What is refused


@pytest.mark.parametrize("network", [without_dropout, lambda: with_dropout(0.0)], ids=["no dropout", "dropout of 0"])
def test_passes_that_would_all_be_equal_are_refused(network):
    teachers = teachers_of(network)
    before = modes_of(teachers)
    with pytest.raises(ValueError, match="needs networks with dropout, or `noise` above 0: got neither"):
        MonteCarloDropout(noise=0.0)(teachers, IMAGES)
    assert modes_of(teachers) == before


@pytest.mark.parametrize(("name", "value"), [("noise", -0.1), ("noise", math.inf), ("noise", math.nan), ("passes", 0)])
def test_a_setting_out_of_range_is_refused(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be .* of at least ., got {value}"):
        MonteCarloDropout(**{name: value})
