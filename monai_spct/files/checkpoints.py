"""The last checkpoints of a run on disk, the newest first."""

from __future__ import annotations

import itertools
import logging
import os
from pathlib import Path
from typing import Any

import torch

from monai_spct.files.atomic import read_checkpoint, replacing

__all__ = ["checkpoint_paths", "newest_checkpoint", "save_checkpoint"]

logger = logging.getLogger(__name__)


def save_checkpoint(state: dict[str, Any], folder: Path, *, keep: int) -> None:
    """Write ``last.pt``; the ones before it stay as ``last_1.pt``, ``last_2.pt``, ...

    A kill at any moment leaves at least one whole file, the newest or the one before.

    Args:
        state: that ``weights_only=True`` can load.
        folder: where the files are.
        keep: how many files there are to be.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.files import newest_checkpoint, save_checkpoint
        >>> folder = Path(tempfile.mkdtemp())
        >>> for epoch in (1, 2, 3):
        ...     save_checkpoint({"epoch": epoch}, folder, keep=2)
        >>> sorted(path.name for path in folder.iterdir())
        ['last.pt', 'last_1.pt']
        >>> newest_checkpoint(folder)[1]
        {'epoch': 3}
    """
    names = ["last.pt", *(f"last_{number}.pt" for number in range(1, keep))]
    with replacing(folder / "last.pt") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())  # a full disk is found before anything is moved
        for path in checkpoint_paths(folder):
            if path.name not in names:
                path.unlink()
        for newer, older in reversed(list(itertools.pairwise(names))):
            if (folder / newer).exists():
                (folder / newer).replace(folder / older)


def newest_checkpoint(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint that is whole, and what it holds; None where there is none at all.

    Args:
        folder: with ``last.pt``, ``last_1.pt``, ...

    Raises:
        ValueError: if there are files and none of them is whole, with the reason for each.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.files import newest_checkpoint
        >>> newest_checkpoint(Path(tempfile.mkdtemp())) is None
        True
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
        >>> from monai_spct.files import checkpoint_paths
        >>> checkpoint_paths(Path(tempfile.mkdtemp()))
        []
    """
    numbers = {path: path.stem.removeprefix("last_") for path in folder.glob("last_*.pt")}
    older = sorted((path for path, number in numbers.items() if number.isdecimal()), key=lambda p: int(numbers[p]))
    return [path for path in (folder / "last.pt", *older) if path.exists()]
