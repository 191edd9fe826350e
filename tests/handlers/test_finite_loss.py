import math

import pytest
import torch
from ignite.engine import Events
from monai.engines import IterationEvents, SupervisedTrainer
from torch import nn

from monai_spct.engines import SemiSupervisedTrainer
from monai_spct.handlers import SaveCheckpoints, StopAtNonFiniteLoss
from monai_spct.inferers import SemiSupervisedInferer
from monai_spct.networks import build_ensemble, frozen_copy
from monai_spct.objectives import Consistency, Objective, Supervised


def students_and_trainer(batches, *, max_epochs=3, handlers=(), loss=None, teachers=False, device="cpu"):
    students = build_ensemble(lambda: nn.Conv2d(1, 2, 3, padding=1), num_views=2, seed=0).to(device)
    inferer = SemiSupervisedInferer(teachers=frozen_copy(students)) if teachers else None
    terms = {"supervised": Supervised(loss) if loss else Supervised()}
    trainer = SemiSupervisedTrainer(
        device=device,
        max_epochs=max_epochs,
        train_data_loader=batches,
        network=students,
        optimizer=torch.optim.Adam(students.parameters(), lr=0.01),
        objective=Objective(**terms, **({"consistency": Consistency()} if teachers else {})),
        inferer=inferer,
        train_handlers=list(handlers),
    )
    return students, trainer


def batch(value: float = 0.5) -> dict[str, torch.Tensor]:
    return {
        "image": torch.rand(2, 1, 6, 6),
        "label": torch.ones(2, 1, 6, 6),
        "unlabeled": torch.full((3, 1, 6, 6), value),
    }


class Batches(list):
    """Batches of which one, in the second epoch, is spoiled."""

    def __init__(self, batches, *, spoiled: int) -> None:
        super().__init__(batches)
        self.spoiled, self.epoch = spoiled, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        for i, one in enumerate(super().__iter__()):
            yield {**one, "image": one["image"] * math.nan} if (self.epoch, i) == (2, self.spoiled) else one


def state_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_the_run_stops_before_the_weights_change():
    students, trainer = students_and_trainer(Batches([batch() for _ in range(4)], spoiled=2))
    good = {}
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: good.update(state_of(students)))
    with pytest.raises(FloatingPointError, match="the loss is not finite in epoch 2, iteration 7: "):
        trainer.run()
    assert (trainer.state.epoch, trainer.state.iteration) == (2, 7)
    for name, value in students.state_dict().items():
        assert value.isfinite().all()
        assert torch.equal(value, good[name])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_the_message_names_the_parts_of_the_loss(value):
    _, trainer = students_and_trainer([batch()], loss=lambda logits, label: logits.mean() * 0 + value, teachers=True)  # noqa: ARG005
    with pytest.raises(FloatingPointError, match="epoch 1, iteration 1") as e:
        trainer.run()
    assert f"supervised_loss {value:g}" in str(e.value)
    assert "consistency_loss 0" in str(e.value)  # so that one sees which part it is
    assert "loss " + f"{value:g}" in str(e.value)


class Cliff(torch.autograd.Function):
    """One, with a gradient that is infinite."""

    @staticmethod
    def forward(_, value):
        return torch.ones_like(value)

    @staticmethod
    def backward(_, gradient):
        return gradient * math.inf


@pytest.mark.parametrize("batches", [1, 3])
def test_weights_of_a_gradient_that_is_not_finite_are_not_saved(tmp_path, batches):
    """Whether another loss tells of them or the epoch is over."""

    def loss(logits, label):  # noqa: ARG001
        last = trainer.state.iteration == 2 * batches - max(batches - 2, 0)
        return Cliff.apply(logits).mean() if last else logits.square().mean()

    students, trainer = students_and_trainer([batch() for _ in range(batches)], loss=loss)
    SaveCheckpoints(tmp_path, students, {"network": students}).attach(trainer)
    message = "the weights are not finite any more in epoch 2, .*: 4 of 4 tensors, the first one networks.0.weight. "
    with pytest.raises(FloatingPointError, match=message if batches == 1 else "the loss is not finite in epoch 2"):
        trainer.run()
    last = torch.load(tmp_path / "last.pt", weights_only=True)
    assert last["run"]["epoch"] == 1
    assert all(value.isfinite().all() for value in last["network"].values())


