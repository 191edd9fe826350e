"""Files of trained weights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from torch import nn

from monai_spct.files.atomic import read_checkpoint

__all__ = ["count_networks", "load_weights"]

Module = TypeVar("Module", bound=nn.Module)


def count_networks(path: str | os.PathLike[str], *, default: int = 2) -> int:
    """Number of networks of the :class:`~monai_spct.networks.Ensemble` whose weights are in a file.

    Args:
        path: of a ``state_dict``.
        default: returned where there is no such file, as before a training.

    Raises:
        ValueError: when the file is damaged, or holds something else.

    Example:
        >>> from monai_spct.networks import count_networks
        >>> count_networks("models/none.pt", default=2)
        2
    """
    if not Path(path).is_file():
        return default
    count = len({name.split(".")[1] for name in read_checkpoint(path) if name.startswith("networks.")})
    if not count:
        raise ValueError(f"{path} does not hold the weights of an `Ensemble`; a training writes those to `model.pt`.")
    return count


def load_weights(network: Module, path: str | os.PathLike[str]) -> Module:
    """Load the weights of a file into a network, and return it.

    Args:
        network: whose weights are replaced.
        path: of a ``state_dict``, as a training writes it to ``models/model.pt``.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when the file is damaged, or holds the weights of another network, or some that are not finite.

    Example:
        >>> import tempfile, torch
        >>> from monai_spct.networks import load_weights
        >>> path = tempfile.mkdtemp() + "/model.pt"
        >>> torch.save(torch.nn.Linear(2, 2).state_dict(), path)
        >>> load_weights(torch.nn.Linear(2, 2), path)
        Linear(in_features=2, out_features=2, bias=True)
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"no trained weights at {path.absolute()}: train first, with the same `--output_dir`, or name a file by "
            "`--ckpt_path`."
        )
    weights = read_checkpoint(path)
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:  # torch's list of every key that differs follows as the cause
        raise ValueError(f"{path} holds the weights of another network than this configuration makes.") from error
    if broken := [name for name, value in weights.items() if not value.isfinite().all()]:
        raise ValueError(f"{path} holds weights that are not finite, the first of them in {broken[0]}: train anew.")
    return network
