"""Plans: what a folder of images and labels is like, and a bundle that trains on it."""

from monai_spct.plan.bundle import write_plan
from monai_spct.plan.choices import Choice, Machine, choose, held_out
from monai_spct.plan.survey import Survey, survey

__all__ = ["Choice", "Machine", "Survey", "choose", "held_out", "survey", "write_plan"]
