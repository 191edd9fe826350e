"""Inference of volumes by networks for slices."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from monai.inferers import Inferer
from monai.utils import convert_to_dst_type
from torch import Tensor

from monai_spct.functional.checks import at_least

__all__ = ["VolumeInferer"]


class VolumeInferer(Inferer):
    """Run a 2-D network on whole slices of a volume, several at a time.

    The slices are those along the last axis, axial in MONAI's volumes. The network must take any size;
    MONAI's ``SliceInferer`` cuts windows for networks that do not.

    Args:
        batch_size: slices in a batch.
        augment: whether to average the predictions of the eight flips and quarter turns of each slice, which takes
            eight times as long.

    Example:
        >>> import torch
        >>> from monai_spct.inferers import VolumeInferer
        >>> from monai_spct.networks import ENet, Ensemble
        >>> network = Ensemble([ENet(), ENet()]).eval()
        >>> VolumeInferer()(torch.rand(1, 1, 40, 36, 10), network).shape
        torch.Size([1, 4, 40, 36, 10])
    """

    def __init__(self, *, batch_size: int = 8, augment: bool = False) -> None:
        super().__init__()
        self.augment = augment
        self.batch_size = at_least("batch_size", batch_size, 1)

    def __call__(self, inputs: Tensor, network: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Predictions ``(B, C, H, W, D)`` for volumes ``(B, C_in, H, W, D)``, with the geometry of the input."""
        if inputs.ndim != 5:
            raise ValueError(f"`inputs` must be volumes (B, C, H, W, D), got the shape {tuple(inputs.shape)}.")
        plain = inputs.as_tensor() if hasattr(inputs, "as_tensor") else inputs
        slices = plain.movedim(-1, 1).flatten(0, 1)
        predictions = torch.cat(
            [self._predict(chunk, network, *args, **kwargs) for chunk in slices.split(self.batch_size)]
        )
        volume = predictions.reshape(len(inputs), inputs.shape[-1], *predictions.shape[1:]).movedim(1, -1)
        return convert_to_dst_type(volume, inputs, dtype=volume.dtype)[0]

    def _predict(self, images: Tensor, network: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:
        prediction: Tensor = network(images, *args, **kwargs)
        if not self.augment:
            return prediction
        for turns, flipped in [(0, True), *product((1, 2, 3), (False, True))]:
            seen = images.rot90(turns, (2, 3))
            said = network(seen.flip(2), *args, **kwargs).flip(2) if flipped else network(seen, *args, **kwargs)
            prediction = prediction + said.rot90(-turns, (2, 3))
        return prediction / 8
