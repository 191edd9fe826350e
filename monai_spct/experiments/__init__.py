"""Grids of runs: methods, networks, data sets, seeds and any other settings, through the bundles' own commands."""

from monai_spct.experiments.cell import State, state_of
from monai_spct.experiments.grid import Cell, Grid, expand, parse_grid, read_grid, shard
from monai_spct.experiments.planning import Job, Phase, Plan, plan
from monai_spct.experiments.refusals import GridError
from monai_spct.experiments.results import FinishedCell, finished_cells
from monai_spct.experiments.runner import run_jobs
from monai_spct.experiments.table import format_states

__all__ = [
    "Cell",
    "FinishedCell",
    "Grid",
    "GridError",
    "Job",
    "Phase",
    "Plan",
    "State",
    "expand",
    "finished_cells",
    "format_states",
    "parse_grid",
    "plan",
    "read_grid",
    "run_jobs",
    "shard",
    "state_of",
]
