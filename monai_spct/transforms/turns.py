"""Random quarter turns of images and predictions."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from monai_spct.transforms.batch import BatchTransform

__all__ = ["RandomQuarterTurn", "turn"]


def turn(batch: Tensor, turns: np.ndarray, *, spatial_dims: int) -> Tensor:
    """Turn each image of a batch by its own number of quarter turns, in the plane of the first two spatial axes.

    Args:
        batch: ``(..., B, C, *S)``; both axes of the plane have the same length where a turn is odd.
        turns: ``(B,)``, whole numbers, counted from the first spatial axis toward the second.
        spatial_dims: number of spatial axes, 2 or 3.

    Example:
        >>> import numpy as np, torch
        >>> from monai_spct.transforms import turn
        >>> turn(torch.tensor([[[[1, 2], [3, 4]]]]), np.array([1]), spatial_dims=2)
        tensor([[[[2, 4],
                  [1, 3]]]])
    """
    image_axis = batch.ndim - spatial_dims - 2
    plane = (batch.ndim - spatial_dims - 1, batch.ndim - spatial_dims)  # of an image, which lacks that axis
    images = batch.unbind(image_axis)
    # the numbers of turns never go to the device, which would wait for them
    return torch.stack([torch.rot90(image, int(k), plane) for image, k in zip(images, turns, strict=True)], image_axis)


class RandomQuarterTurn(BatchTransform):
    """A random quarter turn for each image of a batch, and the same one for predictions about it.

    The turns are in the plane of the first two spatial axes, the axial plane of MONAI's volumes. Images that are not
    square in that plane are turned by half turns only, so that a batch keeps one shape.

    Args:
        seed: of the draws; ``set_random_state`` can set it later.

    Example:
        >>> import torch
        >>> from monai_spct.transforms import RandomQuarterTurn
        >>> transform = RandomQuarterTurn(seed=0)
        >>> images, predictions = torch.rand(6, 1, 8, 8), torch.rand(2, 6, 4, 8, 8)
        >>> [tuple(x.shape) for x in transform(images, predictions)]
        [(6, 1, 8, 8), (2, 6, 4, 8, 8)]
    """

    def randomize(self, data: Tensor) -> None:
        """Draw one number of turns, 0 to 3, for each image of ``(B, C, *S)``."""
        square = data.shape[2] == data.shape[3]
        self.turns = self.R.randint(4, size=len(data)) if square else 2 * self.R.randint(2, size=len(data))

    def __call__(self, images: Tensor, *dense: Tensor) -> tuple[Tensor, ...]:
        """Images ``(B, C, *S)`` and predictions ``(..., B, C', *S)``, all turned by one draw."""
        self.randomize(images)
        return tuple(turn(each, self.turns, spatial_dims=images.ndim - 2) for each in (images, *dense))
