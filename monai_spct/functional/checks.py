"""Checks of settings; messages name the argument, the rule and the value."""

from __future__ import annotations

import math
from numbers import Real

__all__ = ["at_least", "in_unit_interval", "positive"]


def positive(name: str, value: float) -> float:
    """``value`` if it is above 0, else a ``ValueError``.

    Example:
        >>> from monai_spct.functional.checks import positive
        >>> positive("gamma", -1.0)
        Traceback (most recent call last):
        ...
        ValueError: `gamma` must be positive, got -1.0.
    """
    if not value > 0:  # also refuses nan
        raise ValueError(f"`{name}` must be positive, got {value!r}.")
    return value


def in_unit_interval(name: str, value: float) -> float:
    """``value`` if it lies between 0 and 1, else a ``ValueError``."""
    if not 0 <= value <= 1:
        raise ValueError(f"`{name}` must lie between 0 and 1, got {value!r}.")
    return value


def at_least(name: str, value: int, minimum: int) -> int:
    """``value`` as an ``int`` if it is a whole number of at least ``minimum``, else a ``ValueError``."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not (minimum <= value < math.inf) or int(value) != value:
        raise ValueError(f"`{name}` must be a whole number of at least {minimum}, got {value!r}.")
    return int(value)
