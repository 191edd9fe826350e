"""Atomic writes, and checkpoints that are read whole or not at all."""

from __future__ import annotations

import contextlib
import os
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal

import torch

__all__ = ["read_checkpoint", "replacing", "save_atomically"]


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], mode: Literal["wb", "w"] = "wb") -> Iterator[IO[Any]]:
    """A file to write, which takes the place of ``path`` when it is complete; folders are made if need be.

    After an error, a signal, a full disk or a power cut, ``path`` is either the old file or the whole new one.

    Args:
        path: the file.
        mode: ``wb`` for bytes or ``w`` for text in UTF-8, without translation of line ends.

    Raises:
        OSError: if it cannot be written; it names ``path``, which is then what it was.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.files import replacing
        >>> path = Path(tempfile.mkdtemp()) / "new" / "note.txt"
        >>> with replacing(path, "w") as file:
        ...     _ = file.write("all of it")
        >>> path.read_text()
        'all of it'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{uuid.uuid4().hex}.part")
    text: dict[str, Any] = {} if mode == "wb" else {"encoding": "utf-8", "newline": ""}
    try:
        with part.open(mode.replace("w", "x"), **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # a new name must not reach the disk before what it names
        part.replace(path)
    except Exception as error:
        # torch closes its archive after an error, and says that this fails, too
        cause = error if isinstance(error, OSError) or error.__suppress_context__ else error.__context__
        if isinstance(cause, OSError) and cause.errno is not None and cause.filename in (None, str(part)):
            raise OSError(cause.errno, cause.strerror, str(path)) from None  # a name that somebody knows
        raise
    finally:
        part.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # Windows opens no folders, and some network drives do not sync them
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def save_atomically(state: Any, path: str | os.PathLike[str]) -> None:
    """``torch.save`` by :func:`replacing`.

    Args:
        state: tensors, numbers, strings, and lists and dictionaries of them, so that ``weights_only=True`` can load it.
        path: the file.

    Example:
        >>> import tempfile, torch
        >>> from monai_spct.files import save_atomically
        >>> path = tempfile.mkdtemp() + "/model.pt"
        >>> save_atomically({"weight": torch.ones(2)}, path)
        >>> torch.load(path, weights_only=True)
        {'weight': tensor([1., 1.])}
    """
    with replacing(path) as file:
        torch.save(state, file)


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A checkpoint, on the CPU, whose checksums are right; no code in it is run.

    ``torch.load`` does not look at checksums: a bit that a disk turned would be a weight like any other.

    Args:
        path: of a dictionary by name, such as a ``state_dict``.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if it is damaged, or holds something else; names the file.

    Example:
        >>> import tempfile, torch
        >>> from monai_spct.files import read_checkpoint
        >>> path = tempfile.mkdtemp() + "/model.pt"
        >>> torch.save({"weight": torch.ones(2)}, path)
        >>> read_checkpoint(path)
        {'weight': tensor([1., 1.])}
    """
    # opened once: a file that is replaced meanwhile is read as it was
    with Path(path).open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                # which `torch.save` never writes, and which could unpack to any size
                if packed := [part.filename for part in archive.infolist() if part.compress_type]:
                    raise ValueError(f"{packed[0]} is compressed")
                if broken := archive.testzip():
                    raise ValueError(f"the checksum of {broken} is wrong")
            file.seek(0)
            state = torch.load(file, map_location="cpu", weights_only=True)
        except MemoryError:
            raise
        except Exception as error:  # zip, pickle and tensor errors of many types, none of which says what the file is
            raise ValueError(f"{path} is not a checkpoint, or is damaged: {error}") from error
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise ValueError(f"{path} must hold a dictionary by name, got a {type(state).__name__}.")
    return state
