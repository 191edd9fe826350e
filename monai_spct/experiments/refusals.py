"""What a grid that cannot be run is refused with."""

from __future__ import annotations

__all__ = ["GridError"]


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
