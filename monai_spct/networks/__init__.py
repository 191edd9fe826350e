"""Backbones, and ensembles of them."""

from monai_spct.networks.batch_statistics import batch_statistics
from monai_spct.networks.checks import check_crop_size
from monai_spct.networks.discriminator import Discriminator
from monai_spct.networks.enet import ENet
from monai_spct.networks.ensemble import Ensemble, Vote, build_ensemble, compiled, frozen_copy
from monai_spct.networks.prelu import PReLU
from monai_spct.networks.residual_unet import ResidualUNet
from monai_spct.networks.segnet import SegNet
from monai_spct.networks.unet import UNet
from monai_spct.networks.weights import count_networks, load_weights

__all__ = [
    "Discriminator",
    "ENet",
    "Ensemble",
    "PReLU",
    "ResidualUNet",
    "SegNet",
    "UNet",
    "Vote",
    "batch_statistics",
    "build_ensemble",
    "check_crop_size",
    "compiled",
    "count_networks",
    "frozen_copy",
    "load_weights",
]
