"""Volumes whose voxels ITK reads.

It fills with anything what is missing of a file, takes defaults for what it does not understand of a header, and leaves
checksums alone, all without a word. So headers are parsed by whoever asks, and compared here.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from monai.data.image_reader import ITKReader
from numpy.typing import NDArray

from monai_spct.data.volume import Volume

__all__ = ["LARGEST", "SMALLEST", "itk_for", "load_by_itk", "volume_by_itk"]

SMALLEST, LARGEST = 1e-9, 1e9  # mm; beyond, no header can hold the geometry in single precision
_PART = 1 << 20  # bytes to unpack at a time


def volume_by_itk(
    path: Path,
    shape: tuple[int, ...],
    affine: NDArray[np.float64],
    spacing: NDArray[np.float64],
    *,
    data_file: Path,
    start: int,
    size: int,
    packed: int | None,
) -> Volume:
    """A volume as its header tells of it, which is compared with the file of the voxels now and with them later.

    Args:
        path: the file with the header.
        shape: voxels along each axis.
        affine: ``(4, 4)``.
        spacing: voxel sizes in mm, as they stand in the header.
        data_file: the file with the voxels.
        start: bytes in front of them; below 0 they are at its end, whatever is before.
        size: of all voxels, in bytes.
        packed: likewise, as they are in the file, or 0 where that is not told; ``None`` if they are not compressed.

    Raises:
        ValueError: if ``data_file`` has another size.
    """
    there, least = data_file.stat().st_size, max(0, start) + (size if packed is None else packed)
    told = f"it has {there} bytes, and {path.name} tells of {least}."
    if there < least:
        raise ValueError(f"{data_file} is truncated: {told}")
    if there > least and start >= 0 and packed is None:
        raise ValueError(f"{data_file} is too long, so that its voxels are others than the header says: {told}")

    def load() -> NDArray[Any]:
        if packed is not None:
            _verify_packed(data_file, max(0, start), packed or there, size)
        return load_by_itk(path, shape, affine)

    return Volume(str(path), shape, affine, spacing, np.abs(spacing), data_file, load)


def itk_for(path: Path) -> Any:
    """ITK, or an ``ImportError`` that says what to install to read ``path``."""
    try:
        return importlib.import_module("itk")
    except ImportError:
        raise ImportError(f'{path} is read by ITK, which is not installed: pip install "monai-spct[itk]"') from None


def load_by_itk(
    path: Path, shape: tuple[int, ...], affine: NDArray[np.float64], *, slices: Sequence[str] | None = None
) -> NDArray[Any]:
    """Read the voxels.

    Args:
        path: the file, or the folder of ``slices``.
        shape: voxels along each axis, as the header tells of them.
        affine: ``(4, 4)``, likewise.
        slices: DICOM files in their order, each of which has its own scale and becomes single precision.

    Raises:
        ImportError: if ITK is not installed.
        ValueError: if voxels are damaged, or ITK understands the header otherwise.
    """
    itk = itk_for(path)
    try:
        reader = ITKReader()
        voxels, meta = reader.get_data(reader.read(path) if slices is None else itk.imread(slices, itk.F))
    except (RuntimeError, TypeError) as error:  # damaged, or of a type that ITK does not offer to Python
        raise ValueError(f"{path} cannot be read by ITK: {error}") from error
    if voxels.shape != shape or not np.allclose(meta["affine"], affine, atol=1e-3):
        raise ValueError(
            f"{path} has a header that ITK does not understand: it reads the shape {voxels.shape} and the affine "
            f"{meta['affine'].tolist()} instead of {shape} and {affine.tolist()}."
        )
    return voxels


def _verify_packed(data_file: Path, start: int, left: int, size: int) -> None:
    """ITK does not look at the checksum at the end."""
    stream, unpacked = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS), 0  # of zlib or gzip
    try:
        with data_file.open("rb") as file:
            file.seek(start)
            while not stream.eof and unpacked <= size:
                part = stream.unconsumed_tail or file.read(min(left, _PART))
                if not part:
                    break
                left -= 0 if stream.unconsumed_tail else len(part)
                unpacked += len(stream.decompress(part, _PART))
    except zlib.error as error:
        raise ValueError(f"{data_file} is damaged: {error}.") from error
    if unpacked != size:
        raise ValueError(f"{data_file} holds {unpacked} bytes of voxels when unpacked, and its header tells of {size}.")
    if not stream.eof:
        raise ValueError(f"{data_file} is truncated: its checksum is missing.")
