import itertools
import random

import numpy as np
import pytest
import torch
from monai.data import DataLoader
from torch import nn

from monai_spct.networks import ENet, Ensemble, Vote, build_ensemble, compiled, frozen_copy


def small_network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1))


def all_weights(module: nn.Module) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.mark.parametrize("network", [small_network, ENet], ids=["small", "enet"])
def test_the_first_weights_of_three_networks_all_differ(network):
    networks = build_ensemble(network, num_views=3, seed=0).networks
    for one, other in itertools.combinations(networks, 2):
        for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
            if a.ndim > 2:  # norms and slopes start as constants, convolutions do not
                assert (a != b).float().mean() > 0.9, name


@pytest.mark.parametrize(
    "disturb",
    [
        lambda: torch.manual_seed(5),
        lambda: torch.rand(7),
        lambda: DataLoader([0, 1], num_workers=0),  # MONAI's loader sets the seed of torch
    ],
    ids=["another seed", "draws", "a data loader"],
)
def test_the_weights_depend_on_the_seed_alone(disturb):
    expected = all_weights(build_ensemble(small_network, num_views=3, seed=4))
    disturb()
    assert torch.equal(all_weights(build_ensemble(small_network, num_views=3, seed=4)), expected)
    assert not torch.equal(all_weights(build_ensemble(small_network, num_views=3, seed=5)), expected)


def test_building_leaves_the_global_random_states_alone():
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    build_ensemble(ENet, num_views=2, seed=0)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]  # noqa: NPY002


def test_in_training_mode_it_returns_all_logits_and_in_evaluation_mode_the_mean_softmax():
    ensemble = build_ensemble(small_network, num_views=3, seed=0)
    images = 10 * torch.rand(2, 1, 9, 7)
    assert torch.equal(ensemble.train()(images), torch.stack([network(images) for network in ensemble.networks]))
    ensemble.eval()
    with torch.no_grad():
        vote = ensemble(images)
        logits = [network(images).double().numpy() for network in ensemble.networks]
    by_hand = sum(np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in logits) / 3
    np.testing.assert_allclose(vote.numpy(), by_hand, rtol=0, atol=1e-6)
    np.testing.assert_allclose(vote.sum(1).numpy(), 1.0, rtol=0, atol=1e-6)


def test_no_network_is_refused():
    with pytest.raises(ValueError, match="`networks` must hold at least one network"):
        Ensemble([])
    with pytest.raises(ValueError, match="`num_views` must be a whole number of at least 1, got 0"):
        build_ensemble(small_network, num_views=0, seed=0)


def test_networks_of_different_architectures_mix():
    ensemble = Ensemble([ENet(out_channels=3), small_network()])
    images = torch.rand(2, 1, 24, 16)
    assert ensemble.train()(images).shape == (2, 2, 3, 24, 16)
    assert ensemble.eval()(images).shape == (2, 3, 24, 16)


def test_a_frozen_copy_is_equal_and_does_not_follow_its_original():
    students = build_ensemble(small_network, num_views=2, seed=0).train()
    teachers = frozen_copy(students)
    before = {name: value.clone() for name, value in teachers.state_dict().items()}
    assert all(torch.equal(before[name], value) for name, value in students.state_dict().items())
    assert not any(module.training for module in teachers.modules())
    assert not any(p.requires_grad for p in teachers.parameters())
    students(torch.rand(2, 1, 8, 8)).square().sum().backward()  # moves the buffers
    torch.optim.SGD(students.parameters(), lr=1.0).step()
    changed = [name for name, value in students.state_dict().items() if not torch.equal(value, before[name])]
    assert {name.rsplit(".", 1)[-1] for name in changed} >= {"weight", "bias", "running_mean", "num_batches_tracked"}
    for name, value in teachers.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.fixture
def _fresh_compiler():
    """What was compiled before does not count, and nothing that was compiled here is left."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class CountingBackend:
    """Runs what it is given as it is."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph, example_inputs):  # noqa: ARG002 - what a backend is called with
        self.count += 1
        return graph.forward


def outputs_and_gradients(module: nn.Module, images: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    output = module(images)
    return output, list(torch.autograd.grad(output.square().sum(), list(module.parameters())))


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_the_compiled_ensemble_has_the_outputs_and_gradients_of_the_ensemble(backend, training):
    ensemble = build_ensemble(small_network, num_views=3, seed=0).train(training)
    images = torch.rand(2, 1, 9, 7)
    result = outputs_and_gradients(compiled(ensemble, backend=backend), images)
    torch.testing.assert_close(result, outputs_and_gradients(ensemble, images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_compiling_leaves_the_ensemble_as_it_is(training):
    ensemble = build_ensemble(small_network, num_views=2, seed=0).train(training)
    networks, names = list(ensemble.networks), list(ensemble.state_dict())
    fast = compiled(ensemble, backend="eager")
    assert {module.training for module in [*ensemble.modules(), *fast.modules()]} == {training}
    assert all(a is b for a, b in zip(ensemble.networks, networks, strict=True))
    assert {type(network) for network in ensemble.networks} == {nn.Sequential}
    assert list(ensemble.state_dict()) == names
    assert not any("_orig_mod" in name for name in names)


@pytest.mark.usefixtures("_fresh_compiler")
def test_equal_networks_are_compiled_once():
    backend, images = CountingBackend(), torch.rand(2, 1, 32, 32)
    fast = compiled(build_ensemble(ENet, num_views=3, seed=0), backend=backend)
    fast.networks[0](images)
    once = backend.count
    assert once >= 1
    fast(images)
    assert backend.count == once


def test_a_vote_is_the_mean_of_the_probabilities_of_its_networks_in_any_mode():
    ensemble, images = build_ensemble(small_network, num_views=3, seed=0).eval(), torch.rand(2, 1, 6, 6)
    vote, expected = Vote(ensemble).eval(), ensemble(images)
    for module in (vote, compiled(vote, backend="eager")):
        torch.testing.assert_close(module(images), expected)
        torch.testing.assert_close(module.logits(images).exp(), expected.unsqueeze(0))
    sure = Vote(Ensemble([lambda_network(200.0), lambda_network(-200.0)]))
    assert sure.logits(torch.ones(1, 1, 1, 1)).isfinite().all()


def lambda_network(scale: float) -> nn.Module:
    network = nn.Conv2d(1, 2, 1, bias=False)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([scale, -scale]).reshape(2, 1, 1, 1))
    return network
