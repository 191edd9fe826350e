import pytest
import torch
from ignite.engine import Engine, Events
from monai.handlers import MLFlowHandler, from_engine
from monai.utils import CommonKeys

from monai_spct.handlers import Progress, SaveCheckpoints, scalars, track_scalars


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
    output = {"loss": torch.tensor(0.125), "co_training_weight": 0.5}  # which follows from the epoch
    trainer, progress = trainer_of(output), Progress(every=2)
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


# MLflow


def handler(tag: str) -> MLFlowHandler:
    """As MONAI's settings make it, without a database, which takes mlflow."""
    made = MLFlowHandler.__new__(MLFlowHandler)
    made.tag_name, made.output_transform, made.iteration_log = tag, from_engine(["loss"], first=True), True
    return made


def test_the_handler_of_monais_tracking_gets_every_number_of_the_output():
    [tracking] = handlers = [handler("train_loss")]
    track_scalars(handlers, every=3)
    output = {
        "image": torch.zeros(2, 1, 4, 4),
        "loss": torch.tensor(0.75),
        "supervised_loss": torch.tensor(0.5),
        "gamma": 2,
    }
    assert tracking.output_transform(output) == {"loss": 0.75, "supervised_loss": 0.5, "gamma": 2.0}
    assert [n for n in range(1, 10) if tracking.iteration_log(None, n)] == [1, 4, 7]
    assert all(type(value) is float for value in tracking.output_transform(output).values())


def test_other_handlers_stay_as_they_are():
    own, bar = handler("my_loss"), Progress()
    before = dict(vars(own))
    track_scalars([bar, own], every=3)
    assert vars(own) == before
