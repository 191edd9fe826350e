"""Lock and final record of a training's folder."""

from __future__ import annotations

import csv
import hashlib
import json
import logging
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

import monai_spct
from monai_spct.files.atomic import replacing

__all__ = ["digest", "lock_output_dir", "record_training"]

logger = logging.getLogger(__name__)

_PATIENCE = 10  # seconds; the worker processes of a training that was killed need up to 5 to notice
_locks: dict[Path, FileLock] = {}


def lock_output_dir(output_dir: str | os.PathLike[str]) -> None:
    """Keep other trainings out of ``output_dir`` until this one has ended.

    The operating system releases the lock when the process ends; the file ``.lock`` may stay.

    Args:
        output_dir: of the training. Only rank 0 locks it.

    Raises:
        ValueError: if another process trains there.

    Example:
        >>> import tempfile
        >>> from monai_spct.workflow import lock_output_dir
        >>> lock_output_dir(tempfile.mkdtemp())
    """
    folder = Path(str(output_dir)).absolute()
    if folder in _locks or os.environ.get("RANK", "0") != "0":
        return
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock", thread_local=False)
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout:
        raise ValueError(f"another process trains in {folder}: wait for it, or choose another `output_dir`.") from None
    except NotImplementedError:
        logger.warning("the file system of %s has no locks: train there once at a time.", folder)
    _locks[folder] = lock


def record_training(output_dir: str | os.PathLike[str], trainer: Any, settings: Mapping[str, Any]) -> None:
    """Write ``trained.json``, the record of a complete training, and unlock its folder.

    Args:
        output_dir: of the training, where ``eval/history.csv`` is.
        trainer: that has run.
        settings: what the run is made of, for its digest.

    Example:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> from ignite.engine import Engine
        >>> from monai_spct.workflow import record_training
        >>> trainer = Engine(lambda engine, batch: None)
        >>> _ = trainer.run([0, 1], max_epochs=3)
        >>> folder = Path(tempfile.mkdtemp())
        >>> record_training(folder, trainer, {"seed": 0})
        >>> json.loads((folder / "trained.json").read_text())["epochs"]
        3
    """
    if os.environ.get("RANK", "0") != "0":
        return
    folder = Path(str(output_dir)).absolute()
    record = {
        "epochs": trainer.state.epoch,
        "seconds": _seconds(folder / "eval" / "history.csv", trainer.state.epoch_length),
        "versions": {"python": platform.python_version(), "monai_spct": monai_spct.__version__}
        | {name: version(name) for name in ("monai", "torch", "pytorch-ignite", "numpy")},
        "commit": _commit(),
        "digest": digest(settings),
    }
    with replacing(folder / "trained.json", "w") as file:
        json.dump(record, file, indent=2)
    if folder in _locks:
        _locks.pop(folder).release()


def digest(settings: Mapping[str, Any]) -> str:
    """A hash of settings, ten hexadecimal digits.

    Example:
        >>> from monai_spct.workflow.output_dir import digest
        >>> digest({"seed": 0, "alpha": 0.1}) == digest({"alpha": 0.1, "seed": 0})
        True
    """
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:10]


def _seconds(history: Path, epoch_length: int) -> float | None:
    """Time of all iterations, also before an interruption."""
    if not history.is_file():
        return None
    with history.open(encoding="utf-8", newline="") as file:
        return round(sum(float(row["seconds"]) for row in csv.DictReader(file)) * epoch_length, 3)


def _commit() -> str | None:
    """The commit of a checkout, with ``-dirty`` if files were changed; nothing for an installed package."""
    root = Path(monai_spct.__file__).parents[1]
    if not (root / ".git").exists():
        return None
    words = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
