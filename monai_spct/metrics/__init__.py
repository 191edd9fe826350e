"""Metrics per volume and structure, in millimeters, and what is to be expected of them without a truth."""

from monai_spct.metrics.expected import expected_dice
from monai_spct.metrics.volume import (
    StructureScore,
    VolumeScores,
    case_name,
    dice,
    format_table,
    score_volume,
    summarize,
    summary_cells,
    write_scores,
)

__all__ = [
    "StructureScore",
    "VolumeScores",
    "case_name",
    "dice",
    "expected_dice",
    "format_table",
    "score_volume",
    "summarize",
    "summary_cells",
    "write_scores",
]
