"""Entropies and divergences of predictions, per voxel, from log-probabilities."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["entropy", "generalized_jsd", "kl_divergence", "log_softmax", "mixture"]


def log_softmax(logits: Tensor, *, dim: int) -> Tensor:
    """Log-probabilities along ``dim`` in at least float32, finite for every finite logit.

    Args:
        logits: any shape and floating dtype; ``float16`` and ``bfloat16`` are raised to ``float32``, since an entropy
            summed in half precision loses all digits near 0.
        dim: the class axis.

    Example:
        >>> import torch
        >>> from monai_spct.functional import log_softmax
        >>> log_softmax(torch.tensor([0.0, 1e4], dtype=torch.float16), dim=0)
        tensor([-10000.,      0.])
    """
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return torch.log_softmax(logits, dim=dim, dtype=dtype)


def entropy(log_probs: Tensor, *, dim: int) -> Tensor:
    r"""Shannon entropy :math:`\mathcal{H}(p) = -\sum_c p_c \log p_c` along the class axis, in nats.

    Args:
        log_probs: log-probabilities, finite, as :func:`log_softmax` returns them.
        dim: the class axis, which the result lacks.

    Example:
        >>> import torch
        >>> from monai_spct.functional import entropy
        >>> entropy(torch.full((4,), 0.25).log(), dim=0)  # log 4
        tensor(1.3863)
    """
    # log-probabilities stay finite where softmax underflows to exactly 0, and so does their gradient
    return -(log_probs.exp() * log_probs).sum(dim)


def kl_divergence(log_p: Tensor, log_q: Tensor, *, dim: int) -> Tensor:
    r"""Kullback-Leibler divergence :math:`D_\mathrm{KL}(p \,\Vert\, q) = \sum_c p_c \log (p_c / q_c)`, in nats.

    Args:
        log_p: log-probabilities, finite.
        log_q: log-probabilities of a shape that broadcasts with ``log_p``.
        dim: the class axis, which the result lacks.

    Example:
        >>> import torch
        >>> from monai_spct.functional import kl_divergence
        >>> p, q = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log()
        >>> kl_divergence(p, q, dim=0)
        tensor(0.1438)
    """
    return (log_p.exp() * (log_p - log_q)).sum(dim)


def mixture(log_probs: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Log-probabilities of the weighted mean prediction :math:`\sum_k \pi_k p^k`.

    Args:
        log_probs: ``(K, B, C, *S)``, finite.
        weights: :math:`\pi`, ``(K, B, *S)``, non-negative, summing to one over the K networks; the same for all if
            omitted.

    Returns:
        ``(B, C, *S)``

    Example:
        >>> import torch
        >>> from monai_spct.functional import mixture
        >>> views = torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log().reshape(2, 1, 2, 1, 1)
        >>> mixture(views).exp().flatten()
        tensor([0.3750, 0.6250])
        >>> mixture(views, torch.tensor([1.0, 0.0]).reshape(2, 1, 1, 1)).exp().flatten()
        tensor([0.5000, 0.5000])
    """
    if weights is None:
        return torch.logsumexp(log_probs, dim=0) - math.log(len(log_probs))
    return torch.logsumexp(log_probs + weights.log().unsqueeze(2), dim=0)


def generalized_jsd(log_probs: Tensor, weights: Tensor | None = None, *, alpha: float | Tensor = 0.0) -> Tensor:
    r"""Entropy-regularized, weighted Jensen-Shannon divergence of K predictions at each voxel, in nats.

    .. math::
        \mathrm{JSD}^\alpha_\pi(p^1, \ldots, p^K)
            = \mathcal{H}\Bigl(\sum_k \pi_k\, p^k\Bigr) - (1 - \alpha) \sum_k \pi_k\, \mathcal{H}(p^k)

    with :math:`p^k` = ``log_probs[k].exp()`` and :math:`\pi_k` = ``weights[k]``. At :math:`\alpha = 0` it is the
    divergence of Lin (1991), which lies between 0 and :math:`\log K`; at :math:`\alpha = 1` it is the entropy of the
    mean prediction, which is 0 only where all networks agree and are certain.

    Args:
        log_probs: ``(K, B, C, *S)``, finite.
        weights: ``(K, B, *S)``, non-negative, summing to one over the K networks; the same for all if omitted.
        alpha: share of the entropy term, 0 to 1.

    Returns:
        ``(B, *S)``

    Reference:
        Wang et al., "Self-paced and self-consistent co-training for semi-supervised image segmentation", Medical Image
        Analysis 2021: Theorem 2 and the section on uncertainty regularization.

    Example:
        >>> import torch
        >>> from monai_spct.functional import generalized_jsd
        >>> agree = torch.tensor([[0.5, 0.5], [0.5, 0.5]]).log().reshape(2, 1, 2, 1, 1)
        >>> generalized_jsd(agree).abs().item() < 1e-6, round(generalized_jsd(agree, alpha=1.0).item(), 4)
        (True, 0.6931)
    """
    each = entropy(log_probs, dim=2)
    mean_entropy = each.mean(0) if weights is None else (weights * each).sum(0)
    return entropy(mixture(log_probs, weights), dim=1) - (1 - alpha) * mean_entropy
