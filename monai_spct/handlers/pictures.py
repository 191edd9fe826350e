"""Pictures of volumes: contours of truth and prediction, and maps of entropy."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import numpy as np
import torch
from ignite.engine import Engine, Events
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patheffects import withStroke
from monai.data.meta_tensor import MetaTensor
from monai.utils.type_conversion import convert_to_numpy
from numpy.typing import ArrayLike, NDArray

from monai_spct.files.atomic import replacing
from monai_spct.functional.checks import at_least
from monai_spct.handlers.cases import CaseNames
from monai_spct.handlers.drawing import (
    PRED_WIDTH,
    SMALL,
    TRUTH_COLOR,
    TRUTH_WIDTH,
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
from monai_spct.handlers.history import SaveHistory
from monai_spct.metrics import dice

__all__ = ["SavePictures", "TensorBoardPictures", "contour_picture"]

_DPI = 90  # in TensorBoard, which shows pictures smaller than files are


def contour_picture(
    image: ArrayLike,
    truth: ArrayLike | None,
    pred: ArrayLike | None = None,
    *,
    structures: Mapping[int, str],
    uncertainty: ArrayLike | None = None,
    title: str | None = None,
    slices: int | Sequence[int] | None = None,
    spacing: Sequence[float] | None = None,
    margin: float = 25.0,
    steady: bool = False,
) -> Figure:
    r"""Slices of a volume in gray, with contours of the truth in white and of the prediction in color.

    The first axis points to the right and the second one down. All panels show the same part of the plane, around the
    structures of the volume. Maps of uncertainty stand below their slices.

    Args:
        image: gray values ``(*S)`` with three axes, the last one over slices.
        truth: class indices ``(*S)``, or None.
        pred: class indices ``(*S)``; without them, the truth is drawn in color.
        structures: names by class index; other classes are not drawn.
        uncertainty: the entropy of the prediction ``(*S)``, in nats: 0 to :math:`\log C` for :math:`C` classes.
        title: the first words of the heading, before the DSC of each structure.
        slices: indices from 0, or how many, evenly among those that show a structure; by default up to 6.
        spacing: mm, the size of a voxel along each axis; by default voxels are cubes of 1 mm.
        margin: mm to show around the structures; ``inf`` shows whole slices.
        steady: choose slices and place by the truth alone, where there is one, to compare predictions.

    Returns:
        The figure; ``savefig`` writes it.

    Raises:
        ValueError: If arrays do not have three axes or differ in shape, or slices are not in the volume.

    Example:
        >>> image, pred = np.zeros((32, 32, 8)), np.zeros((32, 32, 8), int)
        >>> pred[8:20, 8:20, 2:6] = 3
        >>> figure = contour_picture(image, pred, pred, structures={3: "LV"}, title="patient001")
        >>> len(figure.axes), figure.get_suptitle()
        (4, 'patient001\nDSC  LV 1.00')
    """
    key = "prediction"
    if pred is None:
        pred, truth, key = truth, None, "label"
    volume, predicted = np.asarray(convert_to_numpy(image)), np.asarray(convert_to_numpy(pred))
    true = None if truth is None else np.asarray(convert_to_numpy(truth))
    entropy = None if uncertainty is None else np.asarray(convert_to_numpy(uncertainty))
    for name, array in (("pred", predicted), ("truth", true), ("uncertainty", entropy)):
        if array is not None and array.shape != volume.shape:
            raise ValueError(f"`image` and `{name}` differ in shape: {volume.shape} and {array.shape}.")
    if volume.ndim != 3:
        raise ValueError(f"`image` must have three axes, got shape {volume.shape}.")
    sizes = (1.0, 1.0, 1.0) if spacing is None else tuple(float(size) for size in spacing)
    colors = structure_colors(structures)

    drawn = [true] if steady and true is not None else [predicted] if true is None else [predicted, true]
    seen: NDArray[np.bool_] = np.any(np.isin(drawn, list(structures)), axis=0)
    shown = _chosen(slices, seen)
    window = surroundings(np.any(seen, axis=2), sizes, margin=margin)
    low, high = gray_limits(volume[window])

    height = (window[1].stop - window[1].start) * sizes[1] / ((window[0].stop - window[0].start) * sizes[0])
    figure, panels, maps = _panels(len(shown), height, maps=entropy is not None)
    for axes, index in zip(panels, shown, strict=True):
        gray = {"cmap": "gray", "vmin": low, "vmax": high, "interpolation": "bilinear"}
        draw_plane(axes, volume[..., index], window=window, spacing=sizes, **gray)
        draw_contours(axes, predicted[..., index], colors, width=PRED_WIDTH)
        if true is not None:
            draw_contours(axes, true[..., index], dict.fromkeys(colors, TRUTH_COLOR), width=TRUTH_WIDTH)
        style: dict[str, Any] = {"color": "white", "fontsize": 7, "va": "top", "transform": axes.transAxes}
        style["path_effects"] = [withStroke(linewidth=1.5, foreground="black")]
        axes.text(0.03, 0.97, f"slice {index + 1} of {volume.shape[2]}", **style)

    if entropy is not None:
        scale = entropy_scale(1 + len(structures))
        for axes, index in zip(maps, shown, strict=True):
            place: dict[str, Any] = {"window": window, "spacing": sizes}
            draw_plane(axes, entropy[..., index], **place, cmap=scale.cmap, norm=scale.norm)
        _entropy_bar(figure, scale, 1 + len(structures))

    lines = contour_key(structures, truth=true is not None)
    heading = title or ""
    if true is not None:
        key = "prediction in color, truth in white"
        found = {name: dice(predicted == index, true == index) for index, name in structures.items()}
        heading += "\nDSC  " + "   ".join(f"{name} {dsc:.2f}" for name, dsc in found.items())
    figure.suptitle(heading.strip(), color="white", fontsize=9)
    look: dict[str, Any] = {"fontsize": 8, "title_fontsize": 7, "labelcolor": "white", "frameon": False}
    legend = figure.legend(handles=lines, title=key, loc="outside lower center", ncols=len(lines), **look)
    legend.get_title().set_color("white")
    return figure


class _VolumePictures:
    """A picture of each of the first volumes in a run of an evaluator, whose output is a list of single volumes."""

    def __init__(
        self,
        structures: Mapping[int, str] | Mapping[str, str],
        max_pictures: int | None,
        slices: int | Sequence[int] | None,
        *,
        channel: int,
        steady: bool,
    ) -> None:
        numbered = {int(index): name for index, name in structures.items()}  # JSON has no numbers as keys
        self.settings: dict[str, Any] = {"structures": numbered, "slices": slices, "steady": steady}
        self.max_pictures = max_pictures
        self.channel = at_least("channel", channel, 0)
        self.names = CaseNames()

    def __call__(self, engine: Engine) -> Iterator[tuple[str, Figure]]:
        output: Any = engine.state.output
        if not isinstance(output, list):
            raise ValueError(
                f"pictures are of single volumes: the evaluator needs `decollate=True`, got {type(output).__name__}."
            )
        batch: Any = engine.state.batch
        for case, item in zip(batch, output, strict=True):
            if self.max_pictures is not None and len(self.names) >= self.max_pictures:
                return
            if missing := {"image", "pred"} - set(item):
                raise ValueError(f"pictures need `image` and `pred` in the output, got no {sorted(missing)}.")
            name = self.names(case, item["image"])
            yield name, self._picture(item, name)

    def _picture(self, item: Mapping[str, torch.Tensor], name: str) -> Figure:
        image = item["image"]
        # as clinicians look, from the feet: the patient's left on the right, the back below
        turned = [axis for axis in (0, 1) if isinstance(image, MetaTensor) and image.affine[axis, axis] > 0]
        if self.channel >= len(image):
            raise ValueError(f"`channel` must be below {len(image)}, the number of channels, got {self.channel}.")
        parts = {key: item.get(key) for key in ("label", "pred", "uncertainty")}  # MONAI's may also say None
        parts["image"] = image[self.channel :]
        planes: dict[str, Any] = {k: None if part is None else part[0].flip(turned) for k, part in parts.items()}
        return contour_picture(
            planes["image"],
            planes["label"],
            planes["pred"],
            uncertainty=planes["uncertainty"],
            title=name,
            spacing=image.pixdim.tolist() if isinstance(image, MetaTensor) else None,
            **self.settings,
        )


class SavePictures:
    """Ignite handler for MONAI's evaluators that draws each volume, with contours, to ``<case>.png``.

    Cases are named by their entry ``case`` in the batch, or else by their image file. Reads the evaluator's output
    after postprocessing and decollation: ``image`` ``(C, *S)``, of which one channel is drawn, and ``(1, *S)``:
    class indices ``pred`` and, if any, ``label``, and ``uncertainty`` in nats. The patient's left is on the right and
    the back below, whichever way the axes of the file go.

    Args:
        folder: where the files go.
        structures: names by class index.
        max_pictures: how many volumes of a run each process draws; all of them by default.
        slices: which slices, or how many; see :func:`contour_picture`.
        channel: of the image, counted from 0.

    Raises:
        ValueError: while it draws, if ``image``, ``pred`` or the channel is missing, or two images have one name.

    Example:
        >>> import tempfile
        >>> evaluator = Engine(lambda engine, batch: batch)  # in place of a `SupervisedEvaluator` with `decollate=True`
        >>> meta = {"filename_or_obj": "patient001.nii.gz"}
        >>> item = MetaTensor(torch.ones(1, 16, 16, 4), affine=torch.eye(4), meta=meta)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     SavePictures(folder, structures={1: "LV"}).attach(evaluator)
        ...     _ = evaluator.run([[{"image": item, "pred": item, "label": item}]])
        ...     print(*os.listdir(folder))
        patient001.png
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        structures: Mapping[int, str] | Mapping[str, str],
        max_pictures: int | None = None,
        slices: int | Sequence[int] | None = None,
        channel: int = 0,
    ) -> None:
        self.folder = Path(folder)
        self._pictures = _VolumePictures(structures, max_pictures, slices, channel=channel, steady=False)

    def attach(self, engine: Engine) -> None:
        """Draw after each iteration of ``engine``, and start counting with each of its runs."""
        engine.add_event_handler(Events.STARTED, self._pictures.names.forget)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        """Draw the volumes of one iteration."""
        for name, figure in self._pictures(engine):
            with replacing(self.folder / f"{name}.png") as picture:
                figure.savefig(picture, format="png")


