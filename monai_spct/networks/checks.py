"""Checks of the settings and inputs of networks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from math import ceil, floor

import torch
from torch import Tensor, nn

from monai_spct.functional.checks import at_least
from monai_spct.networks.ensemble import Ensemble

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


def check_crop_size(network: nn.Module, *, crop_size: Sequence[int], in_channels: int, batch_size: int) -> None:
    """A ``ValueError`` if ``network`` cannot learn from images of this size; it is left as it is.

    A batch normalization needs more than one value for each channel, and of one small image less than that is left at
    the lowest resolution. Other networks take only multiples of what they divide by. Nothing is computed: the network
    is tried without numbers, on torch's ``meta`` device. Several outputs, as of deep supervision, must have one size.
    Networks that take no images of these axes and channels are refused.

    Args:
        network: from ``(B, C_in, *S)`` to ``(B, C, *S)`` or ``(B, H, C, *S)``, or an ensemble.
        crop_size: of the images, ``S``.
        in_channels: their channels.
        batch_size: the smallest number of images in a batch.

    Example:
        >>> from monai.networks.nets import SegResNet
        >>> from monai_spct.networks import check_crop_size
        >>> network = SegResNet(spatial_dims=3, in_channels=1, out_channels=2)
        >>> check_crop_size(network, crop_size=(56, 56, 42), in_channels=1, batch_size=2)
        Traceback (most recent call last):
        ...
        ValueError: `crop_size` 56 x 56 x 42 does not fit this network, which halves images: take 56 x 56 x 40.
    """
    size = tuple(at_least("crop_size", length, 1) for length in crop_size)
    tried = copy.deepcopy(network).to("meta").train()

    def problem(size: Sequence[int]) -> Exception | None:
        image = torch.empty(min(batch_size, 2), in_channels, *size, device="meta")
        try:
            with torch.no_grad():
                output = tried(image)
        except (RuntimeError, ValueError) as error:
            return error
        except TypeError:  # a list of outputs, which cannot be stacked
            output = None
        if not isinstance(output, Tensor) or output.ndim - image.ndim - isinstance(network, Ensemble) not in (0, 1):
            raise ValueError(
                "the network has several outputs that are no tensor (B, H, C, *S): deep supervision needs them in one "
                "size, as MONAI's `DynUNet` has them."
            )
        return None

    error = problem(size)
    if error is None:
        return
    given = " x ".join(map(str, size))
    if "more than 1" in str(error):  # what torch's norms say
        raise ValueError(
            f"`crop_size` {given} is too small for a batch of {min(batch_size, 2)}: the network's normalization needs "
            "more than one value for each channel. Take larger crops, or more images in a batch."
        ) from error
    for step in (2**level for level in range(1, 8)):
        near = {tuple(max(step, round_to(length / step) * step) for length in size) for round_to in (floor, ceil)}
        fitting = [" x ".join(map(str, other)) for other in sorted(near) if problem(other) is None]
        if fitting:
            raise ValueError(
                f"`crop_size` {given} does not fit this network, which halves images: take {' or '.join(fitting)}."
            ) from error
    if not isinstance(error, NotImplementedError) and "meta" not in str(error):  # a network may need numbers
        raise ValueError(
            f"the network cannot take {given} with {in_channels} channel{'s' if in_channels > 1 else ''}: {error}"
        ) from error
