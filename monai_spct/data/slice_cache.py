"""Prepared slices on the disk."""

from __future__ import annotations

import io
import os
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from monai_spct.data.fingerprint import file_stamps, fingerprint
from monai_spct.files.atomic import replacing

__all__ = ["SliceCache", "StoredSlices"]

_LAYOUT = 1  # to be raised whenever the same volume is to be stored in another way
_CHECKSUM = 4  # bytes


class StoredSlices:
    """The slices of a volume in a ``.npy`` file, read one by one when indexed.

    Nothing stays in memory and no file stays open, so processes may share it and copy it.

    Args:
        path: the file.

    Raises:
        OSError: now or when indexed, if the file cannot be read.
        ValueError: likewise, if it is damaged; names the file.

    Example:
        >>> import tempfile
        >>> from monai_spct.data.slice_cache import StoredSlices
        >>> path = f"{tempfile.mkdtemp()}/a.npy"
        >>> np.save(path, np.zeros((3, 1, 8, 6), np.float32))
        >>> slices = StoredSlices(path)
        >>> len(slices), slices[2].shape
        (3, torch.Size([1, 8, 6]))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self._depth = self._read(None)[0]

    def __len__(self) -> int:
        """The number of slices."""
        return self._depth

    def __getitem__(self, position: int) -> Tensor:
        """A slice ``(C, H, W)``, in memory of its own."""
        return torch.from_numpy(self._read(range(self._depth)[position])[1])

    def _read(self, position: int | None) -> tuple[int, Any]:
        """How many slices there are, and one of them."""
        try:
            with self.path.open("rb") as file:
                if (version := np.lib.format.read_magic(file)) != (1, 0):
                    raise ValueError(f"its version is {version}")
                (depth, *shape), _, dtype = np.lib.format.read_array_header_1_0(file)
                if position is None:
                    return depth, None
                array = np.empty(shape, dtype)
                file.seek(position * array.nbytes, os.SEEK_CUR)
                # not mapped into memory: where a disk fails then, or the file is cut short, the process is killed
                if file.readinto(array) < array.nbytes:  # type: ignore[arg-type]
                    raise ValueError(f"it ends before slice {position + 1} of {depth} does")
                return depth, array
        except ValueError as error:
            raise ValueError(f"{self.path} was damaged after its slices had been prepared: {error}.") from error


class SliceCache:
    """A folder of prepared volumes, one ``.npy`` file for each volume and key.

    A volume is prepared again when its files change (path, size or time of change), or the transform, by
    :func:`~monai_spct.data.fingerprint.fingerprint`. Files are written whole and end with a checksum, so runs may share
    a folder, and a damaged file is made again. Nothing is ever removed.

    Args:
        folder: made if need be.
        transform: prepares a volume.
        spatial_dims: 2 if what is prepared are slices, 3 if whole volumes.

    Raises:
        OSError: if the folder cannot be made.
        ValueError: if the transform cannot be pickled.

    Attributes:
        asked: number of volumes asked for.
        found: number of those that were there.

    Example:
        >>> import tempfile
        >>> from monai.transforms import ScaleIntensityd
        >>> from monai_spct.data.slice_cache import SliceCache
        >>> cache = SliceCache(tempfile.mkdtemp(), ScaleIntensityd("image"))
        >>> for _ in range(2):
        ...     volume = cache.volume({"case": "a"}, ["image"], lambda: {"image": torch.rand(3, 1, 8, 6)})
        >>> volume["image"][2].shape, cache.asked, cache.found
        (torch.Size([1, 8, 6]), 2, 1)
    """

    def __init__(self, folder: str | os.PathLike[str], transform: Callable[..., Any], *, spatial_dims: int = 2) -> None:
        self.folder = Path(folder).expanduser().absolute()
        self.asked = self.found = 0
        self._made_by = [fingerprint(transform), spatial_dims]
        self.folder.mkdir(parents=True, exist_ok=True)

    def volume(
        self, case: Mapping[str, Any], keys: Sequence[str], prepare: Callable[[], Mapping[str, Tensor]]
    ) -> dict[str, StoredSlices]:
        """The slices of a case for each key.

        Args:
            case: entry of a datalist.
            keys: which entries of the prepared case.
            prepare: makes the slices of these keys, ``(D, C, H, W)``; called unless they are there.

        Raises:
            OSError: if a file cannot be written.

        Warns:
            UserWarning: if a file was damaged, and is made again.
        """
        made_of = [self._made_by, sorted(case.items()), file_stamps(case)]
        paths = {key: self.folder / f"{fingerprint([_LAYOUT, key, made_of])}.npy" for key in keys}
        self.asked += 1
        whole = [_is_whole(path) for path in paths.values()]  # each is looked at, so that all damage is told
        if all(whole):
            self.found += 1
        else:
            for key, slices in prepare().items():
                _write(paths[key], slices)
        return {key: StoredSlices(path) for key, path in paths.items()}

    def size(self) -> int:
        """Bytes of all files in the folder."""
        return sum(path.stat().st_size for path in self.folder.glob("*.npy"))


def _write(path: Path, slices: Tensor) -> None:
    content = io.BytesIO()
    np.save(content, slices.numpy(), allow_pickle=False)
    with replacing(path) as file:
        file.write(content.getbuffer())
        # numpy passes over what follows an array
        file.write(zlib.crc32(content.getbuffer()).to_bytes(_CHECKSUM, "big"))


def _is_whole(path: Path) -> bool:
    """Whether the file is there and is what was once written; warns of one that is damaged."""
    try:
        content = path.read_bytes()
        if zlib.crc32(content[:-_CHECKSUM]).to_bytes(_CHECKSUM, "big") == content[-_CHECKSUM:]:
            return True
        problem = "its checksum is wrong"
    except FileNotFoundError:
        return False
    except OSError as error:
        problem = str(error)
    warnings.warn(f"{path} is damaged ({problem}); the volume is prepared again.", stacklevel=2)
    return False
