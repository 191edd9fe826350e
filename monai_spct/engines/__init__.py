"""The trainer."""

from monai_spct.engines.trainer import SemiSupervisedTrainer, prepare_semi_supervised_batch

__all__ = ["SemiSupervisedTrainer", "prepare_semi_supervised_batch"]
