"""Handlers: when something happens."""

from monai_spct.handlers.average_buffers import AverageBuffers
from monai_spct.handlers.checkpoints import SaveBest, SaveCheckpoints, save_atomically
from monai_spct.handlers.curves import SaveCurves, curves_figure
from monai_spct.handlers.discriminator_step import DiscriminatorStep
from monai_spct.handlers.ema_teacher import EMATeacher
from monai_spct.handlers.finite_loss import StopAtNonFiniteLoss
from monai_spct.handlers.history import AddToHistory, SaveHistory, read_history
from monai_spct.handlers.inference_time import SaveInferenceTime
from monai_spct.handlers.pictures import SavePictures, contour_picture
from monai_spct.handlers.predictions import SavePredictions
from monai_spct.handlers.progress import Progress, scalars
from monai_spct.handlers.scores import SaveScores
from monai_spct.handlers.seed_each_iteration import SeedEachIteration
from monai_spct.handlers.tensorboard_pictures import TensorBoardPictures
from monai_spct.handlers.tensorboard_writer import TensorBoardWriter
from monai_spct.handlers.termination import Sigterm, Terminated
from monai_spct.handlers.tracking import track_scalars

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
    "SaveScores",
    "SeedEachIteration",
    "Sigterm",
    "StopAtNonFiniteLoss",
    "TensorBoardPictures",
    "TensorBoardWriter",
    "Terminated",
    "contour_picture",
    "curves_figure",
    "read_history",
    "save_atomically",
    "scalars",
    "track_scalars",
]
