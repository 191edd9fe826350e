"""Volumes in HDF5 files, called ``file.h5::dataset``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monai_spct.data.volume import Volume

__all__ = ["dataset_names", "file_of", "is_hdf5", "open_hdf5", "save_hdf5"]

_NAME = re.compile(r"(?P<file>.+\.(h5|hdf5))(::(?P<dataset>.*))?$", re.IGNORECASE | re.DOTALL)
_DEFLATE = 1032  # deflate makes nothing smaller than by this


def is_hdf5(name: str | PathLike[str]) -> bool:
    """Whether a volume is called like a dataset of an HDF5 file, or a file is called like one."""
    return _NAME.fullmatch(str(name)) is not None


def file_of(name: str | PathLike[str]) -> Path:
    """The file on the disk that a volume is in.

    Example:
        >>> file_of("data/a.h5::image").name, file_of("data/a.nii").name
        ('a.h5', 'a.nii')
    """
    match = _NAME.fullmatch(str(name))
    return Path(name if match is None else match["file"])


def dataset_names(file: str | PathLike[str]) -> list[str]:
    """What the datasets and groups of an HDF5 file are called."""
    with _reading(str(file)) as content:
        return list(content)


def open_hdf5(name: str | PathLike[str]) -> Volume:
    """A volume; see :func:`~monai_spct.data.open_volume`.

    Nothing tells its geometry: voxels count as 1 mm wide, and axes go to the left, back and up, as in other files that
    do not tell.
    """
    name = str(name)
    with _reading(name) as content:
        shape = _dataset(content, name).shape
    one = np.ones(3)

    def load() -> NDArray[Any]:
        with _reading(name) as content:
            voxels: NDArray[Any] = _dataset(content, name)[()]
            return voxels

    return Volume(name, shape, np.diag([-1.0, -1.0, 1.0, 1.0]), one, one, file_of(name), load)


def save_hdf5(file: Path, **volumes: NDArray[Any]) -> None:
    """Write arrays as compressed datasets."""
    with _h5py(str(file)).File(file, "w") as content:
        for name, voxels in volumes.items():
            content.create_dataset(name, data=voxels, compression="gzip")


def _h5py(name: str) -> Any:
    try:
        return import_module("h5py")
    except ImportError:
        raise ImportError(f'{name} takes h5py, which is not installed: pip install "monai-spct[hdf5]"') from None


@contextmanager
def _reading(name: str) -> Iterator[Any]:
    """The open file of a volume; whatever is wrong with it is said with the volume's name."""
    h5py = _h5py(name)
    try:
        with h5py.File(file_of(name), "r") as content:
            yield content
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever a damaged file makes of h5py, it is a fault of the file
        raise ValueError(f"{name} cannot be read: {str(error).rstrip('.')}.") from error


def _dataset(content: Any, name: str) -> Any:
    """A dataset whose voxels are all in this file."""
    wanted = _NAME.sub(r"\g<dataset>", name)
    if not wanted or wanted not in content:
        raise ValueError(f"the name of one of its datasets ({', '.join(content)}) must follow ::, got {wanted!r}")
    dataset = content[wanted]
    shape, dtype = getattr(dataset, "shape", None), getattr(dataset, "dtype", None)
    if shape is None or dtype is None or len(shape) != 3 or min(shape) < 1 or dtype.kind not in "iufb":
        raise ValueError(f"it must hold numbers along three axes, got {dataset!r}")
    if dataset.file.filename != content.filename or dataset.external or dataset.is_virtual:
        raise ValueError("its voxels are in another file; name that one")
    size = prod(shape) * dtype.itemsize
    stored = min(dataset.id.get_storage_size(), Path(content.filename).stat().st_size)
    whole = stored >= size  # HDF5 makes up what is not there
    if dataset.chunks is not None:
        chunks = prod(-(-length // step) for length, step in zip(shape, dataset.chunks, strict=True))
        whole = stored * _DEFLATE >= size and dataset.id.get_num_chunks() == chunks
    if not whole:
        raise ValueError(f"not all of its voxels are there: {size} bytes are told of, and {stored} stored")
    return dataset
