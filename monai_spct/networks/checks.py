"""Checks of the settings and inputs of networks."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from monai_spct.functional.checks import at_least

__all__ = ["check_axes", "check_crop_size", "check_dims_and_channels", "probability"]


def check_dims_and_channels(spatial_dims: int, in_channels: int, out_channels: int) -> tuple[int, int, int]:
    """The three as ``int``, or a ``ValueError`` if there is no such network."""
    if spatial_dims not in (2, 3):
        raise ValueError(f"`spatial_dims` must be 2 or 3, got {spatial_dims!r}.")
    return int(spatial_dims), at_least("in_channels", in_channels, 1), at_least("out_channels", out_channels, 1)


def probability(name: str, value: float) -> float:
    """``value`` as a ``float`` if it lies in [0, 1), else a ``ValueError``."""
    if not 0 <= value < 1:  # also refuses nan
        raise ValueError(f"`{name}` must be a probability in [0, 1), got {value!r}.")
    return float(value)  # a scripted dropout takes no integers


def check_axes(network: str, spatial_dims: int, x: Tensor) -> None:
    """A ``ValueError`` if ``x`` is not ``(B, C, *S)`` with ``spatial_dims`` axes of space.

    ``forward`` calls it, so it stays within what ``torch.jit.script`` compiles.
    """
    if x.dim() != spatial_dims + 2:
        raise ValueError(
            f"{network} with `spatial_dims` = {spatial_dims} takes (B, C, *S) of {spatial_dims + 2} axes, "
            f"got {x.dim()} axes."
        )


def check_crop_size(network: nn.Module, *, crop_size: int, in_channels: int, batch_size: int) -> None:
    """A ``ValueError`` if ``network`` cannot learn from square images of this size; it is left as it is.

    A batch normalization needs more than one value for each channel, and of one small image less than that is left at
    the lowest resolution. Nothing is computed: the network is tried without numbers, on torch's ``meta`` device.

    Args:
        network: from ``(B, C_in, H, W)`` to anything.
        crop_size: height and width of the images.
        in_channels: their channels.
        batch_size: the smallest number of images in a batch.

    Example:
        >>> from monai_spct.networks import UNet, check_crop_size
        >>> check_crop_size(UNet(), crop_size=16, in_channels=1, batch_size=1)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: `crop_size` 16 is too small for a batch of one image: the network's batch normalization needs ...
    """
    size = at_least("crop_size", crop_size, 1)
    if batch_size > 1:
        return  # two values at the least
    try:
        with torch.no_grad():
            copy.deepcopy(network).to("meta").train()(torch.empty(1, in_channels, size, size, device="meta"))
    except ValueError as error:
        raise ValueError(
            f"`crop_size` {size} is too small for a batch of one image: the network's batch normalization needs more "
            "than one value for each channel. Take larger crops, or more images in a batch."
        ) from error
