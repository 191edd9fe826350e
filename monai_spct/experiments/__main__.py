"""Grids from the command line: ``python -m monai_spct.experiments run`` and ``status``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from monai_spct.experiments import cell as on_disk
from monai_spct.experiments.cell import state_of
from monai_spct.experiments.grid import shard
from monai_spct.experiments.lines import refuse_tables
from monai_spct.experiments.planning import Job, plan
from monai_spct.experiments.refusals import GridError
from monai_spct.experiments.results import record_study
from monai_spct.experiments.runner import refuse_missing_data, refuse_other_configurations, run_jobs
from monai_spct.experiments.study import Study, read_study
from monai_spct.experiments.table import count_states, format_states
from monai_spct.workflow import flag, refuse_processes_apart
from monai_spct.workflow.spelling import did_you_mean

__all__ = ["run", "status"]


def run(
    file: str,
    *more: object,
    folder: str,
    data: str | None = None,
    bundles: str | None = None,
    shard: str | None = None,
    dry_run: bool = False,
    **unknown: object,
) -> None:
    """Run the cells of a grid that are not done yet. Interrupted, it goes on when the same is run again.

    Args:
        file: the grid, in YAML, or the name of one that comes with the package, such as acdc_dsc.
        more: is refused.
        folder: where the results go; each cell has its own folder there.
        data: where the data are: a folder, or for several datasets `acdc=data/acdc,prostate=data/prostate`.
        bundles: the folder of your own bundles, if it is not the package's.
        shard: a part of the grid, for example 3/16: every 16th cell from the 3rd.
        dry_run: print the commands, and run none.
        unknown: is refused.
    """
    root = Path(str(folder)).absolute()
    try:
        _refuse_unknown(more, unknown, ["--folder", "--data", "--bundles", "--shard", "--dry_run"])
        _refuse_torchrun()
        study = read_study(str(file))
        planned = _planned(study, data, bundles)
        jobs = _part(planned, shard)
        refuse_tables(study, [job.cell for job in planned])
        refuse_other_configurations(jobs, root)
        if flag(dry_run):
            sys.stdout.write("".join(f"{line}\n" for line in _commands(jobs, root)))
            return
        refuse_missing_data(jobs, root)
        record_study(root, Path(str(file)).stem, study, [job.cell for job in planned])
        if not planned:
            sys.stdout.write("its figures need no runs: see `python -m monai_spct report`\n")
            return
        outcomes = run_jobs(jobs, root)
    except GridError as error:
        _refuse(error)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted: run the same again, and it goes on from here.\n")
        sys.exit(130)
    sys.stdout.write(count_states(outcome.partition(":")[0] for outcome in outcomes.values()) + "\n")
    failed = [name for name, outcome in outcomes.items() if outcome.startswith("failed")]
    for name in failed:
        sys.stderr.write(f"{name} {outcomes[name]}\n  the logs are in {root / name}\n")
    if failed:
        sys.exit(1)


def status(
    file: str,
    *more: object,
    folder: str,
    bundles: str | None = None,
    shard: str | None = None,
    **unknown: object,
) -> None:
    """Print how far each cell of a grid is.

    Args:
        file: the grid, in YAML, or the name of one that comes with the package.
        more: is refused.
        folder: where the results go.
        bundles: the folder of your own bundles, if it is not the package's.
        shard: a part of the grid.
        unknown: is refused.
    """
    try:
        _refuse_unknown(more, unknown, ["--folder", "--bundles", "--shard"])
        jobs = _part(_planned(read_study(str(file)), None, bundles, quiet=True), shard)
        states = {job.name: state_of(job, Path(str(folder)) / job.name) for job in jobs}
    except GridError as error:
        _refuse(error)
    sys.stdout.write(format_states(states) + "\n")


def _planned(study: Study, data: str | None, bundles: str | None, *, quiet: bool = False) -> list[Job]:
    if not study.grids:  # figures that need no runs
        return []
    datasets = list(dict.fromkeys(dataset for grid in study.grids for dataset in grid.datasets))
    found = plan(study.grids, bundles=None if bundles is None else str(bundles), data=_folders(data, datasets))
    for note in [] if quiet else found.notes:
        sys.stdout.write(f"note: {note}\n")
    return found.jobs


_part = shard  # `run` and `status` have an option of this name


def _folders(data: object, datasets: Sequence[str]) -> Mapping[str, str]:
    """`acdc=data/acdc,...` as a mapping; a folder alone is that of the only dataset."""
    if data is None:
        return {}
    # fire makes a tuple of `a,b`
    parts = ",".join(map(str, data)) if isinstance(data, tuple | list) else str(data)
    pairs = [part.partition("=") for part in parts.split(",")]
    if all(sign for _, sign, _ in pairs):
        return {name.strip(): folder.strip() for name, _, folder in pairs}
    if not datasets:
        return {}
    if len(datasets) > 1:
        first, second, *_ = datasets
        raise GridError(f"`data` must name the datasets: {first}=...,{second}=..., got {data!r}.")
    return {datasets[0]: parts}


def _commands(jobs: list[Job], folder: Path) -> list[str]:
    lines = []
    for job in jobs:
        place = folder / job.name
        state = state_of(job, place)
        lines.append(f"# {job.name}: {state}")
        if state.name != "done":
            if not on_disk.is_trained(job, place):
                resume = on_disk.can_resume(job, place)
                lines.append(shlex.join(on_disk.command(job, job.training, place, resume=resume)))
            lines.append(shlex.join(on_disk.command(job, job.evaluating, place)))
    return lines


def _refuse_unknown(
    more: tuple[object, ...], unknown: Mapping[str, object], known: list[str], thing: str = "grid"
) -> None:
    """For ``fire``, which runs a function first and finds out then that it was given too much."""
    if more:
        raise GridError(f"one {thing} at a time: what is {' '.join(map(repr, more))}?")
    if unknown:
        raise GridError(
            " ".join(f"there is no option `--{name}`.{did_you_mean(f'--{name}', known)}" for name in unknown)
        )


def _refuse_torchrun() -> None:
    """A cell is for one process, which would take the others' ``WORLD_SIZE`` for its own."""
    try:
        refuse_processes_apart()
    except ValueError as error:
        raise GridError(f"{error} Processes share a grid by `--shard`.") from error


def _refuse(error: GridError) -> NoReturn:
    sys.stderr.write(f"{error}\n")
    sys.exit(2)


if __name__ == "__main__":
    import fire

    fire.Fire({"run": run, "status": status})
