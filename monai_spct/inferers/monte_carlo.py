"""Uncertainty of networks by Monte Carlo dropout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from monai_spct.functional import entropy, log_softmax
from monai_spct.functional.checks import at_least
from monai_spct.networks import Ensemble

__all__ = ["MonteCarloDropout"]


class MonteCarloDropout:
    r"""Entropy of the mean prediction over several passes with dropout and with noise on the image.

    Only the dropout layers are in training mode during the passes.

    Args:
        passes: number of passes :math:`T`.
        noise: standard deviation of Gaussian noise on the image, which is cut off at twice that; 0 for none.

    Raises:
        ValueError: when a setting is out of range; in the call, when there is neither noise nor dropout.

    Reference:
        Yu et al., "Uncertainty-aware self-ensembling model for semi-supervised 3D left atrium segmentation",
        MICCAI 2019.

    Example:
        >>> import torch
        >>> from monai_spct.inferers import MonteCarloDropout
        >>> from monai_spct.networks import ENet, Ensemble, frozen_copy
        >>> teachers = frozen_copy(Ensemble([ENet(), ENet()]))
        >>> MonteCarloDropout(passes=4)(teachers, torch.rand(3, 1, 32, 32)).shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(self, *, passes: int = 8, noise: float = 0.1) -> None:
        self.passes = at_least("passes", passes, 1)
        if not 0 <= noise < float("inf"):
            raise ValueError(f"`noise` must be a standard deviation of at least 0, got {noise!r}.")
        self.noise = noise

    @torch.no_grad()
    def __call__(self, networks: Ensemble, images: Tensor) -> Tensor:
        """In nats, ``(K, B, *S)`` for images ``(B, C_in, *S)``."""
        with _live_dropout(networks) as layers:
            if not self.noise and not any(layer.p for layer in layers):
                raise ValueError("`MonteCarloDropout` needs networks with dropout, or `noise` above 0: got neither.")
            mean = torch.zeros((), device=images.device)
            for _ in range(self.passes):
                noise = self.noise * torch.randn_like(images).clamp(-2, 2)
                mean = mean + log_softmax(networks.logits(images + noise), dim=2).exp() / self.passes
        return entropy(mean.clamp(min=torch.finfo(mean.dtype).tiny).log(), dim=2)


@contextmanager
def _live_dropout(module: nn.Module) -> Iterator[list[_DropoutNd]]:
    layers = [layer for layer in module.modules() if isinstance(layer, _DropoutNd)]
    modes = [layer.training for layer in layers]
    for layer in layers:
        layer.train()
    try:
        yield layers
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            layer.train(mode)
