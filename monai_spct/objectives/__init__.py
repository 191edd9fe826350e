"""What is minimized, from tensors only."""

from monai_spct.objectives.co_training import SelfPacedCoTraining
from monai_spct.objectives.consistency import Consistency, squared_error
from monai_spct.objectives.objective import Objective, Schedule, Term, Weighted, as_schedule
from monai_spct.objectives.step import Step
from monai_spct.objectives.supervised import Supervised, cross_entropy

__all__ = [
    "Consistency",
    "Objective",
    "Schedule",
    "SelfPacedCoTraining",
    "Step",
    "Supervised",
    "Term",
    "Weighted",
    "as_schedule",
    "cross_entropy",
    "squared_error",
]
