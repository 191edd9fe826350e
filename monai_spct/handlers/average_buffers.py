"""Running statistics that are the same in each of several processes."""

from __future__ import annotations

from ignite.engine import Engine, Events
from monai.engines import IterationEvents
from torch import Tensor, nn

from monai_spct.functional import average_over_processes

__all__ = ["AverageBuffers"]


class AverageBuffers:
    """Ignite handler for MONAI trainers in several processes: one set of running statistics for all of them.

    ``DistributedDataParallel`` keeps the weights of all processes equal by averaging their gradients. The running means
    and variances of a batch normalization have no gradient: each process has those of its own batches. This handler
    averages them, and all other floating buffers, after each step and before what follows it, so that teachers,
    validation and checkpoints find the same networks in each process. In one process it does nothing.

    Args:
        module: the students, wrapped or not.

    Example:
        >>> import torch
        >>> from monai.engines import SupervisedTrainer
        >>> from monai_spct.handlers import AverageBuffers
        >>> network = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 1), torch.nn.BatchNorm2d(2))
        >>> trainer = SupervisedTrainer(
        ...     device="cpu",
        ...     max_epochs=1,
        ...     train_data_loader=[{"image": torch.rand(1, 1, 4, 4), "label": torch.zeros(1, 2, 4, 4)}],
        ...     network=network,
        ...     optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        ...     loss_function=torch.nn.MSELoss(),
        ...     train_handlers=[AverageBuffers(network)],
        ... )
        >>> trainer.run()
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._buffers: list[Tensor] = []

    def attach(self, engine: Engine) -> None:
        """Average after each step of ``engine``'s optimizer."""
        engine.add_event_handler(Events.EPOCH_STARTED, self._list_anew)
        # still within the iteration: handlers of its completion, as teachers are, may stand before or after this one
        engine.add_event_handler(IterationEvents.MODEL_COMPLETED, self)

    def _list_anew(self, engine: Engine) -> None:  # noqa: ARG002 - an event passes its engine
        self._buffers = [buffer for buffer in self.module.buffers() if buffer.is_floating_point()]

    def __call__(self, engine: Engine) -> None:  # noqa: ARG002
        """Average now."""
        average_over_processes(self._buffers)
