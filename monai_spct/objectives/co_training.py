"""Co-training losses: students agree with each other on unlabeled images."""

from __future__ import annotations

import torch
from torch import Tensor

from monai_spct.functional import generalized_jsd, self_paced_jsd
from monai_spct.functional.checks import in_unit_interval, positive
from monai_spct.objectives.objective import Schedule, checked_schedule
from monai_spct.objectives.step import Step

__all__ = ["CoTraining", "SelfPacedCoTraining"]


def _views(step: Step, reader: str) -> Tensor:
    views = step.require("unlabeled", reader)
    if len(views) < 2:
        raise ValueError(f"co-training needs at least 2 views: `num_views` must be at least 2, got {len(views)}.")
    return views


def _disagreement(views: Tensor) -> Tensor:
    """The share of voxels at which not all students give the same class."""
    # a class that is the likeliest for all students; `argmax` along a strided axis costs ten times as much
    agreed = (views == views.amax(2, keepdim=True)).all(0).any(1)
    return 1 - agreed.float().mean()


class CoTraining:
    r"""Jensen-Shannon divergence of the students on unlabeled images, mean over voxels and images, in nats.

    The note ``disagreement`` is the share of voxels at which not all students give the same class.

    Raises:
        ValueError: in the call, when there are fewer than 2 students or no unlabeled images.

    Reference:
        Peng et al., "Deep co-training for semi-supervised image segmentation", Pattern Recognition 2020; Wang et al.,
        Medical Image Analysis 2021, where it is called Co-training.

    Example:
        >>> import torch
        >>> from monai_spct.objectives import CoTraining, Step
        >>> certain = torch.tensor([[30.0, 0.0], [0.0, 30.0]]).log_softmax(1).reshape(2, 1, 2, 1, 1)
        >>> step = Step(0.0, torch.zeros(1, 1, 1, 1), torch.zeros(2, 1, 2, 1, 1), unlabeled=certain)
        >>> CoTraining()(step)  # log 2, the largest for two students
        tensor(0.6931)
    """

    def __call__(self, step: Step) -> Tensor:
        """A scalar."""
        views = _views(step, type(self).__name__)
        step.notes["disagreement"] = _disagreement(views.detach())
        return step.mean(generalized_jsd(views))


class SelfPacedCoTraining:
    r"""Self-paced Jensen-Shannon divergence of the students, mean over voxels and images.

    The paper's :math:`\mathcal{L}_\mathrm{spc}`. Notes: ``gamma``, ``selected_share`` (the share of weights above
    ``eps``) and ``disagreement`` (the share of voxels at which not all students give the same class). At a small
    :math:`\gamma` the loss may rise while students come to agree, since their weights rise.

    Args:
        gamma: :math:`\gamma`, positive, a number or a function of the run's progress.
        alpha: share of the entropy term, 0 to 1, a number or a function of the run's progress.
        eps: the smallest weight.

    Raises:
        ValueError: when a setting is out of its range; in the call, when there are fewer than 2 students.

    Reference:
        Wang et al., Medical Image Analysis 2021: the self-paced loss with uncertainty regularization.

    Example:
        >>> import torch
        >>> from monai_spct.objectives import SelfPacedCoTraining, Step
        >>> views = torch.randn(2, 6, 4, 8, 8).log_softmax(2)
        >>> step = Step(0.0, torch.zeros(4, 1, 8, 8), torch.zeros(2, 4, 4, 8, 8), unlabeled=views)
        >>> SelfPacedCoTraining(gamma=0.2)(step) > 0, sorted(step.notes)
        (tensor(True), ['disagreement', 'gamma', 'selected_share'])
    """

    def __init__(self, gamma: float | Schedule, *, alpha: float | Schedule = 0.0, eps: float = 1e-5) -> None:
        self.eps = in_unit_interval("eps", positive("eps", eps))
        self.gamma = checked_schedule("gamma", gamma, positive)
        self.alpha = checked_schedule("alpha", alpha, in_unit_interval)

    def __call__(self, step: Step) -> Tensor:
        """A scalar."""
        views = _views(step, type(self).__name__)
        gamma = self.gamma(step.progress)
        loss, weights = self_paced_jsd(views, gamma=gamma, alpha=self.alpha(step.progress), eps=self.eps)
        with torch.no_grad():
            step.notes["gamma"] = gamma
            step.notes["selected_share"] = (weights > self.eps).float().mean()
            step.notes["disagreement"] = _disagreement(views)
        return step.mean(loss)
