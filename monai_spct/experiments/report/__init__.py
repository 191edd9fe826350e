"""Reports on grids of runs: tables, figures, and a page with all of them."""

from monai_spct.experiments.report.drawing import draw
from monai_spct.experiments.report.formats import Texts, as_csv, as_latex, as_markdown, texts
from monai_spct.experiments.report.tables import Column, Entry, Line, ScoreTable, tabulate
from monai_spct.experiments.report.writing import write_report

__all__ = [
    "Column",
    "Entry",
    "Line",
    "ScoreTable",
    "Texts",
    "as_csv",
    "as_latex",
    "as_markdown",
    "draw",
    "tabulate",
    "texts",
    "write_report",
]
