"""Pictures of volumes with the contours of truth and prediction, and a handler that saves them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ignite.engine import Engine, Events
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patheffects import withStroke
from monai.data.meta_tensor import MetaTensor
from monai.utils.type_conversion import convert_to_numpy
from numpy.typing import ArrayLike, NDArray

from monai_spct.cases import case_name, given_names
from monai_spct.files import replacing
from monai_spct.handlers.drawing import (
    PRED_WIDTH,
    TRUTH_COLOR,
    TRUTH_WIDTH,
    contour_key,
    draw_contours,
    draw_plane,
    gray_limits,
    structure_colors,
    surroundings,
)
from monai_spct.metrics.volume import score_volume

__all__ = ["SavePictures", "contour_picture"]


def contour_picture(
    image: ArrayLike,
    truth: ArrayLike | None,
    pred: ArrayLike,
    *,
    structures: Mapping[int, str],
    title: str | None = None,
    slices: int | Sequence[int] | None = None,
    spacing: Sequence[float] | None = None,
    margin: float = 25.0,
) -> Figure:
    r"""Slices of a volume in gray, the truth as a thin white line, the prediction as a colored line per structure.

    The first axis of the arrays points to the right and the second one down, so that ACDC looks as clinicians know it.
    All panels show the same part of the plane, around the structures of the whole volume.

    Args:
        image: gray values ``(*S)`` with three axes, the last one over slices.
        truth: class indices ``(*S)``, or None where there is no truth, as in inference.
        pred: class indices ``(*S)``.
        structures: names by class index; other classes are not drawn.
        title: the first words of the heading; the DSC of each structure follows, where there is a truth.
        slices: which slices, as indices from 0, or how many, evenly among those that show a structure; by default up to
            6. The panels count slices from 1.
        spacing: mm, the size of a voxel along each axis; by default voxels are cubes of 1 mm.
        margin: mm to show around the structures; ``inf`` shows whole slices.

    Returns:
        The figure, on an Agg canvas, which needs no display; ``savefig`` writes it.

    Raises:
        ValueError: If arrays do not have three axes or differ in shape, or slices are not in the volume.

    Example:
        >>> image, pred = np.zeros((32, 32, 8)), np.zeros((32, 32, 8), int)
        >>> pred[8:20, 8:20, 2:6] = 3
        >>> figure = contour_picture(image, pred, pred, structures={3: "LV"}, title="patient001")
        >>> len(figure.axes), figure.get_suptitle()
        (4, 'patient001\nDSC  LV 1.00')
    """
    volume, predicted = np.asarray(convert_to_numpy(image)), np.asarray(convert_to_numpy(pred))
    true = None if truth is None else np.asarray(convert_to_numpy(truth))
    for name, array in (("pred", predicted), ("truth", true)):
        if array is not None and array.shape != volume.shape:
            raise ValueError(f"`image` and `{name}` differ in shape: {volume.shape} and {array.shape}.")
    if volume.ndim != 3:
        raise ValueError(f"`image` must have three axes, got shape {volume.shape}.")
    sizes = (1.0, 1.0, 1.0) if spacing is None else tuple(float(size) for size in spacing)
    colors = structure_colors(structures)

    seen = np.isin(predicted, list(structures)) | np.isin(0 if true is None else true, list(structures))
    shown = _chosen(slices, seen)
    window = surroundings(np.any(seen, axis=2), sizes, margin=margin)
    low, high = gray_limits(volume[window])

    figure, panels = _panels(len(shown), [(s.stop - s.start) * size for s, size in zip(window, sizes, strict=False)])
    for axes, index in zip(panels, shown, strict=True):
        gray = {"cmap": "gray", "vmin": low, "vmax": high, "interpolation": "bilinear"}
        draw_plane(axes, volume[..., index], window=window, spacing=sizes, **gray)
        draw_contours(axes, predicted[..., index], colors, width=PRED_WIDTH)
        if true is not None:
            draw_contours(axes, true[..., index], dict.fromkeys(colors, TRUTH_COLOR), width=TRUTH_WIDTH)
        axes.text(
            0.03,
            0.97,
            f"slice {index + 1} of {volume.shape[2]}",
            color="white",
            fontsize=7,
            va="top",
            transform=axes.transAxes,
            path_effects=[withStroke(linewidth=1.5, foreground="black")],
        )

    lines = contour_key(structures, truth=true is not None)
    heading, key = title or "", "prediction"
    if true is not None:
        key = "prediction in color, truth in white"
        scores = score_volume(predicted, true, structures=structures, spacing=sizes)
        heading += "\nDSC  " + "   ".join(f"{score.structure} {score.dsc:.2f}" for score in scores)
    figure.suptitle(heading.strip(), color="white", fontsize=9)
    legend = figure.legend(
        handles=lines,
        title=key,
        loc="outside lower center",
        ncols=len(lines),
        fontsize=8,
        title_fontsize=7,
        labelcolor="white",
        frameon=False,
    )
    legend.get_title().set_color("white")
    return figure


class SavePictures:
    """Saves ``<case>.png`` for the first volumes of every run of an evaluator.

    Reads the evaluator's output after postprocessing and decollation: items with ``image`` ``(C, *S)``, of which the
    first channel is drawn, ``pred`` ``(1, *S)`` and, if there is a truth, ``label`` ``(1, *S)``, the latter two class
    indices. Voxel sizes and directions come from the image: whichever way the first two axes of the file go, the
    patient's left is on the right and the back below. A case is called what its entry ``case`` in the batch says, or
    else like its image file.

    Args:
        folder: where to; made if need be. Pictures of an earlier run are replaced.
        structures: names by class index.
        max_pictures: how many volumes of a run each process draws.
        slices: which slices, or how many; see :func:`contour_picture`.

    Example:
        >>> import tempfile
        >>> evaluator = Engine(lambda engine, batch: batch)  # in place of a `SupervisedEvaluator` with `decollate=True`
        >>> meta = {"filename_or_obj": "patient001.nii.gz"}
        >>> item = MetaTensor(torch.ones(1, 16, 16, 4), affine=torch.eye(4), meta=meta)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     SavePictures(folder, structures={1: "LV"}, max_pictures=5).attach(evaluator)
        ...     _ = evaluator.run([[{"image": item, "pred": item, "label": item}]])
        ...     print(*os.listdir(folder))
        patient001.png
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        structures: Mapping[int, str] | Mapping[str, str],
        max_pictures: int = 10,
        slices: int | Sequence[int] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.structures = {int(index): name for index, name in structures.items()}  # JSON has no numbers as keys
        self.max_pictures = max_pictures
        self.slices = slices
        self._files: dict[str, str] = {}  # image file by the name of its picture, in this run

    def attach(self, engine: Engine) -> None:
        """Draw after each iteration of ``engine``, and start counting with each of its runs."""
        engine.add_event_handler(Events.STARTED, self._start)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        """Draw the volumes of one iteration.

        Args:
            engine: an evaluator whose output is decollated.

        Raises:
            ValueError: If the output is not a list of items with ``image`` and ``pred``.
        """
        output = engine.state.output
        if not isinstance(output, list):
            raise ValueError(
                "`SavePictures` reads single volumes: the evaluator needs `decollate=True`, "
                f"got {type(output).__name__}."
            )
        names = given_names(engine.state.batch, len(output))
        for item, name in list(zip(output, names, strict=True))[: max(0, self.max_pictures - len(self._files))]:
            if missing := {"image", "pred"} - set(item):
                raise ValueError(f"`SavePictures` needs `image` and `pred` in the output, got no {sorted(missing)}.")
            self._save(item, name)

    def _start(self) -> None:
        self._files = {}

    def _save(self, item: Mapping[str, Any], given: str | None) -> None:
        image: torch.Tensor = item["image"]
        label = item.get("label")  # MONAI's evaluators also say None
        meta = image.meta if isinstance(image, MetaTensor) else {}
        file = str(meta.get("filename_or_obj") or f"case{len(self._files) + 1:03d}")
        name = given or case_name(file)
        if self._files.get(name, file) != file:  # cases in folders of their own, like patient001/image.nii.gz
            name = f"{Path(file).parent.name}_{name}"
        self._files[name] = file
        # as clinicians look, from the feet: the patient's left on the right, the back below
        turned = [axis for axis in (0, 1) if isinstance(image, MetaTensor) and image.affine[axis, axis] > 0]
        figure = contour_picture(
            image[0].flip(turned),
            None if label is None else label[0].flip(turned),
            item["pred"][0].flip(turned),
            structures=self.structures,
            title=name,
            slices=self.slices,
            spacing=image.pixdim.tolist() if isinstance(image, MetaTensor) else None,
        )
        with replacing(self.folder / f"{name}.png") as picture:
            figure.savefig(picture, format="png")


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


def _panels(count: int, millimeters: Sequence[float]) -> tuple[Figure, list[Axes]]:
    columns = count if count <= 4 else min(6, math.ceil(count / 2))
    rows = math.ceil(count / columns)
    width = 2.2
    height = width * min(2.0, max(0.5, millimeters[1] / millimeters[0]))
    layout = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02, wspace=0, hspace=0)
    figure = Figure((max(columns * width, 4.0), rows * height + 0.9), dpi=150, facecolor="black", layout=layout)
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(rows, columns, place + 1) for place in range(count)]
