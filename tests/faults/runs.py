"""Little runs of the bundle for ACDC, in this process and in processes of their own, and what must be left of them.

``python -m tests.faults.runs SETTINGS FAULT`` trains with a fault in its second epoch.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Events
from monai.bundle import ConfigWorkflow

from monai_spct.handlers import read_history
from tests.bundles import little
from tests.bundles.little import ROOT, failure, part, predicting
from tests.forks import forked

__all__ = ["failure", "part", "predicting", "training"]


def training(data: Path, output: Path, **settings: Any) -> ConfigWorkflow:
    """Three epochs of two iterations, initialized."""
    return little.training(data, output, **{"max_epochs": 3, "device": "cpu", **settings})


@contextlib.contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file grows beyond some bytes: the system then refuses a write as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # where pytest captures words, it does so in a file
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            fill_disk(size)
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def fill_disk(size: int) -> None:
    """The same, from now on."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


# What is left


def parts_of_files(folder: Path) -> list[Path]:
    """Files that were not written to their end."""
    return [path for path in folder.rglob("*") if path.name.endswith(".part")]


def last_epoch(output: Path) -> int:
    """The epoch of the last state, which together with the weights must be whole and finite."""
    last = torch.load(output / "models" / "last.pt", weights_only=True)
    model = torch.load(output / "models" / "model.pt", weights_only=True)
    for weights in (last["network"], last["teachers"], model):
        assert all(value.isfinite().all() for value in weights.values())
    assert all(row["epoch"] >= 1 for row in read_history(output / "eval" / "history.csv"))
    return int(last["run"]["epoch"])


# In a process of its own


def in_a_process(fault: str, data: Path, output: Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    """A training with a fault in its second epoch; it must end within the time."""
    settings = {**settings, "data": str(data), "output": str(output)}
    return forked(["-W", "ignore", "-m", "tests.faults.runs", json.dumps(settings), fault], ROOT)


def kill_a_worker(run: ConfigWorkflow, number: int) -> None:
    """One that makes labeled images, or one that makes unlabeled ones."""
    loader = part(run, "train#dataloader").loaders[number]
    [worker, _] = loader._iterator._workers
    os.kill(worker.pid, signal.SIGKILL)


def interrupt_twice() -> None:
    """As somebody does who presses Ctrl-C and does not wait."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which commands in the background ignore

    def press() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    threading.Thread(target=press, daemon=True).start()
    time.sleep(1)


def interrupted_save(state: object, file: Any, *, save: Callable[..., None] = torch.save) -> None:
    """All is written but not yet in its place."""
    save(state, file)
    interrupt_twice()


def spoil_cache(folder: Path) -> None:
    for path in folder.glob("*.npy"):
        path.write_bytes(path.read_bytes()[:200])


def main(settings: dict[str, Any], fault: str) -> None:
    run = training(Path(settings.pop("data")), Path(settings.pop("output")), **settings)
    trainer = part(run, "train#trainer")
    faults: dict[str, tuple[Any, Callable[[], object]]] = {
        "labeled worker": (Events.ITERATION_STARTED(once=4), partial(kill_a_worker, run, 0)),
        "unlabeled worker": (Events.ITERATION_STARTED(once=4), partial(kill_a_worker, run, 1)),
        "worker between epochs": (Events.EPOCH_STARTED(once=2), partial(kill_a_worker, run, 0)),
        "interrupted": (Events.ITERATION_STARTED(once=4), interrupt_twice),
        "interrupted while saving": (
            Events.EPOCH_STARTED(once=2),
            lambda: setattr(torch, "save", interrupted_save),
        ),
        "cache": (Events.EPOCH_COMPLETED(once=1), lambda: spoil_cache(Path(settings["cache_dir"]))),
    }
    trainer.add_event_handler(*faults[fault])
    run.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
