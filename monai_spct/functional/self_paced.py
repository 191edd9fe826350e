"""Self-paced weights, the loss they weigh, and the range of the learning pace."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from monai_spct.functional.checks import at_least, in_unit_interval, positive
from monai_spct.functional.divergence import generalized_jsd, kl_divergence, mixture

__all__ = ["gamma_upper_bound", "initial_gamma", "self_paced_jsd", "self_paced_weights"]


def self_paced_weights(log_probs: Tensor, consensus: Tensor, *, gamma: float | Tensor, eps: float = 1e-5) -> Tensor:
    r"""Self-paced weight of each network at each voxel.

    .. math:: w_k = \max\bigl(1 - \tfrac{1}{\gamma} D_\mathrm{KL}(p^k \,\Vert\, \hat y),\ \epsilon\bigr)

    with :math:`p^k` = ``log_probs[k].exp()``, the pseudo-label :math:`\hat y` = ``consensus.exp()``, the learning pace
    :math:`\gamma` = ``gamma`` and :math:`\epsilon` = ``eps``. The weights minimize
    :math:`\sum_k w_k D_\mathrm{KL}(p^k \Vert \hat y) + \gamma(w_k^2/2 - w_k)`; the paper puts :math:`\epsilon` in the
    place of 0 so that weights can be divided by their sum.

    Args:
        log_probs: ``(K, B, C, *S)``, finite.
        consensus: log-probabilities of the pseudo-label, ``(B, C, *S)``.
        gamma: the learning pace, positive; the larger, the more voxels take part.
        eps: the smallest weight, positive.

    Returns:
        ``(K, B, *S)``, between ``eps`` and 1.

    Reference:
        Wang et al., Medical Image Analysis 2021: Theorem 1.

    Example:
        >>> import torch
        >>> from monai_spct.functional import mixture, self_paced_weights
        >>> views = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]).log().reshape(3, 1, 2, 1, 1)
        >>> self_paced_weights(views, mixture(views), gamma=0.5).flatten()  # two agree, one does not
        tensor([6.2734e-01, 6.2734e-01, 1.0000e-05])
    """
    divergence = kl_divergence(log_probs, consensus.unsqueeze(0), dim=2)
    tiny = torch.finfo(divergence.dtype).tiny  # below it `gamma` or `eps` would be 0 here, and 0 / 0 follow
    if not isinstance(gamma, Tensor):
        gamma = max(gamma, tiny)
    # rounding may leave a divergence just below 0
    return (1 - divergence / gamma).clamp(min=max(eps, tiny), max=1.0)


def self_paced_jsd(
    log_probs: Tensor, *, gamma: float | Tensor, alpha: float | Tensor = 0.0, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    r"""Self-paced co-training loss and weights at each voxel.

    .. math::
        \rho\, \mathrm{JSD}^\alpha_\pi(p^1, \ldots, p^K), \qquad \rho = \sum_k w_k, \quad \pi_k = w_k / \rho

    with :math:`w_k` = :func:`self_paced_weights` at the mean prediction. No gradient flows through the weights: the
    paper alternates between weights and networks.

    Args:
        log_probs: ``(K, B, C, *S)``, finite, K at least 2.
        gamma: the learning pace, positive.
        alpha: share of the entropy term, 0 to 1.
        eps: the smallest weight, positive.

    Returns:
        The loss ``(B, *S)`` and the weights ``(K, B, *S)``.

    Reference:
        Wang et al., Medical Image Analysis 2021: Theorem 2 and the self-paced loss with uncertainty regularization.

    Example:
        >>> import torch
        >>> from monai_spct.functional import self_paced_jsd
        >>> views = torch.tensor([[0.8, 0.2], [0.6, 0.4]]).log().reshape(2, 1, 2, 1, 1)
        >>> loss, weights = self_paced_jsd(views, gamma=0.2)
        >>> round(loss.item(), 4), weights.shape
        (0.0425, torch.Size([2, 1, 1, 1]))
    """
    with torch.no_grad():  # the weights minimize the objective in closed form; networks do not learn through them
        weights = self_paced_weights(log_probs, mixture(log_probs), gamma=gamma, eps=eps)
        total = weights.sum(0)
    return total * generalized_jsd(log_probs, weights / total, alpha=alpha), weights


def gamma_upper_bound(num_views: int, eps: float = 1e-5) -> float:
    r"""Learning pace beyond which every voxel takes part, :math:`\log_2(K / \epsilon)`.

    It bounds the divergence of a network from the weighted mean of ``num_views`` networks whose weights are at least
    ``eps``. The paper's bound is in bits; it holds all the more for the divergences here, which are in nats.

    Args:
        num_views: number of networks K, at least 2.
        eps: the smallest weight, above 0 and at most 1.

    Raises:
        ValueError: when a number is out of its range.

    Reference:
        Wang et al., Medical Image Analysis 2021: "Setting the learning pace parameter"; Lin, "Divergence measures based
        on the Shannon entropy", 1991.

    Example:
        >>> from monai_spct.functional import gamma_upper_bound
        >>> round(gamma_upper_bound(2, eps=1e-5), 2)
        17.61
    """
    in_unit_interval("eps", positive("eps", eps))
    return math.log2(at_least("num_views", num_views, 2) / eps)


def initial_gamma(labeled_share: float, gammas: Mapping[str, float] | Mapping[float, float]) -> float:
    r"""First learning pace :math:`\gamma_0` for a labeled share of the patients.

    That of the smallest listed ratio which the share does not exceed; of the largest, where it exceeds them all. Ratios
    are rounded down to whole patients (10 % of 36 are 3, a share of 8 %): rounding up finds the ratio that was meant.

    Args:
        labeled_share: labeled patients as a share of all that are trained on.
        gammas: :math:`\gamma_0` by ratio; ratios may be strings, since JSON has no numbers as keys.

    Raises:
        ValueError: if nothing is listed.

    Reference:
        Wang et al., Medical Image Analysis 2021: "Implementation details".

    Example:
        >>> from monai_spct.functional import initial_gamma
        >>> [initial_gamma(patients / 36, {"0.1": 0.2, "0.07": 0.4}) for patients in (1, 2, 3, 36)]
        [0.4, 0.4, 0.2, 0.2]
    """
    ordered = sorted((float(ratio), gamma) for ratio, gamma in gammas.items())
    if not ordered:
        raise ValueError("`gammas` must list at least one ratio, got none.")
    return next((gamma for ratio, gamma in ordered if labeled_share <= ratio), ordered[-1][1])
