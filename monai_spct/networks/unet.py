"""U-Net with batch normalization, for images of any size."""

from __future__ import annotations

from itertools import pairwise

import torch
from monai.networks.blocks.convolutions import Convolution
from monai.networks.blocks.upsample import UpSample
from monai.networks.layers.factories import Pool
from monai.networks.nets.basic_unet import TwoConv
from torch import Tensor, nn

from monai_spct.functional.checks import at_least
from monai_spct.networks.checks import check_axes, check_dims_and_channels, probability
from monai_spct.networks.enet import crop

__all__ = ["UNet"]


def _two_convs(spatial_dims: int, in_channels: int, out_channels: int) -> TwoConv:
    """Twice: 3x3 convolution without bias (the norm has one), BatchNorm, ReLU."""
    return TwoConv(spatial_dims, in_channels, out_channels, act=("relu", {"inplace": True}), norm="batch", bias=False)


class _Up(nn.Module):
    """Twice the resolution and half the channels, beside the encoder's features of that resolution."""

    def __init__(self, spatial_dims: int, in_channels: int) -> None:
        super().__init__()
        out_channels = in_channels // 2
        self.upsample = UpSample(spatial_dims, in_channels, out_channels, scale_factor=2, mode="deconv")
        self.convs = _two_convs(spatial_dims, 2 * out_channels, out_channels)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        y = crop(self.upsample(x), list(skip.shape[2:]))
        out: Tensor = self.convs(torch.cat([skip, y], dim=1))
        return out


class UNet(nn.Module):
    """U-Net: four times down by pooling, four times up, with the encoder's features beside the upsampled ones.

    Wang et al. 2021 (Medical Image Analysis 73, 102146) use it with 31.04 million parameters; here there are
    31,036,676. Convolutions are padded. BatchNorm follows each 3x3 convolution and replaces its bias. One transposed
    2x2 convolution with a bias upsamples and halves the channels.

    Any input size works, and the output has exactly the input's size: each pooling rounds up, and what is upsampled is
    cropped to the size before. In training BatchNorm needs more than one value for each channel at a sixteenth of the
    resolution. The module can be scripted, traced and compiled for any size, and exported for sizes above 16. The
    backward pass is deterministic where torch's max pooling is: on CUDA not in three dimensions.

    Args:
        spatial_dims: 2 for images, 3 for volumes.
        in_channels: image channels.
        out_channels: classes; the output is logits.
        features: channels at full resolution; each pooling doubles them.
        dropout: probability to drop a value behind the last convolution before the way up, as in U-Net's paper.

    Raises:
        ValueError: when an argument is out of range, or the input has not ``spatial_dims + 2`` axes.

    Reference:
        Ronneberger, Fischer and Brox, "U-Net: Convolutional networks for biomedical image segmentation", MICCAI 2015,
        figure 1.

    Example:
        >>> import torch
        >>> from monai_spct.networks import UNet
        >>> network = UNet(spatial_dims=2, in_channels=1, out_channels=4, features=8).eval()
        >>> network(torch.zeros(1, 1, 37, 50)).shape
        torch.Size([1, 4, 37, 50])
    """

    def __init__(
        self,
        spatial_dims: int = 2,
        in_channels: int = 1,
        out_channels: int = 4,
        *,
        features: int = 64,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        spatial_dims, in_channels, out_channels = check_dims_and_channels(spatial_dims, in_channels, out_channels)
        features = at_least("features", features, 1)
        dropout = probability("dropout", dropout)
        self.spatial_dims = spatial_dims
        widths = [features * 2**level for level in range(5)]
        convs = [_two_convs(spatial_dims, before, after) for before, after in pairwise([in_channels, *widths])]

        self.encoder = nn.ModuleList(convs[:-1])
        self.pool = Pool["max", spatial_dims](2, ceil_mode=True)
        self.bottleneck = convs[-1]
        self.dropout = nn.Dropout(dropout)
        self.decoder = nn.ModuleList(_Up(spatial_dims, width) for width in widths[:0:-1])
        self.head = Convolution(spatial_dims, features, out_channels, kernel_size=1, conv_only=True)
        for parameter in self.parameters():
            # Transposed convolutions, too: torch takes their fan for twice what it is in two dimensions, and without a
            # ReLU behind them that is as it should be.
            if parameter.dim() > 1:
                nn.init.kaiming_normal_(parameter, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(B, out_channels, *S)`` of images ``(B, in_channels, *S)``."""
        check_axes("UNet", self.spatial_dims, x)
        skips: list[Tensor] = []
        for block in self.encoder:
            x = block(x)
            skips.append(x)
            x = self.pool(x)
        x = self.dropout(self.bottleneck(x))
        for block in self.decoder:
            x = block(x, skips.pop())
        out: Tensor = self.head(x)
        return out
