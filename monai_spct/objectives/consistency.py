"""Consistency losses: students agree with their teachers under augmentation."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from monai_spct.functional import average_over_processes, kl_divergence
from monai_spct.functional.checks import in_unit_interval
from monai_spct.objectives.objective import Schedule, checked_schedule
from monai_spct.objectives.step import Step

__all__ = ["CertainConsistency", "Consistency", "divergence_of_teacher", "squared_error"]


def squared_error(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Squared difference of the probabilities ``(K, U, C, *S)``, mean over classes, ``(K, U, *S)``.

    Example:
        >>> import torch
        >>> from monai_spct.objectives import squared_error
        >>> one, other = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log()
        >>> squared_error(one.reshape(1, 1, 2, 1), other.reshape(1, 1, 2, 1))
        tensor([[[0.0625]]])
    """
    return (log_p.exp() - log_q.exp()).square().mean(2)


def divergence_of_teacher(log_p: Tensor, log_q: Tensor) -> Tensor:
    r"""Kullback-Leibler divergence :math:`D_\mathrm{KL}(q \Vert p)` of teacher and student at each voxel, in nats.

    Args:
        log_p: of the student, ``(K, U, C, *S)``.
        log_q: of the teacher.

    Reference:
        Hinton et al., "Distilling the knowledge in a neural network", NeurIPS workshops 2014.

    Example:
        >>> import torch
        >>> from monai_spct.objectives import divergence_of_teacher
        >>> student, teacher = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log()
        >>> divergence_of_teacher(student.reshape(1, 1, 2, 1), teacher.reshape(1, 1, 2, 1))
        tensor([[[0.1308]]])
    """
    return kl_divergence(log_q, log_p, dim=2)


class Consistency:
    r"""Distance of students' predictions for augmented images from their teachers' for the originals, augmented alike.

    The paper's :math:`\mathcal{L}_\mathrm{reg}`, but a mean over voxels and classes.

    Args:
        distance: of two tensors of log-probabilities ``(K, U, C, *S)``, at each voxel, ``(K, U, *S)``. By default the
            squared error of the probabilities, whose gradient is bounded.

    Raises:
        ValueError: in the call, when the step has no teacher or its shape is another one.

    Reference:
        Wang et al., Medical Image Analysis 2021: the self-consistency loss; Tarvainen and Valpola, NeurIPS 2017.

    Example:
        >>> import torch
        >>> from monai_spct.objectives import Consistency, Step
        >>> student, teacher = torch.randn(2, 2, 6, 4, 8, 8).log_softmax(3)
        >>> step = Step(0.0, torch.zeros(4, 1, 8, 8), torch.zeros(2, 4, 4, 8, 8), unlabeled=student, teacher=teacher)
        >>> Consistency()(step) > 0
        tensor(True)
    """

    def __init__(self, distance: Callable[[Tensor, Tensor], Tensor] = squared_error) -> None:
        self.distance = distance

    def __call__(self, step: Step) -> Tensor:
        """A scalar, with gradient for the students alone."""
        return step.mean(self.distance(*step.student_and_teacher(type(self).__name__)))


class CertainConsistency:
    r"""Consistency where the teachers are certain: squared error of probabilities, mean over classes and voxels.

    A voxel counts while the entropy of its teacher's mean prediction over several stochastic passes is below
    :math:`h \ln C`, a share of the largest entropy of :math:`C` classes. The note ``certain_share`` is the share of
    voxels that count. In distributed training the mean is over the certain voxels of all processes.

    Args:
        threshold: :math:`h`, 0 to 1, a number or a function of the run's progress.

    Raises:
        ValueError: when the threshold is out of its range; in the call, when the step has no teacher or no uncertainty.

    Reference:
        Yu et al., "Uncertainty-aware self-ensembling model for semi-supervised 3D left atrium segmentation",
        MICCAI 2019.

    Example:
        >>> import torch
        >>> from monai_spct.objectives import CertainConsistency, Step
        >>> student, teacher = torch.randn(2, 1, 6, 4, 8, 8).log_softmax(3)
        >>> step = Step(
        ...     progress=0.0,
        ...     label=torch.zeros(4, 1, 8, 8),
        ...     labeled=torch.zeros(1, 4, 4, 8, 8),
        ...     unlabeled=student,
        ...     teacher=teacher,
        ...     uncertainty=torch.ones(1, 6, 8, 8),
        ... )
        >>> CertainConsistency(0.75)(step) > 0, step.notes  # 1 is below 0.75 log 4
        (tensor(True), {'certain_share': tensor(1.)})
    """

    def __init__(self, threshold: float | Schedule) -> None:
        self.threshold = checked_schedule("threshold", threshold, in_unit_interval)

    def __call__(self, step: Step) -> Tensor:
        """A scalar, with gradient for the students alone; 0 where no voxel is certain."""
        student, teacher = step.student_and_teacher(type(self).__name__)
        uncertainty = step.require("uncertainty", type(self).__name__).detach()
        certain = (uncertainty < self.threshold(step.progress) * math.log(student.shape[2])).to(student.dtype)
        if step.unlabeled_weight is not None:
            certain = certain * (step.unlabeled_weight > 0)
        error = squared_error(student, teacher)
        step.notes["certain_share"] = certain.mean()
        # gradients become means over processes, where a voxel must count alike however many others are certain there
        count = certain.sum()
        average_over_processes([count])
        return (certain * error).sum() / count.clamp(min=torch.finfo(count.dtype).tiny)
