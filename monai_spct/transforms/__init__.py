"""Transforms of images and predictions."""

from monai_spct.data.check_case import CheckCased
from monai_spct.transforms.batch import BatchCompose, BatchTransform, EachImage
from monai_spct.transforms.crops import RandStructureCropd, patch_size
from monai_spct.transforms.mixing import CopyPaste, CutMix, boxes
from monai_spct.transforms.spacing import KeysSpacingd
from monai_spct.transforms.turns import RandomQuarterTurn, turn
from monai_spct.transforms.vote_entropy import VoteEntropyd

__all__ = [
    "BatchCompose",
    "BatchTransform",
    "CheckCased",
    "CopyPaste",
    "CutMix",
    "EachImage",
    "KeysSpacingd",
    "RandStructureCropd",
    "RandomQuarterTurn",
    "VoteEntropyd",
    "boxes",
    "patch_size",
    "turn",
]
