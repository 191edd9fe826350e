"""The figures of a study, from the cells that are done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure as Picture

from monai_spct.experiments.grid import Cell
from monai_spct.experiments.lines import cell_lines
from monai_spct.experiments.refusals import GridError
from monai_spct.experiments.report.figures import alpha_jsd_figure, comparison_figure, entropy_figure
from monai_spct.experiments.report.names import no_result_yet, shown_key, shown_value
from monai_spct.experiments.report.scores import history_of
from monai_spct.experiments.report.slices import PredictedSlice, predicted_slices
from monai_spct.experiments.results import FinishedCell
from monai_spct.experiments.study import Figure, Slices
from monai_spct.experiments.values import Value
from monai_spct.handlers.curves import curves_figure

__all__ = ["draw"]

# of a cell, the chosen slices as predicted by the weights of a name
Predict = Callable[[FinishedCell, str], list[PredictedSlice]]


def draw(
    figure: Figure,
    cells: Sequence[Cell],
    finished: Mapping[str, FinishedCell],
    data: Mapping[str, str | Path] | None = None,
) -> tuple[Picture | None, list[str]]:
    """Draw a figure.

    Args:
        figure: what it is to show.
        cells: all that were planned.
        finished: those that are done, by name.
        data: by dataset, the folder that holds it, where it is not the one that the cell was run with.

    Returns:
        The figure, or none if nothing of it can be drawn; and notes on what is missing in it and why.

    Raises:
        GridError: as :func:`~monai_spct.experiments.report.tabulate`.

    Example:
        >>> from monai_spct.experiments import Figure
        >>> from monai_spct.experiments.report import draw
        >>> picture, notes = draw(Figure("alpha_jsd", alphas=(0.0, 1.0)), [], {})
        >>> len(picture.axes) >= 2, notes
        (True, [])
    """
    if figure.kind == "alpha_jsd":
        return alpha_jsd_figure(figure.alphas), []
    keys, lines = cell_lines(figure, cells)
    notes: dict[str, None] = {}
    missing = [cell.name for members in lines.values() for cell in members if cell.name not in finished]
    if missing:
        notes[no_result_yet(missing)] = None
    named = {
        _name(keys, labels): [finished[cell.name] for cell in members if cell.name in finished]
        for labels, members in lines.items()
    }

    def predict(cell: FinishedCell, weights: str) -> list[PredictedSlice]:
        try:
            wanted = _wanted(figure.slices, cell.dataset)
            return predicted_slices(cell, wanted, weights=weights, data=(data or {}).get(cell.dataset))
        except GridError as error:
            notes[f"{cell.cell.name}: {error}"] = None
            return []

    picture = None
    try:
        kinds = {"curves": _curves, "comparison": _comparison, "entropy": _entropy}
        picture = kinds[figure.kind](figure, named, predict)
    except GridError as error:  # the runs do not fit beside each other; what else is reported does not depend on it
        notes[f"{error}"] = None
    return picture, list(notes)


def _curves(figure: Figure, named: Mapping[str, Sequence[FinishedCell]], predict: Predict) -> Picture | None:  # noqa: ARG001
    histories = {name: [history for cell in cells if (history := history_of(cell))] for name, cells in named.items()}
    histories = {name: several for name, several in histories.items() if several}
    return curves_figure(histories) if histories else None


def _comparison(figure: Figure, named: Mapping[str, Sequence[FinishedCell]], predict: Predict) -> Picture | None:  # noqa: ARG001
    datasets = list(dict.fromkeys(cell.dataset for cells in named.values() for cell in cells))
    found = {
        (name, dataset): predict(cell, "model.pt")
        for name, cells in named.items()
        for dataset in datasets
        if (cell := _first(cells, dataset))
    }
    # the rows are those of whichever column has them
    rows = [
        (dataset, one.case, one.number)
        for dataset in datasets
        for one in next((slices for (_, of), slices in found.items() if of == dataset and slices), [])
    ]
    if not rows:
        return None
    at = {(name, dataset, one.case, one.number): one for (name, dataset), slices in found.items() for one in slices}
    return comparison_figure({name: [at.get((name, *row)) for row in rows] for name in named})


def _entropy(figure: Figure, named: Mapping[str, Sequence[FinishedCell]], predict: Predict) -> Picture | None:
    weights = [*(f"epoch_{epoch:03d}.pt" for epoch in figure.epochs), "model.pt"]
    rows = {}
    for name, cells in named.items():
        cell = _first(cells)
        rows[name] = [next(iter(predict(cell, one)), None) if cell else None for one in weights]
    if not any(one for row in rows.values() for one in row):
        return None
    return entropy_figure(rows, figure.epochs)


def _first(cells: Sequence[FinishedCell], dataset: str | None = None) -> FinishedCell | None:
    """The run of the first seed that is done."""
    return next((cell for cell in cells if dataset in (None, cell.dataset)), None)


def _wanted(slices: Slices | Mapping[str, Slices], dataset: str) -> Slices:
    if not isinstance(slices, Mapping):
        return slices
    if dataset not in slices:
        raise GridError(f"`slices` has none of `{dataset}`.")
    return slices[dataset]


def _name(keys: Sequence[str], labels: Sequence[Value]) -> str:
    """A line in words: names alone, and values with what they are values of."""
    words = []
    for key, label in zip(keys, labels, strict=True):
        if value := shown_value(key, label):
            words.append(value if key in ("methods", "networks") else f"{shown_key(key)} {value}")
    return ", ".join(words)
