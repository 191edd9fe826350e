"""Figures: training curves, predictions side by side, entropy maps, and the regularized divergence."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure as Picture
from numpy.typing import NDArray

from monai_spct.functional import generalized_jsd
from monai_spct.functional.checks import at_least, in_unit_interval
from monai_spct.handlers.curves import curves_figure
from monai_spct.handlers.drawing import (
    PRED_WIDTH,
    SMALL,
    TEXT,
    TRUTH_COLOR,
    TRUTH_WIDTH,
    color_bar,
    contour_key,
    draw_contours,
    draw_plane,
    entropy_scale,
    entropy_ticks,
    gray_limits,
    new_figure,
    structure_colors,
    surroundings,
)
from monai_spct.report.names import shown_key, shown_value
from monai_spct.report.runs import Run, lines_of
from monai_spct.report.show import Figure
from monai_spct.report.slices import PredictedSlice, predicted_slices
from monai_spct.report.tables import no_result_yet
from monai_spct.workflow import in_words

__all__ = ["alpha_jsd_figure", "alpha_jsd_surface", "comparison_figure", "draw", "entropy_figure"]

_MARGIN = 15.0  # mm around the structures
_PAGE = 7.5  # inches, the width of a journal's page
_GAP = 0.04  # inches between panels
_THIN = 0.6  # of the lines in pictures of single volumes, whose panels are larger


def draw(
    figure: Figure, runs: Sequence[Run], data: Mapping[str, str | Path] | None = None
) -> tuple[Picture | None, list[str]]:
    """Draw a figure.

    Args:
        figure: what to show.
        runs: done or not.
        data: folders of datasets that have moved since the training.

    Returns:
        The figure, or none if nothing can be drawn; and notes on what is missing in it and why.

    Raises:
        ValueError: as :func:`~monai_spct.report.tabulate`.

    Example:
        >>> from monai_spct.report import Figure, draw
        >>> picture, notes = draw(Figure("alpha_jsd", alphas=(0.0, 1.0)), [])
        >>> len(picture.axes) >= 2, notes
        (True, [])
    """
    if figure.kind == "alpha_jsd":
        return alpha_jsd_figure(figure.alphas), []
    keys, lines = lines_of(figure, runs)
    notes = dict.fromkeys(no_result_yet([run for members in lines.values() for run in members]))
    named = {_name(keys, labels): [run for run in members if run.is_done] for labels, members in lines.items()}

    def predict(run: Run, weights: str) -> list[PredictedSlice]:
        dataset = run.labels["dataset"]
        wanted = figure.slices.get(dataset, []) if isinstance(figure.slices, Mapping) else figure.slices
        try:
            return predicted_slices(run, wanted, weights=weights, data=(data or {}).get(dataset))
        except Exception as error:  # any that a config or an image may raise
            notes[f"{run.folder.as_posix()}: {in_words(error)}"] = None
            return []

    picture = None
    try:
        if figure.kind == "curves":
            histories = {name: [run.history for run in members if run.history] for name, members in named.items()}
            picture = curves_figure({name: several for name, several in histories.items() if several})
        elif figure.kind == "comparison":
            firsts = {(name, run.labels["dataset"]): run for name, several in named.items() for run in several[::-1]}
            at = {(*place, one.name): one for place, run in firsts.items() for one in predict(run, "model.pt")}
            rows = list(dict.fromkeys(place[1:] for place in at))
            picture = comparison_figure({name: [at.get((name, *row)) for row in rows] for name in named})
        else:
            weights = [*(f"epoch_{epoch:03d}.pt" for epoch in figure.epochs), "model.pt"]
            maps = {
                name: [next(iter(predict(members[0], one)), None) if members else None for one in weights]
                for name, members in named.items()
            }
            picture = entropy_figure(maps, figure.epochs)
    except ValueError as error:  # nothing to draw, or not side by side; the rest of a report does not depend on it
        notes[f"{error}"] = None
    return picture, list(notes)


def _name(keys: Sequence[str], labels: Sequence[Any]) -> str:
    """A line in words: names alone, and values with what they are values of."""
    words = [(key, shown_value(key, label)) for key, label in zip(keys, labels, strict=True)]
    return ", ".join(
        word if key in ("method", "network") else f"{shown_key(key)} {word}" for key, word in words if word
    )


def alpha_jsd_surface(alpha: float, *, size: int = 101) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""The entropy-regularized divergence of two Bernoulli distributions, on a grid.

    .. math:: \mathrm{JSD}^\alpha(P_1, P_2) = \mathcal{H}\Bigl(\frac{P_1 + P_2}{2}\Bigr)
        - \frac{1 - \alpha}{2} \bigl(\mathcal{H}(P_1) + \mathcal{H}(P_2)\bigr)

    Returns:
        The probabilities of class 1, ``(size,)``, from 0 to 1, and the divergences in nats, ``(size, size)``.

    Reference:
        Wang et al., Medical Image Analysis 2021: the section on uncertainty regularization.
    """
    in_unit_interval("alpha", alpha)
    p = torch.linspace(0, 1, at_least("size", size, 2), dtype=torch.float64)
    views = torch.stack(torch.meshgrid(p, p, indexing="ij"))[:, None]
    probabilities = torch.stack([1 - views, views], dim=2)
    # finite at 0 and 1 too, where p log p then is 0 up to rounding
    log_probs = probabilities.clamp_min(torch.finfo(torch.float64).tiny).log()
    return p.numpy(), generalized_jsd(log_probs, alpha=alpha)[0].numpy()


