"""States of runs, as checkpoints hold them."""

import zipfile
from pathlib import Path

import numpy as np
import torch


def same(one: object, other: object) -> bool:
    """Whether two states are equal bit by bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def loaded_safely(folder: Path) -> list[Path]:
    """The files below a folder that could hold code when they are loaded, all of which load without running any."""
    risky = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if path.suffix == ".npy":
            np.load(path, allow_pickle=False)
        elif zipfile.is_zipfile(path) or path.read_bytes()[:1] == b"\x80":  # of `torch.save`, or a pickle
            torch.load(path, weights_only=True)
        else:
            continue
        risky.append(path)
    return risky
