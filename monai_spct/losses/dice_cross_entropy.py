"""Dice plus cross-entropy with a weight for each voxel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.loss import _Loss

from monai_spct.functional import log_softmax

__all__ = ["VoxelWeightedDiceCELoss"]


class VoxelWeightedDiceCELoss(_Loss):
    r"""Soft Dice loss of the foreground plus cross-entropy; each voxel counts by its weight.

    .. math::
        1 - \frac{1}{C - 1} \sum_{c \ge 1}
        \frac{2 \sum_v w_v p_{cv} y_{cv} + s}{\sum_v w_v p_{cv} + \sum_v w_v y_{cv} + s}
        - \frac{1}{V} \sum_v w_v \sum_c y_{cv} \log p_{cv}

    with the sums over the V voxels of all images of the batch. Without weights it is MONAI's ``DiceCELoss`` with
    ``to_onehot_y=True, softmax=True, include_background=False, batch=True``.

    Args:
        smooth: :math:`s`, which makes a class that is nowhere score 1.

    Example:
        >>> import torch
        >>> from monai_spct.losses import VoxelWeightedDiceCELoss
        >>> logits, label = torch.zeros(2, 4, 8, 8, requires_grad=True), torch.ones(2, 1, 8, 8)
        >>> loss = VoxelWeightedDiceCELoss()(logits, label, torch.rand(2, 8, 8))
        >>> loss.backward()
    """

    def __init__(self, *, smooth: float = 1e-5) -> None:
        super().__init__()
        self.smooth = smooth

    def forward(self, logits: Tensor, label: Tensor, weight: Tensor | None = None) -> Tensor:
        """A scalar, in at least float32.

        Args:
            logits: ``(B, C, *S)``; log-probabilities are logits, too.
            label: class indices, ``(B, 1, *S)``.
            weight: ``(B, *S)``, 0 or more; all 1 by default.
        """
        log_probs, index = log_softmax(logits, dim=1), label.long()
        weights = torch.ones_like(log_probs[:, 0]) if weight is None else weight.to(log_probs.dtype)
        cross_entropy = (weights * F.nll_loss(log_probs, index[:, 0], reduction="none")).mean()
        target = torch.zeros_like(log_probs).scatter_(1, index, 1)[:, 1:]
        probs, weights = log_probs.exp()[:, 1:], weights.unsqueeze(1)
        axes = [0, *range(2, log_probs.ndim)]
        overlap, total = (weights * probs * target).sum(axes), (weights * (probs + target)).sum(axes)
        dice = (2 * overlap + self.smooth) / (total + self.smooth)
        return 1 - dice.mean() + cross_entropy
