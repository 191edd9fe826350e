"""Figures for the page: divergences, predictions and entropies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from monai_spct.experiments.refusals import GridError
from monai_spct.experiments.report.panels import contour_legend, draw_panel, panel_grid
from monai_spct.experiments.report.slices import PredictedSlice
from monai_spct.functional import generalized_jsd
from monai_spct.functional.checks import at_least, in_unit_interval
from monai_spct.handlers.drawing import (
    SMALL,
    TEXT,
    color_bar,
    entropy_scale,
    entropy_ticks,
    new_figure,
    surroundings,
)

__all__ = ["alpha_jsd_figure", "alpha_jsd_surface", "comparison_figure", "entropy_figure"]

_MARGIN = 15.0  # mm around the structures


def alpha_jsd_surface(alpha: float, *, size: int = 101) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""The entropy-regularized divergence of two Bernoulli distributions, on a grid.

    .. math:: \mathrm{JSD}^\alpha(P_1, P_2) = \mathcal{H}\Bigl(\frac{P_1 + P_2}{2}\Bigr)
        - \frac{1 - \alpha}{2} \bigl(\mathcal{H}(P_1) + \mathcal{H}(P_2)\bigr)

    Args:
        alpha: share of the entropy term, 0 to 1.
        size: points along each axis, 0 and 1 included.

    Returns:
        The probabilities of class 1, ``(size,)``, and the divergences in nats, ``(size, size)``.

    Raises:
        ValueError: when an argument is out of its range.

    Reference:
        Wang et al., Medical Image Analysis 2021: the section on uncertainty regularization.

    Example:
        >>> from monai_spct.experiments.report.figures import alpha_jsd_surface
        >>> p, values = alpha_jsd_surface(0.0, size=3)
        >>> p.tolist(), values.round(3)[0].tolist()
        ([0.0, 0.5, 1.0], [0.0, 0.216, 0.693])
    """
    in_unit_interval("alpha", alpha)
    p = torch.linspace(0, 1, at_least("size", size, 2), dtype=torch.float64)
    one, two = torch.meshgrid(p, p, indexing="ij")
    views = torch.stack([one, two])[:, None]
    probabilities = torch.stack([1 - views, views], dim=2)
    # finite at 0 and 1 too, where p log p then is 0 up to rounding
    log_probs = probabilities.clamp_min(torch.finfo(torch.float64).tiny).log()
    return p.numpy(), generalized_jsd(log_probs, alpha=alpha)[0].numpy()


def alpha_jsd_figure(alphas: Sequence[float] = (0.0, 0.1, 0.5, 1.0)) -> Figure:
    r"""What the entropy term does to the divergence of two Bernoulli distributions: a surface for each ``alpha``.

    Args:
        alphas: shares of the entropy term, 0 to 1.

    Raises:
        ValueError: when there is no ``alpha``, or one is out of its range.

    Reference:
        Wang et al., Medical Image Analysis 2021: the figure of the section on uncertainty regularization.

    Example:
        >>> from monai_spct.experiments.report.figures import alpha_jsd_figure
        >>> [axes.get_title() for axes in alpha_jsd_figure((0.0, 1.0)).axes[:2]]
        ['$\\alpha$ = 0.0', '$\\alpha$ = 1.0']
    """
    at_least("len(alphas)", len(alphas), 1)
    columns = min(2, len(alphas))
    rows = math.ceil(len(alphas) / columns)
    width = 2.9 * columns + 0.95  # inches; the rest is for the color bar
    right = 1 - 0.95 / width
    figure = new_figure(width, 2.6 * rows)
    scale = ScalarMappable(Normalize(0, math.log(2)), "viridis")
    for place, alpha in enumerate(alphas):
        p, values = alpha_jsd_surface(alpha)
        row, column = divmod(place, columns)
        box = (column * right / columns, 1 - (row + 0.97) / rows, right / columns, 0.97 / rows)
        axes: Any = figure.add_axes(box, projection="3d")  # whose type is not that of the projection
        grid = np.meshgrid(p, p, indexing="ij")
        smooth = {"rcount": 100, "ccount": 100, "linewidth": 0, "antialiased": False}  # else edges of faces show
        axes.plot_surface(*grid, values, cmap=scale.cmap, norm=scale.norm, **smooth)
        axes.set_box_aspect((1, 1, 0.75), zoom=0.9)
        axes.view_init(elev=28, azim=-55)
        axes.set(xlim=(0, 1), ylim=(0, 1), zlim=(0, math.log(2)))
        axes.set(xticks=(0, 0.5, 1), yticks=(0, 0.5, 1), zticks=(0, 0.2, 0.4, 0.6))
        axes.set(xticklabels=("0", "0.5", "1"), yticklabels=("0", "0.5", "1"))
        axes.tick_params(labelsize=SMALL, pad=-2)
        axes.tick_params(axis="z", pad=0)
        axes.set_xlabel("$P_1$", fontsize=TEXT, labelpad=-5)
        axes.set_ylabel("$P_2$", fontsize=TEXT, labelpad=-5)
        axes.set_zlabel("JSD", fontsize=TEXT, labelpad=-2)
        axes.set_title(rf"$\alpha$ = {alpha}", fontsize=TEXT + 1, y=0.97)
    color_bar(figure, scale, (right + 0.3 / width, 0.2, 0.13 / width, 0.6), "JSD (nats)")
    return figure


