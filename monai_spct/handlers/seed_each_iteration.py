"""Random draws that are a function of seed, process and iteration."""

from __future__ import annotations

import numpy as np
from ignite.engine import Engine, Events
from monai.transforms import Randomizable

from monai_spct.functional.checks import at_least
from monai_spct.handlers.random_state import seed_everything

__all__ = ["SeedEachIteration"]


class SeedEachIteration:
    """Ignite handler for a training in several processes: each one draws its own random numbers, anew each time.

    A checkpoint is written by one process and holds the state of its random generators alone. With this handler that
    does not matter: what a process draws in an iteration, as for dropout and augmentation, depends on the seed, the
    number of the process and the iteration, so a run that goes on draws what it would have drawn.

    Args:
        seed: of the whole run.
        rank: the number of this process, from 0.
        transform: an object with a random state of its own, as :class:`~monai_spct.transforms.RandomQuarterTurn`; none
            if there are only the global ones.

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

    def __init__(self, *, seed: int, rank: int = 0, transform: Randomizable | None = None) -> None:
        self.seed = at_least("seed", seed, 0)
        self.rank = at_least("rank", rank, 0)
        self.transform = transform

    def attach(self, engine: Engine) -> None:
        """Seed whenever an iteration of ``engine`` starts."""
        engine.add_event_handler(Events.ITERATION_STARTED, self)

    def __call__(self, engine: Engine) -> None:
        """Seed for the iteration that ``engine`` is in."""
        rng = np.random.default_rng((self.seed, self.rank, engine.state.iteration))
        for_python, for_numpy, for_torch, for_transform = rng.integers(2**32, size=4).tolist()
        seed_everything((for_python, for_numpy, for_torch))
        if self.transform is not None:
            self.transform.set_random_state(seed=for_transform)
