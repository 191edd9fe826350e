"""Fingerprints of transforms and files."""

from __future__ import annotations

import hashlib
import inspect
import io
import pickle
import sys
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from types import FunctionType
from typing import Any

import monai
import numpy as np
import torch
from monai.data.image_reader import ImageReader

import monai_spct
from monai_spct.data.hdf5 import file_of
from monai_spct.data.metaimage import is_metaimage, open_metaimage

__all__ = ["file_stamps", "fingerprint"]

_OF_THE_LAST_FILE = {"filenames", "has_series"}  # what MONAI's readers keep of it
_OTHER_HALF = {".hdr": ".img", ".img": ".hdr"}


def fingerprint(thing: Any) -> str:
    """A digest of the settings and the code of a transform, the same in every process.

    It covers what pickle would store, the source of the modules that its classes and functions are in, and the versions
    of this package, MONAI, torch and numpy. Random states and what a reader has read last are left out, which MONAI's
    ``pickle_hashing`` includes.

    Args:
        thing: a transform, or any object that can be pickled.

    Returns:
        64 hexadecimal digits.

    Raises:
        ValueError: if it cannot be pickled, as a ``lambda``.

    Example:
        >>> from monai.transforms import ScaleIntensityd
        >>> from monai_spct.data.fingerprint import fingerprint
        >>> one, same, other = (fingerprint(ScaleIntensityd("image", maxv=high)) for high in (1.0, 1.0, 2.0))
        >>> one == same, one == other
        (True, False)
    """
    stored = io.BytesIO()
    pickler = _SettingsPickler(stored)
    try:
        pickler.dump(thing)
    except (pickle.PicklingError, AttributeError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            "`cache_dir` needs transforms and cases that can be told apart from others, by pickle, which says: "
            f"{error}. Put a function or class of a module in the place of a lambda, or give no `cache_dir`."
        ) from error
    digest = hashlib.sha256(stored.getvalue())
    for name in sorted(pickler.modules):
        digest.update(_source(name).encode())
    for package in (monai_spct, monai, torch, np):
        digest.update(f"{package.__name__} {package.__version__} ".encode())
    return digest.hexdigest()


def file_stamps(case: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Path, size and time of change in ns of all files that a case names, sorted.

    A MetaImage header brings its voxels' file, a folder the files in it.

    Args:
        case: its values may be paths, or lists of them; anything else is ignored.

    Example:
        >>> import tempfile
        >>> from monai_spct.data.fingerprint import file_stamps
        >>> path = Path(tempfile.mkdtemp()) / "a.nii"
        >>> _ = path.write_bytes(b"12345")
        >>> [(name, size, _)] = file_stamps({"case": "a", "image": str(path)})
        >>> name == str(path), size
        (True, 5)
    """
    paths = {path.absolute() for value in case.values() for path in _files(value)}
    return [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(paths)]


class _SettingsPickler(pickle.Pickler):
    """Pickles settings alone, and notes the modules that they need."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=4)
        self.fast = True  # equal strings give equal bytes, whether they are one object or two
        self.modules: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | FunctionType):
            self.modules.add(obj.__module__)
        elif isinstance(obj, np.random.RandomState | np.random.Generator | torch.Generator):
            return type(obj), ()
        elif isinstance(obj, ImageReader) and type(obj).__reduce__ is object.__reduce__:
            return type(obj), (), {name: value for name, value in vars(obj).items() if name not in _OF_THE_LAST_FILE}
        return NotImplemented


def _source(module: str) -> str:
    try:
        return inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):  # compiled, or typed into a console
        return module


def _files(value: Any) -> Iterator[Path]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _files(item)
    if not isinstance(value, str | PathLike) or not str(value):
        return
    path = file_of(value).expanduser()
    try:
        if path.is_dir():
            yield from (file for file in path.iterdir() if file.is_file())
        elif path.is_file():
            yield path
            yield from _beside(path)
    except (OSError, ValueError):  # a text that no path can be, or a header whose fault the reader will name
        return


def _beside(path: Path) -> Iterator[Path]:
    """Further files that are needed to read this one."""
    if is_metaimage(path):
        others = [open_metaimage(path).data_file]
    else:
        others = [path.with_suffix(_OTHER_HALF.get(path.suffix.lower(), path.suffix))]
    yield from (other for other in others if other.is_file())
