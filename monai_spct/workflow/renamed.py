"""Configuration keys of former versions."""

from __future__ import annotations

from typing import Final

__all__ = ["RENAMED"]

RENAMED: Final = {
    "EvaluationNetwork": "Discriminator",
    "Weighted": "WeightedTerm",
    "initial_pace": "initial_gamma",
    "move": "transform",
    "pace": "gamma",
    "pace_start": "gamma_start",
    "pace_upper_bound": "gamma_upper_bound",
    "paces": "gammas",
    "teacher_uncertainty": "train#inferer#uncertainty",
}
"""Keys and components of configs: old name to new name."""
