"""Batch normalization by the batch, without updates of the running statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["batch_statistics"]


@contextmanager
def batch_statistics(module: nn.Module) -> Iterator[None]:
    """Context in which batch normalizations use their batch and leave the running statistics as they are.

    All else, dropout included, stays in the mode that it is in.

    Args:
        module: any module; other normalizations are not touched.

    Example:
        >>> import torch
        >>> from monai_spct.networks import batch_statistics
        >>> norm = torch.nn.BatchNorm2d(1, affine=False).eval()
        >>> images = 7 + torch.rand(4, 1, 8, 8)
        >>> with batch_statistics(norm):
        ...     inside = norm(images)
        >>> abs(float(inside.mean())) < 1e-4, float(norm(images).min()) >= 6.9, float(norm.running_mean)
        (True, True, 0.0)
    """
    layers = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
    before = [(layer.training, layer.track_running_stats) for layer in layers]
    for layer in layers:
        # in training mode and with nothing to track, torch hands no running statistics to the normalization
        layer.training, layer.track_running_stats = True, False
    try:
        yield
    finally:
        for layer, (training, tracking) in zip(layers, before, strict=True):
            layer.training, layer.track_running_stats = training, tracking
