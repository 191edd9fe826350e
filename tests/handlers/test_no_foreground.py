"""A network that says background everywhere is warned of, once, and no other is."""

import pytest
import torch
from ignite.engine import Engine
from monai.engines import IterationEvents, SupervisedTrainer
from torch import nn

from monai_spct.engines import SemiSupervisedTrainer
from monai_spct.handlers import WarnOfNoForeground
from monai_spct.networks import Ensemble
from monai_spct.objectives import Objective, Supervised

SAID = "the networks found no foreground at all in the labeled images of epochs"


def batch() -> dict[str, torch.Tensor]:
    """Noise in which one voxel of 256 belongs to a structure that nothing tells from the others."""
    label = torch.zeros(4, 1, 16, 16)
    label[:, :, 8, 8] = 1
    return {"image": torch.rand(4, 1, 16, 16, generator=torch.Generator().manual_seed(0)), "label": label}


def train(epochs: int, *, bias: float = 0.0, rate: float = 0.1, **settings) -> None:
    torch.manual_seed(0)
    student = nn.Conv2d(1, 2, 3, padding=1)
    nn.init.constant_(student.bias[1:], bias)
    students = Ensemble([student])
    SemiSupervisedTrainer(
        device="cpu",
        max_epochs=epochs,
        train_data_loader=[batch()] * 4,
        network=students,
        optimizer=torch.optim.SGD(students.parameters(), lr=rate),
        objective=Objective(supervised=Supervised()),
        **settings,
    ).run()


@pytest.mark.parametrize("decollate", [False, True])
def test_a_training_that_collapses_is_warned_of_once(caplog, decollate):
    train(12, bias=1.0, rate=1.0, decollate=decollate)
    [said] = [record.getMessage() for record in caplog.records if record.name.startswith("monai_spct")]
    first, last = (int(word.strip(":")) for word in said.removeprefix(SAID).split()[:3:2])
    assert last - first == 4
    assert 1 <= first < 8, "it began with foreground everywhere, and lost it"
    assert "`learning_rate`" in said


def test_a_training_with_foreground_is_not_warned_of(caplog):
    train(12, bias=9.0, rate=1e-9)
    assert SAID not in caplog.text


def test_a_trainer_of_monai_has_it_too(caplog):
    network = nn.Conv2d(1, 2, 1)
    nn.init.constant_(network.bias[0], 9.0)
    SupervisedTrainer(
        device="cpu",
        max_epochs=2,
        train_data_loader=[batch()],
        network=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=1e-9),
        loss_function=lambda pred, label: nn.functional.cross_entropy(pred, label[:, 0].long()),
        train_handlers=[WarnOfNoForeground(epochs=2)],
    ).run()
    assert f"{SAID} 1 to 2" in caplog.text


def test_epochs_count_in_a_row(caplog):
    voxels = iter([0, 1, 0, 1, 0, 1])  # of the structure, by epoch

    def update(engine: Engine, batch: int) -> None:  # noqa: ARG001
        pred = torch.zeros(1, 2, 4, 4)
        pred.view(1, 2, 16)[:, 1, : next(voxels)] = 1.0
        engine.state.output = {"pred": pred}
        engine.fire_event(IterationEvents.LOSS_COMPLETED)

    trainer = Engine(update)
    trainer.register_events(*IterationEvents)
    WarnOfNoForeground(epochs=2).attach(trainer)
    trainer.run([0], max_epochs=6)
    assert SAID not in caplog.text
