"""One cell on disk: its commands, what is recorded in its folder, and the state that follows from that."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from monai.bundle import ConfigParser

from monai_spct.experiments.planning import Job, Phase, changes
from monai_spct.experiments.refusals import GridError
from monai_spct.experiments.values import word_of
from monai_spct.files.atomic import replacing
from monai_spct.files.checkpoints import checkpoint_paths

__all__ = [
    "State",
    "begin",
    "can_resume",
    "command",
    "describe",
    "epochs_done",
    "epochs_planned",
    "failed",
    "is_done",
    "is_trained",
    "last_error",
    "lock_of",
    "other_configuration",
    "read_json",
    "state_of",
    "trained",
    "write_json",
]

# files in a cell's folder
CELL, PROGRESS, DONE, LOCK = "cell.json", "progress.json", "done.json", ".lock"
SUMMARY, LAST, MODEL = Path("eval/summary.json"), Path("models/last.pt"), Path("models/model.pt")


@dataclass(frozen=True)
class State:
    """How far a cell is.

    Args:
        name: ``waiting``, ``running``, ``interrupted``, ``failed``, ``done``, or ``refused``: the folder was made from
            another configuration.
        detail: the epoch, the error, the difference.
        seconds: of training and evaluating so far, where that is known.
        mean_dsc: the result.

    Example:
        >>> from monai_spct.experiments import State
        >>> print(State("interrupted", "training, after epoch 3 of 100"))
        interrupted: training, after epoch 3 of 100
    """

    name: str
    detail: str = ""
    seconds: float | None = None
    mean_dsc: float | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}" if self.detail else self.name


def command(job: Job, phase: Phase, folder: Path, *, resume: bool = False) -> list[str]:
    """The command of one phase, as one would type it.

    Example:
        >>> from pathlib import Path
        >>> from monai_spct.experiments import Grid, plan
        >>> from monai_spct.experiments.cell import command
        >>> job = plan(Grid(("acdc",), axes={"seed": (3,)})).jobs[0]
        >>> command(job, job.training, Path("/runs/a"))[1:5]
        ['-m', 'monai.bundle', 'run', 'training']
        >>> command(job, job.training, Path("/runs/a"))[-4:]
        ['--output_dir', '/runs/a', '--seed', '3']
    """
    files = json.dumps([str(path) for path in phase.files], ensure_ascii=False)  # a list in Python's notation too
    options: dict[str, Any] = {"output_dir": str(folder)}
    if job.data is not None:
        options["dataset_dir"] = job.data
    options.update(phase.options)
    words = [word for key, value in options.items() for word in (f"--{key}", word_of(value))]
    last = ["--resume", "true"] if resume else []
    return [sys.executable, "-m", "monai.bundle", "run", phase.verb, "--config_file", files, *words, *last]


# What a folder says


def is_done(folder: Path) -> bool:
    """Whether a cell has its result."""
    return (folder / DONE).is_file() and (folder / SUMMARY).is_file()


def lock_of(folder: Path) -> FileLock:
    """The lock of a cell; the kernel releases it when its holder dies, however that happens.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.experiments.cell import lock_of
        >>> folder = Path(tempfile.mkdtemp())
        >>> with lock_of(folder).acquire(timeout=0):
        ...     (folder / ".lock").exists()
        True
    """
    return FileLock(folder / LOCK)


def other_configuration(job: Job, folder: Path) -> list[str]:
    """In words, where the configuration that a folder was made from differs from a job's; nothing if it is the same.

    Raises:
        GridError: when the folder has results of which there is no record.
    """
    if not (folder / CELL).is_file():
        if (folder / "models").exists() or (folder / "eval").exists():
            raise GridError(f"{folder} has results but no {CELL}: no grid made it. Choose another `--folder`.")
        return []
    return changes(read_json(folder / CELL).get("configuration", {}), job.configuration)


def epochs_done(folder: Path) -> int:
    """How many whole epochs of a training are saved."""
    return int(_saved(folder).get("epoch", 0))


def epochs_planned(job: Job) -> int:
    """How many epochs a training has, by its configuration.

    Example:
        >>> from monai_spct.experiments import Grid, plan
        >>> from monai_spct.experiments.cell import epochs_planned
        >>> epochs_planned(plan(Grid(("acdc",), settings={"max_epochs": 7})).jobs[0])
        7
    """
    parser = ConfigParser(json.loads(json.dumps(job.training.content)))
    return int(parser.get_parsed_content("train#trainer#max_epochs"))


def is_trained(job: Job, folder: Path) -> bool:
    """Whether the training is complete, also if it was killed between its last epoch and the record of its end."""
    if _progress(folder).get("trained"):
        return True
    # of an epoch, the weights that predict are written before the state
    return (folder / MODEL).is_file() and epochs_done(folder) >= epochs_planned(job)


def can_resume(job: Job, folder: Path) -> bool:
    """Whether a training has something to go on from, and somewhere to go."""
    # a complete one whose weights are gone is run anew
    return bool(_saved(folder)) and epochs_done(folder) < epochs_planned(job)


def state_of(job: Job, folder: Path) -> State:
    """How far a cell is, from what lies in its folder.

    Example:
        >>> from pathlib import Path
        >>> from monai_spct.experiments import Grid, plan, state_of
        >>> state_of(plan(Grid(("acdc",))).jobs[0], Path("nowhere")).name
        'waiting'
    """
    if not folder.is_dir():
        return State("waiting")
    if changed := other_configuration(job, folder):
        return State("refused", f"made from another configuration: {'; '.join(changed[:3])}")
    if is_done(folder):
        record = read_json(folder / DONE)
        seconds = float(record["training_seconds"]) + float(record["evaluating_seconds"])
        return State("done", seconds=seconds, mean_dsc=_mean_dsc(folder))
    progress = _progress(folder)
    phase = progress.get("phase", "training")
    epoch = f"{phase}, after epoch {epochs_done(folder)} of {epochs_planned(job)}" if phase == "training" else phase
    seconds = float(progress.get("training_seconds", 0))
    if _is_locked(folder):
        return State("running", epoch, seconds + time.time() - progress.get("started", time.time()))
    if progress.get("error"):
        return State("failed", progress["error"], seconds + progress.get("failed_seconds", 0))
    if progress:
        return State("interrupted", epoch, seconds + _lasted(folder, progress))
    return State("waiting")


# What is written into it


def describe(job: Job, folder: Path) -> None:
    """Write ``cell.json``: what the folder is made from."""
    cell = job.cell
    names = {
        phase.verb: ["/".join(path.parts[-3:]) for path in phase.files] for phase in (job.training, job.evaluating)
    }
    write_json(
        folder / CELL,
        {
            "dataset": cell.dataset,
            "method": cell.method,
            "network": cell.network,
            "overlays": list(cell.overlays),
            "axes": dict(cell.axes),
            "settings": dict(cell.settings),
            "files": names,
            "hash": job.digest,
            "configuration": job.configuration,
        },
    )


def begin(folder: Path, phase: str) -> None:
    """Record that a phase starts, and how long an earlier start of the training had lasted."""
    before = _progress(folder)
    seconds = float(before.get("training_seconds", 0)) + _lasted(folder, before)
    record = {"phase": phase, "started": time.time(), "training_seconds": seconds}
    write_json(folder / PROGRESS, {**record, "trained": bool(before.get("trained"))})


def trained(folder: Path, seconds: float) -> None:
    """Record that the training is complete, ``seconds`` after it was started the last time."""
    before = _progress(folder)
    total = float(before.get("training_seconds", 0)) + seconds
    write_json(folder / PROGRESS, {"phase": "evaluating", "training_seconds": total, "trained": True})


def failed(folder: Path, error: str, seconds: float) -> None:
    """Record an error. The next run tries again."""
    write_json(folder / PROGRESS, {**_progress(folder), "error": error, "failed_seconds": seconds})


def last_error(text: str, status: int) -> str:
    r"""What went wrong, in one line, by the end of a log.

    Example:
        >>> from monai_spct.experiments.cell import last_error
        >>> last_error("Traceback ...\nRuntimeError: wrapped\n\nWhat went wrong: `eps` must be positive.\n", 1)
        '`eps` must be positive.'
        >>> last_error("", -9)
        'ended by signal 9, with nothing in its log'
    """
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    if status < 0:  # a traceback, if there is one, is of something else
        return f"ended by signal {-status}, {'after: ' + lines[-1] if lines else 'with nothing in its log'}"
    # the package's own errors may go on for some lines
    causes = [line for line in lines if line.startswith("What went wrong: ")]
    if causes:
        return causes[-1].removeprefix("What went wrong: ")
    return lines[-1] if lines else f"exit status {status}, with nothing in its log"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file that is whole or not there, whenever this process is killed.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.experiments.cell import read_json, write_json
        >>> path = Path(tempfile.mkdtemp()) / "done.json"
        >>> write_json(path, {"seconds": 1.5})
        >>> read_json(path)
        {'seconds': 1.5}
    """
    with replacing(path, "w") as file:
        json.dump(content, file, indent=4)


