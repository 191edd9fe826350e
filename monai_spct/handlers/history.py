"""The course of a training, as a table with a row for each epoch."""

from __future__ import annotations

import csv
import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from torch import Tensor

from monai_spct.files.atomic import replacing
from monai_spct.handlers.progress import scalars

__all__ = ["AddToHistory", "SaveHistory", "read_history"]


class SaveHistory:
    """Ignite handler: a CSV file with a row for each epoch, for curves and for times.

    A row has the ``epoch``, ``seconds`` (the mean time of an iteration, with loading of its batch), ``learning_rate``
    if there is an optimizer, and the mean of each loss and note over the epoch's iterations, and over the processes
    where there are several. Validations add their metrics by :class:`AddToHistory`. A run that goes on after a
    checkpoint keeps the rows before it; the state for that checkpoint is what the epoch has added up so far.

    Args:
        path: the file.
        optimizer: its first learning rate is recorded as it is at the end of the epoch.

    Raises:
        ValueError: when a run goes on with a file that is something else.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from ignite.engine import Engine
        >>> from monai_spct.handlers import SaveHistory, read_history
        >>> path = Path(tempfile.mkdtemp()) / "history.csv"
        >>> trainer = Engine(lambda engine, batch: {"loss": batch})
        >>> SaveHistory(path).attach(trainer)
        >>> _ = trainer.run([0.25, 0.75], max_epochs=2)
        >>> [(row["epoch"], row["loss"]) for row in read_history(path)]
        [(1.0, 0.5), (2.0, 0.5)]
    """

    def __init__(self, path: str | os.PathLike[str], *, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.path = Path(path)
        self.optimizer = optimizer
        self._sums: dict[str, Tensor | float] = {}
        self._counts: dict[str, int] = {}
        self._seconds = 0.0  # of a part of the epoch before this process
        self._start = 0.0

    def attach(self, engine: Engine) -> None:
        """Follow ``engine``. What was attached before runs within the time that is measured."""
        engine.add_event_handler(Events.EPOCH_STARTED, self._begin)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._write)

    def state_dict(self) -> dict[str, Any]:
        """What this epoch has added up so far, in each process, which all ask at once."""
        seconds = self._seconds + time.perf_counter() - self._start if self._counts else 0.0
        sums = {name: total.cpu() if isinstance(total, Tensor) else total for name, total in self._sums.items()}
        mine = {"sums": sums, "counts": dict(self._counts), "seconds": seconds}
        return {"processes": idist.all_gather(mine) if idist.get_world_size() > 1 else [mine]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from ``state_dict``; with another number of processes, each goes on from what the first one had."""
        parts = state_dict["processes"]
        mine = parts[idist.get_rank() if len(parts) == idist.get_world_size() else 0]
        self._sums, self._counts = defaultdict(float, mine["sums"]), defaultdict(int, mine["counts"])
        self._seconds, self._start = mine["seconds"], time.perf_counter()

    def _begin(self, engine: Engine) -> None:
        state: Any = engine.state
        if idist.get_rank() == 0 and state.epoch > 1 and self.path.is_file():
            read_history(self.path)  # what cannot be gone on with is found now and not after an epoch
        if not state.epoch_length or state.iteration % state.epoch_length == 0:  # else a run goes on amid its epoch
            self._forget()
        self._start = time.perf_counter()

    def _forget(self) -> None:
        self._sums, self._counts, self._seconds = defaultdict(float), defaultdict(int), 0.0

    def __call__(self, engine: Engine) -> None:
        """Add the values of an iteration, without waiting for the device."""
        output: Any = engine.state.output
        if isinstance(output, dict | list):
            for name, value in scalars(output).items():
                self._sums[name] = self._sums[name] + value
                self._counts[name] += 1

    def _write(self, engine: Engine) -> None:
        mine = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        lasted = self._seconds + time.perf_counter() - self._start  # after the device has ended
        seconds = lasted / (engine.state.epoch_length or 1)
        self._forget()
        parts = cast("list[dict[str, float]]", idist.all_gather(mine))
        if idist.get_rank() > 0:
            return
        means = {name: sum(part[name] for part in parts) / len(parts) for name in mine}
        row = {"epoch": float(engine.state.epoch), "seconds": round(seconds, 6)}
        if self.optimizer is not None:
            row["learning_rate"] = float(self.optimizer.param_groups[0]["lr"])
        # from the file: it may be of a run before this one, and ahead of the checkpoint that this one goes on from
        before = read_history(self.path) if engine.state.epoch > 1 and self.path.is_file() else []
        _write_rows(self.path, [*(old for old in before if old["epoch"] < engine.state.epoch), {**row, **means}])


class AddToHistory:
    """Ignite handler for the evaluator that validates: its metrics join the row of the epoch that has just ended.

    The metric ``mean_dsc`` is called ``validation_mean_dsc`` there. Epochs without a validation have no such value.

    Args:
        path: the file of :class:`SaveHistory`, which must be attached to the trainer before the
            ``ValidationHandler`` is, so that there is a row. Without the file, nothing is written.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from ignite.engine import Engine, Events
        >>> from monai_spct.handlers import AddToHistory, SaveHistory, read_history
        >>> path = Path(tempfile.mkdtemp()) / "history.csv"
        >>> evaluator = Engine(lambda engine, batch: engine.state.metrics.update(mean_dsc=0.5))
        >>> AddToHistory(path).attach(evaluator)
        >>> trainer = Engine(lambda engine, batch: {"loss": batch})
        >>> SaveHistory(path).attach(trainer)
        >>> _ = trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run([0]))
        >>> _ = trainer.run([0.25, 0.75])
        >>> read_history(path)[0]["validation_mean_dsc"]
        0.5
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def attach(self, engine: Engine) -> None:
        """Write whenever an evaluation of ``engine`` ends."""
        if idist.get_rank() > 0:
            return
        engine.add_event_handler(Events.COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        """Write now."""
        if not self.path.is_file():
            return
        rows = read_history(self.path)
        if not rows or rows[-1]["epoch"] != engine.state.epoch:  # which MONAI's evaluators have from their trainer
            raise ValueError(
                f"`AddToHistory` needs the row of epoch {engine.state.epoch} in {self.path}: attach `SaveHistory` "
                "before the `ValidationHandler`."
            )
        rows[-1].update({f"validation_{name}": float(value) for name, value in engine.state.metrics.items()})
        _write_rows(self.path, rows)


def _write_rows(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with replacing(path, "w") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_history(path: str | os.PathLike[str]) -> list[dict[str, float]]:
    r"""The rows that :class:`SaveHistory` wrote; a value that an epoch does not have is not in its row.

    Args:
        path: the file.

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
        rows = [
            {name: float(value) for name, value in zip(header, line, strict=True) if value != "" or name == "epoch"}
            for line in lines
        ]
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{path} is no history of a training, or is damaged ({error}): remove it.") from error
    return rows
