"""Inferers for training and for whole volumes."""

from monai_spct.inferers.monte_carlo import MonteCarloDropout
from monai_spct.inferers.semi_supervised import SemiSupervisedInferer
from monai_spct.inferers.volume import VolumeInferer

__all__ = ["MonteCarloDropout", "SemiSupervisedInferer", "VolumeInferer"]
