"""Entropy minimization on unlabeled images."""

from __future__ import annotations

from torch import Tensor

from monai_spct.functional import entropy
from monai_spct.objectives.step import Step

__all__ = ["EntropyMinimization"]


class EntropyMinimization:
    r"""Entropy of each student's predictions for unlabeled images, mean over voxels, images and students, in nats.

    Reference:
        Grandvalet and Bengio, "Semi-supervised learning by entropy minimization", NeurIPS 2005.

    Example:
        >>> import torch
        >>> from monai_spct.objectives import EntropyMinimization, Step
        >>> uniform = torch.full((1, 6, 4, 8, 8), 0.25).log()
        >>> step = Step(0.0, torch.zeros(4, 1, 8, 8), torch.zeros(1, 4, 4, 8, 8), unlabeled=uniform)
        >>> EntropyMinimization()(step)  # log 4
        tensor(1.3863)
    """

    def __call__(self, step: Step) -> Tensor:
        """A scalar, or a ``ValueError`` when the step has no unlabeled images."""
        return step.mean(entropy(step.require("unlabeled", type(self).__name__), dim=2))
