"""With several processes: `tests/bundles/test_multi_gpu.py`."""

import pytest
import torch
from ignite.engine import Engine, Events
from monai.engines import SupervisedTrainer
from torch import nn

from monai_spct.handlers import AverageBuffers, SeedEachIteration, distributed
from monai_spct.transforms import RandomQuarterTurn


def trained(*, averaged: bool, look=None) -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    trainer = SupervisedTrainer(
        device="cpu",
        max_epochs=2,
        train_data_loader=[{"image": torch.rand(2, 1, 4, 4), "label": torch.zeros(2, 2, 4, 4)}] * 2,
        network=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        loss_function=nn.MSELoss(),
    )
    if look is not None:
        trainer.add_event_handler(Events.ITERATION_COMPLETED, look)  # as a teacher before it
    if averaged:
        AverageBuffers(network).attach(trainer)
    trainer.run()
    return network


def test_one_process_learns_as_without_it():
    one, other = (trained(averaged=averaged).state_dict() for averaged in (True, False))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_running_statistics_are_averaged_in_each_iteration_before_what_follows_it(monkeypatch):
    calls, seen = [], []
    monkeypatch.setattr(distributed, "average_over_processes", calls.append)
    network = trained(averaged=True, look=lambda: seen.append(len(calls)))
    assert seen == [1, 2, 3, 4]
    assert all(found[0] is network[1].running_mean and found[1] is network[1].running_var for found in calls)


def draws(*, seed: int = 0, rank: int = 0, epochs: int = 3, done: int = 0) -> list[tuple]:
    """What two iterations of each epoch draw, in a run that goes on after some."""
    torch.manual_seed(epochs + done)  # what was before does not count
    transform, seen = RandomQuarterTurn(seed=done), []

    def update(engine, batch):  # noqa: ARG001
        transform(torch.zeros(20, 1, 2, 2))
        seen.append((torch.rand(()).item(), *transform.turns.tolist()))

    trainer = Engine(update)
    SeedEachIteration(seed=seed, rank=rank, transforms=[None, transform]).attach(trainer)
    trainer.state.epoch, trainer.state.iteration = done, 2 * done
    trainer.state.max_epochs, trainer.state.epoch_length = epochs, 2
    trainer.run([0, 1])
    return seen


def test_draws_differ_between_iterations_epochs_processes_and_seeds():
    every = [draws(seed=seed, rank=rank) for seed in (0, 1) for rank in (0, 1)]
    numbers = [first for run in every for first, *_ in run]
    turns = [tuple(rest) for run in every for _, *rest in run]
    assert len(set(numbers)) == len(set(turns)) == 24


def test_a_run_that_goes_on_draws_what_it_would_have_drawn():
    assert draws(rank=1, done=1) == draws(rank=1)[2:]


@pytest.mark.parametrize("name", ["seed", "rank"])
def test_a_negative_number_is_refused(name):
    with pytest.raises(ValueError, match=f"`{name}` must be a whole number of at least 0, got -1"):
        SeedEachIteration(**{"seed": 0, name: -1})
