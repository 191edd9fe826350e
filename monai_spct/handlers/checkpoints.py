"""Checkpoints that are whole or not there, and the way back into a run."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from torch import nn

from monai_spct.files import replacing
from monai_spct.settings import differences

__all__ = ["SaveBest", "SaveCheckpoints", "save_atomically"]

logger = logging.getLogger(__name__)

_SHOWN = 10  # differences in a message


def save_atomically(state: Any, path: str | os.PathLike[str]) -> None:
    """``torch.save`` that leaves either the old file or the whole new one, whenever it is interrupted.

    Args:
        state: tensors, numbers, strings, and lists and dictionaries of them, so that ``weights_only=True`` can load it.
        path: the file.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from monai_spct.handlers import save_atomically
        >>> path = Path(tempfile.mkdtemp()) / "model.pt"
        >>> save_atomically({"weight": torch.ones(2)}, path)
        >>> torch.load(path, weights_only=True)
        {'weight': tensor([1., 1.])}
    """
    with replacing(path) as file:
        torch.save(state, file)


class SaveCheckpoints:
    """Ignite handler: after each epoch the whole state of the run, and the weights that predictions are made with.

    ``last.pt`` holds the states of all ``objects``, of the trainer and of torch's random generators; ``model.pt`` holds
    the bare ``state_dict`` of ``predictor``, as bundles expect it. A run that fails leaves the files of its last whole
    epoch. Weights of chosen epochs stay beside them, as ``epoch_020.pt``, to look back at.

    Args:
        folder: where the files go.
        predictor: the module whose predictions count: the teachers where there are such, else the students.
        objects: by name, whatever has ``state_dict`` and ``load_state_dict``: students, teachers, optimizer, learning
            rate, ...
        resume: whether to go on from ``last.pt``, if there is one, when the run starts.
        kept_epochs: the epochs, counted from 1, whose weights are to stay.
        settings: what the run is made of, as JSON has it, for example
            :func:`~monai_spct.bundles.settings_of_run`. A run that goes on must have those that it began with; empty
            ones are not compared.
        accept_changes: whether to go on with other settings all the same.

    Raises:
        ValueError: if ``kept_epochs`` holds anything but whole numbers of at least 1; when the run starts, if it has
            fewer epochs than one of these, or if ``last.pt`` holds other objects than these, or is of a run that is
            finished, or has other settings, or only some of several processes find it.

    Example:
        >>> import tempfile, torch
        >>> from ignite.engine import Engine
        >>> from monai_spct.handlers import SaveCheckpoints
        >>> folder = tempfile.mkdtemp()
        >>> model = torch.nn.Linear(1, 1)
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
        settings: Mapping[str, Any] | None = None,
        accept_changes: bool = False,
    ) -> None:
        self.folder = Path(folder)
        self.predictor = predictor
        self.objects = {name: item for name, item in objects.items() if item is not None}
        self.resume = resume
        if not isinstance(kept_epochs, Collection) or not all(type(n) is int and n >= 1 for n in kept_epochs):
            raise ValueError(f"`kept_epochs` must be a list of whole numbers of at least 1, got {kept_epochs!r}.")
        self.kept_epochs = kept_epochs
        self.settings = settings or {}
        self.accept_changes = accept_changes

    def attach(self, engine: Engine) -> None:
        """Save after each epoch of ``engine``; load when it starts, if asked to."""
        engine.add_event_handler(Events.STARTED, self._check_kept_epochs)
        if self.resume:
            engine.add_event_handler(Events.STARTED, self.load)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        """Save now."""
        if idist.get_rank() > 0:
            return
        state = {name: item.state_dict() for name, item in self.objects.items()}
        run = {
            "epoch": engine.state.epoch,
            "epoch_length": engine.state.epoch_length,
            "settings": json.dumps(self.settings),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        weights = self.predictor.state_dict()
        # first: a run that is killed after `last.pt` does not come back to this epoch
        if engine.state.epoch in self.kept_epochs:
            save_atomically(weights, self.folder / f"epoch_{engine.state.epoch:03d}.pt")
        save_atomically({**state, "run": run}, self.folder / "last.pt")
        save_atomically(weights, self.folder / "model.pt")

    def load(self, engine: Engine) -> None:
        """Take all states from ``last.pt``, if it is there."""
        path = self.folder / "last.pt"
        found = path.is_file()
        if len(set(cast("list[int]", idist.all_gather(int(found))))) > 1:
            raise ValueError(f"some processes find {path} and others do not: give all of them one shared folder.")
        if not found:
            logger.info("nothing to resume at %s: starting anew.", path)
            return
        state = torch.load(path, map_location="cpu", weights_only=True)
        if state.keys() != {*self.objects, "run"}:
            raise ValueError(f"{path} is of another kind of run: it holds {sorted(state)}, not {sorted(self.objects)}.")
        run = state.pop("run")
        if run["epoch"] >= engine.state.max_epochs:
            raise ValueError(
                f"{path} is of a finished run: it has {run['epoch']} epochs, and `max_epochs` is "
                f"{engine.state.max_epochs}."
            )
        self._check_settings(json.loads(run.get("settings", "{}")), path)
        if run["epoch_length"] != engine.state.epoch_length:
            raise ValueError(
                f"{path} is of a run with {run['epoch_length']} iterations in an epoch, and this one has "
                f"{engine.state.epoch_length}: schedules would not fit together."
            )
        for name, item in self.objects.items():
            try:
                item.load_state_dict(state[name])
            except (KeyError, RuntimeError, ValueError) as error:  # torch lists every key that differs
                raise ValueError(f"{path} is of a run with another `{name}`: resume with the same settings.") from error
        torch.set_rng_state(run["rng"])
        if len(run["cuda_rng"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(run["cuda_rng"])
        engine.state.epoch, engine.state.iteration = run["epoch"], run["epoch"] * run["epoch_length"]
        logger.info("resuming after epoch %d of %d from %s.", run["epoch"], engine.state.max_epochs, path)

    def _check_settings(self, before: Mapping[str, Any], path: Path) -> None:
        changed = differences(before, self.settings) if before and self.settings else []
        if not changed:
            return
        more = [f"and {len(changed) - _SHOWN} more"] if len(changed) > _SHOWN else []
        lines = "\n".join(f"  {line}" for line in [*changed[:_SHOWN], *more])
        if not self.accept_changes:
            raise ValueError(
                f"{path} is of a run with other settings:\n{lines}\n"
                "Resume with those that it had. With `--accept_changes true` it goes on with the new ones, and is then "
                "neither the run that it was nor one with these from the start."
            )
        logger.warning("going on from %s with other settings:\n%s", path, lines)

    def _check_kept_epochs(self, engine: Engine) -> None:
        last = engine.state.max_epochs
        if beyond := [epoch for epoch in self.kept_epochs if last is not None and epoch > last]:
            raise ValueError(f"`kept_epochs` must be at most `max_epochs`, which is {last}, got {beyond}.")


class SaveBest:
    """Ignite handler for MONAI's evaluators: the predictor's weights whenever the key metric is better than before.

    Args:
        path: the file.
        predictor: the module that is evaluated.

    Its state is the best value so far: put the handler into a checkpoint, or a run that goes on takes its first
    evaluation for the best.

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
