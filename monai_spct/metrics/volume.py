"""Dice and Hausdorff distances in millimeters, per volume and structure."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

import ignite.distributed as idist
import numpy as np
import torch
from ignite.exceptions import NotComputableError
from ignite.metrics import Metric
from ignite.metrics.metric import reinit__is_reduced
from monai.data.meta_tensor import MetaTensor
from monai.handlers.utils import from_engine
from monai.utils.type_conversion import convert_to_numpy
from numpy.typing import ArrayLike, NDArray
from scipy import ndimage

from monai_spct.data.case_names import case_name, case_names, given_names
from monai_spct.files.atomic import replacing

__all__ = [
    "StructureScore",
    "VolumeScores",
    "case_name",
    "dice",
    "format_table",
    "score_volume",
    "summarize",
    "summary_cells",
    "write_scores",
]

_DIGITS = {"dsc": 3, "hd": 1, "hd95": 1}  # that tables show
_pred_and_label = from_engine(["pred", "label"])

Structures = Mapping[int, str] | Mapping[str, str] | Sequence[str]


@dataclass(frozen=True)
class StructureScore:
    """How well one structure of one volume was found.

    Example:
        >>> StructureScore("patient001_frame01", "LV", dsc=0.9, hd=8.0, hd95=4.0, missed=False).dsc
        0.9
    """

    case: str
    structure: str
    dsc: float  # Dice similarity coefficient, 0 to 1
    hd: float  # mm, Hausdorff distance
    hd95: float  # mm, the larger of the two directed 95th percentiles
    missed: bool  # predicted or true, but not both


# the name that a volume was given, if any, and its scores, by image file
_ByFile = dict[str, tuple[str | None, list[StructureScore]]]


def dice(found: NDArray[np.bool_], wanted: NDArray[np.bool_]) -> float:
    r"""The Dice similarity coefficient of two sets of voxels, :math:`2 |P \cap T| / (|P| + |T|)`; 1 if both are empty.

    Args:
        found: true where a structure was found, ``(*S)``.
        wanted: true where it is, of the same shape.

    Example:
        >>> dice(np.array([True, True, False]), np.array([False, True, False]))
        0.6666666666666666
    """
    size = int(found.sum()) + int(wanted.sum())
    return 2 * int((found & wanted).sum()) / size if size else 1.0


def score_volume(
    pred: ArrayLike, truth: ArrayLike, *, structures: Structures, spacing: Sequence[float], case: str = ""
) -> list[StructureScore]:
    r"""Score a volume.

    .. math:: \mathrm{DSC} = \frac{2 |P \cap T|}{|P| + |T|}, \qquad
        \mathrm{HD} = \max\Bigl(\max_{p \in \partial P} d(p, \partial T), \max_{t \in \partial T} d(t, \partial P)\Bigr)

    with :math:`P` = the voxels of a structure in ``pred``, :math:`T` = those in ``truth``, and :math:`\partial` = those
    with a neighbor outside. HD95 takes the 95th percentile of both directed distances, then the maximum.

    A structure in only one of the two is *missed*: DSC is 0, and both distances are the diagonal of the volume, so that
    no network gains by leaving one out. Where it is in neither, DSC is 1 and the distances are 0.

    Args:
        pred: class indices ``(*S)`` or ``(1, *S)``.
        truth: class indices of the same shape.
        structures: names by class index, or names of the classes from 1. Other classes are not scored.
        spacing: mm, the size of a voxel along each axis of ``S``.
        case: the name of the volume in the scores.

    Returns:
        One score per structure, in their order.

    Raises:
        ValueError: If the shapes differ or do not fit ``spacing``, or values are not class indices; names the case.

    Example:
        >>> truth = np.zeros((8, 8, 4), int)
        >>> truth[2:6, 2:6, 1] = 1
        >>> pred = np.roll(truth, 1, axis=2)  # one slice off
        >>> score_volume(pred, truth, structures={1: "LV"}, spacing=(1, 1, 10))
        [StructureScore(case='', structure='LV', dsc=0.0, hd=10.0, hd95=10.0, missed=False)]
    """
    sizes = tuple(float(size) for size in spacing)
    if not sizes or not all(0 < size < math.inf for size in sizes):  # also refuses nan
        raise ValueError(f"`spacing` must be positive and finite along every axis, got {sizes}.")
    predicted, true = _class_map("pred", pred, len(sizes), case), _class_map("truth", truth, len(sizes), case)
    if predicted.shape != true.shape:
        raise ValueError(f"`pred` and `truth` of {case!r} differ in shape: {predicted.shape} and {true.shape}.")
    diagonal = math.hypot(*(n * size for n, size in zip(true.shape, sizes, strict=True)))

    scores = []
    for index, name in _numbered(structures).items():
        found, wanted = predicted == index, true == index
        missed = bool(found.any() != wanted.any())
        if missed:
            hd = hd95 = diagonal
        elif not found.any():
            hd = hd95 = 0.0
        else:
            hd, hd95 = _hausdorff(found, wanted, sizes)
        scores.append(StructureScore(case, name, dice(found, wanted), hd, hd95, missed))
    return scores


class VolumeScores(Metric):
    """Mean DSC over volumes and structures, as the key metric of a MONAI evaluator.

    Reads the evaluator's output after postprocessing and decollation: class indices ``pred`` and ``label``,
    ``(1, *S)``, whole volumes. Voxel sizes come from the label's affine. Cases are named by their entry ``case`` in the
    batch, or else by the file of the image or label. Processes are gathered, and a repeated case counts once.

    Args:
        structures: names by class index, or names of the classes from 1. Other classes are not scored.
        output_transform: takes ``engine.state.output`` to predictions and labels, two sequences.

    Attributes:
        rows: one :class:`StructureScore` per volume and structure, after :meth:`compute`.

    Example:
        >>> meta = {"filename_or_obj": "patient001.nii.gz"}
        >>> label = MetaTensor(torch.ones(1, 8, 8, 4), affine=torch.eye(4), meta=meta)
        >>> scores = VolumeScores(structures=["LV"])
        >>> scores.update(([label], [label]))
        >>> scores.compute(), scores.rows[0].case
        (1.0, 'patient001')
    """

    def __init__(self, *, structures: Structures, output_transform: Callable[[Any], Any] = _pred_and_label) -> None:
        self.structures = _numbered(structures)
        super().__init__(output_transform)  # which resets

    @reinit__is_reduced
    def reset(self) -> None:
        """Forget all volumes, before an epoch."""
        self.rows: list[StructureScore] = []
        self._by_file: _ByFile = {}

    @torch.no_grad()
    def iteration_completed(self, engine: Any) -> None:
        """Score the volumes of one iteration."""
        preds, labels = self._output_transform(engine.state.output)
        # ignite would cut the lists into pairs of batches of one
        self.update((preds, labels), given_names(engine.state.batch, len(preds)))

    @reinit__is_reduced
    def update(
        self, output: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]], cases: Sequence[str | None] | None = None
    ) -> None:
        """Score some volumes.

        Args:
            output: predictions and labels, each a sequence of class indices ``(1, *S)``; labels are ``MetaTensor``.
            cases: their names; None for one that is named by its file.
        """
        preds, labels = output
        for pred, label, given in zip(preds, labels, cases or [None] * len(preds), strict=True):
            if not isinstance(label, MetaTensor):
                raise ValueError(f"labels must be `MetaTensor` with their voxel sizes, got {type(label).__name__}.")
            files = [str(getattr(item, "meta", {}).get("filename_or_obj") or "") for item in (pred, label)]
            if not any(files):
                raise ValueError("`VolumeScores` tells cases apart by `filename_or_obj`: neither item has one.")
            file = files[0] or files[1]
            spacing = label.pixdim.tolist()[: label.ndim - 1]  # an affine has three axes, also of a slice
            settings: dict[str, Any] = {"structures": self.structures, "spacing": spacing}
            self._by_file[file] = given, score_volume(pred, label, **settings, case=given or case_name(file))

    def compute(self) -> float:
        """The mean DSC over all volumes and structures, 0 to 1."""
        by_file: _ByFile = {}
        for part in cast("list[_ByFile]", idist.all_gather(self._by_file)):
            by_file.update(part)
        if not by_file:
            raise NotComputableError("`VolumeScores` must have seen a volume before it can compute.")
        counts = Counter(given for given, _ in by_file.values())
        unnamed = [file for file, (given, _) in by_file.items() if given is None or counts[given] > 1]
        names = dict(zip(unnamed, case_names(unnamed), strict=True))
        self.rows = [
            replace(row, case=names.get(file, row.case)) for file in sorted(by_file) for row in by_file[file][1]
        ]
        return float(np.mean([row.dsc for row in self.rows]))


def summarize(rows: Iterable[StructureScore]) -> dict[str, dict[str, float]]:
    """Mean and population standard deviation over volumes for each structure, and for the mean over structures.

    Args:
        rows: scores of one or more volumes; each volume with all structures.

    Returns:
        By structure, and under ``mean``: ``dsc_mean``, ``dsc_std``, ``hd_mean``, ``hd_std``, ``hd95_mean``,
        ``hd95_std``, ``n_volumes``, ``n_missed``. Under ``mean``, values are first averaged over the structures of a
        volume.

    Raises:
        ValueError: If there are no rows, a score is not finite, or a structure is called ``mean``.

    Example:
        >>> rows = [StructureScore("a", "LV", 0.9, 8.0, 4.0, False), StructureScore("b", "LV", 0.7, 12.0, 6.0, False)]
        >>> summary = summarize(rows)
        >>> round(summary["LV"]["dsc_mean"], 3), round(summary["mean"]["dsc_std"], 3), summary["LV"]["hd_mean"]
        (0.8, 0.1, 10.0)
    """
    structures: dict[str, list[list[StructureScore]]] = {}
    cases: dict[str, list[StructureScore]] = {}
    for row in rows:
        if not all(math.isfinite(value) for value in (row.dsc, row.hd, row.hd95)):
            raise ValueError(f"`rows` must hold finite scores, got {row}.")
        structures.setdefault(row.structure, []).append([row])
        cases.setdefault(row.case, []).append(row)
    if not cases:
        raise ValueError("`rows` must hold at least one score, got none.")
    if "mean" in structures:
        raise ValueError("`structure` must not be 'mean', which is the name of the mean over structures.")
    return {name: _statistics(volumes) for name, volumes in {**structures, "mean": list(cases.values())}.items()}


def _statistics(volumes: Sequence[Sequence[StructureScore]]) -> dict[str, float]:
    statistics: dict[str, float] = {}
    for name in ("dsc", "hd", "hd95"):
        values = [np.mean([getattr(row, name) for row in rows]) for rows in volumes]
        statistics |= {f"{name}_mean": float(np.mean(values)), f"{name}_std": float(np.std(values))}
    missed = sum(row.missed for rows in volumes for row in rows)
    return {**statistics, "n_volumes": len(volumes), "n_missed": missed}


def write_scores(rows: Iterable[StructureScore], folder: str | os.PathLike[str]) -> None:
    """Write ``scores.csv``, one line per volume and structure, and ``summary.json``, see :func:`summarize`.

    Args:
        rows: scores of one or more volumes.
        folder: where to; made if need be.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_scores([StructureScore("patient001", "LV", 0.5, 8.0, 4.0, False)], folder)
        ...     print(Path(folder, "scores.csv").read_text(), end="")
        case,structure,dsc,hd,hd95,missed
        patient001,LV,0.5,8.0,4.0,False
    """
    scores = list(rows)
    summary = json.dumps(summarize(scores), indent=2, allow_nan=False) + "\n"
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow([field.name for field in fields(StructureScore)])
    writer.writerows(astuple(row) for row in scores)
    for name, text in (("scores.csv", table.getvalue()), ("summary.json", summary)):
        with replacing(Path(folder) / name, "w") as file:
            file.write(text)


def format_table(summary: Mapping[str, Mapping[str, float]]) -> str:
    """A summary as a Markdown table: mean ± standard deviation over volumes.

    Args:
        summary: what :func:`summarize` returns.

    Example:
        >>> rows = [StructureScore("a", "LV", 0.9, 8.0, 4.0, False), StructureScore("b", "LV", 0.0, 99.0, 99.0, True)]
        >>> print(format_table(summarize(rows)))
        | structure | DSC | HD (mm) | HD95 (mm) | missed |
        |---|---|---|---|---|
        | LV | 0.450 ± 0.450 | 53.5 ± 45.5 | 51.5 ± 47.5 | 1 of 2 |
        | mean | 0.450 ± 0.450 | 53.5 ± 45.5 | 51.5 ± 47.5 | 1 of 2 |
    """
    heads, *rows = (f"| {' | '.join(cells)} |" for cells in summary_cells(summary))
    return "\n".join([heads, "|---|---|---|---|---|", *rows])


def summary_cells(summary: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """The cells of that table, row by row, the heads first.

    Args:
        summary: what :func:`summarize` returns.

    Example:
        >>> summary_cells(summarize([StructureScore("a", "LV", 0.9, 8.0, 4.0, False)]))[1]
        ['LV', '0.900 ± 0.000', '8.0 ± 0.0', '4.0 ± 0.0', '0 of 1']
    """
    cells = [["structure", "DSC", "HD (mm)", "HD95 (mm)", "missed"]]
    for name, row in summary.items():
        chances = row["n_volumes"] * (len(summary) - 1 if name == "mean" else 1)
        values = [f"{row[f'{score}_mean']:.{n}f} ± {row[f'{score}_std']:.{n}f}" for score, n in _DIGITS.items()]
        cells.append([name, *values, f"{row['n_missed']} of {chances}"])
    return cells


def _hausdorff(found: NDArray[np.bool_], wanted: NDArray[np.bool_], sizes: Sequence[float]) -> tuple[float, float]:
    # no distance reaches outside the box around both, and a border of background makes its faces surfaces too
    box = ndimage.find_objects((found | wanted).astype(np.uint8))[0]
    surfaces = [mask ^ ndimage.binary_erosion(mask) for mask in (np.pad(found[box], 1), np.pad(wanted[box], 1))]
    distances = [
        ndimage.distance_transform_edt(~there, sampling=sizes)[here] for here, there in (surfaces, surfaces[::-1])
    ]
    return max(float(d.max()) for d in distances), max(float(np.percentile(d, 95)) for d in distances)


def _class_map(name: str, data: ArrayLike, axes: int, case: str) -> NDArray[Any]:
    array = np.asarray(convert_to_numpy(data))
    if array.ndim == axes + 1 and len(array) == 1:
        array = array[0]
    if array.ndim != axes:
        raise ValueError(
            f"`{name}` of {case!r} must hold class indices of shape (*S) or (1, *S) with {axes} axes in S, "
            f"got {array.shape}."
        )
    if not np.issubdtype(array.dtype, np.integer) and (array != np.trunc(array)).any():
        raise ValueError(f"`{name}` of {case!r} must hold class indices, got fractions: apply argmax first.")
    return array


def _numbered(structures: Structures) -> dict[int, str]:
    # JSON has no numbers as keys
    pairs = structures.items() if isinstance(structures, Mapping) else enumerate(structures, start=1)
    numbered = {int(index): name for index, name in pairs}
    if not numbered or min(numbered) < 1:
        raise ValueError(f"`structures` must name one or more classes above 0, the background, got {structures!r}.")
    return numbered