def comparison_figure(columns: Mapping[str, Sequence[PredictedSlice | None]]) -> Figure:
    """Predictions of several systems side by side: a row for each slice, a column for each system.

    The truth is a thin white line over the prediction in color. The first column shows the truth alone. All panels of a
    row show the same part of the plane, around all structures, true and predicted.

    Args:
        columns: by the name of the system, its slices, the same ones for all; none where there is no such run.

    Raises:
        ValueError: when systems differ in the number of their slices, or there is none at all.
        GridError: when the slices of a row are not the same.

    Example:
        >>> import numpy as np
        >>> from monai_spct.experiments.report.figures import comparison_figure
        >>> from monai_spct.experiments.report.slices import PredictedSlice
        >>> plane, heart = np.random.rand(32, 32), np.zeros((32, 32), int)
        >>> heart[8:20, 8:20] = 1
        >>> drawn = PredictedSlice(plane, heart, heart, plane, (1.0, 1.0), {1: "LV"}, "patient001", 5)
        >>> [axes.get_title() for axes in comparison_figure({"Mean Teacher": [drawn], "DAN": [None]}).axes]
        ['Ground truth', 'Mean Teacher', 'DAN']
    """
    if len({len(slices) for slices in columns.values()}) > 1:
        counts = {name: len(slices) for name, slices in columns.items()}
        raise ValueError(f"`columns` must have the same number of slices each, got {counts}.")
    rows = list(zip(*columns.values(), strict=True))
    shown = [_same(row) for row in rows]
    structures = _names(shown)
    windows = [_window(row) for row in rows]
    labels = [_label(plane, "\n") for plane in shown]
    figure, panels = panel_grid(
        ["Ground truth", *columns],
        labels,
        [_shape(plane, window) for plane, window in zip(shown, windows, strict=True)],
    )
    for line, plane, window, row in zip(panels, shown, windows, rows, strict=True):
        draw_panel(line[0], plane, window, names=structures, truth=True)
        for axes, drawn in zip(line[1:], row, strict=True):
            draw_panel(axes, drawn, window, names=structures)
    contour_legend(figure, structures)
    return figure


