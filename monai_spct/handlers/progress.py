"""A progress bar over the whole run, with the parts of the loss and the time left."""

from __future__ import annotations

import sys
from typing import Any

import ignite.distributed as idist
from ignite.engine import Engine, Events
from torch import Tensor
from tqdm import tqdm

__all__ = ["Progress", "scalars"]


def scalars(output: dict[str, Any] | list[dict[str, Any]]) -> dict[str, Any]:
    """The losses and notes of an iteration's output, by name: what bars and logs show.

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
    """Ignite handler: one bar for the whole run, so that the time left is that of the run and not of an epoch.

    On a terminal the bar moves every second; in a file it is a line every half a minute. Weights of losses are not
    among its values, since they follow from the epoch.

    Args:
        description: what the bar says is going on.
        every: number of iterations between two looks at the values, each of which waits for the device.
        leave: whether the bar stays when the run has ended. That of a validation, which comes again and again, should
            not.

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

    def _close(self, engine: Engine) -> None:  # noqa: ARG002 - an event passes its engine
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def _failed(self, engine: Engine, error: BaseException) -> None:
        self._close(engine)
        raise error  # ignite leaves it to the handlers of this event
