"""The last checkpoints of a run on disk: whole, the newest first."""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from pathlib import Path
from typing import Any

import torch

from monai_spct.files.atomic import read_checkpoint, replacing

__all__ = ["checkpoint_paths", "newest_checkpoint", "save_checkpoint"]

logger = logging.getLogger(__name__)

LAST = "last.pt"


def save_checkpoint(state: dict[str, Any], folder: Path, *, keep: int, anew: bool = False) -> None:
    """Write ``last.pt``; the ones before it stay as ``last_1.pt``, ``last_2.pt``, ...

    A kill at any moment leaves at least one whole file, the newest or the one before.

    Args:
        state: that ``weights_only=True`` can load.
        folder: where the files are.
        keep: how many files there are to be.
        anew: whether the files that are there are of another run, so that none of them stays.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.files.checkpoints import newest_checkpoint, save_checkpoint
        >>> folder = Path(tempfile.mkdtemp())
        >>> for epoch in (1, 2, 3):
        ...     save_checkpoint({"epoch": epoch}, folder, keep=2)
        >>> sorted(path.name for path in folder.iterdir())
        ['last.pt', 'last_1.pt']
        >>> newest_checkpoint(folder)[1]
        {'epoch': 3}
    """
    with replacing(folder / LAST) as file:
        torch.save(state, file)
        file.flush()  # a full disk is found before anything is moved
        _make_room(folder, keep=1 if anew else keep)


def newest_checkpoint(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint that is whole, and what it holds; nothing where there is none at all.

    Those that are damaged are logged as warnings.

    Args:
        folder: with ``last.pt``, ``last_1.pt``, ...

    Raises:
        ValueError: if there are files and none of them is whole, with the reason for each.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.files.checkpoints import newest_checkpoint
        >>> folder = Path(tempfile.mkdtemp())
        >>> newest_checkpoint(folder) is None
        True
        >>> (folder / "last.pt").write_bytes(b"half of it")
        10
        >>> newest_checkpoint(folder)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: no checkpoint is whole: .../last.pt is not a checkpoint, or is damaged: File is not a zip file. ...
    """
    damaged = []
    for path in checkpoint_paths(folder):
        try:
            state = read_checkpoint(path)
        except ValueError as error:
            damaged.append((str(error).splitlines() or [""])[0])
        else:
            for reason in damaged:
                logger.warning("%s: going back to the checkpoint before it, %s.", reason, path.name)
            return path, state
    if damaged:
        raise ValueError(f"no checkpoint is whole: {'; '.join(damaged)}. Bring one back, or remove them to start anew.")
    return None


def checkpoint_paths(folder: Path) -> list[Path]:
    """The checkpoints that are there, whole or not, from the newest to the oldest.

    Args:
        folder: with ``last.pt``, ``last_1.pt``, ...

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.files.checkpoints import checkpoint_paths
        >>> checkpoint_paths(Path(tempfile.mkdtemp()))
        []
    """
    return [path for path in (folder / LAST, *_older(folder)) if path.exists()]


def _older(folder: Path) -> list[Path]:
    """The checkpoints before the last one, from the newest to the oldest."""
    numbered = {path: path.stem.removeprefix("last_") for path in folder.glob("last_*.pt")}
    return sorted((path for path, number in numbered.items() if number.isdecimal()), key=lambda p: int(numbered[p]))


def _make_room(folder: Path, *, keep: int) -> None:
    """Move each checkpoint one further, where ``last.pt`` stays until it is written over."""
    for path in _older(folder)[max(keep - 1, 0) :]:
        path.unlink(missing_ok=True)
    if keep == 1:
        return
    for number in range(keep - 2, 0, -1):
        with contextlib.suppress(FileNotFoundError):
            (folder / f"last_{number}.pt").replace(folder / f"last_{number + 1}.pt")
    last, link = folder / LAST, folder / f".{uuid.uuid4().hex}.part"
    if not last.exists():
        return
    try:
        os.link(last, link)
    except OSError:  # a file system without links, as on many memory sticks
        last.replace(folder / "last_1.pt")
    else:
        link.replace(folder / "last_1.pt")
        link.unlink(missing_ok=True)  # it stays if both are one file, after a kill between this and the new last one
