"""The record of a run says of each epoch what happened in it, once, also after an interruption."""

from types import SimpleNamespace

import ignite.distributed as idist
import pytest
import torch
from ignite.engine import Engine, Events
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from monai_spct.handlers import AddToHistory, SaveCheckpoints, SaveHistory, read_history


def run(folder, outputs, **kwargs) -> SaveHistory:
    """A run of the epochs of ``outputs``, each a list of what its iterations put out."""
    trainer, history = Engine(lambda engine, n: outputs[engine.state.epoch - 1][n]), SaveHistory(folder, **kwargs)
    history.attach(trainer)
    trainer.run(range(len(outputs[0])), max_epochs=len(outputs))
    return history


def rows_of(folder) -> list[dict[str, float]]:
    rows = read_history(folder / "history.csv")
    assert all(row.pop("seconds") >= 0 for row in rows)
    return rows


def points(folder) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_losses_and_notes_are_means_over_the_iterations_of_their_epoch(tmp_path):
    first = [{"loss": torch.tensor(loss), "gamma": 0.5, "image": torch.ones(2, 2)} for loss in (1.0, 2.0, 6.0)]
    second = [{"loss": torch.tensor(loss), "gamma": gamma} for loss, gamma in ((0.5, 1), (0.25, 2), (0.0, 6))]
    run(tmp_path, [first, second])
    assert rows_of(tmp_path) == [{"epoch": 1, "loss": 3.0, "gamma": 0.5}, {"epoch": 2, "loss": 0.25, "gamma": 3.0}]
    found = points(tmp_path)
    assert (found["loss"], found["gamma"]) == ([(1, 3.0), (2, 0.25)], [(1, 0.5), (2, 3.0)])


def test_images_of_a_list_are_averaged_as_their_batch(tmp_path):
    run(tmp_path, [[[{"loss": loss}, {"loss": loss}] for loss in (1.0, 2.0)]])
    assert rows_of(tmp_path) == [{"epoch": 1, "loss": 1.5}]


def test_values_may_come_and_go(tmp_path):
    run(tmp_path, [[{"loss": 1.0}, {"loss": 3.0}], [{"loss": 1.0, "new": 8.0}, {"loss": 1.0}], [None, {"new": 5.0}]])
    expected = [{"epoch": 1, "loss": 2}, {"epoch": 2, "loss": 1, "new": 8}, {"epoch": 3, "new": 5}]
    assert rows_of(tmp_path) == expected
    assert (tmp_path / "history.csv").read_text().splitlines()[0] == "epoch,seconds,loss,new"


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("monai_spct.handlers.history.time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_seconds_are_those_of_an_iteration_with_its_batch_and_without_what_follows_the_epoch(tmp_path, clock):
    def passes(seconds: float) -> None:
        clock.now += seconds

    class Loader:
        def __len__(self) -> int:
            return 4

        def __iter__(self):
            for _ in range(4):
                passes(2)
                yield None

    trainer = Engine(lambda engine, batch: passes(1 if engine.state.epoch == 1 else 3))  # noqa: ARG005
    SaveHistory(tmp_path).attach(trainer)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, passes, 1000)  # a validation
    trainer.run(Loader(), max_epochs=2)
    assert [row["seconds"] for row in read_history(tmp_path / "history.csv")] == [3, 5]


def test_the_learning_rate_is_that_of_the_end_of_the_epoch(tmp_path):
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=8.0)

    def update(engine, batch):  # noqa: ARG001
        optimizer.param_groups[0]["lr"] /= 2

    trainer = Engine(update)
    SaveHistory(tmp_path, optimizer=optimizer).attach(trainer)
    trainer.run([0, 0], max_epochs=2)
    assert [row["learning_rate"] for row in rows_of(tmp_path)] == [2.0, 0.5]


def test_an_epoch_in_two_parts_has_the_row_of_a_whole_one(tmp_path, clock):
    outputs = [{"loss": torch.tensor(loss), "gamma": gamma} for loss, gamma in ((1.0, 0.5), (2.0, 0.5), (6.0, 3.5))]
    states: list = []

    def part(history, batches) -> None:
        def update(engine, n):  # noqa: ARG001
            clock.now += 2
            return outputs[n]

        trainer = Engine(update)
        history.attach(trainer)
        trainer.state.max_epochs, trainer.state.epoch_length = 4, 3
        trainer.state.epoch, trainer.state.iteration = 3, 12 - len(batches)
        trainer.add_event_handler(Events.ITERATION_COMPLETED(once=11), lambda: states.append(history.state_dict()))
        trainer.run(batches)

    part(SaveHistory(tmp_path), [0, 1, 2])
    whole = read_history(tmp_path / "history.csv")
    assert whole == [{"epoch": 4, "seconds": 2, "loss": 3, "gamma": 1.5}]
    clock.now += 1000  # until it goes on
    second = SaveHistory(tmp_path)
    second.load_state_dict(states[0])
    part(second, [2])
    assert read_history(tmp_path / "history.csv") == whole


