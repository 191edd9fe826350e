"""Entropy maps of soft votes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from monai.config import KeysCollection
from monai.transforms import MapTransform

__all__ = ["VoteEntropyd"]


class VoteEntropyd(MapTransform):
    r"""Entropy :math:`-\sum_c p_c \log p_c` of probabilities ``(C, *S)``, as ``(1, *S)``, in nats.

    0 where the vote is certain, :math:`\log C` where all classes are equally likely. For the soft vote of several
    networks it is large where one of them is unsure and where they contradict each other.

    Args:
        keys: keys of the probabilities.
        output_key: key of the map.

    Example:
        >>> import torch
        >>> from monai_spct.transforms import VoteEntropyd
        >>> data = VoteEntropyd("pred", output_key="uncertainty")({"pred": torch.full((4, 1, 1), 0.25)})
        >>> data["uncertainty"]
        tensor([[[1.3863]]])
    """

    def __init__(self, keys: KeysCollection, *, output_key: str = "uncertainty") -> None:
        super().__init__(keys)
        self.output_key = output_key

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Add the map to the data."""
        result = dict(data)
        for key in self.key_iterator(result):
            result[self.output_key] = torch.special.entr(result[key]).sum(0, keepdim=True)
        return result
