"""Inference of volumes, slice by slice or in windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from monai.inferers import Inferer, SlidingWindowInferer
from monai.utils import convert_to_dst_type, ensure_tuple
from torch import Tensor

from monai_spct.functional.checks import at_least

__all__ = ["VolumeInferer"]


class VolumeInferer(Inferer):
    """Run a 2-D network on the slices of a volume, or a 3-D network on the volume, in windows if need be.

    Slices are those along the last axis, axial in MONAI's volumes. Windows are those of MONAI's
    ``SlidingWindowInferer``, weighted by Gaussians. A network whose normalization goes by the image, as instance
    normalization does, is best shown windows of the size that it has learned from, also in 2-D.

    Args:
        batch_size: slices or windows in a batch.
        patch_size: of the windows, ``(H, W)`` for a 2-D network or ``(H, W, D)`` for a 3-D one; whole slices, of any
            size, when it is ``None``.
        overlap: of the windows along each axis, as a share of them.
        augment: whether to average the predictions of the eight flips and quarter turns of each slice or window, in the
            plane of the first two axes, which takes eight times as long.

    Raises:
        ValueError: when ``patch_size`` has neither two nor three axes, or one below 1; in the call, when images are no
            volumes.

    Example:
        >>> import torch
        >>> from monai_spct.inferers import VolumeInferer
        >>> from monai_spct.networks import ENet, Ensemble
        >>> volume, network = torch.rand(1, 1, 40, 36, 10), Ensemble([ENet(), ENet()]).eval()
        >>> VolumeInferer()(volume, network).shape, VolumeInferer(patch_size=(32, 32))(volume, network).shape
        (torch.Size([1, 4, 40, 36, 10]), torch.Size([1, 4, 40, 36, 10]))
        >>> VolumeInferer(patch_size=(16, 16, 8))(volume, Ensemble([ENet(spatial_dims=3)]).eval()).shape
        torch.Size([1, 4, 40, 36, 10])
    """

    def __init__(
        self,
        *,
        batch_size: int = 8,
        patch_size: Sequence[int] | None = None,
        overlap: float = 0.5,
        augment: bool = False,
    ) -> None:
        super().__init__()
        self.augment = augment
        self.batch_size = at_least("batch_size", batch_size, 1)
        self.patch_size = patch_size
        if patch_size is not None:
            self.patch_size = tuple(at_least("patch_size", length, 1) for length in ensure_tuple(patch_size))
            if len(self.patch_size) not in (2, 3):
                raise ValueError(f"`patch_size` must be (H, W) or (H, W, D), got {patch_size!r}.")
        self.windows = (
            None
            if self.patch_size is None
            else SlidingWindowInferer(self.patch_size, batch_size, overlap=overlap, mode="gaussian")
        )

    def __call__(self, inputs: Tensor, network: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Predictions ``(B, C, H, W, D)`` for volumes ``(B, C_in, H, W, D)``, with the geometry of the input."""
        if inputs.ndim != 5:
            raise ValueError(f"`inputs` must be volumes (B, C, H, W, D), got the shape {tuple(inputs.shape)}.")
        plain = inputs.as_tensor() if hasattr(inputs, "as_tensor") else inputs

        def predict(images: Tensor) -> Tensor:
            return self._predict(images, network, *args, **kwargs)

        def scan(images: Tensor) -> Tensor:
            return predict(images) if self.windows is None else self.windows(images, predict)  # type: ignore[return-value]

        if self.patch_size is not None and len(self.patch_size) == 3:
            volume = scan(plain)
        else:
            slices = plain.movedim(-1, 1).flatten(0, 1)
            predictions = torch.cat([scan(chunk) for chunk in slices.split(self.batch_size)])
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
