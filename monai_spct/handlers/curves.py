"""Learning curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ignite.distributed as idist
from ignite.engine import Engine, Events
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from monai_spct.files.atomic import replacing
from monai_spct.functional.checks import at_least
from monai_spct.handlers.drawing import SMALL, TEXT, new_figure
from monai_spct.handlers.history import SaveHistory

__all__ = ["SaveCurves", "curves_figure"]

# of Okabe and Ito's colors, which color-blind people tell apart, those that stand out from white
_LINE_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINE_STYLES = ("-", "--", ":", "-.")  # of the names beyond the last color


def curves_figure(
    histories: Mapping[str, Sequence[Sequence[Mapping[str, float]]]], *, constants: bool = False
) -> Figure:
    """Learning curves: a panel for each quantity, a line for each system.

    A thick line is the mean over the seeds, as far as all of them have come, and a thin one a seed.

    Args:
        histories: by the name of the system, a history for each seed, see :func:`~monai_spct.handlers.read_history`.
        constants: whether what does not change in any run has a panel, too.

    Raises:
        ValueError: when there is nothing to show.

    Example:
        >>> from monai_spct.handlers import curves_figure
        >>> history = [{"epoch": 1.0, "loss": 0.9, "gamma": 0.2}, {"epoch": 2.0, "loss": 0.7, "gamma": 0.4}]
        >>> [axes.get_title() for axes in curves_figure({"Ours": [history]}).axes]
        ['loss', 'gamma']
    """
    quantities = _quantities((row for runs in histories.values() for history in runs for row in history), constants)
    if not quantities:
        raise ValueError("`histories` must have a quantity that changes, got none.")
    columns = min(4, len(quantities))
    rows = math.ceil(len(quantities) / columns)
    epochs = [row["epoch"] for runs in histories.values() for history in runs for row in history]
    beside = 0.05 * (max(epochs) - min(epochs)) or 0.5
    figure = new_figure(max(2.0 * columns, 3.2), 1.75 * rows + 0.1, ConstrainedLayoutEngine())
    for place, quantity in enumerate(quantities):
        axes = figure.add_subplot(rows, columns, place + 1)
        for number, runs in enumerate(histories.values()):
            _curve(axes, quantity, runs, number)
        words = quantity.replace("co_training", "co-training").replace("dsc", "DSC").replace("_", " ")
        axes.set_title(words, fontsize=TEXT)
        axes.tick_params(labelsize=SMALL)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, color="0.9", linewidth=0.5)
        axes.set_xlim(min(epochs) - beside, max(epochs) + beside)  # one for all, wherever a quantity begins
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
        if quantity == "gamma":
            axes.set_yscale("log")
        if place + columns >= len(quantities):
            axes.set_xlabel("epoch", fontsize=TEXT)
    if any(histories):
        _legend(figure, list(histories))
    return figure


class SaveCurves:
    """Ignite handler that draws the curves of a run to ``curves.png``, every few epochs and at the end.

    Args:
        history: of the run, attached before this handler; the picture goes into its folder.
        interval: number of epochs from one drawing to the next.

    Example:
        >>> import tempfile
        >>> from ignite.engine import Engine
        >>> from monai_spct.handlers import SaveCurves, SaveHistory
        >>> history = SaveHistory(tempfile.mkdtemp())
        >>> trainer = Engine(lambda engine, batch: {"loss": batch / engine.state.epoch})
        >>> history.attach(trainer)
        >>> SaveCurves(history).attach(trainer)
        >>> _ = trainer.run([0.25, 0.75], max_epochs=2)
        >>> (history.folder / "curves.png").is_file()
        True
    """

    def __init__(self, history: SaveHistory, *, interval: int = 1) -> None:
        self.history = history
        self.interval = at_least("interval", interval, 1)

    def attach(self, engine: Engine) -> None:
        """Draw after epochs of ``engine``."""
        engine.add_event_handler(Events.EPOCH_COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        """Draw now, if it is time."""
        epoch = engine.state.epoch
        if idist.get_rank() > 0 or (epoch % self.interval and epoch != engine.state.max_epochs):
            return
        figure = curves_figure({"": [self.history.rows]}, constants=True)
        with replacing(self.history.folder / "curves.png") as picture:
            figure.savefig(picture, format="png")


def _quantities(rows: Iterable[Mapping[str, float]], constants: bool) -> list[str]:
    """What has a panel: losses first, then what they lead to, then what is set."""
    values: dict[str, set[float]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, set()).add(value)
    names = [name for name, seen in values.items() if (constants or len(seen) > 1) and name not in ("epoch", "seconds")]

    def place(name: str) -> tuple[bool, ...]:
        is_set = name == "learning_rate" or name.endswith("_weight")
        return name != "loss", not name.endswith("loss"), not name.startswith("validation_"), is_set

    return sorted(names, key=place)


def _curve(axes: Axes, quantity: str, histories: Sequence[Sequence[Mapping[str, float]]], number: int) -> None:
    seeds = [{row["epoch"]: row[quantity] for row in history if quantity in row} for history in histories]
    sparse = any(0 < len(seed) < len(history) for seed, history in zip(seeds, histories, strict=True))
    seeds = [seed for seed in seeds if seed]
    if not seeds:
        return
    style = _line_style(number)
    if len(seeds) > 1:
        for seed in seeds:
            axes.plot(list(seed), list(seed.values()), **style, linewidth=0.5, alpha=0.5)
    epochs = sorted(set.intersection(*map(set, seeds)))
    means = [statistics.fmean(seed[epoch] for seed in seeds) for epoch in epochs]
    axes.plot(epochs, means, **style, linewidth=1.3, marker="." if sparse or len(epochs) == 1 else "")


def _line_style(number: int) -> dict[str, Any]:
    color = _LINE_COLORS[number % len(_LINE_COLORS)]
    return {"color": color, "linestyle": _LINE_STYLES[number // len(_LINE_COLORS) % len(_LINE_STYLES)]}


def _legend(figure: Figure, names: Sequence[str]) -> Legend:
    """Below all panels, in as many columns as fit; the figure grows to hold it."""
    handles = [Line2D([], [], **_line_style(n), linewidth=1.5, label=name) for n, name in enumerate(names)]
    room = figure.get_figwidth()
    for columns in range(min(4, len(names)), 0, -1):
        place: dict[str, Any] = {"loc": "outside lower center", "fontsize": SMALL, "frameon": False}
        legend = figure.legend(handles=handles, ncols=columns, **place)
        box = legend.get_window_extent()
        width, height = box.width / figure.dpi + 0.1, box.height / figure.dpi  # inches, with a margin
        if width <= room or columns == 1:
            break
        legend.remove()
    figure.set_size_inches(max(room, width), figure.get_figheight() + height)
    return legend
