"""Drawing of slices: canvas, colors, contours, legend and color bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.layout_engine import LayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

__all__ = [
    "PRED_WIDTH",
    "SMALL",
    "TEXT",
    "TRUTH_COLOR",
    "TRUTH_WIDTH",
    "color_bar",
    "contour_key",
    "draw_contours",
    "draw_plane",
    "entropy_scale",
    "entropy_ticks",
    "gray_limits",
    "new_figure",
    "structure_colors",
    "surroundings",
]

# of Okabe and Ito's colors, which color-blind people tell apart, those that stand out from gray
_COLORS = ("#56B4E9", "#E69F00", "#CC79A7", "#F0E442", "#009E73", "#D55E00", "#0072B2")
TEXT, SMALL = 8, 7  # points
TRUTH_COLOR = "#FFFFFF"
PRED_WIDTH, TRUTH_WIDTH = 2.0, 0.7  # points; where both agree, the white line runs within the colored one


def new_figure(
    width: float, height: float, layout: LayoutEngine | None = None, *, color: str = "white", dpi: float = 200
) -> Figure:
    """A figure, in inches, on a canvas that needs no display."""
    figure = Figure((width, height), dpi=dpi, facecolor=color, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def structure_colors(structures: Mapping[int, str]) -> dict[int, str]:
    """The color of each structure, by class index."""
    return {index: _COLORS[n % len(_COLORS)] for n, index in enumerate(structures)}


def surroundings(seen: NDArray[np.bool_], spacing: Sequence[float], *, margin: float) -> tuple[slice, slice]:
    """The part of a plane within ``margin`` mm of ``seen`` ``(H, W)``; all of it where there is nothing."""
    window = []
    for axis, size in enumerate(seen.shape):
        inside = np.flatnonzero(np.any(seen, axis=1 - axis))
        if not inside.size or math.isinf(margin):
            window.append(slice(0, size))
            continue
        border = round(margin / spacing[axis])
        window.append(slice(max(0, int(inside[0]) - border), min(size, int(inside[-1]) + 1 + border)))
    return window[0], window[1]


def gray_limits(image: NDArray[Any]) -> tuple[float, float]:
    """The values that are drawn black and white: all but the few lowest and highest are between them."""
    low, high = np.percentile(image, (0.5, 99.5))
    return float(low), float(max(high, np.nextafter(low, np.inf)))


def draw_plane(
    axes: Axes, values: NDArray[Any], *, window: tuple[slice, slice], spacing: Sequence[float], **kwargs: Any
) -> AxesImage:
    """A part of a plane ``(H, W)`` in true proportion, its first axis to the right; ``kwargs`` are of ``imshow``."""
    image = axes.imshow(values.T, aspect=spacing[1] / spacing[0], **kwargs)
    across, down = window
    axes.set(xlim=(across.start - 0.5, across.stop - 0.5), ylim=(down.stop - 0.5, down.start - 0.5))
    axes.set_axis_off()
    return image


def draw_contours(axes: Axes, classes: NDArray[Any], colors: Mapping[int, str], *, width: float) -> None:
    """The outline of each class of ``classes`` ``(H, W)`` that has a color; the width is in points."""
    for index, color in colors.items():
        mask = classes == index
        if mask.any():
            framed = np.pad(mask, 1).T.astype(float)  # closes the line of a structure at the border of the image
            columns, rows = (np.arange(-1, size + 1) for size in mask.shape)
            axes.contour(columns, rows, framed, [0.5], colors=color, linewidths=width)


def contour_key(structures: Mapping[int, str], *, truth: bool = True, scale: float = 1.0) -> list[Line2D]:
    """The lines of a legend: one for each structure, and one for the truth; ``scale`` is of their widths."""
    colors = structure_colors(structures)
    wide, thin = PRED_WIDTH * scale, TRUTH_WIDTH * scale
    lines = [Line2D([], [], color=colors[n], linewidth=wide, label=name) for n, name in structures.items()]
    if truth:
        edge = [withStroke(linewidth=thin + 1.2, foreground="black")]  # to be seen on white paper, too
        lines.append(Line2D([], [], color=TRUTH_COLOR, linewidth=thin, label="truth", path_effects=edge))
    return lines


def entropy_scale(num_classes: int) -> ScalarMappable:
    r"""The colors of an entropy, from 0 to :math:`\log C`; the background is one of the :math:`C` classes."""
    return ScalarMappable(Normalize(0, math.log(num_classes)), "magma")


def entropy_ticks(num_classes: int) -> tuple[list[float], list[str], str]:
    """What stands beside a bar of :func:`entropy_scale`: the ticks, their words, and the quantity with its unit."""
    ticks = [math.log(num_classes) * part / 4 for part in range(5)]
    return ticks, [f"{tick:.2f}" for tick in ticks], f"entropy (nats), up to ln {num_classes}"


def color_bar(figure: Figure, scale: ScalarMappable, box: tuple[float, float, float, float], label: str) -> Axes:
    """The scale of colors, along the longer side of a box: left, bottom, width and height, as shares of the figure."""
    axes = figure.add_axes(box)
    lies = box[2] * figure.get_figwidth() > box[3] * figure.get_figheight()
    bar = figure.colorbar(scale, cax=axes, orientation="horizontal" if lies else "vertical")
    bar.set_label(label, fontsize=SMALL, labelpad=2)
    bar.outline.set_linewidth(0.4)
    axes.tick_params(labelsize=SMALL - 1, length=2, width=0.4, pad=2)
    return axes
