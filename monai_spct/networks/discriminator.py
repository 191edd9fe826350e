"""The discriminator of adversarial training."""

from __future__ import annotations

import torch
from monai.networks.nets import PatchDiscriminator
from torch import Tensor, nn

from monai_spct.functional.checks import at_least

__all__ = ["Discriminator"]


class Discriminator(nn.Module):
    """One logit for each image and its segmentation: whether the image is a labeled one.

    MONAI's ``PatchDiscriminator`` on image and class probabilities together, averaged over the patches. With instance
    normalization, so that the logit of an image does not depend on its batch.

    Args:
        spatial_dims: 2 or 3.
        in_channels: image channels.
        num_classes: classes of the segmentation.
        features: channels of the first convolution.
        num_layers: convolutions that halve the resolution; an image needs at least ``4 * 2 ** num_layers`` voxels along
            each axis.

    Reference:
        Zhang et al., "Deep adversarial networks for biomedical image segmentation utilizing unannotated images",
        MICCAI 2017, whose discriminator sees image and probabilities, too.

    Example:
        >>> import torch
        >>> from monai_spct.networks import Discriminator
        >>> network = Discriminator(in_channels=1, num_classes=4)
        >>> network(torch.rand(6, 1, 64, 64), torch.rand(6, 4, 64, 64).softmax(1)).shape
        torch.Size([6])
    """

    def __init__(
        self,
        spatial_dims: int = 2,
        in_channels: int = 1,
        num_classes: int = 4,
        *,
        features: int = 32,
        num_layers: int = 3,
    ) -> None:
        super().__init__()
        self.smallest = 4 * 2 ** at_least("num_layers", num_layers, 1)
        self.patches = PatchDiscriminator(
            spatial_dims=spatial_dims,
            channels=at_least("features", features, 1),
            in_channels=in_channels + num_classes,
            num_layers_d=num_layers,
            norm="INSTANCE",
        )

    def forward(self, image: Tensor, probs: Tensor) -> Tensor:
        """``(B, C_in, *S)`` and ``(B, C, *S)`` to logits ``(B,)``."""
        if min(image.shape[2:]) < self.smallest:
            raise ValueError(
                f"`Discriminator` needs images of at least {self.smallest} voxels along each axis, got "
                f"{tuple(image.shape[2:])}."
            )
        logits: Tensor = self.patches(torch.cat([image, probs.to(image.dtype)], dim=1))[-1]
        return logits.flatten(1).mean(1)