def entropy_figure(rows: Mapping[str, Sequence[PredictedSlice | None]], epochs: Sequence[int]) -> Figure:
    r"""How sure systems become in training: entropy maps of a slice after some epochs, and where they arrive.

    The scale goes from 0 to :math:`\log C`, the entropy of a network that knows nothing, for all maps.

    Args:
        rows: by the name of the system, the slice after each of the epochs, and by the final network; none where there
            is no such run. All show the same slice.
        epochs: when.

    Raises:
        ValueError: when a row has another number of slices, or there is none at all.
        GridError: when the slices are not the same.

    Reference:
        Wang et al., Medical Image Analysis 2021: the figure of entropy maps.

    Example:
        >>> import numpy as np
        >>> from monai_spct.experiments.report.figures import entropy_figure
        >>> from monai_spct.experiments.report.slices import PredictedSlice
        >>> plane, heart = np.random.rand(32, 32), np.zeros((32, 32), int)
        >>> heart[8:20, 8:20] = 1
        >>> drawn = PredictedSlice(plane, heart, heart, plane, (1.0, 1.0), {1: "LV"}, "patient001", 5)
        >>> figure = entropy_figure({"JSD": [drawn, drawn, drawn]}, [20, 40])
        >>> [axes.get_title() for axes in figure.axes[:4]]
        ['epoch 20', 'epoch 40', 'Prediction', 'Ground truth']
    """
    at_least("len(epochs)", len(epochs), 1)
    for name, slices in rows.items():
        if len(slices) != len(epochs) + 1:
            raise ValueError(f"`rows[{name!r}]` must have {len(epochs)} slices and the final one, got {len(slices)}.")
    everything = [plane for slices in rows.values() for plane in slices]
    shown = _same(everything)
    structures = _names([shown])
    window = _window(everything)
    names = [*(f"epoch {epoch}" for epoch in epochs), "Prediction", "Ground truth"]
    figure, panels = panel_grid(names, list(rows), [_shape(shown, window)] * len(rows), below=0.6)
    scale = entropy_scale(len(structures) + 1)
    for line, slices in zip(panels, rows.values(), strict=True):
        for axes, plane in zip(line, slices[:-1], strict=False):
            draw_panel(axes, plane, window, entropy=scale)
        draw_panel(line[-2], slices[-1], window, names=structures)
        draw_panel(line[-1], shown, window, names=structures, truth=True)
    left, right = panels[-1, 0].get_position(), panels[-1, len(epochs) - 1].get_position()
    height = figure.get_figheight()
    box = (left.x0, left.y0 - 0.16 / height, right.x1 - left.x0, 0.08 / height)
    ticks, words, label = entropy_ticks(len(structures) + 1)
    color_bar(figure, scale, box, label).set_xticks(ticks, words)
    center = (panels[-1, -2].get_position().x0 + panels[-1, -1].get_position().x1) / 2
    contour_legend(figure, structures, center=center, columns=2, title=_label(shown, ", "))
    return figure


def _same(slices: Iterable[PredictedSlice | None]) -> PredictedSlice | None:
    """One of several views of one slice, if there is any."""
    there = [plane for plane in slices if plane is not None]
    for plane in there[1:]:
        if plane.name != there[0].name or not np.array_equal(plane.truth, there[0].truth):
            raise GridError(f"systems must show one slice on one grid, got {there[0].name} and another {plane.name}.")
    return there[0] if there else None


def _names(shown: Iterable[PredictedSlice | None]) -> list[str]:
    """All structures of all datasets."""
    names = list(dict.fromkeys(name for plane in shown if plane for name in plane.structures.values()))
    if not names:
        raise ValueError("there must be at least one slice to show, got none.")
    return names


def _window(slices: Iterable[PredictedSlice | None]) -> tuple[slice, slice]:
    there = [plane for plane in slices if plane is not None]
    if not there:
        return slice(0, 1), slice(0, 1)
    seen = [np.isin(classes, list(plane.structures)) for plane in there for classes in (plane.truth, plane.pred)]
    return surroundings(np.any(seen, axis=0), there[0].spacing, margin=_MARGIN)


def _label(plane: PredictedSlice | None, between: str) -> str:
    return f"{plane.case}{between}slice {plane.number}" if plane else ""


def _shape(plane: PredictedSlice | None, window: tuple[slice, slice]) -> float:
    """Height by width of what is shown."""
    across, down = plane.spacing if plane else (1.0, 1.0)
    width, height = (part.stop - part.start for part in window)
    return float(height * down / (width * across))
