"""Schedules: pure functions of progress, the share of the epochs that are complete."""

from __future__ import annotations

import math

from monai_spct.functional.checks import positive

__all__ = ["geometric_growth", "linear_rampup", "sigmoid_rampup"]


def _share(progress: float, start: float, end: float) -> float:
    """How far ``progress`` is from ``start`` to ``end``, 0 to 1."""
    if not start < end:
        raise ValueError(f"`start` must lie before `end`, got {start!r} and {end!r}.")
    if progress >= end:
        return 1.0
    return max(0.0, (progress - start) / (end - start))


def sigmoid_rampup(
    progress: float, *, value: float, initial: float = 0.0, start: float = 0.05, end: float = 0.5
) -> float:
    r"""Sigmoid-shaped ramp: :math:`v_0 + (v - v_0)\, e^{-5 (1 - t)^2}` with :math:`t` rising from 0 to 1.

    Args:
        progress: share of the epochs that are complete.
        value: :math:`v`, the final value.
        initial: :math:`v_0`, the value before ``start``.
        start: progress at which the rise begins.
        end: progress from which on ``value`` holds.

    Reference:
        Laine and Aila, "Temporal ensembling for semi-supervised learning", ICLR 2017.

    Example:
        >>> from monai_spct.functional import sigmoid_rampup
        >>> [round(sigmoid_rampup(epoch / 100, value=4.0), 2) for epoch in (0, 5, 25, 50, 99)]
        [0.0, 0.03, 0.85, 4.0, 4.0]
    """
    share = _share(progress, start, end)
    return initial if progress < start else initial + (value - initial) * math.exp(-5.0 * (1.0 - share) ** 2)


def linear_rampup(progress: float, *, value: float, start: float = 0.0, end: float = 0.5) -> float:
    """Linear ramp: 0 until ``start``, ``value`` from ``end`` on.

    Args:
        progress: share of the epochs that are complete.
        value: the final value.
        start: progress at which the rise begins.
        end: progress from which on ``value`` holds.

    Example:
        >>> from monai_spct.functional import linear_rampup
        >>> [linear_rampup(progress, value=1e-4) for progress in (0.0, 0.25, 0.5, 0.9)]
        [0.0, 5e-05, 0.0001, 0.0001]
    """
    return value * _share(progress, start, end)


def geometric_growth(progress: float, *, initial: float, final: float, end: float = 0.5) -> float:
    r"""Geometric growth, by the same factor in each epoch: :math:`v_0 (v_1 / v_0)^t`.

    Args:
        progress: share of the epochs that are complete.
        initial: :math:`v_0`, the first value, positive.
        final: :math:`v_1`, the value from ``end`` on, positive.
        end: progress from which on ``final`` holds.

    Example:
        The paper's :math:`\gamma`, which reaches its bound after half of the epochs:

        >>> from monai_spct.functional import geometric_growth, gamma_upper_bound
        >>> [round(geometric_growth(e / 100, initial=0.2, final=gamma_upper_bound(2)), 2) for e in (0, 1, 25, 50, 99)]
        [0.2, 0.22, 1.88, 17.61, 17.61]
    """
    positive("initial", initial)
    positive("final", final)
    return initial * float((final / initial) ** _share(progress, 0.0, end))
