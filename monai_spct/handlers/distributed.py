"""Handlers for distributed training."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from ignite.engine import Engine, Events
from monai.engines import IterationEvents
from monai.transforms import Randomizable
from torch import Tensor, nn

from monai_spct.functional import average_over_processes
from monai_spct.functional.checks import at_least

__all__ = ["AverageBuffers", "SeedEachIteration"]


class AverageBuffers:
    """Ignite handler for MONAI trainers in several processes that averages running statistics after each step.

    ``DistributedDataParallel`` averages gradients alone, and each process has the statistics of its own batches.

    Args:
        module: the students, wrapped or not.

    Example:
        >>> import torch
        >>> from ignite.engine import Engine
        >>> from monai.engines import IterationEvents
        >>> from monai_spct.handlers import AverageBuffers
        >>> network = torch.nn.BatchNorm2d(2)
        >>> trainer = Engine(lambda engine, batch: network(batch))
        >>> trainer.register_events(*IterationEvents)  # which MONAI's trainers have
        >>> AverageBuffers(network).attach(trainer)
        >>> _ = trainer.run([torch.rand(1, 2, 4, 4)])
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._buffers: list[Tensor] = []

    def attach(self, engine: Engine) -> None:
        """Average after each step of ``engine``'s optimizer."""
        engine.add_event_handler(Events.EPOCH_STARTED, self._list_anew)
        # still within the iteration: handlers of its completion, as teachers are, may stand before or after this one
        engine.add_event_handler(IterationEvents.MODEL_COMPLETED, self)

    def _list_anew(self) -> None:
        self._buffers = [buffer for buffer in self.module.buffers() if buffer.is_floating_point()]

    def __call__(self) -> None:
        """Average now."""
        average_over_processes(self._buffers)


class SeedEachIteration:
    """Ignite handler that seeds all random numbers of an iteration by seed, process and iteration.

    A checkpoint holds the random state of one process; with this handler, a run of several goes on with its draws.

    Args:
        seed: of the whole run.
        rank: the number of this process, from 0.
        transforms: objects with a random state of their own, as :class:`~monai_spct.transforms.RandomQuarterTurn`;
            ``None`` among them is passed over.

    Example:
        >>> import torch
        >>> from ignite.engine import Engine
        >>> from monai_spct.handlers import SeedEachIteration
        >>> def draws(rank):
        ...     trainer = Engine(lambda engine, batch: torch.rand(()).item())
        ...     SeedEachIteration(seed=0, rank=rank).attach(trainer)
        ...     return trainer.run([0], max_epochs=1).output
        >>> draws(0) == draws(0), draws(0) == draws(1)
        (True, False)
    """

    def __init__(self, *, seed: int, rank: int = 0, transforms: Sequence[Randomizable | None] = ()) -> None:
        self.seed = at_least("seed", seed, 0)
        self.rank = at_least("rank", rank, 0)
        self.transforms = [transform for transform in transforms if transform is not None]

    def attach(self, engine: Engine) -> None:
        """Seed whenever an iteration of ``engine`` starts."""
        engine.add_event_handler(Events.ITERATION_STARTED, self)

    def __call__(self, engine: Engine) -> None:
        """Seed for the iteration that ``engine`` is in."""
        rng = np.random.default_rng((self.seed, self.rank, engine.state.iteration))
        for_python, for_numpy, for_torch, *seeds = rng.integers(2**32, size=3 + len(self.transforms)).tolist()
        random.seed(for_python)
        np.random.seed(for_numpy)  # noqa: NPY002
        torch.manual_seed(for_torch)  # of the GPU too
        for transform, seed in zip(self.transforms, seeds, strict=True):
            transform.set_random_state(seed=seed)
