"""What a folder of results holds: the cells that are done, and the studies that they are part of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai_spct.experiments.cell import CELL, DONE, is_done, read_json, write_json
from monai_spct.experiments.grid import Cell
from monai_spct.experiments.refusals import GridError
from monai_spct.experiments.study import Figure, Study, Table, parse_shown, shown_content

__all__ = ["FinishedCell", "PlannedStudy", "finished_cells", "planned_studies", "record_study"]

_STUDIES = "studies"
_NAMES = ("dataset", "method", "network")
_VALUES = ("axes", "settings")


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

    @property
    def cell(self) -> Cell:
        """What it is a result of."""
        return Cell(self.dataset, self.method, self.network, axes=self.axes, settings=self.settings)


@dataclass(frozen=True)
class PlannedStudy:
    """A study as it was started in a folder: what is to be shown, of which cells, done or not.

    Args:
        name: of its file.
        title: of its file.
        show: tables and figures.
        cells: all of its cells.

    Example:
        >>> from monai_spct.experiments import Cell, PlannedStudy
        >>> PlannedStudy("mine", "My comparison", (), [Cell("acdc")]).cells[0].name
        'acdc/default/default'
    """

    name: str
    title: str
    show: Sequence[Table | Figure]
    cells: Sequence[Cell]


def record_study(folder: str | Path, name: str, study: Study, cells: Sequence[Cell]) -> None:
    """Write down which cells a study has, so that a report knows what is still missing.

    Args:
        folder: of the results.
        name: of the study; another one of this name takes its place.
        study: what is to be shown.
        cells: as they were planned.

    Example:
        >>> import tempfile
        >>> from monai_spct.experiments import Cell, Study, planned_studies, record_study
        >>> folder = tempfile.mkdtemp()
        >>> record_study(folder, "mine", Study((), "My comparison"), [Cell("acdc")])
        >>> [(study.name, study.title, len(study.cells)) for study in planned_studies(folder)]
        [('mine', 'My comparison', 1)]
    """
    places = [
        {**{key: getattr(cell, key) for key in _NAMES}, **{key: dict(getattr(cell, key)) for key in _VALUES}}
        for cell in cells
    ]
    path = Path(folder) / _STUDIES / f"{name}.json"
    write_json(path, {"title": study.title, "show": [shown_content(item) for item in study.show], "cells": places})


def planned_studies(folder: str | Path) -> list[PlannedStudy]:
    """The studies that were started in a folder, by name.

    Raises:
        GridError: when a record cannot be read.

    Example:
        >>> from monai_spct.experiments import planned_studies
        >>> planned_studies("nowhere")
        []
    """
    return [_read_study(path) for path in sorted((Path(folder) / _STUDIES).glob("*.json"))]


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
    parts = {key: cell[key] for key in (*_NAMES, *_VALUES)}
    return FinishedCell(folder=place, record=record, **parts)


def _read_study(path: Path) -> PlannedStudy:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        show = parse_shown(content["show"]) if content["show"] else ()
        return PlannedStudy(path.stem, content["title"], show, [Cell(**cell) for cell in content["cells"]])
    except (ValueError, KeyError, TypeError) as error:
        raise GridError(f"{path} is no record of a study ({error!r}): delete it, and run the study again.") from error
