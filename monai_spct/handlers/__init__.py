"""Handlers: when something happens."""

from monai_spct.handlers.checkpoints import SaveBest, SaveCheckpoints, Sigterm
from monai_spct.handlers.curves import SaveCurves, curves_figure
from monai_spct.handlers.discriminator_step import DiscriminatorStep
from monai_spct.handlers.distributed import AverageBuffers, SeedEachIteration
from monai_spct.handlers.ema_teacher import EMATeacher
from monai_spct.handlers.finite_loss import StopAtNonFiniteLoss
from monai_spct.handlers.history import AddToHistory, SaveHistory, read_history
from monai_spct.handlers.no_foreground import WarnOfNoForeground
from monai_spct.handlers.pictures import SavePictures, TensorBoardPictures, contour_picture
from monai_spct.handlers.predictions import SavePredictions
from monai_spct.handlers.progress import Progress, scalars, track_scalars
from monai_spct.handlers.ranking import SaveRanking
from monai_spct.handlers.scores import SaveInferenceTime, SaveScores
from monai_spct.handlers.stop_early import StopEarly

__all__ = [
    "AddToHistory",
    "AverageBuffers",
    "DiscriminatorStep",
    "EMATeacher",
    "Progress",
    "SaveBest",
    "SaveCheckpoints",
    "SaveCurves",
    "SaveHistory",
    "SaveInferenceTime",
    "SavePictures",
    "SavePredictions",
    "SaveRanking",
    "SaveScores",
    "SeedEachIteration",
    "Sigterm",
    "StopAtNonFiniteLoss",
    "StopEarly",
    "TensorBoardPictures",
    "WarnOfNoForeground",
    "contour_picture",
    "curves_figure",
    "read_history",
    "scalars",
    "track_scalars",
]