class TensorBoardPictures:
    """Ignite handler for the evaluator that validates: the first volumes, with contours, under ``validation/<case>``.

    TensorBoard's slider shows how their predictions change. It reads and refuses what :class:`SavePictures` does.

    Args:
        history: of the training; the pictures go to its TensorBoard.
        structures: names by class index.
        max_pictures: how many volumes.
        slices: which slices, or how many; see :func:`contour_picture`.
        channel: of the image, counted from 0.

    Example:
        >>> import tempfile
        >>> from monai_spct.handlers import SaveHistory, TensorBoardPictures
        >>> evaluator = Engine(lambda engine, batch: batch)  # in place of a `SupervisedEvaluator` with `decollate=True`
        >>> item = {"case": "patient001", "image": torch.ones(1, 16, 16, 4), "pred": torch.ones(1, 16, 16, 4)}
        >>> TensorBoardPictures(SaveHistory(tempfile.mkdtemp()), structures={1: "LV"}).attach(evaluator)
        >>> _ = evaluator.run([[item]])
    """

    def __init__(
        self,
        history: SaveHistory,
        *,
        structures: Mapping[int, str] | Mapping[str, str],
        max_pictures: int = 2,
        slices: int | Sequence[int] = 4,
        channel: int = 0,
    ) -> None:
        self.history = history
        self._pictures = _VolumePictures(structures, max_pictures, slices, channel=channel, steady=True)

    def attach(self, engine: Engine) -> None:
        """Draw after each iteration of ``engine``, and start counting with each of its runs."""
        if idist.get_rank() == 0:
            engine.add_event_handler(Events.STARTED, self._pictures.names.forget)
            engine.add_event_handler(Events.ITERATION_COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        """Draw the volumes of one iteration."""
        for name, figure in self._pictures(engine):
            figure.set_dpi(_DPI)
            board = self.history.tensorboard(engine.state.epoch)
            board.add_figure(f"validation/{name}", figure, engine.state.epoch)
            board.flush()


def _chosen(slices: int | Sequence[int] | None, seen: NDArray[np.bool_]) -> list[int]:
    depth = seen.shape[2]
    if isinstance(slices, Sequence):
        if not slices or not all(0 <= index < depth for index in slices):
            raise ValueError(f"`slices` must be indices from 0 to {depth - 1}, got {slices!r}.")
        return list(slices)
    wanted = 6 if slices is None else slices
    if wanted < 1:
        raise ValueError(f"`slices` must be positive, got {slices!r}.")
    candidates = np.flatnonzero(seen.any((0, 1)))
    if not candidates.size:
        candidates = np.arange(depth)
    places = np.linspace(0, len(candidates) - 1, min(wanted, len(candidates)))
    return [int(index) for index in candidates[places.round().astype(int)]]


def _panels(count: int, height: float, *, maps: bool) -> tuple[Figure, list[Axes], list[Axes]]:
    """Panels for slices and, if wanted, one for a map below each of them; ``height`` is that by the width."""
    columns = min(6, count) if maps or count <= 4 else min(6, math.ceil(count / 2))
    rows, each = math.ceil(count / columns), 2 if maps else 1
    width = 2.2  # inches
    size = max(columns * width, 4.0) + (0.8 if maps else 0.0), rows * each * width * min(2.0, max(0.5, height)) + 0.9
    layout = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02, wspace=0, hspace=0)
    figure = new_figure(*size, layout, color="black", dpi=150)
    first = [place // columns * each * columns + place % columns + 1 for place in range(count)]
    panels = [figure.add_subplot(rows * each, columns, place) for place in first]
    below = [figure.add_subplot(rows * each, columns, place + columns) for place in first] if maps else []
    return figure, panels, below


def _entropy_bar(figure: Figure, scale: ScalarMappable, num_classes: int) -> None:
    ticks, words, label = entropy_ticks(num_classes)
    bar = figure.colorbar(scale, ax=figure.axes, location="right", anchor=(0, 0), shrink=0.48, aspect=20, pad=0.02)
    bar.set_ticks(ticks, labels=words)
    bar.set_label(label, color="white", fontsize=SMALL)
    bar.ax.tick_params(color="white", labelcolor="white", labelsize=SMALL)
