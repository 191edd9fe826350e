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

    Example:
        >>> import torch
        >>> from monai.engines import SupervisedTrainer
        >>> from monai_spct.handlers import StopAtNonFiniteLoss
        >>> network = torch.nn.Conv2d(1, 2, 1)
        >>> trainer = SupervisedTrainer(
        ...     device="cpu",
        ...     max_epochs=1,
        ...     train_data_loader=[{"image": torch.full((1, 1, 4, 4), torch.nan), "label": torch.zeros(1, 2, 4, 4)}],
        ...     network=network,
        ...     optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        ...     loss_function=torch.nn.MSELoss(),
        ...     train_handlers=[StopAtNonFiniteLoss()],
        ... )
        >>> trainer.run()  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        FloatingPointError: the loss is not finite in epoch 1, iteration 1: loss nan. ...
    """

    def attach(self, engine: Engine) -> None:
        """Check each loss of ``engine``."""
        engine.add_event_handler(IterationEvents.LOSS_COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        """Check the loss of this iteration."""
        output: Any = engine.state.output
        if math.isfinite(output[CommonKeys.LOSS].item()):
            return
        parts = ", ".join(
            f"{name} {float(value.detach()):g}" for name, value in output.items() if name.endswith("loss")
        )
        raise FloatingPointError(
            f"the loss is not finite in epoch {engine.state.epoch}, iteration {engine.state.iteration}: {parts}. The "
            "last checkpoint is kept. A lower learning rate or a look at the data of this iteration may help."
        )
