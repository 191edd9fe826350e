"""What one finished cell is judged by: scores of each case, and times."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from monai_spct.experiments.refusals import GridError
from monai_spct.experiments.results import FinishedCell
from monai_spct.handlers.history import read_history

__all__ = ["Scores", "cell_scores", "history_of", "inference_device"]

# by score, structure and case; times have one structure and one case, both without a name
Scores: TypeAlias = Mapping[str, Mapping[str, Mapping[str, float]]]

_SCORES, _HISTORY, _TIME = "eval/scores.csv", "eval/history.csv", "eval/inference_time.json"


def cell_scores(cell: FinishedCell) -> Scores:
    """The scores of a cell: ``dsc``, ``hd`` and ``hd95`` in mm, times in milliseconds.

    Training time is that of an iteration, the median over the epochs but the first, which fills caches; inference time
    is that of a slice. A cell that has no record of its times has no such scores.

    Raises:
        GridError: when a file cannot be read, or a score is not finite.
    """
    found: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    with _reading(cell.folder / _SCORES) as path, path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for score in ("dsc", "hd", "hd95"):
                value = float(row[score])
                if not math.isfinite(value):
                    raise ValueError(f"{score} {value}")
                found[score][row["structure"]][row["case"]] = value
    if history := history_of(cell):
        with _reading(cell.folder / _HISTORY):
            seconds = [row["seconds"] for row in history[1:] or history]
        found["training_time"][""][""] = 1000 * statistics.median(seconds)
    if (record := _inference_time(cell)) is not None:
        found["inference_time"][""][""] = 1000 * float(record["seconds_per_slice"])
    return found


def history_of(cell: FinishedCell) -> list[dict[str, float]]:
    """The course of a cell's training, an epoch a row; empty if there is no record of it.

    Raises:
        GridError: when it cannot be read.
    """
    with _reading(cell.folder / _HISTORY) as path:
        return read_history(path) if path.is_file() else []


def inference_device(cell: FinishedCell) -> str | None:
    """What the cell was evaluated on, in words, if that was recorded.

    Raises:
        GridError: when the record cannot be read.
    """
    record = _inference_time(cell)
    return None if record is None else str(record["device"])


def _inference_time(cell: FinishedCell) -> dict[str, str | float] | None:
    with _reading(cell.folder / _TIME) as path:
        if not path.is_file():
            return None
        record = json.loads(path.read_text(encoding="utf-8"))
        return {"seconds_per_slice": float(record["seconds_per_slice"]), "device": str(record["device"])}


@contextmanager
def _reading(path: Path) -> Iterator[Path]:
    try:
        yield path
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise GridError(f"{path} cannot be read ({error!r}): delete the cell's folder to run it anew.") from error
