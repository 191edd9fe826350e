"""Training history: one row per epoch, as a CSV file and in TensorBoard."""

from __future__ import annotations

import csv
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, cast

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from monai_spct.files.atomic import replacing
from monai_spct.handlers.progress import scalars

__all__ = ["AddToHistory", "SaveHistory", "read_history"]


class SaveHistory:
    """Ignite handler that writes a row for each epoch, to ``history.csv`` and TensorBoard.

    A row has the ``epoch``, ``seconds`` (mean time of an iteration, with loading), ``learning_rate`` and the mean of
    each loss and note over iterations and processes. Validations add their metrics by :class:`AddToHistory`.

    Put the handler into a checkpoint: a run that goes on writes the same table, and TensorBoard forgets what came after
    the checkpoint.

    Args:
        folder: where the files go.
        optimizer: its first learning rate is recorded as it is at the end of the epoch.

    Example:
        >>> import tempfile
        >>> from ignite.engine import Engine
        >>> from monai_spct.handlers import SaveHistory, read_history
        >>> folder = tempfile.mkdtemp()
        >>> trainer = Engine(lambda engine, batch: {"loss": batch})
        >>> SaveHistory(folder).attach(trainer)
        >>> _ = trainer.run([0.25, 0.75], max_epochs=2)
        >>> [(row["epoch"], row["loss"]) for row in read_history(folder + "/history.csv")]
        [(1.0, 0.5), (2.0, 0.5)]
    """

    def __init__(self, folder: str | os.PathLike[str], *, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.folder = Path(folder)
        self.optimizer = optimizer
        self.rows: list[dict[str, float]] = []
        self._sums: dict[str, Tensor | float] = {}
        self._counts: dict[str, int] = {}
        self._seconds = 0.0  # of a part of the epoch before this process
        self._start = 0.0
        self._tensorboard: Any = None

    def attach(self, engine: Engine) -> None:
        """Follow ``engine``. Attach it before a ``ValidationHandler``, so that the row is there for its metrics."""
        engine.add_event_handler(Events.STARTED, self._close_tensorboard)
        engine.add_event_handler(Events.EPOCH_STARTED, self._begin)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._end)

    def tensorboard(self, epoch: int) -> Any:
        """The ``SummaryWriter``; when it opens, TensorBoard forgets what there is of this epoch and later ones."""
        if self._tensorboard is None:
            self._tensorboard = SummaryWriter(self.folder, purge_step=epoch)
        return self._tensorboard

    def add_validation(self, epoch: int, metrics: dict[str, float]) -> None:
        """Complete the row of an epoch that has just ended.

        Raises:
            ValueError: when there is no such row yet.
        """
        if not self.rows or self.rows[-1]["epoch"] != epoch:
            raise ValueError(f"there is no row of epoch {epoch}: attach `SaveHistory` before the `ValidationHandler`.")
        self._write({f"validation_{name}": float(value) for name, value in metrics.items()})

    def state_dict(self) -> dict[str, Any]:
        """The rows, and what this epoch has added up so far in each process; all processes ask at once."""
        seconds = self._seconds + time.perf_counter() - self._start if self._counts else 0.0
        sums = {name: total.cpu() if isinstance(total, Tensor) else total for name, total in self._sums.items()}
        mine = {"sums": sums, "counts": dict(self._counts), "seconds": seconds}
        processes = idist.all_gather(mine) if idist.get_world_size() > 1 else [mine]
        return {"rows": [dict(row) for row in self.rows], "processes": processes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from ``state_dict``; with another number of processes, each goes on from what the first one had."""
        self.rows = [dict(row) for row in state_dict["rows"]]
        parts = state_dict["processes"]
        mine = parts[idist.get_rank() if len(parts) == idist.get_world_size() else 0]
        self._sums, self._counts = defaultdict(float, mine["sums"]), defaultdict(int, mine["counts"])
        self._seconds, self._start = mine["seconds"], time.perf_counter()

    def __call__(self, engine: Engine) -> None:
        """Add the values of an iteration, without waiting for the device."""
        output: Any = engine.state.output
        if isinstance(output, dict | list):
            for name, value in scalars(output).items():
                self._sums[name] = self._sums[name] + value
                self._counts[name] += 1

    def _begin(self, engine: Engine) -> None:
        state: Any = engine.state
        if not state.epoch_length or state.iteration % state.epoch_length == 0:  # else a run goes on amid its epoch
            self._forget()
        self._start = time.perf_counter()

    def _forget(self) -> None:
        self._sums, self._counts, self._seconds = defaultdict(float), defaultdict(int), 0.0

    def _end(self, engine: Engine) -> None:
        mine = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        lasted = self._seconds + time.perf_counter() - self._start  # after the device has ended
        seconds = lasted / (engine.state.epoch_length or 1)
        self._forget()
        parts = cast("list[dict[str, float]]", idist.all_gather(mine))
        if idist.get_rank() > 0:
            return
        self.rows = [row for row in self.rows if row["epoch"] < engine.state.epoch]  # of a run before, if any
        self.rows.append({"epoch": float(engine.state.epoch)})
        values = {"seconds": round(seconds, 6)}
        if self.optimizer is not None:
            values["learning_rate"] = float(self.optimizer.param_groups[0]["lr"])
        self._write(values | {name: sum(part[name] for part in parts) / len(parts) for name in mine})

    def _write(self, values: dict[str, float]) -> None:
        """Add values to the last row, and write."""
        self.rows[-1].update(values)
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        with replacing(self.folder / "history.csv", "w") as file:
            writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)
        epoch = int(self.rows[-1]["epoch"])
        board = self.tensorboard(epoch)
        for name, value in values.items():
            board.add_scalar(name, value, epoch)
        board.flush()  # before a checkpoint that begins after this epoch

    def _close_tensorboard(self) -> None:
        if self._tensorboard is not None:
            self._tensorboard.close()
            self._tensorboard = None


class AddToHistory:
    """Ignite handler for the evaluator that validates: its metrics join the row of the epoch, as ``validation_...``.

    Args:
        history: of the trainer, attached to it before the ``ValidationHandler``.

    Example:
        >>> import tempfile
        >>> from ignite.engine import Engine, Events
        >>> from monai_spct.handlers import AddToHistory, SaveHistory
        >>> history = SaveHistory(tempfile.mkdtemp())
        >>> evaluator = Engine(lambda engine, batch: engine.state.metrics.update(mean_dsc=0.5))
        >>> AddToHistory(history).attach(evaluator)
        >>> trainer = Engine(lambda engine, batch: {"loss": batch})
        >>> history.attach(trainer)
        >>> _ = trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run([0]))
        >>> _ = trainer.run([0.25, 0.75])
        >>> history.rows[0]["validation_mean_dsc"]
        0.5
    """

    def __init__(self, history: SaveHistory) -> None:
        self.history = history

    def attach(self, engine: Engine) -> None:
        """Write whenever an evaluation of ``engine`` ends."""
        engine.add_event_handler(Events.COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        """Write now."""
        if idist.get_rank() == 0:
            self.history.add_validation(engine.state.epoch, engine.state.metrics)  # MONAI's evaluators know the epoch


def read_history(path: str | os.PathLike[str]) -> list[dict[str, float]]:
    r"""The rows that :class:`SaveHistory` wrote, without the values that an epoch does not have.

    Args:
        path: of ``history.csv``.

    Raises:
        ValueError: if it is something else, or has lost a part.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.handlers import read_history
        >>> path = Path(tempfile.mkdtemp()) / "history.csv"
        >>> _ = path.write_text("epoch,loss,gamma\n1.0,0.5,0.2\n2.0,0.25,\n")
        >>> read_history(path)
        [{'epoch': 1.0, 'loss': 0.5, 'gamma': 0.2}, {'epoch': 2.0, 'loss': 0.25}]
    """
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            header, *lines = list(csv.reader(file, strict=True)) or [[]]
        if header[:1] != ["epoch"]:
            raise ValueError("its first column is not `epoch`")
        return [
            {name: float(value) for name, value in zip(header, line, strict=True) if value != "" or name == "epoch"}
            for line in lines
        ]
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{path} is no history of a training, or is damaged ({error}).") from error
