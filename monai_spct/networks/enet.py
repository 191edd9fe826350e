"""ENet, a small and fast encoder-decoder for segmentation, in two and three dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from monai.networks.blocks.convolutions import Convolution
from monai.networks.layers.factories import Norm, Pool
from torch import Tensor, nn

from monai_spct.networks.checks import check_axes, check_dims_and_channels
from monai_spct.networks.prelu import PReLU

__all__ = ["ENet", "crop", "max_unpool"]


def max_unpool(values: Tensor, indices: Tensor, size: list[int]) -> Tensor:
    """Put pooled values back to where they were the maximum, and zeros elsewhere.

    The same numbers as ``torch.nn.MaxUnpool2d`` and ``MaxUnpool3d``, which cannot be scripted, refuse odd sizes that
    are not spelled out, and raise under ``torch.use_deterministic_algorithms(True)``.

    Args:
        values: ``(B, C, *S)``.
        indices: ``(B, C, *S)``, as max pooling without overlap returns them.
        size: the space before pooling.
    """
    voxels = 1
    for n in size:
        voxels = voxels * n
    # windows do not overlap, so no position is written twice and the order of writing does not matter
    zeros = values.new_zeros([values.shape[0], values.shape[1], voxels])
    return torch.unflatten(zeros.scatter_(2, indices.flatten(2), values.flatten(2)), 2, size)


def crop(x: Tensor, size: list[int]) -> Tensor:
    """The first voxels along each axis: ``(B, C, *S)`` to ``(B, C, *size)``, of the same memory format."""
    # negative padding rather than slices: the result is dense at every size, for torch.export and for users who `view`
    surplus: list[int] = []
    for axis in range(x.dim() - 1, 1, -1):
        surplus += [0, size[axis - 2] - x.shape[axis]]
    return F.pad(x, surplus)


def _conv(
    spatial_dims: int,
    in_channels: int,
    out_channels: int,
    *,
    kernel_size: Sequence[int] | int = 1,
    strides: int = 1,
    dilation: int = 1,
    padding: int | None = None,
    relu: bool = False,
) -> Convolution:
    """Convolution without bias (the norm has one), BatchNorm, and PReLU or, in the decoder, ReLU."""
    convolution = Convolution(
        spatial_dims,
        in_channels,
        out_channels,
        strides=strides,
        kernel_size=kernel_size,
        adn_ordering="N",
        norm="batch",
        dilation=dilation,
        bias=False,
        padding=padding,
    )
    convolution.get_submodule("adn").add_module("A", _activation(out_channels, relu=relu))
    return convolution


def _expansion(spatial_dims: int, in_channels: int, out_channels: int, dropout: float) -> Convolution:
    """The end of a branch: 1x1 convolution, BatchNorm, and dropout of whole channels."""
    return Convolution(
        spatial_dims,
        in_channels,
        out_channels,
        kernel_size=1,
        adn_ordering="ND",
        norm="batch",
        # in place: the backward pass of BatchNorm needs its input, not its output
        dropout=("dropout", {"p": dropout, "inplace": True}),
        dropout_dim=spatial_dims,
        bias=False,
    )


def _activation(channels: int, *, relu: bool = False) -> nn.Module:
    return nn.ReLU(inplace=True) if relu else PReLU(channels)


class _Initial(nn.Module):
    """Half the resolution: a strided convolution beside the max-pooled image."""

    def __init__(self, spatial_dims: int, in_channels: int, features: int) -> None:
        super().__init__()
        self.concatenate = in_channels < features
        convolved = features - in_channels if self.concatenate else features
        self.conv = Convolution(
            spatial_dims, in_channels, convolved, strides=2, kernel_size=3, bias=False, conv_only=True
        )
        self.pool = Pool["max", spatial_dims](2, ceil_mode=True)
        self.norm = Norm["batch", spatial_dims](features)
        self.act = PReLU(features)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        if self.concatenate:
            y = torch.cat([y, self.pool(x)], dim=1)
        out: Tensor = self.act(self.norm(y))
        return out


class _Bottleneck(nn.Module):
    """A residual block: 1x1 projection to a quarter of the channels, convolution, 1x1 expansion."""

    def __init__(
        self,
        spatial_dims: int,
        channels: int,
        dropout: float,
        *,
        dilation: int = 1,
        asymmetric: bool = False,
        relu: bool = False,
    ) -> None:
        super().__init__()
        inner = channels // 4
        kernels: list[Sequence[int] | int] = [3]
        if asymmetric:  # 5x1 then 1x5; in three dimensions 5x1x1, 1x5x1, 1x1x5
            kernels = [[5 if i == axis else 1 for i in range(spatial_dims)] for axis in range(spatial_dims)]
        self.branch = nn.Sequential(
            _conv(spatial_dims, channels, inner, relu=relu),
            *(_conv(spatial_dims, inner, inner, kernel_size=k, dilation=dilation, relu=relu) for k in kernels),
            _expansion(spatial_dims, inner, channels, dropout),
        )
        self.act = _activation(channels, relu=relu)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.branch(x)
        y += x
        out: Tensor = self.act(y)
        return out


class _Down(nn.Module):
    """A bottleneck that halves the resolution; its shortcut is max-pooled and filled up with channels of zeros."""

    def __init__(self, spatial_dims: int, in_channels: int, out_channels: int, dropout: float) -> None:
        super().__init__()
        inner = out_channels // 4
        self.pool = Pool["max", spatial_dims](2, ceil_mode=True, return_indices=True)
        self.branch = nn.Sequential(
            _conv(spatial_dims, in_channels, inner, kernel_size=2, strides=2, padding=0),
            _conv(spatial_dims, inner, inner, kernel_size=3),
            _expansion(spatial_dims, inner, out_channels, dropout),
        )
        self.missing = out_channels - in_channels
        self.act = _activation(out_channels)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pooled, indices = self.pool(x)
        # One more row and column of zeros and the 2x2 convolution rounds up as the pooling does; at even sizes it never
        # reads them. Padding by the parity instead would save nothing, and torch.export would not see that the sizes of
        # branch and shortcut agree.
        y: Tensor = self.branch(F.pad(x, [0, 1] * (x.dim() - 2)))
        y += F.pad(pooled, [0, 0] * (x.dim() - 2) + [0, self.missing])
        return self.act(y), indices


class _Up(nn.Module):
    """A bottleneck that doubles the resolution; its shortcut is max-unpooled with the encoder's indices."""

    def __init__(self, spatial_dims: int, in_channels: int, out_channels: int, dropout: float) -> None:
        super().__init__()
        inner = out_channels // 4
        self.shortcut = Convolution(
            spatial_dims, in_channels, out_channels, kernel_size=1, adn_ordering="N", norm="batch", bias=False
        )
        self.project = _conv(spatial_dims, in_channels, inner, relu=True)
        self.full = Convolution(
            spatial_dims, inner, inner, strides=2, kernel_size=3, bias=False, is_transposed=True, conv_only=True
        )
        self.norm = Norm["batch", spatial_dims](inner)
        self.inner_act = _activation(inner, relu=True)
        self.expand = _expansion(spatial_dims, inner, out_channels, dropout)
        self.act = _activation(out_channels, relu=True)

    def forward(self, x: Tensor, indices: Tensor, size: list[int]) -> Tensor:
        # cropped before the norm, whose statistics shall not see what lies outside of the image
        y: Tensor = crop(self.full(self.project(x)), size)
        y = self.expand(self.inner_act(self.norm(y)))
        y += max_unpool(self.shortcut(x), indices, size)
        out: Tensor = self.act(y)
        return out


