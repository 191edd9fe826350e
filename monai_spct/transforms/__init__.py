"""Transforms of images, each usable alone."""

from monai_spct.transforms.check_case import CheckCased
from monai_spct.transforms.turns import RandomQuarterTurn, turn

__all__ = ["CheckCased", "RandomQuarterTurn", "turn"]
