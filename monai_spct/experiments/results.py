"""The cells that are done, from their folders alone: where whatever compares them starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai_spct.experiments.cell import CELL, DONE, is_done, read_json

__all__ = ["FinishedCell", "finished_cells"]


@dataclass(frozen=True)
class FinishedCell:
    """A cell that is trained and evaluated.

    Args:
        folder: holds ``eval/scores.csv``, ``eval/summary.json``, the weights and the logs.
        dataset: its bundle.
        method: by name.
        network: by name.
        axes: the value of each axis.
        settings: what was the same for all cells of its grid.
        record: what ``done.json`` holds: seconds and versions.

    Example:
        >>> from pathlib import Path
        >>> from monai_spct.experiments import FinishedCell
        >>> cell = FinishedCell(Path("runs/a"), "acdc", "dan", "enet", {"seed": 0}, {}, {"training_seconds": 9.0})
        >>> cell.axes["seed"]
        0
    """

    folder: Path
    dataset: str
    method: str
    network: str
    axes: Mapping[str, Any]
    settings: Mapping[str, Any]
    record: Mapping[str, Any]


def finished_cells(folder: str | Path) -> list[FinishedCell]:
    """All cells below a folder that are done, sorted by folder. Several grids may have filled it.

    Example:
        >>> from monai_spct.experiments import finished_cells
        >>> finished_cells("nowhere")
        []
    """
    places = sorted(path.parent for path in Path(folder).rglob(DONE) if is_done(path.parent))
    return [_read(place) for place in places if (place / CELL).is_file()]


def _read(place: Path) -> FinishedCell:
    cell, record = read_json(place / CELL), read_json(place / DONE)
    parts = {key: cell[key] for key in ("dataset", "method", "network", "axes", "settings")}
    return FinishedCell(folder=place, record=record, **parts)