# Losses that arrive late


class Arrival:
    """An event of a device that happens when it is waited for, and not before."""

    def __init__(self) -> None:
        self.happened = False

    def query(self) -> bool:
        return self.happened

    def synchronize(self) -> None:
        self.happened = True


def late(iteration: int, **values: float) -> tuple[str, list[str], torch.Tensor, Arrival]:
    return f"iteration {iteration}", list(values), torch.tensor(list(values.values())), Arrival()


def trainer_with_late_losses(*losses, max_epochs: int = 3, handler: StopAtNonFiniteLoss | None = None):
    """Epochs of 3 iterations; each of ``losses`` is still on its way after its iteration."""
    network, handler = nn.Linear(2, 2), handler or StopAtNonFiniteLoss()
    trainer = SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=max_epochs,
        train_data_loader=[{"image": torch.ones(2, 2), "label": torch.zeros(2, 2)} for _ in range(3)],
        network=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        loss_function=nn.MSELoss(),
        train_handlers=[handler],
    )

    @trainer.on(Events.ITERATION_COMPLETED)
    def add(engine):
        handler.pending.extend(one for one in losses if one[0] == f"iteration {engine.state.iteration}")

    return handler, trainer


def test_a_late_loss_is_not_waited_for_but_stops_the_run_before_later_handlers_of_its_epoch():
    spoiled = late(4, loss=math.nan)
    _, trainer = trainer_with_late_losses(spoiled)
    waited, saved = [], []
    trainer.add_event_handler(IterationEvents.LOSS_COMPLETED, lambda: waited.append(spoiled[-1].happened))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: saved.append(engine.state.epoch))
    with pytest.raises(FloatingPointError, match="not finite in iteration 4: loss nan"):
        trainer.run()
    assert waited == [False] * 6  # up to the end of the epoch
    assert saved == [1]


def test_late_losses_are_checked_in_their_order_and_none_is_left():
    good, spoiled = late(1, loss=1.0), late(2, loss=math.nan, supervised_loss=0.25)
    _, trainer = trainer_with_late_losses(good, spoiled)
    with pytest.raises(FloatingPointError, match=r"in iteration 2: loss nan, supervised_loss 0\.25"):
        trainer.run()
    assert good[-1].happened
    assert spoiled[-1].happened
    handler, trainer = trainer_with_late_losses(late(1, loss=1.0), late(2, loss=2.0), max_epochs=1)
    trainer.run()
    assert trainer.state.iteration == 3
    assert not handler.pending


def test_a_run_after_a_failure_starts_clean():
    handler, trainer = trainer_with_late_losses(late(1, loss=math.nan), late(2, loss=math.nan))
    with pytest.raises(FloatingPointError, match="in iteration 1"):
        trainer.run()
    assert any(values.isnan().any() for _, _, values, _ in handler.pending)  # the second one is still on its way
    _, again = trainer_with_late_losses(handler=handler)
    again.run()
    assert again.state.epoch == 3
    assert not handler.pending


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, which is not waited for")
@pytest.mark.parametrize("spoiled", [0, 7], ids=["first iteration", "last iteration"])
def test_on_a_gpu_the_run_stops_before_the_epoch_is_saved_and_names_the_iteration(spoiled, tmp_path):
    batches = Batches([batch() for _ in range(8)], spoiled=spoiled)
    students, trainer = students_and_trainer(batches, device="cuda")
    SaveCheckpoints(tmp_path, students, {"network": students}).attach(trainer)
    ended = []
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: ended.append(engine.state.epoch))
    with pytest.raises(
        FloatingPointError, match=f"epoch 2, iteration {8 + spoiled + 1}: loss nan, supervised_loss nan"
    ):
        trainer.run()
    assert ended == [1]
    saved = torch.load(tmp_path / "last.pt", weights_only=True)
    assert saved["run"]["epoch"] == 1
    assert all(value.isfinite().all() for value in saved["network"].values())
