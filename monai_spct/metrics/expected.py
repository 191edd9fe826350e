"""The DSC that a prediction leads one to expect, without a truth."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["expected_dice"]


def expected_dice(probs: Tensor) -> Tensor:
    r"""The DSC of each structure with the truth that its probabilities promise, without a look at any truth.

    .. math:: \frac{2 \sum_v p_v \hat y_v}{\sum_v p_v + \sum_v \hat y_v}

    with :math:`p_v` = the probability of the structure at voxel :math:`v`, :math:`\hat y_v` = 1 where it is the most
    probable class and 0 elsewhere. A structure that is found nowhere has 0. Networks that are sure of too much promise
    too much: the values rank cases, and are no forecast.

    Args:
        probs: ``(B, C, *S)``, with the background as class 0.

    Returns:
        ``(B, C - 1)``.

    Reference:
        Borges et al., *Soft Dice Confidence: A Near-Optimal Confidence Estimator for Selective Prediction in Semantic
        Segmentation*, arXiv 2402.10665.

    Example:
        >>> import torch
        >>> expected_dice(torch.tensor([[[0.1, 0.7], [0.9, 0.3]]]))
        tensor([[0.8182]])
    """
    flat = probs.flatten(2)
    winner = flat.argmax(1)
    each = []
    for index in range(1, flat.shape[1]):
        true, found = flat[:, index], winner == index
        each.append(2 * (true * found).sum(1) / (true.sum(1) + found.sum(1)))
    return torch.stack(each, dim=1)
