"""Losses, each usable alone in any PyTorch or MONAI pipeline."""

from monai_spct.losses.dice_cross_entropy import VoxelWeightedDiceCELoss
from monai_spct.losses.self_paced_jsd import SelfPacedJSDLoss

__all__ = ["SelfPacedJSDLoss", "VoxelWeightedDiceCELoss"]
