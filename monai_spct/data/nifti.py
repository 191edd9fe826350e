"""NIfTI files, with the voxel sizes that their headers mean."""

from __future__ import annotations

import contextlib
import gzip
import math
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.arrayproxy import ArrayProxy
from nibabel.spatialimages import HeaderDataError
from numpy.typing import NDArray

from monai_spct.data.volume import SPACING_TOLERANCE, Volume

__all__ = ["millimeters", "open_nifti", "true_affine"]

_DEFLATE = 1032  # deflate makes nothing smaller than by this
_CHUNK = 1 << 20  # bytes


def open_nifti(path: str | PathLike[str]) -> Volume:
    """A volume of real numbers; see :func:`~monai_spct.data.open_volume`."""
    try:
        image = nib.load(path)
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever a damaged header makes of nibabel, it is a fault of the file
        raise ValueError(f"{path} is not a readable NIfTI file: {_reason(error)}.") from error
    if not isinstance(image, nib.Nifti1Pair):
        raise ValueError(f"{path} is not a readable NIfTI file: it is a {type(image).__name__}.")
    header: Any = image.header
    if not 1 <= (axes := int(header["dim"][0])) <= 7:
        raise ValueError(f"{path} must have from 1 to 7 axes, got {axes}.")
    if (frames := math.prod(image.shape[3:])) != 1:
        raise ValueError(
            f"{path} is {axes}-D ({frames} frames); give single frames, and channels as files of their own."
        )
    if len(image.shape) < 3:
        raise ValueError(f"{path} must be a volume with three axes, got the shape {image.shape}.")
    if min(image.shape) < 1:
        raise ValueError(f"{path} must have voxels, got the shape {image.shape}.")
    dtype = header.get_data_dtype()
    if dtype.kind not in "iufb":
        kind = "complex numbers" if dtype.kind == "c" else "colors or other records"
        raise ValueError(f"{path} must hold real numbers, got {kind} ({dtype}).")
    _refuse_missing_voxels(image, path)
    data: Any = image.dataobj
    unit = millimeters(image)
    return Volume(
        path=str(path),
        shape=image.shape[:3],
        affine=true_affine(image),
        stored_spacing=unit * _stored_pixdim(image),
        affine_spacing=unit * np.linalg.norm(np.asarray(image.affine, dtype=np.float64)[:3, :3], axis=0),
        data_file=Path(data.file_like),
        load=partial(_voxels, image),
        nifti=image,
    )


def _refuse_missing_voxels(image: nib.Nifti1Pair, path: str | PathLike[str]) -> None:
    """Nibabel may make up voxels that are not in the file."""
    header: Any = image.header
    data: Any = image.dataobj
    start = int(data.offset)
    if start < (header.single_vox_offset if header.is_single else 0):
        raise ValueError(f"{path} must have its voxels behind its header, got them at byte {start}.")
    size = start + math.prod(image.shape) * data.dtype.itemsize
    there = Path(data.file_like).stat().st_size
    most = {".gz": there * _DEFLATE, ".bz2": size, ".zst": size}.get(Path(data.file_like).suffix.lower(), there)
    if most < size:
        raise ValueError(
            f"{data.file_like} is truncated: it has {there} bytes, and its header tells of {size} of voxels."
        )


def _voxels(image: nib.Nifti1Pair) -> NDArray[Any]:
    """Nibabel leaves the checksum of a compressed file alone."""
    data: Any = image.dataobj
    try:
        if Path(data.file_like).suffix.lower() != ".gz":
            voxels = np.asanyarray(data)
        else:
            with gzip.open(data.file_like) as file:
                where = (data.shape, data.dtype, data.offset, data.slope, data.inter)
                proxy: Any = ArrayProxy
                voxels = np.asanyarray(proxy(file, where, mmap=False))
                while file.read(_CHUNK):  # to the end, where the checksum is
                    pass
    except Exception as error:  # as of headers
        raise ValueError(f"{data.file_like} is truncated or damaged: {_reason(error)}.") from error
    volume: NDArray[Any] = voxels.reshape(image.shape[:3], order="F")
    return volume


def true_affine(image: nib.Nifti1Pair) -> NDArray[np.float64]:
    """The affine of a NIfTI image: directions and origin from its affine, voxel sizes from ``pixdim``.

    An affine that agrees with ``pixdim`` is returned as it is. Otherwise its columns are scaled to the absolute
    ``pixdim``, except where that is zero or not finite. Without directions (a column of zeros, or NaN), those of the
    qform are used, if it is coded, and else the axes themselves. Meters and micrometers are converted.

    Args:
        image: a NIfTI image as ``nibabel.load`` returns it.

    Returns:
        The affine ``(4, 4)``, voxel indices to millimeters.

    Example:
        >>> image = nib.Nifti1Image(np.zeros((4, 4, 3), np.int16), np.diag([-1, -1, 1, 1]))
        >>> image.header.set_zooms((1.25, 1.25, 10))
        >>> true_affine(image).diagonal().tolist()
        [-1.25, -1.25, 10.0, 1.0]
    """
    header: Any = image.header
    affine = np.array(image.affine, dtype=np.float64)
    if not _has_directions(affine) and header["qform_code"] > 0:
        with contextlib.suppress(ValueError, HeaderDataError):  # no rotation has these quaternions
            affine = np.array(header.get_qform(), dtype=np.float64)
    if not _has_directions(affine):
        affine[:3, :3] = np.eye(3)
    affine[:3, 3] = np.where(np.isfinite(affine[:3, 3]), affine[:3, 3], 0)
    affine[3] = 0, 0, 0, 1

    pixdim = np.abs(_stored_pixdim(image))
    sizes = np.linalg.norm(affine[:3, :3], axis=0)
    wanted = np.where(np.isfinite(pixdim) & (pixdim > 0), pixdim, sizes)
    if not np.allclose(sizes, wanted, rtol=SPACING_TOLERANCE, atol=0):
        affine[:3, :3] *= wanted / sizes
    affine[:3] *= millimeters(image)
    return affine


def _stored_pixdim(image: nib.Nifti1Pair) -> NDArray[np.float64]:
    """``pixdim`` as it stands in the file: when nibabel loads a header it replaces voxel sizes of 0 by 1."""
    header: Any = image.header
    origin = image.file_map.get("header", image.file_map["image"])  # one file, or a pair
    if origin.filename is not None:
        with origin.get_prepare_fileobj("rb") as file:
            header = type(header).from_fileobj(file, check=False)
    return np.array(header["pixdim"][1:4], dtype=np.float64)


def millimeters(image: nib.Nifti1Pair) -> float:
    """In the unit of length of a header; "unknown" counts as millimeters."""
    header: Any = image.header
    return {1: 1000.0, 3: 0.001}.get(int(header["xyzt_units"]) & 7, 1.0)  # meters and micrometers


def _has_directions(affine: NDArray[np.float64]) -> bool:
    columns = affine[:3, :3]
    if not np.isfinite(columns).all():
        return False
    sizes = np.linalg.norm(columns, axis=0)
    # float32 headers leave parallel columns a volume of rounding, not of zero
    return bool((sizes > 0).all() and abs(np.linalg.det(columns / np.where(sizes > 0, sizes, 1))) > 1e-6)


def _reason(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__
