"""Reports on finished runs: tables, figures, and a page with all of them."""

try:
    import pandas  # noqa: F401
except ImportError as error:
    raise ImportError("reports need pandas: pip install 'monai-spct[experiments]'") from error

from monai_spct.report.figures import draw
from monai_spct.report.page import write_report
from monai_spct.report.runs import Run, find_runs
from monai_spct.report.show import Figure, Show, Table, read_show
from monai_spct.report.tables import ScoreTable, tabulate

__all__ = ["Figure", "Run", "ScoreTable", "Show", "Table", "draw", "find_runs", "read_show", "tabulate", "write_report"]
