"""Figures of many small panels: where they stand, and what a slice looks like in one."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from numpy.typing import NDArray

from monai_spct.experiments.report.slices import PredictedSlice
from monai_spct.handlers.drawing import (
    PRED_WIDTH,
    SMALL,
    TRUTH_COLOR,
    TRUTH_WIDTH,
    contour_key,
    draw_contours,
    draw_plane,
    gray_limits,
    new_figure,
    structure_colors,
)

__all__ = ["contour_legend", "draw_panel", "panel_grid"]

_PAGE = 7.5  # inches, the width of a journal's page
_GAP = 0.04  # inches between panels
_THIN = 0.6  # of the lines in pictures of single volumes, whose panels are larger


def panel_grid(
    titles: Sequence[str], labels: Sequence[str], shapes: Sequence[float], *, below: float = 0.3
) -> tuple[Figure, NDArray[Any]]:
    """Panels in rows and columns, close together, and room for a legend below.

    Args:
        titles: of the columns.
        labels: of the rows.
        shapes: height by width of the panels of each row.
        below: inches for the legend.

    Returns:
        The figure and its panels, ``(rows, columns)``.

    Example:
        >>> from monai_spct.experiments.report.panels import panel_grid
        >>> figure, panels = panel_grid(["Ground truth", "DAN"], ["slice 5"], [1.0])
        >>> panels.shape
        (1, 2)
    """
    width = min(1.6, max(0.95, _PAGE / len(titles)))  # inches, as all that follow
    titles = [_wrapped(title, width, SMALL) for title in titles]
    labels = [_wrapped(label, width * shape, SMALL - 1) for label, shape in zip(labels, shapes, strict=True)]
    left = 0.1 + 0.12 * max(1 + label.count("\n") for label in labels)
    top = 0.08 + 0.13 * max(1 + title.count("\n") for title in titles)
    height = top + below + sum(width * shape + _GAP for shape in shapes)
    figure = new_figure(left + len(titles) * (width + _GAP), height)
    size = np.array([figure.get_figwidth(), height] * 2)
    panels = np.empty((len(labels), len(titles)), dtype=object)
    y = height - top
    for row, (label, shape) in enumerate(zip(labels, shapes, strict=True)):
        y -= width * shape
        for column in range(len(titles)):
            box = np.array([left + column * (width + _GAP), y, width, width * shape])
            panels[row, column] = figure.add_axes(tuple(box / size))
        beside = {"rotation": 90, "ha": "right", "va": "center", "multialignment": "center", "fontsize": SMALL - 1}
        panels[row, 0].text(-0.04, 0.5, label, transform=panels[row, 0].transAxes, **beside)
        y -= _GAP
    for axes, title in zip(panels[0], titles, strict=True):
        axes.set_title(title, fontsize=SMALL, pad=3)
    return figure, panels


def contour_legend(
    figure: Figure, names: Sequence[str], *, center: float = 0.5, columns: int | None = None, title: str | None = None
) -> None:
    """What the contours are, at the bottom of a figure.

    Args:
        figure: of :func:`panel_grid`.
        names: of the structures.
        center: of the legend, as a share of the figure's width.
        columns: of the legend; by default all is in one line.
        title: above it.

    Example:
        >>> from monai_spct.experiments.report.panels import contour_legend
        >>> from monai_spct.handlers.drawing import new_figure
        >>> figure = new_figure(4.0, 2.0)
        >>> contour_legend(figure, ["RV", "LV"])
        >>> [text.get_text() for text in figure.legends[0].get_texts()]
        ['RV', 'LV', 'truth']
    """
    lines = contour_key(dict(enumerate(names)), scale=_THIN)
    figure.legend(
        handles=lines,
        loc="lower center",
        bbox_to_anchor=(center, 0.0),
        ncols=columns or len(lines),
        title=title,
        title_fontsize=SMALL - 1,
        fontsize=SMALL,
        frameon=False,
    )


def draw_panel(
    axes: Axes,
    plane: PredictedSlice | None,
    window: tuple[slice, slice],
    *,
    names: Sequence[str] = (),
    truth: bool = False,
    entropy: ScalarMappable | None = None,
) -> None:
    """A slice: the image with the truth as a thin white line over the prediction in color; words where there is none.

    Args:
        axes: one of :func:`panel_grid`.
        plane: what is shown, or none.
        window: the part that is shown.
        names: of the structures, as in :func:`contour_legend`: several datasets may share a figure.
        truth: draw the truth in color, and no prediction.
        entropy: draw the entropy in these colors, and nothing else.

    Example:
        >>> from monai_spct.experiments.report.panels import draw_panel
        >>> from monai_spct.handlers.drawing import new_figure
        >>> axes = new_figure(2.0, 2.0).add_subplot()
        >>> draw_panel(axes, None, (slice(0, 1), slice(0, 1)))
        >>> axes.texts[0].get_text()
        'not run'
    """
    if plane is None:
        axes.set(xticks=[], yticks=[], facecolor="0.94")
        axes.spines[:].set_visible(False)
        axes.text(0.5, 0.5, "not run", color="0.35", fontsize=SMALL, ha="center", va="center", transform=axes.transAxes)
        return
    place: dict[str, Any] = {"window": window, "spacing": plane.spacing}
    if entropy is not None:
        draw_plane(axes, plane.entropy, **place, cmap=entropy.cmap, norm=entropy.norm)
        return
    low, high = gray_limits(plane.image[window])
    draw_plane(axes, plane.image, **place, cmap="gray", vmin=low, vmax=high, interpolation="bilinear")
    palette = structure_colors(dict(enumerate(names)))
    colors = {index: palette[names.index(name)] for index, name in plane.structures.items()}
    draw_contours(axes, plane.truth if truth else plane.pred, colors, width=PRED_WIDTH * _THIN)
    if not truth:
        draw_contours(axes, plane.truth, dict.fromkeys(colors, TRUTH_COLOR), width=TRUTH_WIDTH * _THIN)


def _wrapped(text: str, inches: float, points: float) -> str:
    """Lines of a text that fit; a name may also end a line with an underscore."""
    letters = max(4, int(inches * 72 / (0.58 * points)))
    lines = [line for part in text.split("\n") for line in textwrap.wrap(part.replace("_", "_ "), letters)]
    return "\n".join(line.replace("_ ", "_") for line in lines)
