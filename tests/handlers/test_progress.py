import pytest
import torch
from ignite.engine import Engine, Events
from monai.utils import CommonKeys

from monai_spct.handlers import Progress, SaveCheckpoints, scalars


def trainer_of(output=None) -> Engine:
    return Engine(lambda engine, batch: output)  # noqa: ARG005


def test_scalars_are_the_losses_and_notes_without_gradient():
    loss = torch.tensor(0.5, requires_grad=True) * 2
    output = {
        CommonKeys.IMAGE: torch.zeros(4, 1, 8, 8),
        CommonKeys.PRED: torch.zeros(4, 2, 8, 8),
        CommonKeys.LOSS: loss,
        "supervised_loss": torch.tensor(0.25),
        "gamma": 0.2,
    }
    shown = scalars(output)
    assert shown == {"loss": 1.0, "supervised_loss": 0.25, "gamma": 0.2}
    assert all(type(name) is str for name in shown)
    assert not shown["loss"].requires_grad


def test_the_bar_covers_the_whole_run(capsys):
    trainer, progress = trainer_of({"loss": torch.tensor(0.125)}), Progress(every=2)
    progress.attach(trainer)
    seen = []

    def look():
        seen.append((progress.bar.n, progress.bar.total, progress.bar.postfix))

    trainer.add_event_handler(Events.ITERATION_COMPLETED, look)
    trainer.run([0, 0, 0], max_epochs=2)
    assert [n for n, _, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert {total for _, total, _ in seen} == {6}
    assert [postfix for _, _, postfix in seen] == [
        None,
        *["epoch=1/2, loss=0.125"] * 2,
        *["epoch=2/2, loss=0.125"] * 3,
    ]
    assert progress.bar is None
    error = capsys.readouterr().err
    assert "100%" in error
    assert "6/6" in error


def test_the_bar_says_what_is_going_on(capsys):
    trainer = trainer_of([{"loss": 0.5}])  # an output that was cut into images has no common values
    Progress(description="evaluating", every=1).attach(trainer)
    trainer.run([0, 0])
    assert "evaluating: 100%" in capsys.readouterr().err


def test_a_run_that_goes_on_shows_where_it_is(tmp_path):
    model = torch.nn.Linear(1, 1)
    trainer = trainer_of({"loss": 0.5})
    SaveCheckpoints(tmp_path, model, {"model": model}).attach(trainer)
    trainer.run([0, 0, 0], max_epochs=2)

    trainer, progress = trainer_of({"loss": 0.5}), Progress()
    SaveCheckpoints(tmp_path, model, {"model": model}, resume=True).attach(trainer)
    progress.attach(trainer)
    seen = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: seen.append((progress.bar.n, progress.bar.total)))
    trainer.run([0, 0, 0], max_epochs=3)
    assert seen == [(7, 9), (8, 9), (9, 9)]


def test_a_run_that_fails_closes_its_bar_and_says_why():
    def fail(engine, batch):  # noqa: ARG001
        raise KeyError("no such voxel")

    trainer, progress = Engine(fail), Progress()
    progress.attach(trainer)
    with pytest.raises(KeyError, match="no such voxel"):
        trainer.run([0, 0])
    assert progress.bar is None


def test_a_second_run_has_a_bar_of_its_own():
    trainer, progress = trainer_of({"loss": 0.5}), Progress(every=1)
    progress.attach(trainer)
    totals = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: totals.append(progress.bar.total))
    trainer.run([0, 0], max_epochs=1)
    trainer.run([0, 0, 0], max_epochs=1)
    assert totals == [2, 2, 3, 3, 3]


def test_the_weights_of_losses_leave_room_for_what_is_not_known_beforehand():
    trainer, progress = trainer_of({"co_training_loss": 0.5, "co_training_weight": 0.25}), Progress(every=1)
    progress.attach(trainer)
    seen = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: seen.append(progress.bar.postfix))
    trainer.run([0])
    assert seen == ["epoch=1/1, co_training_loss=0.5"]


def test_a_validation_in_a_later_epoch_runs_from_nothing_to_all_of_it():
    evaluator, progress = trainer_of(), Progress(leave=False)
    progress.attach(evaluator)
    evaluator.state.max_epochs, evaluator.state.epoch, evaluator.state.iteration = 5, 4, 0  # as MONAI's evaluators do
    seen = []
    evaluator.add_event_handler(Events.ITERATION_COMPLETED, lambda: seen.append((progress.bar.n, progress.bar.total)))
    evaluator.run([0, 0, 0])
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("leave", [True, False])
def test_a_bar_stays_or_goes(capsys, leave):
    trainer = trainer_of()
    Progress(leave=leave).attach(trainer)
    trainer.run([0])
    assert capsys.readouterr().err.endswith("\n") == leave
