"""The states of all global random generators, in a form that checkpoints may hold."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

__all__ = ["random_state", "seed_everything", "set_random_state"]


def random_state() -> dict[str, Any]:
    """The states of Python's, numpy's and torch's generators, those of all GPUs included.

    Example:
        >>> import torch
        >>> from monai_spct.handlers.random_state import random_state, set_random_state
        >>> before = random_state()
        >>> one = torch.rand(3)
        >>> set_random_state(before)
        >>> torch.equal(torch.rand(3), one)
        True
    """
    name, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "python": random.getstate(),
        "numpy": (name, np.asarray(keys).tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Go on from what :func:`random_state` returned; states of GPUs are left out if their number is another.

    Args:
        state: also one that was in a file meanwhile.
    """
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(tuple(state["numpy"]))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def seed_everything(seeds: tuple[int, int, int]) -> None:
    """Seed Python's, numpy's and torch's generators.

    Args:
        seeds: one for each, below 2^32.
    """
    random.seed(seeds[0])
    np.random.seed(seeds[1])  # noqa: NPY002
    torch.manual_seed(seeds[2])  # of the GPU too
