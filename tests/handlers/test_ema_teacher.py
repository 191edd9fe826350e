import math

import pytest
import torch
from ignite.engine import Engine, Events
from monai.engines import SupervisedTrainer
from torch import nn

from monai_spct.handlers import EMATeacher
from monai_spct.networks import Ensemble, build_ensemble, frozen_copy


def one_weight(value: float) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def trainer_that_sets(student: nn.Module, values: list[float]) -> Engine:
    """The student's weight after iteration i is ``values[i - 1]``."""

    def update(engine, batch):  # noqa: ARG001
        with torch.no_grad():
            for p in student.parameters():
                p.fill_(values[engine.state.iteration - 1])

    return Engine(update)


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        (1.0, [2.0, 4.0, 3.0, 3.4]),  # the mean of all students so far, the first included
        (0.5, [2.0, 5.0, 2.5, 3.75]),
        (0.7, [2.0, 4.0, 2.8, 3.46]),  # the rise ends after two averages
        (0.0, [4.0, 8.0, 0.0, 5.0]),  # the student
    ],
    ids=lambda value: f"decay {value}" if isinstance(value, float) else "",
)
def test_the_teacher_is_this_average_of_the_student(decay, expected):
    student = one_weight(0.0)
    teacher = frozen_copy(student)
    values = [4.0, 8.0, 0.0, 5.0]
    trainer = trainer_that_sets(student, values)
    EMATeacher(teacher, student, decay=decay).attach(trainer)
    history = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: history.append(teacher.weight.item()))
    trainer.run([0, 0], max_epochs=2)
    assert history == pytest.approx(expected)


def plain_trainer(student: nn.Module, batches: list, **settings) -> SupervisedTrainer:
    """MONAI's own, with no part of this package."""
    return SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=settings.pop("max_epochs", 1),
        train_data_loader=batches,
        network=student,
        optimizer=torch.optim.SGD(student.parameters(), lr=0.1),
        loss_function=nn.MSELoss(),
        decollate=False,
        **settings,
    )


def test_gathered_gradients_count_as_one_update():
    student = nn.Linear(2, 2)
    teacher = frozen_copy(student)
    handler = EMATeacher(teacher, student, decay=1.0)
    batches = [{"image": torch.randn(4, 2), "label": torch.randn(4, 2)} for _ in range(5)]
    weights = [student.weight.detach().clone()]
    trainer = plain_trainer(student, batches, max_epochs=2, accumulation_steps=2, train_handlers=[handler])

    @trainer.on(Events.ITERATION_COMPLETED)
    def remember():
        if not torch.equal(student.weight, weights[-1]):
            weights.append(student.weight.detach().clone())

    trainer.run()
    assert handler.num_updates == 6  # after iterations 2, 4 and 5 of each epoch
    assert len(weights) == 7
    torch.testing.assert_close(teacher.weight, torch.stack(weights).mean(0))


def test_the_number_of_updates_goes_through_a_checkpoint(tmp_path):
    student = one_weight(0.0)
    values = [4.0, 8.0, 0.0, 5.0]
    whole, parted = frozen_copy(student), frozen_copy(student)
    trainer = trainer_that_sets(student, values)
    EMATeacher(whole, student).attach(trainer)
    first = EMATeacher(parted, student)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(event_filter=lambda engine, i: i <= 2), first)  # noqa: ARG005
    second = EMATeacher(parted, student)

    @trainer.on(Events.ITERATION_COMPLETED(once=2))
    def hand_over():
        torch.save(first.state_dict(), tmp_path / "ema.pt")
        second.load_state_dict(torch.load(tmp_path / "ema.pt", weights_only=True))

    trainer.add_event_handler(Events.ITERATION_COMPLETED(event_filter=lambda engine, i: i > 2), second)  # noqa: ARG005
    trainer.run([0] * 4)
    assert parted.weight.item() == whole.weight.item()
    assert second.state_dict() == {"num_updates": 4}


def new_buffer(teacher: nn.Module, student: nn.Module) -> None:  # noqa: ARG001
    student.register_buffer("running_mean", torch.tensor([7.0]))


def new_type(teacher: nn.Module, student: nn.Module) -> None:
    student.running_mean.fill_(7.0)
    for module in (teacher, student):
        module.to(torch.float64)


def new_parameter(teacher: nn.Module, student: nn.Module) -> None:  # noqa: ARG001
    student.weight = nn.Parameter(torch.tensor([7.0]))


@pytest.mark.parametrize(
    ("replace", "name"),
    [(new_buffer, "running_mean"), (new_type, "running_mean"), (new_parameter, "weight")],
    ids=["a buffer", "all buffers by a move", "a parameter"],
)
def test_tensors_replaced_between_epochs_are_followed_from_the_next_on(replace, name):
    student = nn.BatchNorm1d(1).eval()
    teacher = frozen_copy(student)
    trainer = Engine(lambda engine, batch: None)  # noqa: ARG005
    EMATeacher(teacher, student, decay=0.0).attach(trainer)
    trainer.add_event_handler(Events.EPOCH_COMPLETED(once=1), lambda: replace(teacher, student))
    before = getattr(teacher, name).item()
    history = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: history.append(getattr(teacher, name).item()))
    trainer.run([0, 0], max_epochs=2)
    assert history == [before, before, 7.0, 7.0]
    assert getattr(student, name).item() == 7.0


@pytest.mark.parametrize(
    "share",
    [
        lambda student: student.requires_grad_(False),
        lambda student: Ensemble([student.networks[0], frozen_copy(student.networks[1])]),
        lambda student: nn.DataParallel(student),
    ],
    ids=["the student itself", "one network of two", "a wrapper of the student"],
)
def test_a_teacher_that_shares_parameters_is_refused(share):
    student = build_ensemble(lambda: nn.Linear(2, 2), num_views=2, seed=0)
    with pytest.raises(ValueError, match="`teacher` must not share parameters with `student`"):
        EMATeacher(share(student), student)


def test_a_teacher_that_an_optimizer_could_change_is_refused():
    with pytest.raises(ValueError, match="`teacher` must not require gradients"):
        EMATeacher(nn.Linear(2, 2), nn.Linear(2, 2))


@pytest.mark.parametrize("decay", [-0.1, 1.1, math.nan], ids=str)
def test_a_decay_out_of_its_range_is_refused(decay):
    with pytest.raises(ValueError, match="`decay` must lie between 0 and 1"):
        EMATeacher(frozen_copy(nn.Linear(2, 2)), nn.Linear(2, 2), decay=decay)
