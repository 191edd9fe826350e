"""Random transforms of batches: of images, and of dense predictions about them alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from monai.transforms import Compose, Randomizable
from monai.utils import convert_to_tensor
from torch import Tensor

__all__ = ["BatchCompose", "BatchTransform", "EachImage"]


class BatchTransform(Randomizable):
    """Base of random transforms of a batch, whose draws go on after a checkpoint.

    Args:
        seed: of the draws; ``set_random_state`` can set it later.

    Example:
        >>> import torch
        >>> from monai_spct.transforms import BatchTransform
        >>> class Dim(BatchTransform):
        ...     def __call__(self, images, *dense):
        ...         return self.R.uniform() * images, *dense
        >>> dim = Dim(seed=0)
        >>> state = dim.state_dict()
        >>> [first] = dim(torch.ones(1))
        >>> dim.load_state_dict(state)
        >>> bool(dim(torch.ones(1))[0] == first)
        True
    """

    def __init__(self, *, seed: int | None = None) -> None:
        super().__init__()
        self.set_random_state(seed=seed)

    def state_dict(self) -> dict[str, Any]:
        """State of the random generator."""
        _, keys, position, *_ = self.R.get_state(legacy=True)
        return {"keys": torch.from_numpy(np.asarray(keys, dtype=np.int64)), "position": int(position)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        keys = state_dict["keys"].numpy().astype(np.uint32)
        self.R.set_state(("MT19937", keys, state_dict["position"], 0, 0.0))


class EachImage(BatchTransform):
    """MONAI's random intensity transforms, drawn anew for each image of a batch; predictions stay as they are.

    What students see is a strong view of what their teachers see.

    Args:
        transforms: of images ``(C, *S)``, such as ``RandAdjustContrast``.
        seed: of the draws.

    Example:
        >>> import torch
        >>> from monai.transforms import RandAdjustContrast
        >>> from monai_spct.transforms import EachImage
        >>> jitter = EachImage([RandAdjustContrast(prob=1.0)], seed=0)
        >>> images, predictions = torch.rand(6, 1, 8, 8), torch.rand(2, 6, 4, 8, 8)
        >>> seen, same = jitter(images, predictions)
        >>> seen.shape, same is predictions
        (torch.Size([6, 1, 8, 8]), True)
    """

    def __init__(self, transforms: Sequence[Callable[..., Any]], *, seed: int | None = None) -> None:
        super().__init__(seed=seed)
        self.transform = Compose(transforms)

    def __call__(self, images: Tensor, *dense: Tensor) -> tuple[Tensor, ...]:
        """Images ``(B, C, *S)``, each transformed, and ``dense`` itself."""
        self.transform.set_random_state(seed=int(self.R.randint(2**32, dtype=np.uint64)))
        seen = [convert_to_tensor(self.transform(image), track_meta=False) for image in images]
        return torch.stack(seen), *dense


class BatchCompose(Randomizable):
    """Transforms of a batch, one after another.

    Args:
        transforms: such as :class:`~monai_spct.transforms.RandomQuarterTurn` and
            :class:`~monai_spct.transforms.CutMix`.

    Example:
        >>> import torch
        >>> from monai_spct.transforms import BatchCompose, CutMix, RandomQuarterTurn
        >>> transform = BatchCompose([RandomQuarterTurn(seed=0), CutMix(seed=1)])
        >>> [tuple(x.shape) for x in transform(torch.rand(6, 1, 8, 8), torch.rand(2, 6, 4, 8, 8))]
        [(6, 1, 8, 8), (2, 6, 4, 8, 8)]
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        self.transforms = list(transforms)

    def __call__(self, images: Tensor, *dense: Tensor) -> tuple[Tensor, ...]:
        """Images ``(B, C, *S)`` and predictions ``(..., B, C', *S)``, all transformed alike."""
        batch = (images, *dense)
        for transform in self.transforms:
            batch = transform(*batch)
        return batch

    def set_random_state(self, seed: int | None = None, state: np.random.RandomState | None = None) -> BatchCompose:
        """Seed the draws of all transforms."""
        super().set_random_state(seed, state)
        for transform in self.transforms:
            transform.set_random_state(seed=int(self.R.randint(2**32, dtype=np.uint64)))
        return self

    def state_dict(self) -> dict[str, Any]:
        """States of the random generators."""
        return {str(n): transform.state_dict() for n, transform in enumerate(self.transforms)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        for n, transform in enumerate(self.transforms):
            transform.load_state_dict(state_dict[str(n)])
