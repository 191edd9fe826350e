"""DICOM series, a folder each, with checks of the headers of all slices; ITK reads the voxels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monai_spct.data.by_itk import itk_for, load_by_itk
from monai_spct.data.volume import Volume

__all__ = ["is_dicom", "open_series"]

_INDEX = "DICOMDIR"  # what a disc calls its table of contents
_OFF = 0.1  # voxels between a slice and its place on a regular grid; headers are rounded
_TAGS = {"0020|0032": "position", "0020|0037": "orientation", "0028|0030": "voxel size"}
_RAS = np.diag([-1.0, -1, 1, 1])  # DICOM's axes go to the left, back and up


def is_dicom(path: str | PathLike[str]) -> bool:
    """Whether a file begins as DICOM files do; their names tell nothing."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            return path.name.upper() != _INDEX and file.read(132)[128:] == b"DICM"
    except OSError:  # whoever loads it says what is wrong
        return False


def open_series(folder: str | PathLike[str]) -> Volume:
    """The volume whose slices are the DICOM files of a folder; see :func:`~monai_spct.data.open_volume`.

    Slices are put in order by their positions, whatever their names.

    Raises:
        ValueError: if there is another series, or anything else but the slices of one volume, evenly spaced.

    Source:
        https://dicom.nema.org/medical/dicom/current/output/chtml/part03/sect_C.7.6.2.html
    """
    folder = Path(folder)
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name[0] != "." and is_dicom(path)]
    if not files:
        raise ValueError(f"{folder} is a folder without DICOM files.")
    try:
        slices = _in_order([_slice(path, itk_for(folder)) for path in files])
        affine = _affine(slices)
    except ValueError as error:
        raise ValueError(f"the folder {folder} must hold the slices of one DICOM series: {error}.") from error
    shape = (*slices[0].shape, len(slices))
    spacing: NDArray[np.float64] = np.linalg.norm(affine[:3, :3], axis=0)
    names = [str(one.path) for one in slices]

    def load() -> NDArray[Any]:
        return load_by_itk(folder, shape, affine, slices=names)

    return Volume(str(folder), shape, affine, spacing, spacing, slices[0].path, load)


@dataclass(frozen=True)
class _Slice:
    path: Path
    series: str
    description: str
    shape: tuple[int, int]
    axes: NDArray[np.float64]  # ``(3, 2)``, in the columns the way from one voxel to the next, in mm
    origin: NDArray[np.float64]  # of the first voxel, in mm

    @property
    def normal(self) -> NDArray[np.float64]:
        across: NDArray[np.float64] = np.cross(*self.axes.T)
        return across / np.linalg.norm(across)


def _slice(path: Path, itk: Any) -> _Slice:
    header = itk.GDCMImageIO.New(FileName=str(path))
    try:
        if readable := header.CanReadFile(str(path)):
            header.ReadImageInformation()
    except RuntimeError:
        readable = False
    if not readable:
        raise ValueError(f"{path.name} is damaged, or no image")
    tags = header.GetMetaDataDictionary()
    if header.GetDimensions(2) > 1:
        raise ValueError(f"{path.name} has {header.GetDimensions(2)} frames in one file, which are not read")
    if header.GetNumberOfComponents() > 1:
        raise ValueError(f"{path.name} is in color")
    if missing := [name for tag, name in _TAGS.items() if not tags.HasKey(tag)]:
        raise ValueError(f"{path.name} has no {' and no '.join(missing)}")
    directions = np.array([header.GetDirection(axis) for axis in range(2)]).T
    return _Slice(
        path,
        tags["0020|000e"].strip() if tags.HasKey("0020|000e") else "",
        tags["0008|103e"].strip() if tags.HasKey("0008|103e") else "without a description",
        (header.GetDimensions(0), header.GetDimensions(1)),
        directions * [header.GetSpacing(axis) for axis in range(2)],
        np.array([header.GetOrigin(axis) for axis in range(3)]),
    )


def _in_order(slices: Sequence[_Slice]) -> list[_Slice]:
    """Slices of one series and of one grid in their plane, by their position."""
    series: dict[str, list[_Slice]] = {}
    for one in slices:
        series.setdefault(one.series, []).append(one)
    if len(series) > 1:
        each = [f"{some[0].description} ({len(some)} files, as {some[0].path.name})" for some in series.values()]
        raise ValueError(f"there are {len(each)}, {', '.join(each)}; give each a folder of its own")
    first = slices[0]
    for other in slices[1:]:
        if other.shape != first.shape or not np.allclose(other.axes, first.axes, rtol=0, atol=1e-3):
            raise ValueError(
                f"{first.path.name} and {other.path.name} differ in the number of their voxels, or the way they lie"
            )
    return sorted(slices, key=lambda one: float(one.origin @ first.normal))


def _affine(slices: Sequence[_Slice]) -> NDArray[np.float64]:
    """The affine of slices in order, which must be evenly spaced and exactly behind each other."""
    if len(slices) < 2:
        raise ValueError(f"there is {slices[0].path.name} alone, and a volume has several slices")
    first, normal = slices[0], slices[0].normal
    steps = np.diff([one.origin for one in slices], axis=0)
    apart = steps @ normal
    usual = float(np.median(apart))
    for step, before, after in zip(apart, slices, slices[1:], strict=False):
        if step < _OFF * usual or step == 0:
            raise ValueError(
                f"{before.path.name} and {after.path.name} are at one place, as in a series of several times; give "
                "one of them"
            )
        if abs(step - usual) > _OFF * usual:
            raise ValueError(
                f"slices are {usual:.4g} mm apart, and {before.path.name} and {after.path.name} {step:.4g} mm: one is "
                "missing, or they are not of one volume"
            )
    aside = np.abs((steps - np.outer(apart, normal)).cumsum(0) @ first.axes / (first.axes**2).sum(0)).max(1)
    if aside.max() > 1:
        raise ValueError(
            f"{slices[aside.argmax() + 1].path.name} is {aside.max():.2g} voxels off from behind the others"
        )
    affine = np.eye(4)
    affine[:3] = np.column_stack([first.axes, normal * np.linalg.norm(steps.sum(0)) / len(steps), first.origin])
    return _RAS @ affine