class Run:
    """A training whose loss is its only weight, which grows by 0.1 in each iteration; every other epoch validated."""

    def __init__(self, folder, *, resume=False, crash=None) -> None:
        self.folder = folder
        module = nn.Linear(1, 1, bias=False).requires_grad_(False)
        nn.init.zeros_(module.weight)

        def update(engine, batch):  # noqa: ARG001
            module.weight += 0.1
            return {"loss": module.weight.sum()}

        def validate(engine):
            epoch = engine.state.epoch
            evaluator.state.max_epochs, evaluator.state.epoch = epoch, epoch - 1  # as MONAI's evaluators do
            evaluator.run([0])

        self.trainer, evaluator = Engine(update), Engine(lambda *_: None)
        history = SaveHistory(folder / "eval")
        history.attach(self.trainer)
        evaluator.add_event_handler(
            Events.EPOCH_COMPLETED, lambda engine: engine.state.metrics.update(mean_dsc=module.weight.sum() / 10)
        )
        AddToHistory(history).attach(evaluator)
        self.trainer.add_event_handler(Events.EPOCH_COMPLETED(every=2), validate)
        if crash is not None:
            self.trainer.add_event_handler(crash, self.crash)
        objects = {"module": module, "history": history}
        SaveCheckpoints(folder / "models", module, objects, resume=resume).attach(self.trainer)

    def crash(self) -> None:
        raise KeyError("the machine is gone")

    def __call__(self):
        self.trainer.run([0, 0], max_epochs=4)
        found = points(self.folder / "eval")
        found.pop("seconds")
        return rows_of(self.folder / "eval"), found


def test_a_validation_is_in_the_row_of_its_epoch_and_in_no_other(tmp_path):
    rows, found = Run(tmp_path)()
    assert [row.get("validation_mean_dsc") for row in rows] == [None, pytest.approx(0.04), None, pytest.approx(0.08)]
    assert [step for step, _ in found["validation_mean_dsc"]] == [2, 4]


@pytest.mark.parametrize(
    "crash",
    [Events.ITERATION_COMPLETED(once=5), Events.EPOCH_COMPLETED(once=2), Events.EPOCH_COMPLETED(once=3)],
    ids=["within an epoch", "between a validation and its checkpoint", "between history and checkpoint"],
)
@pytest.mark.parametrize("lost", [False, True], ids=["", "the table is lost"])
def test_a_run_that_broke_off_has_the_history_of_an_uninterrupted_one(tmp_path, monkeypatch, crash, lost):
    expected = Run(tmp_path / "whole")()
    with pytest.raises(KeyError, match="the machine is gone"):
        Run(tmp_path / "parts", crash=crash)()
    if lost:
        (tmp_path / "parts" / "eval" / "history.csv").unlink()
    monkeypatch.setattr("time.time", lambda: 2e9)  # TensorBoard reads files in the order of the seconds in their names
    assert Run(tmp_path / "parts", resume=True)() == expected


def test_of_several_processes_one_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(idist, "get_rank", lambda: 1)
    Run(tmp_path).trainer.run([0, 0], max_epochs=2)
    assert not (tmp_path / "eval").exists()


def test_a_validation_before_its_row_is_refused(tmp_path):
    evaluator = Engine(lambda *_: None)
    AddToHistory(SaveHistory(tmp_path)).attach(evaluator)
    with pytest.raises(ValueError, match="there is no row of epoch 2: attach `SaveHistory` before the"):
        evaluator.run([0], max_epochs=2)


@pytest.mark.parametrize(
    "text",
    ["", "of another kind\n1\n", "epoch,loss\n1.0\n", "epoch,loss\n1.0,much\n", "epoch\n\n", "\0"],
    ids=["empty", "foreign", "a line that is cut", "no number", "an empty line", "zeros"],
)
def test_something_else_is_no_history(tmp_path, text):
    (tmp_path / "history.csv").write_text(text)
    with pytest.raises(ValueError, match=r"history\.csv is no history of a training, or is damaged \(.*\)\."):
        read_history(tmp_path / "history.csv")
