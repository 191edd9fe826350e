import pytest
import torch
from ignite.engine import Engine

from monai_spct.handlers import SeedEachIteration
from monai_spct.transforms import RandomQuarterTurn


def draws(*, seed: int = 0, rank: int = 0, epochs: int = 3, done: int = 0) -> list[tuple]:
    """What two iterations of each epoch draw, in a run that goes on after some."""
    torch.manual_seed(epochs + done)  # what was before does not count
    transform, seen = RandomQuarterTurn(seed=done), []

    def update(engine, batch):  # noqa: ARG001
        transform(torch.zeros(20, 1, 2, 2))
        seen.append((torch.rand(()).item(), *transform.turns.tolist()))

    trainer = Engine(update)
    SeedEachIteration(seed=seed, rank=rank, transform=transform).attach(trainer)
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


def test_there_may_be_no_moves():
    trainer = Engine(lambda engine, batch: torch.rand(()).item())  # noqa: ARG005
    SeedEachIteration(seed=3).attach(trainer)
    first = trainer.run([0]).output
    assert trainer.run([0], max_epochs=1).output == first


@pytest.mark.parametrize("name", ["seed", "rank"])
def test_a_negative_number_is_refused(name):
    with pytest.raises(ValueError, match=f"`{name}` must be a whole number of at least 0, got -1"):
        SeedEachIteration(**{"seed": 0, name: -1})
