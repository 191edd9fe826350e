"""Checkpoints, and going on from them after a kill, SIGTERM or a crash."""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast

import ignite.distributed as idist
import numpy as np
import torch
from ignite.engine import Engine, Events
from torch import nn

from monai_spct.files import newest_checkpoint, save_atomically, save_checkpoint
from monai_spct.functional.checks import at_least
from monai_spct.workflow.comparison import differences

__all__ = ["SaveBest", "SaveCheckpoints", "Sigterm"]

logger = logging.getLogger(__name__)

_ASK_EVERY = 10  # iterations until processes ask each other for SIGTERM, for which they wait for their GPUs
_FORMAT = 2  # of checkpoints
_STATUS = 128 + signal.SIGTERM  # of a process that the signal ended
_FILES = ("last.pt", "last_*.pt", "model.pt", "model.json", "best.pt", "epoch_*.pt")


class SaveCheckpoints:
    """Ignite handler that saves the state of the run after each epoch, and resumes from it.

    ``last.pt`` holds the states of ``objects``, trainer, gradient scaler and global random generators; older
    checkpoints are ``last_1.pt``, ... A damaged file is recognized, and the one before it is taken. ``model.pt`` is the
    bare ``state_dict`` of ``predictor``, as bundles expect it, and ``epoch_020.pt`` that of a kept epoch.

    A :class:`~monai_spct.engines.SemiSupervisedTrainer` that gets SIGTERM completes its iteration, saves and exits with
    status 143. It resumes at the next iteration if the loader has ``start_at``, as
    :class:`~monai_spct.data.PairedLoader` has, else at the beginning of the epoch. A single process breaks off a
    validation, which is then done anew.

    A run that starts anew moves what another one left into ``previous_1``, ``previous_2``, ... beside ``folder``.

    Args:
        folder: where the files go.
        predictor: the module whose predictions count: the teachers where there are such, else the students.
        objects: by name, whatever has ``state_dict`` and ``load_state_dict``; the first process writes its own.
        resume: whether to go on from the newest checkpoint, if there is one.
        kept_epochs: the epochs, counted from 1, whose weights stay.
        num_checkpoints: how many checkpoints stay, the newest one included.
        settings: what the run is made of, as JSON has it, such as :func:`~monai_spct.workflow.settings_of_run`. A run
            that goes on must have those that it began with; empty ones are not compared.
        accept_changes: whether to go on with other settings all the same.
        run_files: other files and folders of a run, which are moved with its checkpoints.

    Raises:
        ValueError: if ``kept_epochs`` or ``num_checkpoints`` cannot be, or, when the run starts, if no checkpoint is
            whole or the newest one is of another kind of run.

    Example:
        >>> import tempfile, torch
        >>> from ignite.engine import Engine
        >>> from monai_spct.handlers import SaveCheckpoints
        >>> folder, model = tempfile.mkdtemp(), torch.nn.Linear(1, 1)
        >>> trainer = Engine(lambda engine, batch: None)
        >>> SaveCheckpoints(folder, model, {"model": model}).attach(trainer)
        >>> _ = trainer.run([0, 1], max_epochs=2)
        >>> trainer = Engine(lambda engine, batch: None)
        >>> SaveCheckpoints(folder, model, {"model": model}, resume=True).attach(trainer)
        >>> trainer.run([0, 1], max_epochs=3).iteration
        6
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        predictor: nn.Module,
        objects: Mapping[str, Any],
        *,
        resume: bool = False,
        kept_epochs: Collection[int] = (),
        num_checkpoints: int = 2,
        settings: Mapping[str, Any] | None = None,
        accept_changes: bool = False,
        run_files: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        self.folder = Path(folder)
        self.predictor = predictor
        self.objects = {name: item for name, item in objects.items() if item is not None}
        self.resume = resume
        if not isinstance(kept_epochs, Collection) or not all(type(n) is int and n >= 1 for n in kept_epochs):
            raise ValueError(f"`kept_epochs` must be a list of whole numbers of at least 1, got {kept_epochs!r}.")
        self.kept_epochs = kept_epochs
        self.num_checkpoints = at_least("num_checkpoints", num_checkpoints, 1)
        self.settings = settings or {}
        self.accept_changes = accept_changes
        self.run_files = [Path(path) for path in run_files]
        self._sigterm: Sigterm | None = None
        self._asked = False  # to end, by SIGTERM
        self._closing: dict[str, Any] | None = None  # the state after an epoch's iterations, until the epoch is saved

    def attach(self, engine: Engine) -> None:
        """Save after each epoch of ``engine``. Attach it last, so that what other handlers do is saved, too."""
        engine.add_event_handler(Events.STARTED, self._start)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._look_for_sigterm)
        engine.add_event_handler(Events.INTERRUPT, self._end)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        """Save now, after a whole epoch."""
        if self._sigterm is not None:
            self._sigterm.at_once = None
        now: Any = engine.state
        state = self._state(engine, epochs=now.epoch)
        if idist.get_rank() == 0:
            weights = self.predictor.state_dict()
            # first: a run that is killed after the checkpoint does not come back to this epoch
            if now.epoch in self.kept_epochs:
                save_atomically(weights, self.folder / f"epoch_{now.epoch:03d}.pt")
            save_atomically(weights, self.folder / "model.pt")
        self._save(state)
        self._closing = None
        if self._is_asked(engine) and now.epoch < now.max_epochs:
            self._leave(state)

    def load(self, engine: Engine) -> None:
        """Take all states from the newest checkpoint that is whole, if there is one."""
        found = newest_checkpoint(self.folder)
        names: Any = idist.all_gather(found[0].name if found else "none")
        if len(set(names)) > 1:
            raise ValueError(f"processes find {names} in {self.folder}: give all of them one shared folder.")
        if found is None:
            logger.info("nothing to resume at %s: starting anew.", self.folder / "last.pt")
            return
        path, state = found
        run, trainer, now = state.pop("run", None), cast("Any", engine), cast("Any", engine.state)
        if not isinstance(run, dict) or run.get("format") != _FORMAT:
            raise ValueError(f"{path} was written by another version of monai_spct: finish the run with that one.")
        if state.keys() != self.objects.keys():
            raise ValueError(f"{path} is of another kind of run: it holds {sorted(state)}, not {sorted(self.objects)}.")
        self._check_settings(json.loads(run["settings"]), path)
        if run["epoch"] > now.max_epochs:
            raise ValueError(f"{path} has {run['epoch']} epochs, and `max_epochs` is {now.max_epochs}.")
        if run["epoch_length"] != now.epoch_length:
            raise ValueError(f"{path} has {run['epoch_length']} iterations in an epoch, not {now.epoch_length}.")
        in_epoch = run["iteration"] - run["epoch"] * run["epoch_length"]
        if 0 < in_epoch < run["epoch_length"]:
            now.dataloader.start_at(in_epoch)  # that it can is why there is such a checkpoint
        for name, item in self.objects.items():
            try:
                item.load_state_dict(state[name])
            except (KeyError, RuntimeError, ValueError) as error:  # torch lists every key that differs
                raise ValueError(f"{path} is of a run with another `{name}`: resume with the same settings.") from error
        if run["scaler"] and getattr(trainer, "scaler", None) is not None:
            trainer.scaler.load_state_dict(run["scaler"])
        _set_random_state(run["random"])
        now.epoch, now.iteration = run["epoch"], run["iteration"]
        if now.epoch == now.max_epochs or trainer.should_terminate:  # by `StopEarly`, which has its state now
            logger.info("nothing to do: %s is of a finished run of %d epochs.", path, now.epoch)
            return
        further = f" and {in_epoch} iterations" if in_epoch else ""
        logger.info("resuming after epoch %d of %d%s from %s.", now.epoch, now.max_epochs, further, path)

    def _check_settings(self, before: Mapping[str, Any], path: Path) -> None:
        changed = differences(before, self.settings) if before and self.settings else []
        if not changed:
            return
        lines = "\n".join(f"  {line}" for line in changed[:10])
        lines += f"\n  and {len(changed) - 10} more" if len(changed) > 10 else ""
        if not self.accept_changes:
            raise ValueError(
                f"{path} is of a run with other settings:\n{lines}\n"
                "Resume with those that it had, or go on with the new ones by `--accept_changes true`."
            )
        logger.warning("going on from %s with other settings:\n%s", path, lines)

    def _start(self, engine: Engine) -> None:
        now: Any = engine.state
        if beyond := [epoch for epoch in self.kept_epochs if now.max_epochs is not None and epoch > now.max_epochs]:
            raise ValueError(f"`kept_epochs` must be at most `max_epochs`, which is {now.max_epochs}, got {beyond}.")
        self._asked, self._closing = False, None
        self._sigterm = getattr(engine, "sigterm", None)
        if self._sigterm is not None:
            self._sigterm.heed()
        if self.resume:
            self.load(engine)
        if idist.get_rank() == 0:
            for part in self.folder.glob(".*.part"):  # of a run that was killed while it wrote
                part.unlink(missing_ok=True)
            if now.iteration == 0:
                self._move_aside()
        if now.iteration > 0 and now.iteration == (now.epoch + 1) * (now.epoch_length or 0):
            now.epoch += 1
            self._begin_to_close(engine)
            engine.fire_event(Events.EPOCH_COMPLETED)  # which the run before did not come to the end of

    def _move_aside(self) -> None:
        """Move the files of another run out of the way."""
        checkpoints = sorted({path for pattern in _FILES for path in self.folder.glob(pattern)})
        moves = [(path, f"{self.folder.name}/{path.name}") for path in checkpoints]
        moves += [(path, path.name) for path in self.run_files if path.is_file() or any(path.glob("*"))]
        if not moves:
            return
        folders = (self.folder.parent / f"previous_{number}" for number in itertools.count(1))
        previous = next(folder for folder in folders if not folder.exists())
        for path, name in moves:
            (previous / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, previous / name)  # also to another file system, where a folder is a link
        said = "this run starts anew: what another one left in %s is in %s now. `--resume true` goes on with a run."
        logger.warning(said, self.folder.parent, previous)

    def _look_for_sigterm(self, engine: Engine) -> None:
        if self._sigterm is None:
            return
        if _in_epoch(engine) == engine.state.epoch_length:
            self._begin_to_close(engine)
        if self._is_asked(engine):
            engine.interrupt()  # as soon as the other handlers are done with this iteration, `_end` is called

    def _begin_to_close(self, engine: Engine) -> None:
        """What follows until the epoch is saved can be left out and done anew, from the state as it is now."""
        self._closing = self._state(engine, epochs=engine.state.epoch - 1)
        # several processes wait for each other in a validation: all of them come to its end, or none
        if self._sigterm is not None and idist.get_world_size() == 1:
            self._sigterm.at_once = partial(self._end_at_once, engine)

    def _is_asked(self, engine: Engine) -> bool:
        """Whether SIGTERM asks to end here: all processes have the same answer."""
        if self._sigterm is None:
            return False
        done, length = _in_epoch(engine), engine.state.epoch_length
        if done != length and done % getattr(engine, "accumulation_steps", 1):
            return False  # gradients that wait for the next ones are not saved
        if idist.get_world_size() == 1:
            self._asked = self._sigterm.received
        elif done == length or done % _ASK_EVERY == 0:
            self._asked = cast("float", idist.all_reduce(float(self._sigterm.received))) > 0
        return self._asked

    def _end_at_once(self, engine: Engine) -> None:
        self._asked = True
        engine.fire_event(Events.INTERRUPT)  # checks that were put off are done now

    def _end(self, engine: Engine) -> None:
        if not self._asked:  # somebody else interrupts
            return
        state = self._closing or self._state(engine, epochs=engine.state.epoch - 1)
        if self._closing is None and not hasattr(engine.state.dataloader, "start_at"):
            logger.warning("ended by SIGTERM: the run goes on from the beginning of epoch %d", engine.state.epoch)
            sys.exit(_STATUS)
        self._save(state)
        self._leave(state)

    def _leave(self, state: Mapping[str, Any]) -> None:
        idist.barrier()  # the end of one process ends the others, perhaps while they write
        done, length = state["run"]["iteration"], state["run"]["epoch_length"]
        said = (
            "ended by SIGTERM: the state after iteration %d, in epoch %d, is in %s; `--resume true` goes on from there"
        )
        logger.warning(said, done, (done - 1) // length + 1, self.folder / "last.pt")
        sys.exit(_STATUS)

    def _state(self, engine: Engine, *, epochs: int) -> dict[str, Any]:
        scaler = getattr(engine, "scaler", None)
        run = {
            "epoch": epochs,
            "iteration": engine.state.iteration,
            "epoch_length": engine.state.epoch_length,
            "settings": json.dumps(self.settings),
            "random": _random_state(),
            "scaler": {} if scaler is None else scaler.state_dict(),
            "format": _FORMAT,
        }
        return {**{name: item.state_dict() for name, item in self.objects.items()}, "run": run}

    def _save(self, state: dict[str, Any]) -> None:
        if idist.get_rank() == 0:
            save_checkpoint(state, self.folder, keep=self.num_checkpoints)


def _in_epoch(engine: Engine) -> int:
    """How many iterations of this epoch are done."""
    state: Any = engine.state
    return int(state.iteration - (state.epoch - 1) * state.epoch_length)


def _random_state() -> dict[str, Any]:
    """Of Python's, numpy's and torch's global generators, as ``weights_only=True`` can load it."""
    name, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "python": random.getstate(),
        "numpy": (name, np.asarray(keys).tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _set_random_state(state: dict[str, Any]) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(tuple(state["numpy"]))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


class Sigterm:
    """A note of SIGTERM, which batch systems send some time before they kill; further ones change nothing.

    Where the signal is ignored, and in a thread other than the main one, it does nothing.

    Example:
        >>> import os, signal
        >>> from monai_spct.handlers import Sigterm
        >>> sigterm = Sigterm()
        >>> sigterm.heed()
        >>> os.kill(os.getpid(), signal.SIGTERM)
        >>> sigterm.received
        True
        >>> sigterm.leave()
    """

    def __init__(self) -> None:
        self.received = False
        self.at_once: Callable[[], None] | None = None
        self._before: Any = None

    def heed(self) -> None:
        """From now on, note the signal, and call ``at_once`` if there is such a function then."""
        self.received = False
        before = signal.getsignal(signal.SIGTERM)
        if threading.current_thread() is threading.main_thread() and (before == signal.SIG_DFL or callable(before)):
            self._before = before
            signal.signal(signal.SIGTERM, self._note)

    def leave(self) -> None:
        """From now on, the signal has its old effect."""
        self.at_once = None
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - so are handlers called
        if self.received:
            return
        self.received = True
        if self.at_once is not None:
            self.at_once()


class SaveBest:
    """Ignite handler for MONAI's evaluators that saves the weights whenever the key metric is better than before.

    Its state, the best value so far, belongs into checkpoints.

    Args:
        path: the file.
        predictor: the module that is evaluated.

    Example:
        >>> import torch
        >>> from monai_spct.handlers import SaveBest
        >>> SaveBest("models/best.pt", torch.nn.Linear(1, 1)).path.name
        'best.pt'
    """

    def __init__(self, path: str | os.PathLike[str], predictor: nn.Module) -> None:
        self.path = Path(path)
        self.predictor = predictor

    def attach(self, engine: Engine) -> None:
        """Look at the key metric whenever an evaluation of ``engine`` ends."""
        self.state: Any = engine.state
        engine.add_event_handler(Events.COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        """Save now if this evaluation is the best one so far."""
        state: Any = engine.state
        if idist.get_rank() == 0 and state.best_metric_epoch == state.epoch:
            save_atomically(self.predictor.state_dict(), self.path)

    def state_dict(self) -> dict[str, Any]:
        """The best value so far and its epoch."""
        return {"metric": float(self.state.best_metric), "epoch": self.state.best_metric_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        self.state.best_metric, self.state.best_metric_epoch = state_dict["metric"], state_dict["epoch"]
