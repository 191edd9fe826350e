"""Images that lie there twice, under two names."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from monai_spct.data.metaimage import is_metaimage, read_header

__all__ = ["copies"]

_GZIP = b"\x1f\x8b"


def copies(files: Iterable[str]) -> list[list[str]]:
    """Groups of files with the same content, whatever their names and their compression.

    Of gzip files, what was compressed counts, of a MetaImage the file with its voxels. Files that are missing, empty or
    cannot be read are passed over: whoever loads them says what is wrong.

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
    candidates = _grouped({file: _mark(_voxels(file)) for file in files})
    return [group for alike in candidates for group in _grouped({file: _digest(_voxels(file)) for file in alike})]


def _grouped(values: Mapping[str, object]) -> list[list[str]]:
    groups = defaultdict(list)
    for file, value in values.items():
        if value is not None:
            groups[value].append(file)
    return [group for group in groups.values() if len(group) > 1]


def _voxels(file: str) -> Path:
    """The file that holds the voxels of an image."""
    try:
        return read_header(file).data_file if is_metaimage(file) else Path(file)
    except (OSError, ValueError):
        return Path(file)


def _mark(file: Path) -> object:
    """What copies share and is quick to read: the checksum and the size with which a gzip file ends, or a size."""
    try:
        with file.open("rb") as stream:
            if stream.read(2) != _GZIP:
                return stream.seek(0, 2) or None
            stream.seek(-8, 2)
            return stream.read()
    except (OSError, ValueError):
        return None


def _digest(file: Path) -> str | None:
    try:
        with file.open("rb") as stream:
            packed = stream.read(2) == _GZIP
        with gzip.open(file) if packed else file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except (OSError, EOFError, zlib.error):
        return None
