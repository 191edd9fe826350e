"""The supervised loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from monai_spct.functional import log_softmax
from monai_spct.objectives.step import Step

__all__ = ["Supervised", "cross_entropy"]


def cross_entropy(logits: Tensor, label: Tensor, weight: Tensor | None = None) -> Tensor:
    """Cross-entropy, mean over voxels and images, of logits ``(B, C, *S)`` and class indices ``(B, 1, *S)``.

    It is computed in at least float32. Each voxel may have a weight, ``(B, *S)``.

    Example:
        >>> import torch
        >>> from monai_spct.objectives import cross_entropy
        >>> cross_entropy(torch.zeros(1, 4, 8, 8), torch.ones(1, 1, 8, 8))  # log 4
        tensor(1.3863)
    """
    # in half precision the sum over the voxels would be infinite long before their mean is
    each = F.nll_loss(log_softmax(logits, dim=1), label[:, 0].long(), reduction="none")
    return each.mean() if weight is None else (weight * each).mean()


class Supervised:
    r"""Mean over the students of their losses on the labeled images, :math:`\mathcal{L}_\mathrm{sup}`.

    With deep supervision it is the mean over the outputs of a network, of which each counts half as much as the one
    before it.

    Args:
        loss: of logits ``(B, C, *S)`` and class indices ``(B, 1, *S)``, such as MONAI's segmentation losses
            with ``to_onehot_y=True, softmax=True``. Where images are mixed, also of a weight for each voxel
            ``(B, *S)``, as :class:`~monai_spct.losses.VoxelWeightedDiceCELoss`.

    Reference:
        Wang et al., Medical Image Analysis 2021: the supervised loss.

    Example:
        >>> import torch
        >>> from monai.losses import DiceLoss
        >>> from monai_spct.objectives import Step, Supervised
        >>> label = torch.randint(4, (2, 1, 8, 8))
        >>> step = Step(progress=0.0, label=label, labeled=torch.zeros(2, 2, 4, 8, 8))
        >>> Supervised(DiceLoss(to_onehot_y=True, softmax=True))(step).shape
        torch.Size([])
    """

    def __init__(self, loss: Callable[..., Tensor] = cross_entropy) -> None:
        self.loss = loss

    def __call__(self, step: Step) -> Tensor:
        """A scalar."""
        weight = () if step.label_weight is None else (step.label_weight,)
        outputs = [step.labeled, *(() if step.deep is None else step.deep)]
        losses = torch.stack(
            [torch.stack([self.loss(logits, step.label, *weight) for logits in output]).mean() for output in outputs]
        )
        shares = 0.5 ** torch.arange(len(outputs), device=losses.device)
        return (shares * losses).sum() / shares.sum()
