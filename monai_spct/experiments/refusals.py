"""What a grid that cannot be run is refused with."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["GridError", "did_you_mean"]


class GridError(ValueError):
    """A grid, or an option of the command line, that cannot be run as it stands. Nothing has been started.

    Example:
        >>> from monai_spct.experiments import GridError, parse_grid
        >>> try:
        ...     parse_grid({"datasets": ["acdc"], "method": ["mean_teacher"]})
        ... except GridError as error:
        ...     print(error)
        a grid has no key `method`. Did you mean `methods`?
    """


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """A sentence with the nearest of the right names, after a blank; nothing where none is near.

    Example:
        >>> from monai_spct.experiments.refusals import did_you_mean
        >>> did_you_mean("max_epoch", ["epoch_length", "max_epochs"])
        ' Did you mean `max_epochs`?'
        >>> did_you_mean("xyzzy", ["max_epochs"])
        ''
    """
    near = difflib.get_close_matches(str(name), sorted(names), n=1, cutoff=0.5)
    return f" Did you mean `{near[0]}`?" if near else ""
