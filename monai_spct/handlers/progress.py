"""Progress bar and MLflow tracking."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import ignite.distributed as idist
from ignite.engine import Engine, Events
from monai.handlers import MLFlowHandler
from torch import Tensor
from tqdm import tqdm

from monai_spct.functional.checks import at_least

__all__ = ["Progress", "scalars", "track_scalars"]


def scalars(output: dict[str, Any] | list[dict[str, Any]]) -> dict[str, Any]:
    """The losses and notes of an iteration's output, by name.

    Args:
        output: ``engine.state.output`` of a :class:`~monai_spct.engines.SemiSupervisedTrainer`, decollated or not.

    Example:
        >>> import torch
        >>> from monai_spct.handlers import scalars
        >>> scalars({"image": torch.zeros(4, 1, 8, 8), "loss": torch.tensor(0.5), "gamma": 0.2})
        {'loss': tensor(0.5000), 'gamma': 0.2}
    """
    items = output[0] if isinstance(output, list) else output
    return {
        str(getattr(name, "value", name)): value.detach() if isinstance(value, Tensor) else value
        for name, value in items.items()
        if getattr(value, "ndim", 0) == 0
    }


class Progress:
    """Ignite handler: one progress bar for the whole run, with the parts of the loss and the time left.

    On a terminal the bar moves every second; in a file it is a line every half a minute.

    Args:
        description: what the bar says is going on.
        every: number of iterations between two looks at the values, each of which waits for the device.
        leave: whether the bar stays when the run has ended.

    Example:
        >>> from ignite.engine import Engine
        >>> from monai_spct.handlers import Progress
        >>> trainer = Engine(lambda engine, batch: {"loss": 0.5})
        >>> Progress(every=1).attach(trainer)
        >>> _ = trainer.run(range(3), max_epochs=2)
    """

    def __init__(self, *, description: str = "training", every: int = 10, leave: bool = True) -> None:
        self.description = description
        self.every = every
        self.leave = leave
        self.bar: tqdm[Any] | None = None

    def attach(self, engine: Engine) -> None:
        """Show the progress of ``engine``."""
        if idist.get_rank() > 0:
            return
        engine.add_event_handler(Events.EPOCH_STARTED, self._open)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self)
        engine.add_event_handler(Events.COMPLETED, self._close)
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._failed)

    def _open(self, engine: Engine) -> None:
        if self.bar is None:
            state: Any = engine.state
            self.bar = tqdm(
                # an evaluator that validates begins at iteration 0 in whatever epoch, a run that goes on amid one
                total=(state.iteration // state.epoch_length + state.max_epochs - state.epoch + 1) * state.epoch_length,
                initial=state.iteration,  # of a run that goes on
                unit="it",
                dynamic_ncols=True,
                leave=self.leave,
                mininterval=1.0 if sys.stderr.isatty() else 30.0,
                desc=self.description,
            )

    def __call__(self, engine: Engine) -> None:
        """One iteration further."""
        if self.bar is None:
            return
        if engine.state.iteration % self.every == 0 and isinstance(engine.state.output, dict):
            values = {
                name: f"{float(value):.3g}"
                for name, value in scalars(engine.state.output).items()
                if not name.endswith("_weight")
            }
            self.bar.set_postfix({"epoch": f"{engine.state.epoch}/{engine.state.max_epochs}", **values}, refresh=False)
        self.bar.update()

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def _failed(self, engine: Engine, error: BaseException) -> None:  # noqa: ARG002 - so are handlers called
        self._close()
        raise error  # ignite leaves it to the handlers of this event


def track_scalars(handlers: Sequence[Any], *, every: int = 10) -> None:
    """Let the handler that ``--tracking mlflow`` adds to a training log each part of the loss.

    It would fail at outputs that are not cut into images. It is known by its tag, ``train_loss``.

    Args:
        handlers: those of the trainer, before they are attached.
        every: number of iterations between two entries, each of which waits for the device.

    Raises:
        ValueError: when ``every`` is not a whole number of at least 1.

    Example:
        >>> from monai_spct.handlers import Progress, track_scalars
        >>> track_scalars([Progress()], every=10)  # nothing to do
    """
    every = at_least("every", every, 1)
    for handler in handlers:
        if isinstance(handler, MLFlowHandler) and handler.tag_name == "train_loss":
            handler.output_transform = lambda output: {name: float(value) for name, value in scalars(output).items()}
            handler.iteration_log = lambda engine, iteration: (iteration - 1) % every == 0  # noqa: ARG005
