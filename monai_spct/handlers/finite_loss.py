"""A run stops at a loss that is not a number, before it spoils the weights."""

from __future__ import annotations

import math
from typing import Any

from ignite.engine import Engine
from monai.engines import IterationEvents
from monai.utils import CommonKeys

__all__ = ["StopAtNonFiniteLoss"]


class StopAtNonFiniteLoss:
    """Ignite handler for MONAI trainers: raise as soon as the loss is infinite or not a number.

    The check runs before the backward pass, so that the networks keep the weights of the last good step, and nothing is
    saved over the last good checkpoint.

    Raises:
        FloatingPointError: naming the epoch, the iteration and the parts of the loss.
    """

    def attach(self, engine: Engine) -> None:
        """Check each loss of ``engine``."""
        engine.add_event_handler(IterationEvents.LOSS_COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        """Check the loss of this iteration."""
        output: Any = engine.state.output
        if math.isfinite(output[CommonKeys.LOSS].item()):
            return
        parts = ", ".join(f"{name} {float(value):g}" for name, value in output.items() if name.endswith("loss"))
        raise FloatingPointError(
            f"the loss is not finite in epoch {engine.state.epoch}, iteration {engine.state.iteration}: {parts}. The "
            "last checkpoint is kept. A lower learning rate or a look at the data of this iteration may help."
        )
