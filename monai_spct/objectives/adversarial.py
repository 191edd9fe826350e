"""Adversarial training against a discriminator of labeled and unlabeled images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from monai_spct.objectives.step import Step

__all__ = ["Adversarial", "discrimination_loss"]


class Adversarial:
    r"""Adversarial loss of the students: binary cross-entropy of the discriminator's logits and "labeled".

    The discriminator learns in :class:`~monai_spct.handlers.DiscriminatorStep`, not from this.

    Raises:
        ValueError: in the call, when the step has no discriminator logits.

    Reference:
        Zhang et al., "Deep adversarial networks for biomedical image segmentation utilizing unannotated images",
        MICCAI 2017.

    Example:
        >>> import torch
        >>> from monai_spct.objectives import Adversarial, Step
        >>> logits = torch.zeros(1, 6)
        >>> step = Step(0.0, torch.zeros(4, 1, 8, 8), torch.zeros(1, 4, 4, 8, 8), discriminator_logits=logits)
        >>> Adversarial()(step)  # log 2: the discriminator cannot tell
        tensor(0.6931)
    """

    def __call__(self, step: Step) -> Tensor:
        """A scalar."""
        logits = step.require("discriminator_logits", type(self).__name__)
        return F.binary_cross_entropy_with_logits(logits, torch.ones_like(logits))


def discrimination_loss(labeled: Tensor, unlabeled: Tensor) -> Tensor:
    """Loss of the discriminator: cross-entropy of its logits for labeled (1) and unlabeled (0) images.

    Args:
        labeled: logits of any shape.
        unlabeled: logits of any shape; each kind counts half.

    Example:
        >>> import torch
        >>> from monai_spct.objectives import discrimination_loss
        >>> discrimination_loss(torch.zeros(4), torch.zeros(6))
        tensor(0.6931)
    """
    return (F.softplus(-labeled).mean() + F.softplus(unlabeled).mean()) / 2
