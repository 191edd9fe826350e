"""Mixing of images by boxes: CutMix and copy-paste."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from monai_spct.functional.checks import in_unit_interval, positive
from monai_spct.transforms.batch import BatchTransform

__all__ = ["CopyPaste", "CutMix", "boxes"]


def boxes(
    sides: NDArray[np.floating],
    places: NDArray[np.floating],
    *,
    size: tuple[int, ...],
    device: torch.device | str = "cpu",
) -> Tensor:
    """Masks of boxes, one for each image, true inside.

    Args:
        sides: ``(B, D)``, lengths along each axis as a share of the image, 0 to 1.
        places: ``(B, D)``, 0 for a box at the beginning of an axis, 1 for one at its end.
        size: of the images, D numbers.
        device: of the masks, which are made there: nothing waits for a copy.

    Returns:
        ``(B, 1, *size)``, bool. A box has at least one voxel.

    Example:
        >>> import numpy as np
        >>> from monai_spct.transforms import boxes
        >>> boxes(np.array([[0.5, 0.5]]), np.array([[0.0, 1.0]]), size=(4, 4))[0, 0].int()
        tensor([[0, 0, 1, 1],
                [0, 0, 1, 1],
                [0, 0, 0, 0],
                [0, 0, 0, 0]], dtype=torch.int32)
    """
    masks = torch.zeros(len(sides), 1, *size, dtype=torch.bool, device=device)
    lengths = np.clip(np.rint(sides * size), 1, size).astype(int)
    starts = np.rint(places * (size - lengths)).astype(int)
    for mask, start, length in zip(masks, starts, lengths, strict=True):
        mask[(0, *(slice(a, a + n) for a, n in zip(start, length, strict=True)))] = True
    return masks


class CutMix(BatchTransform):
    """Paste a box of another image of the batch into an image, and the predictions about it alike.

    Args:
        prob: share of the images that get a box.
        area: smallest and largest share of the area (in 3-D, of the volume) of a box.
        aspect: the largest ratio of its sides.
        seed: of the draws.

    Raises:
        ValueError: when a setting is out of its range; in the call, when there is one image alone.

    Reference:
        Yun et al., "CutMix: regularization strategy to train strong classifiers with localizable features", ICCV 2019;
        Yang et al., "Revisiting weak-to-strong consistency in semi-supervised semantic segmentation", CVPR 2023.

    Example:
        >>> import torch
        >>> from monai_spct.transforms import CutMix
        >>> images = torch.arange(3.0).reshape(3, 1, 1, 1).expand(3, 1, 8, 8)
        >>> mixed, prediction = CutMix(prob=1.0, seed=0)(images, images)
        >>> [image.unique().numel() for image in mixed], bool((mixed == prediction).all())
        ([2, 2, 2], True)
    """

    def __init__(
        self,
        *,
        prob: float = 0.5,
        area: tuple[float, float] = (0.02, 0.4),
        aspect: float = 3.3,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed=seed)
        self.prob = in_unit_interval("prob", prob)
        low, high = area
        if not 0 < low <= high <= 1:
            raise ValueError(f"`area` must be two shares of an image, the smaller one first, got {area!r}.")
        self.area = (low, high)
        self.aspect = positive("aspect", aspect)

    def __call__(self, images: Tensor, *dense: Tensor) -> tuple[Tensor, ...]:
        """Images ``(B, C, *S)`` and predictions ``(..., B, C', *S)``, all mixed by one draw."""
        count, size = len(images), tuple(images.shape[2:])
        if count < 2:
            raise ValueError(f"`CutMix` pastes from other images of a batch: at least 2 are needed, got {count}.")
        # not itself, each of the others alike often
        others = (np.arange(count) + self.R.randint(1, count, size=count)) % count
        shares = self.R.uniform(*self.area, size=(count, 1))
        ratios = np.exp(self.R.uniform(-0.5, 0.5, size=(count, len(size))) * math.log(self.aspect))
        sides = shares ** (1 / len(size)) * ratios / ratios.prod(1, keepdims=True) ** (1 / len(size))
        masks = boxes(sides, self.R.uniform(size=sides.shape), size=size, device=images.device)
        mixed = self.R.uniform(size=count) < self.prob
        others = np.where(mixed, others, np.arange(count))

        def paste(each: Tensor) -> Tensor:
            axis = each.ndim - 2 - len(size)
            sources = each.unbind(axis)
            return torch.where(masks, torch.stack([sources[other] for other in others], axis), each)

        return tuple(paste(each) for each in (images, *dense))


class CopyPaste(BatchTransform):
    """Paste a box of a labeled image into an unlabeled one, and of an unlabeled image into a labeled one, in turn.

    Args:
        side: of the boxes along each axis, as a share of the image.
        seed: of the draws.

    Raises:
        ValueError: when ``side`` is not a share; in the call, when there are not as many labeled as unlabeled images.

    Reference:
        Bai et al., "Bidirectional copy-paste for semi-supervised medical image segmentation", CVPR 2023, where one box
        serves a batch; here each image has its own.

    Example:
        >>> import torch
        >>> from monai_spct.transforms import CopyPaste
        >>> mixed, known = CopyPaste(seed=0)(torch.ones(2, 1, 6, 6), torch.zeros(2, 1, 6, 6))
        >>> known.flatten(1).sum(1), bool((mixed[:, 0] == known).all())  # 16 of 36 voxels are in a box
        (tensor([20, 16]), True)
    """

    def __init__(self, *, side: float = 2 / 3, seed: int | None = None) -> None:
        super().__init__(seed=seed)
        self.side = in_unit_interval("side", positive("side", side))

    def __call__(self, labeled: Tensor, unlabeled: Tensor) -> tuple[Tensor, Tensor]:
        """Mix labeled and as many unlabeled images, ``(B, C, *S)``.

        Returns:
            The images, ``(B, C, *S)``, and a bool mask ``(B, *S)`` of what comes from the labeled ones.
        """
        count, size = len(labeled), tuple(labeled.shape[2:])
        if len(unlabeled) != count:
            raise ValueError(
                "as many labeled as unlabeled images are needed to mix them: `labeled_batch_size` and "
                f"`unlabeled_batch_size` must be equal, got {count} and {len(unlabeled)}."
            )
        sides = np.full((count, len(size)), self.side)
        inside = boxes(sides, self.R.uniform(size=sides.shape), size=size, device=labeled.device)
        first = self.R.randint(2)
        # labeled: inside the box, or all around it
        known = torch.stack([mask if (n + first) % 2 == 0 else ~mask for n, mask in enumerate(inside)])
        return torch.where(known, labeled, unlabeled), known[:, 0]
