"""MONAI's residual U-Net for images of any size."""

from __future__ import annotations

import torch.nn.functional as F
from monai.networks.nets.unet import UNet as MonaiUNet
from torch import Tensor, nn

__all__ = ["ResidualUNet"]


class ResidualUNet(nn.Module):
    """MONAI's ``UNet`` with residual units and instance normalization, for images of any size.

    Images are padded with zeros at their ends, to a multiple of 16 and at least 32, and the logits cut back. Instance
    normalization knows nothing of other images: it needs neither large batches nor running statistics. The default has
    1.63 million parameters in 2-D.

    Args:
        spatial_dims: 2 or 3.
        in_channels: channels of the images.
        out_channels: number of classes, background included.
        features: channels of the first of five levels; doubled at each.
        dropout: probability.

    Reference:
        Kerfoot et al., "Left-ventricle quantification using residual U-Net", STACOM 2018.

    Example:
        >>> import torch
        >>> from monai_spct.networks import ResidualUNet
        >>> ResidualUNet()(torch.rand(2, 1, 50, 37)).shape
        torch.Size([2, 4, 50, 37])
    """

    def __init__(
        self,
        spatial_dims: int = 2,
        in_channels: int = 1,
        out_channels: int = 4,
        *,
        features: int = 16,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        channels, strides = [features * 2**level for level in range(5)], [2] * 4
        self.network = MonaiUNet(
            spatial_dims, in_channels, out_channels, channels, strides, num_res_units=2, dropout=dropout
        )

    def forward(self, image: Tensor) -> Tensor:
        """``(B, in_channels, *S)`` to logits ``(B, out_channels, *S)``."""
        missing: list[int] = []
        for axis in range(image.dim() - 1, 1, -1):
            size = image.shape[axis]
            multiple = (size + 15) // 16 * 16
            at_least_32 = (multiple + 32 + abs(multiple - 32)) // 2  # a `max` would be a constant of a trace
            missing += [0, at_least_32 - size]
        logits: Tensor = self.network(F.pad(image, missing))
        for axis in range(2, image.dim()):
            logits = logits.narrow(axis, 0, image.shape[axis])
        return logits.contiguous()
