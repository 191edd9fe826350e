"""Self-paced and self-consistent co-training for semi-supervised medical image segmentation, on MONAI."""

from monai_spct.engines import SemiSupervisedTrainer
from monai_spct.handlers import EMATeacher
from monai_spct.inferers import SemiSupervisedInferer
from monai_spct.losses import SelfPacedJSDLoss
from monai_spct.networks import ENet, Ensemble
from monai_spct.objectives import Objective

__all__ = [
    "EMATeacher",
    "ENet",
    "Ensemble",
    "Objective",
    "SelfPacedJSDLoss",
    "SemiSupervisedInferer",
    "SemiSupervisedTrainer",
]

__version__ = "0.1.0"
