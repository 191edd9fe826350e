"""Lock of a training's folder, and records of what was done in it."""

from __future__ import annotations

import csv
import hashlib
import json
import logging
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ignite.distributed as idist
from filelock import FileLock, Timeout

import monai_spct
from monai_spct.data import Split
from monai_spct.files.atomic import replacing

__all__ = ["as_typed", "digest", "lock_output_dir", "record_command", "record_training"]

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


def record_training(
    output_dir: str | os.PathLike[str], trainer: Any, settings: Mapping[str, Any], split: Split | None = None
) -> None:
    """Write ``trained.json``, the record of a complete training, and unlock its folder.

    It has what :func:`record_command` writes, the length of the training, its seed and split, and where there were
    validations, the mean DSC of the last and of the best one, which ``models/model.pt`` and ``models/best.pt`` hold.

    Args:
        output_dir: of the training, where ``eval/history.csv`` is.
        trainer: that has run.
        settings: what the run is made of, for its digest.
        split: who it was trained and validated on.

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
    folder, done = Path(str(output_dir)).absolute(), trainer.state
    history = _history(folder / "eval" / "history.csv")
    record_command(
        folder / "trained.json",
        epochs=done.epoch,
        max_epochs=done.max_epochs,
        stopped_early=done.epoch < done.max_epochs,
        # of all iterations, also before an interruption
        seconds=round(sum(row["seconds"] for row in history) * done.epoch_length, 3) if history else None,
        validation=_validation(history),
        seed=settings.get("seed"),
        split=[] if split is None else split.describe().splitlines(),
        digest=digest(settings),
    )
    if folder in _locks:
        _locks.pop(folder).release()


def record_command(path: str | os.PathLike[str], **facts: Any) -> None:
    """Write how the files beside ``path`` were made: command, folder, time, versions and commit. Only rank 0 writes.

    Args:
        path: of the JSON file.
        facts: what else is known of it.

    Example:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> from monai_spct.workflow import record_command
        >>> path = Path(tempfile.mkdtemp()) / "evaluated.json"
        >>> record_command(path, scored="test")
        >>> list(json.loads(path.read_text()))
        ['scored', 'command', 'folder', 'ended', 'versions', 'commit']
    """
    if idist.get_rank() > 0:
        return
    record = {
        **facts,
        "command": as_typed(sys.orig_argv),
        "folder": str(Path.cwd()),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), "monai_spct": monai_spct.__version__}
        | {name: version(name) for name in ("monai", "torch", "pytorch-ignite", "numpy")},
        "commit": _commit(),
    }
    with replacing(path, "w") as file:
        json.dump(record, file, indent=2)


def as_typed(words: Sequence[str], *, between: str = " ") -> str:
    """A command for a shell, as one would type it: double quotes around lists of files, which have single ones within.

    Args:
        words: of the command.
        between: what stands before an option.

    Example:
        >>> from monai_spct.workflow.output_dir import as_typed
        >>> print(as_typed(["python", "--files", "['a','b']"]))
        python --files "['a','b']"
    """
    simple = [f'"{word}"' if "'" in word and not set(word) & set('"$`\\!') else shlex.quote(word) for word in words]
    return "".join(f"{between if word.startswith('--') else ' '}{word}" for word in simple).lstrip()


def digest(settings: Mapping[str, Any]) -> str:
    """A hash of settings, ten hexadecimal digits.

    Example:
        >>> from monai_spct.workflow.output_dir import digest
        >>> digest({"seed": 0, "alpha": 0.1}) == digest({"alpha": 0.1, "seed": 0})
        True
    """
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:10]


def _history(path: Path) -> list[dict[str, float]]:
    """The rows of ``history.csv``, without empty values; handlers, which write it, are above this layer."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def _validation(history: Sequence[Mapping[str, float]]) -> dict[str, Any] | None:
    """The last validation, and the first one that was not surpassed, as ``SaveBest`` has it."""
    scored = [(int(row["epoch"]), row["validation_mean_dsc"]) for row in history if "validation_mean_dsc" in row]
    if not scored:
        return None
    found = {"last": scored[-1], "best": max(scored, key=lambda one: one[1])}
    return {name: {"epoch": epoch, "mean_dsc": dsc} for name, (epoch, dsc) in found.items()}


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
