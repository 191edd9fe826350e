"""Metrics per volume and structure, in millimeters."""

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
    "format_table",
    "score_volume",
    "summarize",
    "summary_cells",
    "write_scores",
]
