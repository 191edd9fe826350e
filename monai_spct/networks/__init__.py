"""Networks: backbones from an image to logits, and ensembles of them."""

from monai_spct.networks.enet import ENet
from monai_spct.networks.ensemble import Ensemble, build_ensemble, frozen_copy

__all__ = ["ENet", "Ensemble", "build_ensemble", "frozen_copy"]
