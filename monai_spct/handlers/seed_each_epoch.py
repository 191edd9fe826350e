"""Random draws that are a function of seed, process and epoch."""

from __future__ import annotations

import numpy as np
import torch
from ignite.engine import Engine, Events
from monai.transforms import Randomizable

from monai_spct.functional.checks import at_least

__all__ = ["SeedEachEpoch"]


class SeedEachEpoch:
    """Ignite handler for a training in several processes: each one draws its own random numbers, anew in each epoch.

    A checkpoint is written by one process and holds the state of its random generators alone. With this handler that
    does not matter: what a process draws in an epoch, as dropout and moves, depends on the seed, the number of the
    process and the epoch, so a run that goes on draws what it would have drawn.

    Args:
        seed: of the whole run.
        rank: the number of this process, from 0.
        move: an object with a random state of its own, as :class:`~monai_spct.transforms.RandomQuarterTurn`; none if
            there is only torch's.

    Example:
        >>> import torch
        >>> from ignite.engine import Engine
        >>> from monai_spct.handlers import SeedEachEpoch
        >>> def draws(rank):
        ...     trainer = Engine(lambda engine, batch: torch.rand(()).item())
        ...     SeedEachEpoch(seed=0, rank=rank).attach(trainer)
        ...     return trainer.run([0], max_epochs=1).output
        >>> draws(0) == draws(0), draws(0) == draws(1)
        (True, False)
    """

    def __init__(self, *, seed: int, rank: int = 0, move: Randomizable | None = None) -> None:
        self.seed = at_least("seed", seed, 0)
        self.rank = at_least("rank", rank, 0)
        self.move = move

    def attach(self, engine: Engine) -> None:
        """Seed whenever an epoch of ``engine`` starts."""
        engine.add_event_handler(Events.EPOCH_STARTED, self)

    def __call__(self, engine: Engine) -> None:
        """Seed for the epoch that ``engine`` is in."""
        rng = np.random.default_rng((self.seed, self.rank, engine.state.epoch))
        for_torch, for_moves = rng.integers(2**32, size=2).tolist()
        torch.manual_seed(for_torch)  # of the GPU too
        if self.move is not None:
            self.move.set_random_state(seed=for_moves)
