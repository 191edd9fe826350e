"""Stop on non-finite losses or weights."""

from __future__ import annotations

from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from monai.engines import IterationEvents
from torch import Tensor

__all__ = ["StopAtNonFiniteLoss"]


class StopAtNonFiniteLoss:
    """Ignite handler for MONAI trainers that raises an error when the loss or the weights are not finite.

    On a CPU the loss is checked before the backward pass. A GPU is not waited for: its losses are checked when they
    arrive, and all of them, with the weights, at the end of an epoch, before handlers that are attached later save.
    :class:`~monai_spct.engines.SemiSupervisedTrainer` attaches it first.

    Raises:
        FloatingPointError: naming the epoch, the iteration and the parts of the loss, or the weights.

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

    def __init__(self) -> None:
        # place, names, values, and the event of the device after which the host has the values
        self.pending: list[tuple[str, list[str], Tensor, Any]] = []

    def attach(self, engine: Engine) -> None:
        """Check each loss of ``engine``."""
        engine.add_event_handler(Events.STARTED, self.pending.clear)
        engine.add_event_handler(IterationEvents.LOSS_COMPLETED, self)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._check_epoch)
        engine.add_event_handler(Events.INTERRUPT, self._check_epoch)  # after which `SaveCheckpoints` saves
        engine.add_event_handler(Events.COMPLETED, self._check_all)  # a run may be ended amid an epoch

    def __call__(self, engine: Engine) -> None:
        """Check the loss of this iteration, or on a GPU those that have arrived."""
        state: Any = engine.state
        losses = {str(getattr(name, "value", name)): value for name, value in state.output.items()}
        losses = {name: value.detach() for name, value in losses.items() if name.endswith("loss")}
        values, arrival = torch.stack(list(losses.values())), None
        if values.is_cuda:
            # page-locked memory, which the device fills while the host goes on
            values = torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)
            arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrival.record()
        self.pending.append((f"epoch {state.epoch}, iteration {state.iteration}", list(losses), values, arrival))
        while self.pending and (self.pending[0][-1] is None or self.pending[0][-1].query()):
            self._check_next()

    def _check_next(self) -> None:
        place, names, values, arrival = self.pending.pop(0)
        if arrival is not None:
            arrival.synchronize()
        if not values.isfinite().all():
            parts = ", ".join(f"{name} {value:g}" for name, value in zip(names, values.tolist(), strict=True))
            raise FloatingPointError(
                f"the loss is not finite in {place}: {parts}. The last checkpoint is kept. A lower learning rate or a "
                "look at the data of this iteration may help."
            )

    def _check_all(self) -> None:
        while self.pending:
            self._check_next()

    def _check_epoch(self, engine: Engine) -> None:
        self._check_all()
        network = getattr(engine, "network", None)  # as MONAI's trainers call it
        state = dict([*network.named_parameters(), *network.named_buffers()]) if network is not None else {}
        finite = [value.isfinite().all() for value in state.values()]
        if finite and not torch.stack(finite).all():  # waits for the device once
            spoiled = [name for name, well in zip(state, finite, strict=True) if not well]
            raise FloatingPointError(
                f"the weights are not finite any more in epoch {engine.state.epoch}, though its losses are: "
                f"{len(spoiled)} of {len(state)} tensors, the first one {spoiled[0]}. The last checkpoint is kept. "
                "A lower learning rate may help."
            )
        # of several processes, one with a loss that is not finite does not come here, and none goes on to save
        idist.all_reduce(0.0)
