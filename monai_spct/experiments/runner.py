"""Many cells, one after the other; each by one process, and each at most once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from filelock import Timeout
from tqdm import tqdm

import monai_spct
from monai_spct.experiments import cell as on_disk
from monai_spct.experiments.planning import Job, Phase
from monai_spct.experiments.process import call, stopped_by_sigterm
from monai_spct.experiments.refusals import GridError

__all__ = ["refuse_missing_data", "refuse_other_configurations", "run_jobs", "seconds_left"]

_PATIENCE = 1.0  # seconds to wait for a lock: `status` holds one for a moment
_SHOWN = 5  # differences in a message


def run_jobs(jobs: Sequence[Job], folder: str | Path) -> dict[str, str]:
    """Train and evaluate whatever of some cells is not done, and go on where they were interrupted.

    A cell that fails is recorded with its error, and the others go on. One that another process runs is left to it.

    Args:
        jobs: the cells of a plan, or some of them.
        folder: of the grid; each cell has its own below.

    Returns:
        The outcome of each cell, by its name. It is ``done``, or starts with ``failed`` and goes on with the error, or
        with ``skipped`` and the reason.

    Raises:
        GridError: before anything is run, when a cell's folder was made from another configuration, or when data are
            missing.

    Example:
        >>> from monai_spct.experiments import run_jobs
        >>> run_jobs([], "runs")
        {}
    """
    root = Path(folder).absolute()
    refuse_other_configurations(jobs, root)
    durations = {job.name: state.seconds or 0.0 for job in jobs if (state := _state_if_done(job, root))}
    waiting = [job for job in jobs if job.name not in durations]
    refuse_missing_data(jobs, root)
    outcomes = dict.fromkeys(durations, "done")
    with stopped_by_sigterm(), _Bar(jobs, durations) as bar:
        for position, job in enumerate(waiting):
            bar.at(job, waiting[position + 1 :])
            outcome = outcomes[job.name] = _run(job, root / job.name, bar.tick)
            if state := _state_if_done(job, root):
                durations[job.name] = state.seconds or 0.0
                dsc = "no mean DSC" if state.mean_dsc is None else f"mean DSC {state.mean_dsc:.3f}"
                outcome = f"{outcome} in {tqdm.format_interval(durations[job.name])}, {dsc}"
            bar.finished(job, outcome, waiting[position + 1 :])
    return {job.name: outcomes[job.name] for job in jobs}


def refuse_other_configurations(jobs: Iterable[Job], folder: Path) -> None:
    """Refuse to add to what was made from another configuration.

    Raises:
        GridError: naming the cells and showing the differences.
    """
    problems = []
    for job in jobs:
        place = folder / job.name
        if changed := on_disk.other_configuration(job, place):
            more = f"; and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
            problems.append(f"\n  {place}: {'; '.join(changed[:_SHOWN])}{more}")
    if problems:
        more = f"\n  and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise GridError(
            f"cells were made from another configuration:{''.join(problems[:_SHOWN])}{more}\n"
            "Choose another `--folder`, or delete these folders to run the cells anew."
        )


def refuse_missing_data(jobs: Iterable[Job], folder: Path) -> None:
    """Refuse to start where the data of a cell that is not done are missing.

    Raises:
        GridError: naming the dataset and its folder.
    """
    waiting = [job for job in jobs if not _state_if_done(job, folder)]
    for dataset, data in {job.cell.dataset: job.training.content.get("dataset_dir") for job in waiting}.items():
        # a bundle may also make its data, or work out where they are
        if isinstance(data, str) and not data.startswith(("$", "@", "%")) and not Path(data).exists():
            raise GridError(f"the data of `{dataset}` are not at {data}: say where with `--data {dataset}=...`.")


def seconds_left(jobs: Iterable[Job], durations: Mapping[str, float]) -> float | None:
    """How long cells will take, by the mean of those that are done: of their dataset, method and network if there are.

    Args:
        jobs: the cells that are still to be run.
        durations: seconds of the cells that are done, by name.

    Returns:
        Seconds; none while no cell is done.

    Example:
        >>> from monai_spct.experiments import Grid, plan
        >>> from monai_spct.experiments.runner import seconds_left
        >>> jobs = plan(Grid(("acdc",), ("dan", "labeled_only"), axes={"seed": (0, 1)})).jobs
        >>> durations = {job.name: seconds for job, seconds in zip(jobs, (100.0, 100.0, 40.0))}
        >>> seconds_left(jobs[3:], durations)
        40.0
    """
    alike: dict[str, list[float]] = {}
    for name, seconds in durations.items():
        alike.setdefault(_kind(name), []).append(seconds)
    if not alike:
        return None
    everything = list(durations.values())
    return sum(_mean(alike.get(_kind(job.name), everything)) for job in jobs)


def _run(job: Job, place: Path, tick: Callable[[], object]) -> str:
    """What comes of one cell."""
    place.mkdir(parents=True, exist_ok=True)
    lock = on_disk.lock_of(place)
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout:
        return "skipped: another process runs it"
    try:
        if changed := on_disk.other_configuration(job, place):  # another process was here since the start
            return f"failed: the folder was made from another configuration: {'; '.join(changed[:_SHOWN])}"
        if on_disk.is_done(place):
            return "done"
        on_disk.describe(job, place)
        if not on_disk.is_trained(job, place):
            resume = on_disk.can_resume(job, place)
            error, seconds = _phase(job, job.training, place, tick, resume=resume)
            if error:
                return f"failed: {error}"
            on_disk.trained(place, seconds)
        error, seconds = _phase(job, job.evaluating, place, tick)
        if error:
            return f"failed: {error}"
        training = on_disk.read_json(place / on_disk.PROGRESS)["training_seconds"]
        times = {"training_seconds": round(training, 1), "evaluating_seconds": round(seconds, 1)}
        on_disk.write_json(place / on_disk.DONE, {**times, **_provenance(job)})
        return "done"
    finally:
        lock.release()


def _phase(
    job: Job, phase: Phase, place: Path, tick: Callable[[], object], *, resume: bool = False
) -> tuple[str, float]:
    """The error of one command, empty if there was none, and its seconds."""
    log = place / f"{phase.verb}.log"
    before = log.stat().st_size if log.is_file() else 0
    on_disk.begin(place, phase.verb)
    start = time.monotonic()
    status = call(on_disk.command(job, phase, place, resume=resume), log, tick)
    seconds = time.monotonic() - start
    if status in (-signal.SIGINT, -signal.SIGTERM, 128 + signal.SIGTERM):
        time.sleep(1)  # the signal may be on its way to this process too, which then is interrupted and did not fail
    error = ""
    if status != 0:
        with log.open("rb") as file:
            file.seek(before)
            text = file.read().decode("utf-8", errors="replace").lstrip("\n")
        _, _, said = text.partition("\n")  # after the command itself
        error = on_disk.last_error(said, status)
    elif phase is job.evaluating and not (place / on_disk.SUMMARY).is_file():
        error = f"the evaluation wrote no {on_disk.SUMMARY.as_posix()}"
    if error:
        on_disk.failed(place, error, seconds)
    return error, seconds


def _provenance(job: Job) -> dict[str, object]:
    versions = {"monai_spct": monai_spct.__version__, "torch": version("torch"), "monai": version("monai")}
    data = job.training.content.get("dataset_dir")
    return {"hash": job.digest, "dataset_dir": data if isinstance(data, str) else None, **versions, "commit": _commit()}


def _commit() -> str | None:
    """The commit that the package is at, if it is run from a checkout, with ``-dirty`` if files were changed."""
    package = Path(monai_spct.__file__).parent
    described = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        # an installed package may lie in somebody else's repository, which says nothing about it
        for words in (["ls-files", "--error-unmatch", "__init__.py"], described):
            done = subprocess.run(["git", "-C", str(package), *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _state_if_done(job: Job, root: Path) -> on_disk.State | None:
    place = root / job.name
    return on_disk.state_of(job, place) if on_disk.is_done(place) else None


def _kind(name: str) -> str:
    return "/".join(name.split("/")[:3])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class _Bar:
    """How far the grid is: a bar on a terminal, and a line for each cell there and in a file."""

    def __init__(self, jobs: Sequence[Job], durations: dict[str, float]) -> None:
        self.durations = durations
        self.later: Sequence[Job] = []
        self.job: Job | None = None
        self.bar: tqdm[None] = tqdm(
            total=len(jobs),
            initial=len(durations),
            desc="cells",
            disable=None if jobs else True,  # None: where there is no terminal
            dynamic_ncols=True,
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]",
        )
        self.total = len(jobs)
        self.count = len(durations)
        self.start = time.monotonic()

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.close()

    def at(self, job: Job, later: Sequence[Job]) -> None:
        self.job, self.later, self.start = job, later, time.monotonic()
        self.tick()

    def tick(self) -> None:
        if self.job is None or self.bar.disable:
            return
        now = seconds_left([self.job], self.durations)
        later = seconds_left(self.later, self.durations)
        if now is None or later is None:
            left = "time left: unknown until a cell is done"
        else:
            left = f"{tqdm.format_interval(max(0.0, now - (time.monotonic() - self.start)) + later)} left"
        self.bar.set_postfix_str(f"{left}, {self.job.name}")

    def finished(self, job: Job, outcome: str, later: Sequence[Job]) -> None:
        self.count += 1
        self.bar.update()
        left = seconds_left(later, self.durations)
        end = f"; about {tqdm.format_interval(left)} left" if later and left is not None else ""
        tqdm.write(f"[{self.count}/{self.total}] {job.name}: {outcome}{end}", file=sys.stdout)
        sys.stdout.flush()
