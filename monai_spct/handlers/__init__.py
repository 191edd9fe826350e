"""Handlers: when something happens."""

from monai_spct.handlers.checkpoints import SaveBest, SaveCheckpoints, save_atomically
from monai_spct.handlers.ema_teacher import EMATeacher
from monai_spct.handlers.finite_loss import StopAtNonFiniteLoss
from monai_spct.handlers.progress import Progress, scalars

__all__ = [
    "EMATeacher",
    "Progress",
    "SaveBest",
    "SaveCheckpoints",
    "StopAtNonFiniteLoss",
    "save_atomically",
    "scalars",
]