def read_json(path: Path) -> dict[str, Any]:
    """What :func:`write_json` wrote.

    Raises:
        GridError: when it is something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise GridError(f"{path} is no JSON ({error}): delete its folder to run this cell anew.") from error
    if not isinstance(content, dict):
        raise GridError(f"{path} is no record of a cell: delete its folder to run this cell anew.")
    return content


def _progress(folder: Path) -> dict[str, Any]:
    return read_json(folder / PROGRESS) if (folder / PROGRESS).is_file() else {}


def _saved(folder: Path) -> dict[str, Any]:
    """How far the training of a cell is, by the newest checkpoint that can be read; nothing without one."""
    checkpoints = checkpoint_paths((folder / LAST).parent)
    for path in checkpoints:
        try:
            # mapped, not read: the optimizer and the networks are most of the file
            state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except Exception:  # whatever torch says of a damaged file
            continue
        return dict(state["run"])
    return {"epoch": 0} if checkpoints else {}  # a training that is to go on says what is wrong with them


def _lasted(folder: Path, progress: Mapping[str, Any]) -> float:
    """Seconds from the last start of a training that broke off to the end of its last epoch."""
    if progress.get("phase") != "training" or not (folder / LAST).is_file():
        return 0.0
    return max(0.0, (folder / LAST).stat().st_mtime - float(progress["started"]))


def _mean_dsc(folder: Path) -> float | None:
    value = read_json(folder / SUMMARY).get("mean", {}).get("dsc_mean")
    return None if value is None else float(value)


def _is_locked(folder: Path) -> bool:
    if not (folder / LOCK).exists():
        return False
    try:
        with lock_of(folder).acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # somebody else's folder
        return False
