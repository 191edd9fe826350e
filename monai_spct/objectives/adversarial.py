"""Students make segmentations of unlabeled images that pass for those of labeled ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from monai_spct.objectives.step import Step

__all__ = ["Adversarial", "discrimination_loss"]


class Adversarial:
    r"""Binary cross-entropy between an evaluation network's verdict on unlabeled images and "labeled", mean over both.

    The evaluation network learns in :class:`~monai_spct.handlers.DiscriminatorStep`, not from this.

    Raises:
        ValueError: in the call, when the step has no verdict.

    Reference:
        Zhang et al., "Deep adversarial networks for biomedical image segmentation utilizing unannotated images",
        MICCAI 2017.

    Example:
        >>> import torch
        >>> from monai_spct.objectives import Adversarial, Step
        >>> step = Step(0.0, torch.zeros(4, 1, 8, 8), torch.zeros(1, 4, 4, 8, 8), verdict=torch.zeros(1, 6))
        >>> Adversarial()(step)  # log 2: the evaluation network cannot tell
        tensor(0.6931)
    """

    def __call__(self, step: Step) -> Tensor:
        """A scalar."""
        verdict = step.require_verdict(type(self).__name__)
        return F.binary_cross_entropy_with_logits(verdict, torch.ones_like(verdict))


def discrimination_loss(labeled: Tensor, unlabeled: Tensor) -> Tensor:
    """What the evaluation network minimizes: cross-entropy of its logits for labeled (1) and unlabeled (0) images.

    Args:
        labeled: logits of any shape.
        unlabeled: logits of any shape; both kinds count by half.

    Example:
        >>> import torch
        >>> from monai_spct.objectives import discrimination_loss
        >>> discrimination_loss(torch.zeros(4), torch.zeros(6))
        tensor(0.6931)
    """
    return (F.softplus(-labeled).mean() + F.softplus(unlabeled).mean()) / 2
