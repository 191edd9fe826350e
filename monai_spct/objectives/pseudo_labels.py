"""Pseudo-labels: students learn the classes that teachers find likeliest."""

from __future__ import annotations

from collections.abc import Callable

import torch
from monai.transforms import KeepLargestConnectedComponent
from monai.utils import convert_to_tensor
from torch import Tensor

from monai_spct.functional import mixture, self_paced_weights
from monai_spct.functional.checks import in_unit_interval, positive
from monai_spct.objectives.objective import Schedule, checked_schedule
from monai_spct.objectives.step import Step
from monai_spct.objectives.supervised import cross_entropy

__all__ = ["Agreement", "Confidence", "PseudoLabels"]

Weighting = Callable[[Tensor, float], Tensor]


class Confidence:
    """1 where the likeliest class of a teacher has at least a certain probability, else 0.

    Args:
        threshold: 0 to 1, a number or a function of the run's progress.

    Reference:
        Sohn et al., "FixMatch", NeurIPS 2020.

    Example:
        >>> import torch
        >>> from monai_spct.objectives import Confidence
        >>> teacher = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log().reshape(2, 1, 2, 1)
        >>> Confidence(0.8)(teacher, 0.0).flatten()
        tensor([1., 0.])
    """

    def __init__(self, threshold: float | Schedule) -> None:
        self.threshold = checked_schedule("threshold", threshold, in_unit_interval)

    def __call__(self, teacher: Tensor, progress: float) -> Tensor:
        """From log-probabilities ``(K, U, C, *S)`` to weights ``(K, U, *S)``."""
        return (teacher.amax(2).exp() >= self.threshold(progress)).to(teacher.dtype)


class Agreement:
    r"""The self-paced weight of a teacher: how near it is to the mean of all teachers at a voxel.

    Args:
        gamma: the learning pace, positive, a number or a function of the run's progress.

    Reference:
        Wang et al., Medical Image Analysis 2021: Theorem 1, there of students.

    Example:
        >>> import torch
        >>> from monai_spct.objectives import Agreement
        >>> teachers = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]).log().reshape(3, 1, 2, 1)
        >>> Agreement(0.5)(teachers, 0.0).flatten()
        tensor([6.2734e-01, 6.2734e-01, 1.0000e-05])
    """

    def __init__(self, gamma: float | Schedule) -> None:
        self.gamma = checked_schedule("gamma", gamma, positive)

    def __call__(self, teacher: Tensor, progress: float) -> Tensor:
        """From log-probabilities ``(K, U, C, *S)`` to weights ``(K, U, *S)``."""
        return self_paced_weights(teacher, mixture(teacher), gamma=self.gamma(progress))


class PseudoLabels:
    r"""Supervised loss of the students on unlabeled images, with the likeliest classes of their teachers as labels.

    The note ``trusted_share`` is the mean weight of the pseudo-labels.

    Args:
        loss: of logits ``(U, C, *S)``, class indices ``(U, 1, *S)`` and weights ``(U, *S)``, such as
            :class:`~monai_spct.losses.VoxelWeightedDiceCELoss`.
        weight: from the log-probabilities of the teachers ``(K, U, C, *S)`` and the run's progress to a weight of each
            voxel ``(K, U, *S)``, for example :class:`Confidence` or :class:`Agreement`; all 1 by default.
        crossed: whether each student learns from the teacher of the next one, not from its own.
        largest_component: whether to keep the largest connected component of each class in each image alone; found on
            the CPU.

    Raises:
        ValueError: in the call, when the step has no teacher, or only one and they are crossed.

    Reference:
        Lee, "Pseudo-label", ICML workshops 2013; crossed: Chen et al., "Semi-supervised semantic segmentation with
        cross pseudo supervision", CVPR 2021.

    Example:
        >>> import torch
        >>> from monai_spct.losses import VoxelWeightedDiceCELoss
        >>> from monai_spct.objectives import Confidence, PseudoLabels, Step
        >>> student, teacher = torch.randn(2, 2, 6, 4, 8, 8).log_softmax(3)
        >>> step = Step(0.0, torch.zeros(4, 1, 8, 8), torch.zeros(2, 4, 4, 8, 8), unlabeled=student, teacher=teacher)
        >>> PseudoLabels(VoxelWeightedDiceCELoss(), weight=Confidence(0.5), crossed=True)(step) > 0, list(step.notes)
        (tensor(True), ['trusted_share'])
    """

    def __init__(
        self,
        loss: Callable[..., Tensor] = cross_entropy,
        *,
        weight: Weighting | None = None,
        crossed: bool = False,
        largest_component: bool = False,
    ) -> None:
        self.loss = loss
        self.weight = weight
        self.crossed = crossed
        self.keep = KeepLargestConnectedComponent() if largest_component else None

    def __call__(self, step: Step) -> Tensor:
        """A scalar, with gradient for the students alone."""
        student, teacher = step.student_and_teacher(type(self).__name__)
        labels = teacher.argmax(2, keepdim=True)
        weights = torch.ones_like(teacher[:, :, 0]) if self.weight is None else self.weight(teacher, step.progress)
        step.notes["trusted_share"] = weights.mean()
        if self.keep is not None:
            kept = [convert_to_tensor(self.keep(label), track_meta=False) for label in labels.cpu().flatten(0, 1)]
            labels = torch.stack(kept).reshape(labels.shape).to(labels)
        if step.unlabeled_weight is not None:
            weights = weights * step.unlabeled_weight
        if self.crossed:
            if len(teacher) < 2:
                raise ValueError(f"to cross pseudo-labels, `num_views` must be at least 2, got {len(teacher)}.")
            labels, weights = labels.roll(1, 0), weights.roll(1, 0)
        return torch.stack([self.loss(*each) for each in zip(student, labels, weights, strict=True)]).mean()