class ENet(nn.Module):
    """ENet: a residual network that downsamples early and has few parameters.

    As in the paper, the encoder uses PReLU and the decoder ReLU, and max-unpooling takes the encoder's indices. What
    the paper leaves open: a bottleneck works on a quarter of its output channels, and the last, full convolution is 2x2
    with a bias. There are 362,811 parameters, and 0.37 million numbers with the running statistics of BatchNorm. In
    three dimensions the pair of asymmetric convolutions becomes a triple.

    Any input size works, and the output has exactly the input's size: each downsampling rounds up, and each upsampling
    is cropped to the size before. (Padding the image instead would let BatchNorm average over pixels that are not
    there.) In training BatchNorm needs more than one value for each channel at an eighth of the resolution. The module
    can be scripted, traced, exported and compiled for any size. The backward pass is deterministic where torch's max
    pooling is: on CUDA not in three dimensions.

    Args:
        spatial_dims: 2 for images, 3 for volumes.
        in_channels: image channels.
        out_channels: classes; the output is logits.
        features: channels after the initial block, a multiple of four; the later stages have four and eight times as
            many. From ``in_channels = features`` on, the pooled image is left out of the initial block.
        dropout: probability to drop a channel of a residual branch, in stage 1 and in all later stages.

    Raises:
        ValueError: when an argument is out of range, or the input has not ``spatial_dims + 2`` axes.

    Reference:
        Paszke, Chaurasia, Kim and Culurciello, "ENet: A deep neural network architecture for real-time semantic
        segmentation", arXiv:1606.02147, 2016, table 1 and figure 2.

    Example:
        >>> network = ENet(spatial_dims=2, in_channels=1, out_channels=4).eval()
        >>> network(torch.zeros(1, 1, 37, 50)).shape
        torch.Size([1, 4, 37, 50])
    """

    def __init__(
        self,
        spatial_dims: int = 2,
        in_channels: int = 1,
        out_channels: int = 4,
        *,
        features: int = 16,
        dropout: Sequence[float] = (0.01, 0.1),
    ) -> None:
        super().__init__()
        spatial_dims, in_channels, out_channels = check_dims_and_channels(spatial_dims, in_channels, out_channels)
        if features < 4 or features % 4:
            raise ValueError(f"`features` must be a positive multiple of 4, got {features!r}.")
        if len(dropout) != 2 or not all(0 <= p < 1 for p in dropout):
            raise ValueError(f"`dropout` must be two probabilities in [0, 1), got {dropout!r}.")
        self.spatial_dims = spatial_dims
        early, late = (float(p) for p in dropout)  # a scripted dropout takes no integers
        wide, widest = 4 * features, 8 * features

        self.initial = _Initial(spatial_dims, in_channels, features)
        self.down1 = _Down(spatial_dims, features, wide, early)
        self.stage1 = nn.Sequential(*(_Bottleneck(spatial_dims, wide, early) for _ in range(4)))
        self.down2 = _Down(spatial_dims, wide, widest, late)
        self.stage2 = self._context(spatial_dims, widest, late)
        self.stage3 = self._context(spatial_dims, widest, late)
        self.up4 = _Up(spatial_dims, widest, wide, late)
        self.stage4 = nn.Sequential(*(_Bottleneck(spatial_dims, wide, late, relu=True) for _ in range(2)))
        self.up5 = _Up(spatial_dims, wide, features, late)
        self.stage5 = nn.Sequential(_Bottleneck(spatial_dims, features, late, relu=True))
        # the only convolution with a bias: no norm follows
        self.head = Convolution(
            spatial_dims,
            features,
            out_channels,
            strides=2,
            kernel_size=2,
            padding=0,
            output_padding=0,
            is_transposed=True,
            conv_only=True,
        )

    @staticmethod
    def _context(spatial_dims: int, channels: int, dropout: float) -> nn.Sequential:
        """Stages 2 and 3: dilations 1, 2, 4, 8, 16, with an asymmetric block in every other pair."""
        return nn.Sequential(
            _Bottleneck(spatial_dims, channels, dropout),
            _Bottleneck(spatial_dims, channels, dropout, dilation=2),
            _Bottleneck(spatial_dims, channels, dropout, asymmetric=True),
            _Bottleneck(spatial_dims, channels, dropout, dilation=4),
            _Bottleneck(spatial_dims, channels, dropout),
            _Bottleneck(spatial_dims, channels, dropout, dilation=8),
            _Bottleneck(spatial_dims, channels, dropout, asymmetric=True),
            _Bottleneck(spatial_dims, channels, dropout, dilation=16),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(B, out_channels, *S)`` of images ``(B, in_channels, *S)``."""
        check_axes("ENet", self.spatial_dims, x)
        size = list(x.shape[2:])
        x = self.initial(x)
        half = list(x.shape[2:])
        x, indices_half = self.down1(x)
        x = self.stage1(x)
        quarter = list(x.shape[2:])
        x, indices_quarter = self.down2(x)
        x = self.stage3(self.stage2(x))
        x = self.stage4(self.up4(x, indices_quarter, quarter))
        x = self.stage5(self.up5(x, indices_half, half))
        return crop(self.head(x), size)
