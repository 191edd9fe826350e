"""Objectives and their terms, computed from tensors alone."""

from monai_spct.objectives.adversarial import Adversarial, discrimination_loss
from monai_spct.objectives.co_training import CoTraining, SelfPacedCoTraining
from monai_spct.objectives.consistency import CertainConsistency, Consistency, divergence_of_teacher, squared_error
from monai_spct.objectives.entropy_minimization import EntropyMinimization
from monai_spct.objectives.objective import Objective, Schedule, Term, WeightedTerm, as_schedule, checked_schedule
from monai_spct.objectives.pseudo_labels import Agreement, Confidence, PseudoLabels
from monai_spct.objectives.step import Step
from monai_spct.objectives.supervised import Supervised, cross_entropy

__all__ = [
    "Adversarial",
    "Agreement",
    "CertainConsistency",
    "CoTraining",
    "Confidence",
    "Consistency",
    "EntropyMinimization",
    "Objective",
    "PseudoLabels",
    "Schedule",
    "SelfPacedCoTraining",
    "Step",
    "Supervised",
    "Term",
    "WeightedTerm",
    "as_schedule",
    "checked_schedule",
    "cross_entropy",
    "discrimination_loss",
    "divergence_of_teacher",
    "squared_error",
]
