"""What the images and labels of a data set are like."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from monai.utils.misc import ensure_tuple
from nibabel import aff2axcodes
from numpy.typing import NDArray
from scipy import ndimage
from tqdm import tqdm

from monai_spct.data import Split, check_split, open_volume

__all__ = ["Survey", "survey"]

_LOOKED_AT = 50  # labeled cases whose voxels are studied; values of labels are collected from all
_MOST_VALUES = 100
_ONE_PIECE = 0.95  # share of a structure in its largest component; the rest are specks
_KEPT = 100_000  # voxels of an image, or of its structures, whose values count


@dataclass(frozen=True)
class Survey:
    """What is true of the images and labels of a data set.

    Shares, pieces and intensities are those of up to 50 labeled cases. N is the number of cases, C that of channels.

    Args:
        cases: those that can be read.
        summary: a table of patients, cases, shapes and spacings.
        findings: what someone should look at, and what was left out.
        shapes: voxels along each axis of the files, ``(N, 3)``.
        spacings: mm, ``(N, 3)``.
        codes: anatomical directions of these axes, such as ``("R", "A", "S")``, for each image.
        values: all numbers in the labels but 0, sorted.
        shares: the median share of a volume's voxels that each of ``values`` has where it is there.
        in_one_piece: whether each structure of a volume is in one piece, but for specks.
        touching: whether all structures of a volume together are in one piece, but for specks.
        intensities: 0.5th and 99.5th percentile of each channel, ``(C, 2)``.
        of_structures: the same of the voxels of structures alone.

    Example:
        >>> import tempfile
        >>> from monai_spct.data import acdc_cases, write_acdc_phantom
        >>> from monai_spct.plan import survey
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found = survey(acdc_cases(write_acdc_phantom(f"{folder}/acdc", patients=1)))
        >>> type(found).__name__, found.shapes.shape
        ('Survey', (2, 3))
    """

    cases: list[dict[str, Any]]
    summary: str
    findings: list[str]
    shapes: NDArray[Any]
    spacings: NDArray[np.float64]
    codes: list[tuple[str, ...]]
    values: list[int]
    shares: dict[int, float]
    in_one_piece: bool
    touching: bool
    intensities: NDArray[np.float64]
    of_structures: NDArray[np.float64]


def survey(cases: Sequence[Mapping[str, Any]], *, progress: bool = False) -> Survey:
    """Look at the headers of all images, the values of all labels, and the voxels of some labeled cases.

    Cases that cannot be read, or whose image and label differ in shape, are left out.

    Args:
        cases: of :func:`~monai_spct.data.folder_cases`, with ``patient``, ``case``, ``image`` and perhaps ``label``.
        progress: whether to show progress bars.

    Returns:
        What was found.

    Raises:
        ValueError: if no case with a label is left, or labels hold other than whole numbers from 0, more than 100
            different ones, or 0 alone.

    Example:
        >>> import tempfile
        >>> from monai_spct.data import acdc_cases, write_acdc_phantom
        >>> from monai_spct.plan import survey
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found = survey(acdc_cases(write_acdc_phantom(f"{folder}/acdc", patients=2)))
        >>> found.values, found.codes[0], found.in_one_piece
        ([1, 2, 3], ('L', 'P', 'S'), True)
    """
    with_label, without = ([dict(case) for case in cases if ("label" in case) is there] for there in (True, False))
    looked_at = check_split(Split(with_label, without, [], []), num_classes=2, voxels=False, progress=progress)
    unsound = {file for finding in looked_at.errors for file in finding.files}
    sound = [case for case in with_label + without if unsound.isdisjoint(_files(case))]
    findings = [f"left out: {finding.message}" for finding in looked_at.errors]
    findings += [str(finding) for finding in looked_at.findings if finding.level != "error"]
    labeled = [case for case in sound if "label" in case]
    if not labeled:
        raise ValueError(
            "\n".join(["there must be an image with a label to learn from, and there is none.", *findings])
        )
    values = _values([case["label"] for case in labeled], progress)
    shares: dict[int, list[float]] = {value: [] for value in values}
    single, touching, everywhere, inside = [], [], [], []
    step = math.ceil(len(labeled) / _LOOKED_AT)
    for case in tqdm(labeled[::step], desc="labeled cases", disable=not progress, leave=False):
        label = open_volume(case["label"]).load().astype(np.int32)
        image = np.stack([open_volume(file).load() for file in ensure_tuple(case["image"])])
        for value, box in enumerate(ndimage.find_objects(label), start=1):
            if box is not None:
                structure = label[box] == value
                shares[value].append(structure.sum() / label.size)
                single.append(_in_one_piece(structure))
        touching.append(_in_one_piece(label > 0))
        everywhere.append(_thinned(image.reshape(len(image), -1)))
        inside.append(_thinned(image[:, label > 0]))
    volumes: list[Any] = [looked_at.volumes[case["case"]] for case in sound]
    return Survey(
        cases=sound,
        summary=looked_at.summary,
        findings=findings,
        shapes=np.array([volume.shape for volume in volumes]),
        spacings=np.array([volume.spacing for volume in volumes]),
        codes=[aff2axcodes(volume.affine) for volume in volumes],  # type: ignore[no-untyped-call]
        values=values,
        shares={value: float(np.median(found)) for value, found in shares.items() if found},
        in_one_piece=all(single),
        touching=all(touching),
        intensities=_percentiles(everywhere),
        of_structures=_percentiles(inside),
    )


def _files(case: Mapping[str, Any]) -> set[str]:
    return {*ensure_tuple(case["image"]), *ensure_tuple(case.get("label", ()))}


def _values(labels: Sequence[str], progress: bool) -> list[int]:
    found: dict[float, str] = {}
    for file in tqdm(labels, desc="labels", disable=not progress, leave=False):
        for value in np.unique(open_volume(file).load()).tolist():
            found.setdefault(value, file)
    if wrong := [value for value in found if value < 0 or value != int(value)]:
        raise ValueError(f"labels must hold whole numbers from 0, got {wrong[0]:g} in {found[wrong[0]]}.")
    values = sorted({int(value) for value in found} - {0})
    if not values:
        raise ValueError(f"labels must show a structure, got 0 alone in all {len(labels)}.")
    if len(values) > _MOST_VALUES:
        raise ValueError(f"labels must hold at most {_MOST_VALUES} values, got {len(values)}: are they images?")
    return values


def _in_one_piece(mask: NDArray[np.bool_]) -> bool:
    pieces, count = ndimage.label(mask, structure=np.ones((3, 3, 3)))
    return bool(count < 2 or np.bincount(pieces[mask]).max() >= _ONE_PIECE * mask.sum())


def _thinned(voxels: NDArray[Any]) -> NDArray[np.float64]:
    """Channels of voxels, ``(C, n)``, or an even part of them."""
    return voxels[:, :: math.ceil(voxels.shape[1] / _KEPT) or 1].astype(float)


def _percentiles(voxels: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    together = np.concatenate(voxels, axis=1)
    together[~np.isfinite(together)] = np.nan
    found: NDArray[np.float64] = np.nanpercentile(together, [0.5, 99.5], axis=1).T
    return found