def alpha_jsd_figure(alphas: Sequence[float] = (0.0, 0.1, 0.5, 1.0)) -> Picture:
    """The divergence of two Bernoulli distributions as a surface for each ``alpha``."""
    columns = min(2, at_least("len(alphas)", len(alphas), 1))
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
        ends = {"xlim": (0, 1), "ylim": (0, 1), "zlim": (0, math.log(2))}
        axes.set(**ends, xticks=(0, 0.5, 1), yticks=(0, 0.5, 1), zticks=(0, 0.2, 0.4, 0.6))
        axes.set(xticklabels=("0", "0.5", "1"), yticklabels=("0", "0.5", "1"))  # short, since they meet in a corner
        axes.tick_params(labelsize=SMALL, pad=-2)
        axes.tick_params(axis="z", pad=0)
        axes.set_xlabel("$P_1$", fontsize=TEXT, labelpad=-5)
        axes.set_ylabel("$P_2$", fontsize=TEXT, labelpad=-5)
        axes.set_zlabel("JSD", fontsize=TEXT, labelpad=-2)
        axes.set_title(rf"$\alpha$ = {float(alpha)}", fontsize=TEXT + 1, y=0.97)
    color_bar(figure, scale, (right + 0.3 / width, 0.2, 0.13 / width, 0.6), "JSD (nats)")
    return figure


def comparison_figure(columns: Mapping[str, Sequence[PredictedSlice | None]]) -> Picture:
    """Predictions of several systems side by side: a row for each slice, a column for each system.

    The truth is a thin white line over the prediction in color; the first column shows the truth alone. A row is
    cropped around all its structures, true and predicted.

    Args:
        columns: slices by the name of the system, the same ones for all; none where there is no run.

    Raises:
        ValueError: when there is no slice at all, or those of a row differ.
    """
    rows = list(zip(*columns.values(), strict=True))
    shown = [_same(row) for row in rows]
    structures = _structures(shown)
    windows = [_window(row) for row in rows]
    figure, panels = _panel_grid(
        ["Ground truth", *columns], [_label(plane, "\n") for plane in shown], list(map(_shape, shown, windows))
    )
    for line, plane, window, row in zip(panels, shown, windows, rows, strict=True):
        _draw_panel(line[0], plane, window, structures, truth=True)
        for axes, drawn in zip(line[1:], row, strict=True):
            _draw_panel(axes, drawn, window, structures)
    _contour_legend(figure, structures)
    return figure


