"""The self-paced co-training loss as a torch module."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from monai.utils import LossReduction
from torch import Tensor
from torch.nn.modules.loss import _Loss

from monai_spct.functional import log_softmax, self_paced_jsd
from monai_spct.functional.checks import in_unit_interval, positive

__all__ = ["SelfPacedJSDLoss"]


class SelfPacedJSDLoss(_Loss):
    r"""Self-paced, entropy-regularized Jensen-Shannon divergence between the predictions of K networks ("views").

    At each voxel a network :math:`k` has the weight
    :math:`w_k = \max(1 - D_\mathrm{KL}(p^k \Vert \bar p) / \gamma, \epsilon)` with :math:`\bar p` the mean prediction,
    and the loss is

    .. math::
        \rho \Bigl[ \mathcal{H}\bigl(\sum_k \pi_k\, p^k\bigr) - (1 - \alpha) \sum_k \pi_k\, \mathcal{H}(p^k) \Bigr],
        \qquad \rho = \sum_k w_k, \quad \pi_k = w_k / \rho

    so that networks first agree where they nearly do, and on harder voxels as :math:`\gamma` grows. No gradient flows
    through the weights. ``gamma`` and ``alpha`` may be set between iterations.

    Args:
        gamma: the learning pace :math:`\gamma`, positive. Around 0.2 at first; above
            :func:`~monai_spct.functional.gamma_upper_bound` all voxels take part, and the loss nears K times the plain
            divergence.
        alpha: :math:`\alpha`, 0 to 1. Above 0, networks are also asked to be certain.
        eps: :math:`\epsilon`, the smallest weight, above 0 and at most 1.
        softmax: whether the input holds logits. Otherwise it holds probabilities over the class axis.
        reduction: ``"mean"`` or ``"sum"`` over voxels and images, or ``"none"``.

    Raises:
        ValueError: when a setting is out of its range, or the views are fewer than 2 or differ in shape.

    Reference:
        Wang et al., "Self-paced and self-consistent co-training for semi-supervised image segmentation", Medical Image
        Analysis 2021: Theorems 1 and 2 and the section on uncertainty regularization.

    Example:
        >>> import torch
        >>> from monai_spct.losses import SelfPacedJSDLoss
        >>> networks = [torch.nn.Conv2d(1, 4, 3, padding=1) for _ in range(2)]
        >>> images = torch.rand(6, 1, 32, 32)  # unlabeled
        >>> criterion = SelfPacedJSDLoss(gamma=0.2)
        >>> loss = criterion([network(images) for network in networks])
        >>> loss.backward()
        >>> criterion.gamma, criterion.alpha = 0.4, 1e-4  # harder voxels in the next epoch
    """

    def __init__(
        self,
        gamma: float,
        alpha: float = 0.0,
        eps: float = 1e-5,
        softmax: bool = True,
        reduction: LossReduction | str = LossReduction.MEAN,
    ) -> None:
        super().__init__(reduction=LossReduction(reduction).value)
        self.gamma = gamma
        self.alpha = alpha
        self.eps = in_unit_interval("eps", positive("eps", eps))
        self.softmax = softmax

    @property
    def gamma(self) -> float:
        """The learning pace."""
        return self._gamma

    @gamma.setter
    def gamma(self, value: float) -> None:
        self._gamma = positive("gamma", value)

    @property
    def alpha(self) -> float:
        """Share of the entropy term."""
        return self._alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        self._alpha = in_unit_interval("alpha", value)

    def forward(self, views: Tensor | Sequence[Tensor]) -> Tensor:
        """Loss of the K networks' predictions for the same images.

        Args:
            views: ``(K, B, C, *S)``, or a sequence of K tensors ``(B, C, *S)``; logits, or probabilities if not
                ``softmax``.

        Returns:
            A scalar, or ``(B, *S)`` with ``reduction="none"``; float32, or float64 for such input.
        """
        stacked = views if isinstance(views, Tensor) else _stack(views)
        if stacked.ndim < 4:
            raise ValueError(f"`views` must be (K, B, C, *S), got the shape {tuple(stacked.shape)}.")
        if len(stacked) < 2:
            raise ValueError(f"`views` must hold the predictions of at least 2 networks, got {len(stacked)}.")
        if self.softmax:
            log_probs = log_softmax(stacked, dim=2)
        else:
            probs = stacked if stacked.dtype == torch.float64 else stacked.float()
            log_probs = probs.clamp(min=torch.finfo(probs.dtype).tiny).log()
        loss, _ = self_paced_jsd(log_probs, gamma=self.gamma, alpha=self.alpha, eps=self.eps)
        if self.reduction == LossReduction.MEAN.value:
            return loss.mean()
        if self.reduction == LossReduction.SUM.value:
            return loss.sum()
        return loss


def _stack(views: Sequence[Tensor]) -> Tensor:
    shapes = {tuple(view.shape) for view in views}
    if len(shapes) > 1:
        raise ValueError(f"all `views` must have the same shape, got {sorted(shapes)}.")
    if not views:
        raise ValueError("`views` must hold the predictions of at least 2 networks, got 0.")
    return torch.stack(tuple(views))
