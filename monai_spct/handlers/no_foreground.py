"""A warning of networks that predict background alone."""

from __future__ import annotations

import logging
from typing import Any

import ignite.distributed as idist
from ignite.engine import Engine, Events
from monai.engines import IterationEvents
from monai.utils import CommonKeys

__all__ = ["WarnOfNoForeground"]

logger = logging.getLogger(__name__)


class WarnOfNoForeground:
    """Ignite handler for trainers that warns, once, when the labeled images are predicted to be background alone.

    Reads ``pred``, logits ``(B, C, *S)`` of which class 0 is the background, in the output of MONAI's trainers, before
    it is decollated. Predictions are looked at until one of the epoch has a voxel of another class, which most often
    is the first. :class:`~monai_spct.engines.SemiSupervisedTrainer` attaches it.

    Args:
        epochs: how many epochs in a row must be without such a voxel.

    Example:
        >>> import torch
        >>> from ignite.engine import Engine
        >>> from monai.engines import IterationEvents
        >>> from monai_spct.handlers import WarnOfNoForeground
        >>> background = torch.tensor([1.0, 0.0, 0.0]).reshape(1, 3, 1, 1).expand(2, 3, 8, 8)
        >>> def update(engine, batch):
        ...     engine.state.output = {"pred": background}
        ...     engine.fire_event(IterationEvents.LOSS_COMPLETED)
        >>> trainer = Engine(update)
        >>> trainer.register_events(*IterationEvents)  # which MONAI's trainers have
        >>> WarnOfNoForeground(epochs=2).attach(trainer)
        >>> _ = trainer.run([0], max_epochs=2)  # logs "the networks found no foreground at all ..."
    """

    def __init__(self, *, epochs: int = 5) -> None:
        self.epochs = epochs
        self._without = 0  # epochs, up to now
        self._seen = False
        self._said = False

    def attach(self, engine: Engine) -> None:
        """Look at the predictions of ``engine``."""
        if idist.get_rank() == 0:
            engine.add_event_handler(Events.EPOCH_STARTED, self._begin)
            engine.add_event_handler(IterationEvents.LOSS_COMPLETED, self)
            engine.add_event_handler(Events.EPOCH_COMPLETED, self._end)

    def _begin(self) -> None:
        self._seen = False

    def __call__(self, engine: Engine) -> None:
        """Look for foreground, unless this epoch had some."""
        if not self._seen:
            output: Any = engine.state.output
            self._seen = bool(output[CommonKeys.PRED].argmax(1).any())

    def _end(self, engine: Engine) -> None:
        self._without = 0 if self._seen else self._without + 1
        if self._without == self.epochs and not self._said:
            self._said = True
            logger.warning(
                "the networks found no foreground at all in the labeled images of epochs %d to %d: they say background "
                "everywhere. If that goes on, stop, and try a lower `learning_rate`, Dice beside cross-entropy "
                "(`supervised_loss`), crops around the structures (`structure_share`) or more labeled patients. "
                "`monai-spct check` looks at the labels.",
                *(engine.state.epoch - self.epochs + 1, engine.state.epoch),
            )
