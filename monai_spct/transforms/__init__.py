"""Transforms of images and predictions."""

from monai_spct.data.check_case import CheckCased
from monai_spct.transforms.turns import RandomQuarterTurn, turn
from monai_spct.transforms.vote_entropy import VoteEntropyd

__all__ = ["CheckCased", "RandomQuarterTurn", "VoteEntropyd", "turn"]
