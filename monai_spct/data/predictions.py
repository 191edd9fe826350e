"""Predictions as NIfTI files on the grid of their images."""

from __future__ import annotations

import gzip
import zlib
from os import PathLike
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from monai.utils.type_conversion import convert_to_numpy
from numpy.typing import ArrayLike, DTypeLike, NDArray

from monai_spct.data.nifti import millimeters
from monai_spct.data.volume import SPACING_TOLERANCE, Volume
from monai_spct.data.volumes import open_volume
from monai_spct.files.atomic import replacing

__all__ = ["is_prediction", "save_like"]

_PREDICTION = b"prediction of monai_spct"  # `descrip` of a header

_GEOMETRY = (
    *("pixdim", "xyzt_units", "qform_code", "quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y"),
    *("qoffset_z", "sform_code", "srow_x", "srow_y", "srow_z"),
)


def save_like(
    data: ArrayLike,
    source: str | PathLike[str],
    target: str | PathLike[str],
    *,
    dtype: DTypeLike = np.uint8,
    prediction: bool = False,
) -> None:
    """Write ``data`` as a NIfTI file on the grid of ``source``: masks by default, maps with ``dtype=numpy.float32``.

    Only the grid comes from ``source``, which may also be MetaImage. Where its affine and voxel sizes disagree, both
    are those of :func:`~monai_spct.data.nifti.true_affine` in the new file. Values are stored unscaled. The file
    appears complete or not at all.

    Args:
        data: ``(*S)``, an array or a tensor on the voxels of ``source``.
        source: the image that gives the grid.
        target: the new file, ``.nii`` or ``.nii.gz``; its folder is made if need be.
        dtype: how voxels are stored. Integers must hold every value of ``data`` exactly.
        prediction: whether to mark the file as a prediction in its header.

    Raises:
        ValueError: if shapes differ, ``dtype`` cannot hold the values, ``target`` is ``source`` or not named like a
            NIfTI file, or ``source`` is damaged or not a volume.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     source, target = f"{folder}/case.nii.gz", f"{folder}/predictions/case.nii.gz"
        ...     nib.save(nib.Nifti1Image(np.zeros((4, 4, 3), np.int16), np.diag([-2, -2, 5, 1])), source)
        ...     save_like(np.ones((4, 4, 3)), source, target)
        ...     mask = nib.load(target)
        ...     mask.get_data_dtype(), mask.header.get_zooms(), int(mask.get_fdata().sum())
        (dtype('uint8'), (np.float32(2.0), np.float32(2.0), np.float32(5.0)), 48)
    """
    source, target = Path(source), Path(target)
    suffix = next((end for end in (".nii.gz", ".nii") if target.name.endswith(end)), None)
    if suffix is None:
        raise ValueError(f"`target` must end in .nii or .nii.gz, got {str(target)!r}.")
    if target.resolve() == source.resolve():
        raise ValueError(f"`target` must not be `source`, got {str(target)!r} for both.")
    volume = open_volume(source)
    voxels = np.asarray(convert_to_numpy(data))
    if voxels.shape != volume.shape:
        raise ValueError(f"`data` must have the shape of {source}, got {voxels.shape} and {volume.shape}.")

    image = _on_the_grid(volume, _stored_as(voxels, np.dtype(dtype)))
    image.header["descrip"] = _PREDICTION if prediction else b"monai_spct"
    with replacing(target) as file:
        if suffix == ".nii":
            image.to_stream(file)
        else:  # as nibabel compresses: the same bytes whatever the name and the time
            with gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as compressed:
                image.to_stream(compressed)


def is_prediction(path: str | PathLike[str]) -> bool:
    """Whether the header of a file marks it as a prediction; see :func:`save_like`."""
    try:
        with gzip.open(path) if str(path).lower().endswith(".gz") else Path(path).open("rb") as file:
            return _PREDICTION in file.read(540)  # the longest header, of NIfTI-2
    except (OSError, EOFError, zlib.error):  # whoever loads it says what is wrong
        return False


def _stored_as(voxels: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if np.issubdtype(dtype, np.integer):
        low, high = voxels.min(), voxels.max()
        limits = np.iinfo(dtype)
        # NaN fails both comparisons
        if not (low >= limits.min and high <= limits.max) or (voxels != np.trunc(voxels)).any():
            raise ValueError(f"`data` must hold whole numbers that {dtype} can hold, got values from {low} to {high}.")
    return voxels.astype(dtype)


def _on_the_grid(volume: Volume, voxels: NDArray[Any]) -> Any:
    old: Any = None if volume.nifti is None else volume.nifti.header
    version: Any = nib.Nifti2Image if isinstance(old, nib.Nifti2Header) else nib.Nifti1Image
    header = version.header_class()
    header.set_data_dtype(voxels.dtype)
    header.set_data_shape(voxels.shape)
    if volume.nifti is None:
        header.set_xyzt_units("mm")
        header.set_sform(volume.affine, code="scanner")
        header.set_qform(volume.affine, code="scanner")
    else:
        for name in _GEOMETRY:
            header[name] = old[name]
        header["pixdim"][4:] = 1
        affine = volume.affine.copy()
        affine[:3] /= millimeters(volume.nifti)
        sizes = np.linalg.norm(affine[:3, :3], axis=0)
        if not np.allclose(header["pixdim"][1:4], sizes, rtol=SPACING_TOLERANCE, atol=0):
            header["pixdim"][1:4] = sizes
        if not np.allclose(header.get_best_affine(), affine, rtol=1e-6, atol=1e-6):
            # a form without a code is not read, and stays as it is
            if header["qform_code"] > 0 and header["sform_code"] == 0:
                header.set_qform(affine, code=int(header["qform_code"]))
            else:
                header.set_sform(affine, code=int(header["sform_code"]) or "aligned")
    finite = voxels[np.isfinite(voxels)]
    header["cal_min"], header["cal_max"] = (finite.min(), finite.max()) if finite.size else (0, 0)
    return version(voxels, header.get_best_affine(), header)
