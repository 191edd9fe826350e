"""What MONAI's ``--tracking mlflow`` logs of a training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ignite.engine import Engine
from monai.handlers import MLFlowHandler

from monai_spct.functional.checks import at_least
from monai_spct.handlers.progress import scalars

__all__ = ["track_scalars"]


def track_scalars(handlers: Sequence[Any], *, every: int = 10) -> None:
    """Let the handler that ``--tracking mlflow`` adds to a training log each part of the loss, now and then.

    MONAI's default reads ``loss`` from outputs that are cut into images; those of
    :class:`~monai_spct.engines.SemiSupervisedTrainer` are not, which makes its handler fail. Any other handler stays as
    it is, also another ``MLFlowHandler``: the one in question is known by its tag ``train_loss``.

    Args:
        handlers: those of the trainer, before they are attached.
        every: number of iterations between two entries, each of which waits for the device and writes to a database.

    Raises:
        ValueError: when ``every`` is not a whole number of at least 1.

    Example:
        >>> from monai_spct.handlers import Progress, track_scalars
        >>> track_scalars([Progress()], every=10)  # nothing to do
    """
    every = at_least("every", every, 1)

    def is_due(engine: Engine, iteration: int) -> bool:  # noqa: ARG001 - an event filter gets its engine
        return (iteration - 1) % every == 0

    for handler in handlers:
        if isinstance(handler, MLFlowHandler) and handler.tag_name == "train_loss":
            handler.output_transform = _numbers
            handler.iteration_log = is_due


def _numbers(output: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in scalars(output).items()}
