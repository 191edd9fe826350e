"""The table says of each epoch what happened in it, also after an interruption."""

from types import SimpleNamespace

import ignite.distributed as idist
import pytest
import torch
from ignite.engine import Engine, Events
from torch import nn

from monai_spct.handlers import AddToHistory, SaveCheckpoints, SaveHistory, read_history


def run(path, outputs, **kwargs) -> Engine:
    """A run of the epochs of ``outputs``, each a list of what its iterations put out."""
    trainer = Engine(lambda engine, n: outputs[engine.state.epoch - 1][n])
    SaveHistory(path, **kwargs).attach(trainer)
    trainer.run(range(len(outputs[0])), max_epochs=len(outputs))
    return trainer


def without_seconds(path) -> list[dict[str, float]]:
    rows = read_history(path)
    assert all(row.pop("seconds") >= 0 for row in rows)
    return rows


def test_losses_and_notes_are_means_over_the_iterations_of_their_epoch(tmp_path):
    first = [{"loss": torch.tensor(loss), "gamma": 0.5, "image": torch.ones(2, 2)} for loss in (1.0, 2.0, 6.0)]
    second = [{"loss": torch.tensor(loss), "gamma": gamma} for loss, gamma in ((0.5, 1), (0.25, 2), (0.0, 6))]
    run(tmp_path / "history.csv", [first, second])
    assert without_seconds(tmp_path / "history.csv") == [
        {"epoch": 1, "loss": 3.0, "gamma": 0.5},
        {"epoch": 2, "loss": 0.25, "gamma": 3.0},
    ]


def test_images_of_a_list_are_averaged_as_their_batch(tmp_path):
    run(tmp_path / "history.csv", [[[{"loss": loss}, {"loss": loss}] for loss in (1.0, 2.0)]])
    assert without_seconds(tmp_path / "history.csv") == [{"epoch": 1, "loss": 1.5}]


def test_values_may_come_and_go(tmp_path):
    path = tmp_path / "history.csv"
    run(path, [[{"loss": 1.0}, {"loss": 3.0}], [{"loss": 1.0, "new": 8.0}, {"loss": 1.0}], [None, {"new": 5.0}]])
    assert without_seconds(path) == [{"epoch": 1, "loss": 2}, {"epoch": 2, "loss": 1, "new": 8}, {"epoch": 3, "new": 5}]
    lines = [line.split(",") for line in path.read_text().splitlines()]
    assert lines[0] == ["epoch", "seconds", "loss", "new"]
    assert [line[2:] for line in lines[1:]] == [["2.0", ""], ["1.0", "8.0"], ["", "5.0"]]


def test_seconds_are_those_of_an_iteration_with_its_batch_and_without_what_follows_the_epoch(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("monai_spct.handlers.history.time", SimpleNamespace(perf_counter=lambda: clock.now))

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
    SaveHistory(tmp_path / "history.csv").attach(trainer)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, passes, 1000)  # a validation
    trainer.run(Loader(), max_epochs=2)
    assert [row["seconds"] for row in read_history(tmp_path / "history.csv")] == [3, 5]


def test_seconds_pass(tmp_path):
    run(tmp_path / "history.csv", [[None]])
    [row] = read_history(tmp_path / "history.csv")
    assert 0 < row["seconds"] < 60


def test_the_learning_rate_is_that_of_the_end_of_the_epoch(tmp_path):
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=8.0)

    def update(engine, batch):  # noqa: ARG001
        optimizer.param_groups[0]["lr"] /= 2

    trainer = Engine(update)
    SaveHistory(tmp_path / "history.csv", optimizer=optimizer).attach(trainer)
    trainer.run([0, 0], max_epochs=2)
    assert [row["learning_rate"] for row in read_history(tmp_path / "history.csv")] == [2.0, 0.5]


class Run:
    """A training whose loss is its only weight, which grows by 0.1 in each iteration."""

    def __init__(self, folder, *, resume=False, crash=None) -> None:
        module = nn.Linear(1, 1, bias=False).requires_grad_(False)
        nn.init.zeros_(module.weight)

        def update(engine, batch):  # noqa: ARG001
            module.weight += 0.1
            return {"loss": module.weight.sum()}

        self.trainer = Engine(update)
        SaveHistory(folder / "history.csv").attach(self.trainer)
        if crash is not None:
            self.trainer.add_event_handler(crash, self.crash)
        SaveCheckpoints(folder, module, {"module": module}, resume=resume).attach(self.trainer)

    def crash(self) -> None:
        raise KeyError("the machine is gone")

    def __call__(self) -> None:
        self.trainer.run([0, 0], max_epochs=4)