def entropy_figure(rows: Mapping[str, Sequence[PredictedSlice | None]], epochs: Sequence[int]) -> Picture:
    r"""Entropy maps of a slice after some epochs, from 0 to :math:`\log C`, and the final prediction.

    Args:
        rows: by the name of the system, the same slice after each epoch and by the final network; none where there is
            no run.
        epochs: of the maps.

    Raises:
        ValueError: when there is no slice at all, or they differ.

    Reference:
        Wang et al., Medical Image Analysis 2021: the figure of entropy maps.
    """
    everything = [plane for slices in rows.values() for plane in slices]
    shown = _same(everything)
    structures = _structures([shown])
    window = _window(everything)
    names = [*(f"epoch {epoch}" for epoch in epochs), "Prediction", "Ground truth"]
    figure, panels = _panel_grid(names, list(rows), [_shape(shown, window)] * len(rows), below=0.6)
    scale = entropy_scale(len(structures) + 1)
    for line, slices in zip(panels, rows.values(), strict=True):
        for axes, plane in zip(line[:-2], slices[:-1], strict=True):
            _draw_panel(axes, plane, window, structures, entropy=scale)
        _draw_panel(line[-2], slices[-1], window, structures)
        _draw_panel(line[-1], shown, window, structures, truth=True)
    left, right = panels[-1, 0].get_position(), panels[-1, len(epochs) - 1].get_position()
    height = figure.get_figheight()
    box = (left.x0, left.y0 - 0.16 / height, right.x1 - left.x0, 0.08 / height)
    ticks, words, label = entropy_ticks(len(structures) + 1)
    color_bar(figure, scale, box, label).set_xticks(ticks, words)
    center = (panels[-1, -2].get_position().x0 + panels[-1, -1].get_position().x1) / 2
    _contour_legend(figure, structures, center=center, columns=2, title=_label(shown, ", "))
    return figure


def _same(slices: Iterable[PredictedSlice | None]) -> PredictedSlice | None:
    """One of several views of one slice, if there is any."""
    there = [plane for plane in slices if plane is not None]
    for plane in there[1:]:
        if plane.name != there[0].name or not np.array_equal(plane.truth, there[0].truth):
            raise ValueError(f"systems must show one slice on one grid, got {there[0].name} and another {plane.name}.")
    return there[0] if there else None


def _structures(shown: Iterable[PredictedSlice | None]) -> list[str]:
    """All structures of all datasets."""
    names = list(dict.fromkeys(name for plane in shown if plane for name in plane.structures.values()))
    if not names:
        raise ValueError("There is no slice to show.")
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


def _panel_grid(
    titles: Sequence[str], labels: Sequence[str], shapes: Sequence[float], *, below: float = 0.3
) -> tuple[Picture, NDArray[Any]]:
    """Panels in rows and columns, close together, with ``below`` inches for a legend; ``shapes`` is height by width."""
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


def _contour_legend(
    figure: Picture, names: Sequence[str], *, center: float = 0.5, columns: int | None = None, title: str | None = None
) -> None:
    lines = contour_key(dict(enumerate(names)), scale=_THIN)
    place: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (center, 0.0), "ncols": columns or len(lines)}
    figure.legend(handles=lines, **place, title=title, title_fontsize=SMALL - 1, fontsize=SMALL, frameon=False)


def _draw_panel(
    axes: Axes,
    plane: PredictedSlice | None,
    window: tuple[slice, slice],
    names: Sequence[str],
    *,
    truth: bool = False,
    entropy: ScalarMappable | None = None,
) -> None:
    """The image with the truth as a thin white line over the prediction; or the truth alone, or the entropy."""
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
