"""SegNet: VGG16's convolutions, and a decoder that unpools to where the maxima were."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from monai.networks.blocks.convolutions import Convolution
from monai.networks.layers.factories import Pool
from torch import Tensor, nn

from monai_spct.functional.checks import at_least
from monai_spct.networks.checks import check_axes, check_dims_and_channels, probability
from monai_spct.networks.enet import max_unpool

__all__ = ["SegNet"]


def _convs(spatial_dims: int, channels: Sequence[int]) -> nn.Sequential:
    """For each pair of neighbors in ``channels``: 3x3 convolution, BatchNorm, ReLU."""
    return nn.Sequential(
        *(
            Convolution(spatial_dims, before, after, act=("relu", {"inplace": True}), norm="batch")
            for before, after in pairwise(channels)
        )
    )


class SegNet(nn.Module):
    """SegNet: the convolutions of VGG16 and their mirror image, joined by the positions of maxima.

    Max-unpooling puts features back to where the encoder's pooling took them from; nothing else goes from encoder to
    decoder. Wang et al. 2021 (Medical Image Analysis 73, 102146) use it with 29.46 million parameters; here there are
    29,444,164, and 29.46 million numbers with the running statistics of BatchNorm. BatchNorm follows each convolution
    but the last, which is the 3x3 classifier, as in SegNet's released models; convolutions have biases, as VGG16 has.

    Any input size works, and the output has exactly the input's size: each pooling rounds up, and each unpooling
    restores the size before. In training BatchNorm needs more than one value for each channel at a sixteenth of the
    resolution. The module can be scripted, traced and compiled for any size, and exported for sizes above 32. The
    backward pass is deterministic where torch's max pooling is: on CUDA not in three dimensions.

    Args:
        spatial_dims: 2 for images, 3 for volumes.
        in_channels: image channels.
        out_channels: classes; the output is logits.
        features: channels at full resolution; each of the first three poolings doubles them.
        dropout: probability to drop a value behind the three deepest poolings and the three deepest blocks of the
            decoder, as in Bayesian SegNet (Kendall, Badrinarayanan and Cipolla, BMVC 2017), which has 0.5.

    Raises:
        ValueError: when an argument is out of range, or the input has not ``spatial_dims + 2`` axes.

    Reference:
        Badrinarayanan, Kendall and Cipolla, "SegNet: A deep convolutional encoder-decoder architecture for image
        segmentation", IEEE TPAMI 39(12), 2017, figure 2.

    Example:
        >>> import torch
        >>> from monai_spct.networks import SegNet
        >>> network = SegNet(spatial_dims=2, in_channels=1, out_channels=4, features=8).eval()
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

        levels = [  # the channels before, between and after a level's convolutions
            [in_channels, features, features],
            [features, 2 * features, 2 * features],
            [2 * features, 4 * features, 4 * features, 4 * features],
            [4 * features, 8 * features, 8 * features, 8 * features],
            [8 * features, 8 * features, 8 * features, 8 * features],
        ]
        self.encoder = nn.ModuleList(_convs(spatial_dims, channels) for channels in levels)
        self.pool = Pool["max", spatial_dims](2, ceil_mode=True, return_indices=True)
        self.dropout = nn.Dropout(dropout)
        # the mirror image, but for its last convolution: that makes logits, and so has neither norm nor ReLU
        mirrored = [[features, features], *levels[1:]]
        self.decoder = nn.ModuleList(_convs(spatial_dims, channels[::-1]) for channels in reversed(mirrored))
        self.head = Convolution(spatial_dims, features, out_channels, kernel_size=3, conv_only=True)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.kaiming_normal_(parameter, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(B, out_channels, *S)`` of images ``(B, in_channels, *S)``."""
        check_axes("SegNet", self.spatial_dims, x)
        sizes: list[list[int]] = []
        indices: list[Tensor] = []
        for level, convs in enumerate(self.encoder):
            x = convs(x)
            sizes.append(list(x.shape[2:]))
            x, where = self.pool(x)
            indices.append(where)
            if level > 1:
                x = self.dropout(x)
        for level, convs in enumerate(self.decoder):
            x = convs(max_unpool(x, indices.pop(), sizes.pop()))
            if level < 3:
                x = self.dropout(x)
        out: Tensor = self.head(x)
        return out
