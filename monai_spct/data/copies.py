"""Copies of images under other names."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from monai_spct.data.hdf5 import is_hdf5, open_hdf5
from monai_spct.data.metaimage import is_metaimage, open_metaimage

__all__ = ["copies"]

_GZIP = b"\x1f\x8b"


def copies(files: Iterable[str]) -> list[list[str]]:
    """Group files with the same content, whatever their names and their compression.

    Of a MetaImage, the voxels' file counts, of a dataset in HDF5 its voxels. Files that are missing, empty or
    unreadable are ignored: whoever loads them reports that.

    Args:
        files: paths, in any order.

    Returns:
        Each group of at least two, in the order of ``files``.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name, content in (("a.nii", "1"), ("b.nii", "2"), ("c.nii", "1")):
        ...     _ = (folder / name).write_text(content)
        >>> [[Path(file).name for file in group] for group in copies(map(str, sorted(folder.iterdir())))]
        [['a.nii', 'c.nii']]
    """
    groups = [list(files)]
    for looked_at in (_size, _checksum, _digest):  # each takes longer, and is asked of fewer files
        groups = [group for alike in groups for group in _grouped(alike, looked_at)]
    return groups


def _grouped(files: Iterable[str], looked_at: Callable[[Path], object]) -> list[list[str]]:
    groups = defaultdict(list)
    for file in dict.fromkeys(files):
        with contextlib.suppress(OSError, ValueError, EOFError, zlib.error):  # whoever loads it says what is wrong
            if value := _dataset(file, looked_at) if is_hdf5(file) else looked_at(_voxels(file)):
                groups[value].append(file)
    return [group for group in groups.values() if len(group) > 1]


def _dataset(name: str, looked_at: Callable[[Path], object]) -> object:
    """The shape, and the digest of the voxels where the shape does not tell."""
    volume = open_hdf5(name)
    return hashlib.sha256(volume.load().tobytes()).hexdigest() if looked_at is _digest else volume.shape


def _voxels(file: str) -> Path:
    """The file that holds the voxels of an image."""
    try:
        return open_metaimage(file).data_file if is_metaimage(file) else Path(file)
    except (OSError, ValueError):
        return Path(file)


def _ending(file: Path) -> bytes | None:
    """The checksum and the size of what was packed, with which a gzip file ends; nothing of another file."""
    with file.open("rb") as stream:
        if stream.read(2) != _GZIP:
            return None
        stream.seek(-8, os.SEEK_END)
        return stream.read()


def _size(file: Path) -> int:
    ending = _ending(file)
    return file.stat().st_size % 2**32 if ending is None else int.from_bytes(ending[4:], "little")


def _checksum(file: Path) -> bytes:
    if (ending := _ending(file)) is not None:
        return ending[:4]
    checksum = 0
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            checksum = zlib.crc32(chunk, checksum)
    return checksum.to_bytes(4, "little")


def _digest(file: Path) -> str:
    with file.open("rb") if _ending(file) is None else gzip.open(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