def test_an_epoch_in_two_parts_has_the_row_of_a_whole_one(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("monai_spct.handlers.history.time", SimpleNamespace(perf_counter=lambda: clock.now))
    outputs = [{"loss": torch.tensor(loss), "gamma": gamma} for loss, gamma in ((1.0, 0.5), (2.0, 0.5), (6.0, 3.5))]
    path = tmp_path / "history.csv"

    def trainer(state, epoch: int, batches) -> Engine:
        def update(engine, n):  # noqa: ARG001
            clock.now += 2
            return outputs[n]

        result, history = Engine(update), SaveHistory(path)
        history.attach(result)
        if state is not None:
            history.load_state_dict(state)
        result.state.max_epochs, result.state.epoch_length = 4, 3
        result.state.epoch, result.state.iteration = epoch - 1, 3 * epoch - len(batches)
        result.history = history
        return result

    first = trainer(None, 4, range(3))
    first.add_event_handler(Events.ITERATION_COMPLETED(once=11), lambda: states.append(first.history.state_dict()))
    states: list = []
    first.run(range(3))
    whole = read_history(path)
    assert whole == [{"epoch": 4, "seconds": 2, "loss": 3, "gamma": 1.5}]
    clock.now += 1000  # until it goes on
    trainer(states[0], 4, [2]).run([2])
    assert read_history(path) == whole
    assert first.history.state_dict() == {"processes": [{"sums": {}, "counts": {}, "seconds": 0.0}]}


@pytest.mark.parametrize(
    ("crash", "rows"),
    [(Events.ITERATION_COMPLETED(once=5), 2), (Events.EPOCH_COMPLETED(once=3), 3)],
    ids=["within an epoch", "between history and checkpoint"],
)
def test_a_run_that_broke_off_has_the_history_of_an_uninterrupted_one(tmp_path, crash, rows):
    Run(tmp_path / "whole")()
    with pytest.raises(KeyError, match="the machine is gone"):
        Run(tmp_path / "parts", crash=crash)()
    assert len(read_history(tmp_path / "parts" / "history.csv")) == rows
    assert torch.load(tmp_path / "parts" / "last.pt", weights_only=True)["run"]["epoch"] == 2
    Run(tmp_path / "parts", resume=True)()
    whole = without_seconds(tmp_path / "whole" / "history.csv")
    assert [row["epoch"] for row in whole] == [1, 2, 3, 4]
    assert without_seconds(tmp_path / "parts" / "history.csv") == whole


def test_a_run_that_goes_on_without_its_history_begins_one(tmp_path):
    with pytest.raises(KeyError):
        Run(tmp_path, crash=Events.ITERATION_COMPLETED(once=5))()
    (tmp_path / "history.csv").unlink()
    Run(tmp_path, resume=True)()
    assert [row["epoch"] for row in read_history(tmp_path / "history.csv")] == [3, 4]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "of another kind\n1\n",
        "epoch,seconds,loss\n1.0,0.5\n",
        "epoch,seconds,loss\n1.0,0.5,much\n",
        "epoch\n\n",
        "\0",
    ],
    ids=["empty", "foreign", "a line that is cut", "no number", "an empty line", "zeros"],
)
def test_a_run_does_not_go_on_with_something_else_in_the_place_of_its_history(tmp_path, text):
    with pytest.raises(KeyError):
        Run(tmp_path, crash=Events.ITERATION_COMPLETED(once=5))()
    (tmp_path / "history.csv").write_text(text)
    run = Run(tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"history\.csv is no history of a training, or is damaged \(.*\): remove it"):
        run()
    assert run.trainer.state.iteration == 4  # at once, and not at the end of an epoch


def test_a_fresh_run_begins_a_history_whatever_was_in_its_place(tmp_path):
    path = tmp_path / "history.csv"
    path.write_text("of another kind\n1\n")
    trainer = run(path, [[{"old": 1.0}]] * 3)
    assert len(read_history(path)) == 3
    trainer.run(range(1), max_epochs=3)  # once more
    assert [row["epoch"] for row in read_history(path)] == [1, 2, 3]
    run(path, [[{"loss": 1.0}]] * 2)
    assert without_seconds(path) == [{"epoch": 1, "loss": 1}, {"epoch": 2, "loss": 1}]


def test_of_several_processes_one_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(idist, "get_rank", lambda: 1)
    run(tmp_path / "history.csv", [[{"loss": 1.0}]])
    assert not (tmp_path / "history.csv").exists()


# Validations


def validated(path, scores, *, epochs) -> None:
    """A run that is validated after the epochs of ``scores``."""
    trainer, evaluator = Engine(lambda engine, _: {"loss": engine.state.epoch}), Engine(lambda engine, batch: None)  # noqa: ARG005
    SaveHistory(path).attach(trainer)
    AddToHistory(path).attach(evaluator)

    def validate(engine):
        epoch = engine.state.epoch
        if epoch in scores:
            evaluator.state.metrics = {"mean_dsc": scores[epoch]}
            evaluator.state.max_epochs, evaluator.state.epoch = epoch, epoch - 1  # as MONAI's evaluators do
            evaluator.run([0])

    trainer.add_event_handler(Events.EPOCH_COMPLETED, validate)
    trainer.run([0], max_epochs=epochs)


def test_a_validation_is_in_the_row_of_its_epoch_and_in_no_other(tmp_path):
    validated(tmp_path / "history.csv", {2: 0.25, 4: torch.tensor(0.5)}, epochs=5)
    rows = without_seconds(tmp_path / "history.csv")
    assert [row["loss"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row.get("validation_mean_dsc") for row in rows] == [None, 0.25, None, 0.5, None]


def test_a_validation_before_its_row_is_refused(tmp_path):
    path = tmp_path / "history.csv"
    path.write_text("epoch,loss\n1.0,0.5\n")
    evaluator = Engine(lambda engine, batch: None)  # noqa: ARG005
    AddToHistory(path).attach(evaluator)
    with pytest.raises(ValueError, match=r"needs the row of epoch 2 in .*history\.csv: attach `SaveHistory` before"):
        evaluator.run([0], max_epochs=2)


def test_of_several_validating_processes_one_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(idist, "get_rank", lambda: 1)
    evaluator = Engine(lambda engine, batch: None)  # noqa: ARG005
    AddToHistory(tmp_path / "history.csv").attach(evaluator)
    evaluator.run([0])
    assert not (tmp_path / "history.csv").exists()
