"""The nearest right name for a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean", "nearest"]


def nearest(name: object, names: Iterable[str], *, cutoff: float = 0.5) -> str | None:
    """The most similar name, if any is similar enough."""
    return next(iter(difflib.get_close_matches(str(name), sorted(names), n=1, cutoff=cutoff)), None)


def did_you_mean(name: object, names: Iterable[str], *, prefix: str = "") -> str:
    """A sentence that suggests the nearest of ``names``, after a blank; empty where none is near.

    Args:
        name: the wrong one.
        names: the right ones.
        prefix: shown before the suggestion.

    Example:
        >>> from monai_spct.functional.spelling import did_you_mean
        >>> did_you_mean("max_epoch", ["epoch_length", "max_epochs"])
        ' Did you mean `max_epochs`?'
        >>> did_you_mean("xyzzy", ["max_epochs"])
        ''
    """
    near = nearest(name, names)
    return f" Did you mean `{prefix}{near}`?" if near else ""
