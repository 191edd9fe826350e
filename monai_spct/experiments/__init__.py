"""Grids of runs: methods, networks, data sets, seeds and any other settings, through the bundles' own commands."""

from monai_spct.experiments.cell import State, state_of
from monai_spct.experiments.grid import Cell, Grid, expand, parse_grid, shard
from monai_spct.experiments.planning import Job, Phase, Plan, plan
from monai_spct.experiments.refusals import GridError
from monai_spct.experiments.results import FinishedCell, PlannedStudy, finished_cells, planned_studies, record_study
from monai_spct.experiments.runner import run_jobs
from monai_spct.experiments.study import Figure, Study, Table, parse_shown, parse_study, read_study, shipped_studies
from monai_spct.experiments.table import format_states

__all__ = [
    "Cell",
    "Figure",
    "FinishedCell",
    "Grid",
    "GridError",
    "Job",
    "Phase",
    "Plan",
    "PlannedStudy",
    "State",
    "Study",
    "Table",
    "expand",
    "finished_cells",
    "format_states",
    "parse_grid",
    "parse_shown",
    "parse_study",
    "plan",
    "planned_studies",
    "read_study",
    "record_study",
    "run_jobs",
    "shard",
    "shipped_studies",
    "state_of",
]
