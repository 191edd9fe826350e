"""Batch normalizations that learn from all processes: what a machine without a GPU can tell of them."""

import copy
import json
from functools import partial
from pathlib import Path

import pytest
import torch
from monai.bundle import ConfigParser
from torch.nn import SyncBatchNorm
from torch.nn.modules.batchnorm import _BatchNorm

from monai_spct.functional import StatePairs
from monai_spct.networks import ENet, Ensemble, batch_statistics, build_ensemble, frozen_copy
from tests.bundles.little import config, failure, torchrun
from tests.bundles.states import same


@pytest.fixture
def plain() -> Ensemble:
    return build_ensemble(partial(ENet, dropout=(0.0, 0.0)), num_views=2, seed=0)


@pytest.fixture
def synchronized(plain) -> Ensemble:
    """As in `synchronize_batch_norms`, which refuses a CPU: in place, with torch's own."""
    ensemble = copy.deepcopy(plain)
    parameters = list(ensemble.parameters())
    SyncBatchNorm.convert_sync_batchnorm(ensemble)
    assert all(one is other for one, other in zip(ensemble.parameters(), parameters, strict=True))  # of the optimizer
    return ensemble


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(3, 1, 48, 40, generator=torch.Generator().manual_seed(0))


def norms(module) -> list[_BatchNorm]:
    return [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]


def test_all_of_a_network_are_found_and_checkpoints_can_be_exchanged(plain, synchronized):
    assert len(norms(plain)) == len(norms(synchronized)) > 10
    assert all(isinstance(layer, SyncBatchNorm) for layer in norms(synchronized))
    assert list(plain.state_dict()) == list(synchronized.state_dict())


def test_teachers_are_copies_of_them(synchronized, images):
    teachers = frozen_copy(synchronized)
    assert all(isinstance(layer, SyncBatchNorm) and not layer.training for layer in norms(teachers))
    before = copy.deepcopy(teachers.state_dict())
    synchronized.train()(images)
    StatePairs.of(teachers, synchronized).update(decay=0.5)
    assert not same(before, dict(teachers.state_dict()))


def test_teachers_go_by_the_batch_and_track_nothing(plain, synchronized, images):
    """In several processes by that of all: a layer in training mode is synchronized, whether or not it tracks."""
    teachers = frozen_copy(synchronized)
    before = copy.deepcopy(teachers.state_dict())
    with batch_statistics(teachers), torch.no_grad():
        assert all(layer.training and not layer.track_running_stats for layer in norms(teachers))
        found = teachers.logits(images)
    assert torch.equal(found, plain.train()(images))
    assert same(dict(before), dict(teachers.state_dict()))


def parsed(*, synchronized: bool) -> tuple[ConfigParser, str]:
    """The overlay of a bundle, and where in it batch normalizations are synchronized."""
    parser = ConfigParser()
    parser.read_config([str(config("train")), str(config("multi_gpu_train"))])
    parser["sync_batch_norm"] = synchronized
    parser["device"] = "cpu"
    names = [step.get("_target_", "") if isinstance(step, dict) else "" for step in parser["initialize"]]
    joined, place = (
        names.index(f"monai_spct.workflow.{name}") for name in ("join_processes", "synchronize_batch_norms")
    )
    assert joined < place
    return parser, f"initialize#{place}"


def test_a_bundle_does_it_before_teachers_are_copied():
    parser, place = parsed(synchronized=False)
    parser.get_parsed_content(place)
    made = parser.ref_resolver.resolved_content
    assert "network" in made
    assert "teachers" not in made
    assert not any(isinstance(layer, SyncBatchNorm) for layer in norms(made["network"]))


def test_a_bundle_refuses_it_without_gpus():
    parser, place = parsed(synchronized=True)
    said = failure(lambda: parser.get_parsed_content(place))
    assert said.startswith("`sync_batch_norm` needs GPUs: ")
    assert said.endswith("the network is on cpu.")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_on_gpus_halves_of_batches_teach_what_whole_batches_teach(tmp_path):
    done = torchrun(
        Path(__file__).with_name("in_two_processes.py"), "on_gpus", tmp_path, tmp_path / "found.json", gpus=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    for together, apart in zip(found["together"], found["apart"], strict=True):
        for kind in ("gradients", "learned", "statistics"):
            assert together[kind] < 0.01 < 0.05 < apart[kind], kind  # sums in another order, and TF32
