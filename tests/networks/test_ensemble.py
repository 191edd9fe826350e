import itertools
import random

import numpy as np
import pytest
import torch
from monai.data import DataLoader
from torch import nn

from monai_spct.networks import ENet, Ensemble, build_ensemble, frozen_copy


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


@pytest.mark.parametrize("num_views", [0, -1, 1.5], ids=str)
def test_a_number_of_views_that_is_none_is_refused(num_views):
    with pytest.raises(ValueError, match="`num_views` must be a whole number of at least 1, got"):
        build_ensemble(small_network, num_views=num_views, seed=0)


def test_an_ensemble_of_no_network_is_refused():
    with pytest.raises(ValueError, match="`networks` must hold at least one network"):
        Ensemble([])


def test_in_training_mode_it_returns_what_each_network_says():
    ensemble = build_ensemble(small_network, num_views=3, seed=0).train()
    images = torch.rand(2, 1, 9, 7)
    assert torch.equal(ensemble(images), torch.stack([network(images) for network in ensemble.networks]))


def test_in_evaluation_mode_it_returns_the_mean_softmax():
    ensemble = build_ensemble(small_network, num_views=3, seed=0).eval()
    images = 10 * torch.rand(2, 1, 9, 7)
    with torch.no_grad():
        vote = ensemble(images)
        logits = [network(images).double().numpy() for network in ensemble.networks]
    by_hand = sum(np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in logits) / 3
    np.testing.assert_allclose(vote.numpy(), by_hand, rtol=0, atol=1e-6)
    np.testing.assert_allclose(vote.sum(1).numpy(), 1.0, rtol=0, atol=1e-6)


def test_logits_are_the_same_in_either_mode_without_norms():
    ensemble = Ensemble([nn.Conv2d(1, 3, 3, padding=1) for _ in range(2)])
    images = torch.rand(2, 1, 9, 7)
    assert torch.equal(ensemble.eval().logits(images), ensemble.train()(images))


def test_networks_of_different_architectures_mix():
    ensemble = Ensemble([ENet(out_channels=3), small_network()])
    images = torch.rand(2, 1, 24, 16)
    assert ensemble.train()(images).shape == (2, 2, 3, 24, 16)
    assert ensemble.eval()(images).shape == (2, 3, 24, 16)


@pytest.mark.parametrize("network", [small_network, ENet], ids=["small", "enet"])
@pytest.mark.parametrize(
    "export",
    [torch.jit.script, lambda module: torch.jit.trace(module, torch.rand(1, 1, 24, 16))],
    ids=["script", "trace"],
)
def test_exports_say_the_same_as_the_module(network, export):
    ensemble = build_ensemble(network, num_views=2, seed=0).eval()
    images = torch.rand(2, 1, 24, 16)
    with torch.no_grad():
        torch.testing.assert_close(export(ensemble)(images), ensemble(images), rtol=0, atol=1e-6)


def test_a_script_keeps_both_modes():
    ensemble = build_ensemble(lambda: nn.Conv2d(1, 3, 1), num_views=2, seed=0)
    script, images = torch.jit.script(ensemble), torch.rand(2, 1, 5, 4)
    torch.testing.assert_close(script.train()(images), ensemble.train()(images))
    torch.testing.assert_close(script.eval()(images), ensemble.eval()(images))


def test_the_optimizer_of_an_ensemble_has_all_networks():
    ensemble = build_ensemble(small_network, num_views=3, seed=0)
    assert len(list(ensemble.parameters())) == 3 * len(list(small_network().parameters()))


def test_a_frozen_copy_is_equal_frozen_and_in_evaluation_mode():
    students = build_ensemble(small_network, num_views=2, seed=0).train()
    teachers = frozen_copy(students)
    assert isinstance(teachers, Ensemble)
    for name, value in students.state_dict().items():
        assert torch.equal(teachers.state_dict()[name], value), name
    assert not any(module.training for module in teachers.modules())
    assert not any(p.requires_grad for p in teachers.parameters())
    assert all(module.training for module in students.modules())
    assert all(p.requires_grad for p in students.parameters())


def test_a_frozen_copy_does_not_follow_its_original():
    students = build_ensemble(small_network, num_views=2, seed=0).train()
    teachers = frozen_copy(students)
    before = {name: value.clone() for name, value in teachers.state_dict().items()}
    students(torch.rand(2, 1, 8, 8)).square().sum().backward()  # moves the buffers
    torch.optim.SGD(students.parameters(), lr=1.0).step()
    changed = [name for name, value in students.state_dict().items() if not torch.equal(value, before[name])]
    assert {name.rsplit(".", 1)[-1] for name in changed} >= {"weight", "bias", "running_mean", "num_batches_tracked"}
    for name, value in teachers.state_dict().items():
        assert torch.equal(value, before[name]), name
