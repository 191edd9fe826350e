"""Whether a long training stays as it began, in memory and speed: ``python -m tests.benchmarks.soak --help``.

The bundle for ACDC trains on its phantom by its own command line, in epochs so short that hundreds of validations,
checkpoints, pictures and curves pass, until the minutes are over. Meanwhile the books of Linux are read every few
seconds, of the process and of those that it starts. Linux alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from monai_spct.handlers import read_history
from monai_spct.workflow import bundles_folder
from tests.benchmarks.step import machine

SETTINGS = {
    "max_epochs": 1_000_000,  # the minutes end first
    "epoch_length": 5,
    "val_interval": 5,
    "num_validation": 1,
    "labeled_batch_size": 2,
    "unlabeled_batch_size": 2,
    "crop_size": 32,
    # what schedules begin with is almost nothing, and a beginning is all that such a run sees
    "warmup_share": 0,
    "learning_rate": 0.003,
    "objective#co_training#weight": 0.5,
    "objective#consistency#weight": 4.0,
}
PATIENCE = 60  # seconds that a process has to end


def family(pid: int) -> list[int]:
    """A process and all that it has started, and those have."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            # after the name, which may hold anything, come the state and the parent
            parents.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found = [pid]
    for process in found:
        found.extend(parents.get(process, []))
    return found


def books(pid: int) -> dict[str, float]:
    """MB, open handles, threads and seconds of computing. ``pss`` shares memory among all that have it."""
    folder = Path("/proc") / str(pid)
    memory = {
        line.split()[0].rstrip(":"): int(line.split()[1]) * 1024 / 1e6
        for line in (folder / "smaps_rollup").read_text().splitlines()[1:]
    }
    times = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]  # in the process and in the kernel for it
    return {
        "cpu_s": sum(map(int, times)) / os.sysconf("SC_CLK_TCK"),
        "rss_mb": memory["Rss"],
        "pss_mb": memory["Pss"],
        "own_mb": memory["Private_Clean"] + memory["Private_Dirty"],
        "handles": len(list((folder / "fd").iterdir())),
        "threads": len(list((folder / "task").iterdir())),
    }


def sample(pid: int, output: Path) -> dict[str, float]:
    """What the training holds now, and how far it has come."""
    row: dict[str, float] = {"processes": 0, "pss_mb": 0.0, "cpu_s": 0.0, "all_handles": 0, "all_threads": 0}
    for process in family(pid):
        with contextlib.suppress(OSError, KeyError):  # it is about to end
            now = books(process)
            row["processes"] += 1
            row["pss_mb"] += now["pss_mb"]
            row["cpu_s"] += now["cpu_s"]
            row["all_handles"] += now["handles"]
            row["all_threads"] += now["threads"]
            if process == pid:
                row |= {name: now[name] for name in ("rss_mb", "own_mb", "handles", "threads")}
    history = output / "eval" / "history.csv"
    files = [path.stat().st_size for path in output.rglob("*") if path.is_file() and path.suffix != ".part"]
    row |= {"files": len(files), "disk_mb": sum(files) / 1e6, "epochs": 0}
    if history.is_file():
        row["epochs"] = max(0, history.read_bytes().count(b"\n") - 1)
    return {name: round(value, 2) for name, value in row.items()}


def command(output: Path, data: str | None, num_workers: int) -> list[str]:
    """The training, as it is typed."""
    configs = [str(bundles_folder() / "acdc" / "configs" / name) for name in ("train.json", "phantom.json")]
    settings: dict[str, Any] = {**SETTINGS, "output_dir": output, "num_workers": num_workers}
    if data is not None:
        settings |= {"dataset_dir": data, "labeled_patients": 1}
    options = [str(word) for name, value in settings.items() for word in (f"--{name}", value)]
    return [sys.executable, "-m", "monai.bundle", "run", "training", "--config_file", str(configs), *options]


def ended(process: subprocess.Popen[bytes]) -> int:
    """End a process and what it has started; what it ended with."""
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def run(folder: Path, *, minutes: float, every: float, data: str | None, num_workers: int) -> dict[str, Any]:
    """Train for some minutes from the first epoch on; what was seen, by name, and the seconds of all epochs."""
    output, log = folder / "run", folder / "training.log"
    shutil.rmtree(output, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, float]] = []
    with log.open("wb") as file:
        process = subprocess.Popen(
            command(output, data, num_workers),
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=Path(__file__).parents[2],
            start_new_session=True,  # so that workers can be ended with it
        )
        try:
            started: float | None = None
            while started is None or time.monotonic() < started + 60 * minutes:
                time.sleep(every)
                if process.poll() is not None:
                    raise RuntimeError(f"the training ended by itself: {log.read_text()[-4000:]}")
                row = sample(process.pid, output)
                if row["epochs"]:
                    started = started or time.monotonic()
                    rows.append({"minutes": round((time.monotonic() - started) / 60, 4), **row})
        finally:
            status = ended(process)
    history = read_history(output / "eval" / "history.csv")
    names = ("seconds", "loss", "validation_mean_dsc")
    return {
        "status": status,
        "samples": {name: [row[name] for row in rows] for name in rows[0]},
        "epochs": {name: [round(row[name], 4) if name in row else None for row in history] for name in names},
    }


def slope(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """Least squares: the slope, and its standard error."""
    xs, ys = np.asarray(x) - np.mean(x), np.asarray(y) - np.mean(y)
    value = (xs @ ys) / (xs @ xs)
    error = math.sqrt(np.sum((ys - value * xs) ** 2) / max(len(xs) - 2, 1) / (xs @ xs))
    return [round(float(value), 3), round(error, 3)]


def summary(seen: dict[str, Any], settle: float) -> dict[str, Any]:
    """How what is held grows after the first minutes, and what takes longer at the end than at the beginning."""
    samples, seconds = seen["samples"], seen["epochs"]["seconds"]
    minutes, epochs = np.asarray(samples["minutes"]), np.asarray(samples["epochs"])
    late = minutes >= min(settle, minutes[-1] / 2)
    quarter = max(1, len(seconds) // 4)
    edges = [np.searchsorted(minutes, minutes[-1] * share) for share in (0, 0.25, 0.75)]

    cpu = np.asarray(samples["cpu_s"])

    def pace(first: int, last: int) -> float:
        return round(float((epochs[last] - epochs[first]) / (minutes[last] - minutes[first])), 3)

    def computing(first: int, last: int) -> float:
        return round(float((cpu[last] - cpu[first]) / max(1, epochs[last] - epochs[first])), 3)

    return {
        "minutes": float(minutes[-1]),
        "epochs": len(seconds),
        "validations": sum(value is not None for value in seen["epochs"]["validation_mean_dsc"]),
        "slope_after_minutes": float(minutes[late][0]),
        **{
            f"{name}_per_hour_and_standard_error": slope(minutes[late] / 60, np.asarray(samples[name])[late])
            for name in ("rss_mb", "own_mb", "pss_mb", "all_handles", "all_threads", "disk_mb")
        },
        **{
            f"{name}_first_last_most": [samples[name][0], samples[name][-1], max(samples[name])]
            for name in ("rss_mb", "own_mb", "pss_mb", "all_handles", "all_threads", "processes", "files", "disk_mb")
        },
        "seconds_per_iteration_first_last_quarter": [
            round(statistics.median(part), 4) for part in (seconds[:quarter], seconds[-quarter:])
        ],
        # with validations, checkpoints, tables and curves
        "epochs_per_minute_first_last_quarter": [pace(edges[0], edges[1]), pace(edges[2], -1)],
        "computing_seconds_per_epoch_first_last_quarter": [computing(edges[0], edges[1]), computing(edges[2], -1)],
    }


def plot(seen: dict[str, Any], path: Path) -> None:
    """Memory, handles and threads, and seconds, against minutes."""
    samples, seconds = seen["samples"], seen["epochs"]["seconds"]
    minutes, epochs = np.asarray(samples["minutes"]), np.asarray(samples["epochs"])
    figure, panels = plt.subplots(1, 3, figsize=(13, 3.4), layout="constrained")
    for name, label in (
        ("pss_mb", "all processes, shared memory once"),
        ("rss_mb", "main process"),
        ("own_mb", "main process, not shared"),
    ):
        panels[0].plot(minutes, samples[name], label=label, linewidth=1)
    panels[0].set_ylabel("memory (MB)")
    for name, label in (
        ("all_handles", "open handles, all processes"),
        ("handles", "open handles, main process"),
        ("all_threads", "threads, all processes"),
        ("processes", "processes"),
    ):
        panels[1].plot(minutes, samples[name], label=label, linewidth=1)
    panels[1].set_ylabel("number")
    at = np.interp(np.arange(1, len(seconds) + 1), epochs, minutes)
    panels[2].plot(at, seconds, ".", markersize=1.5, color="0.7", label="mean of an epoch, by the clock")
    width = max(1, len(seconds) // 60)
    middle = [statistics.median(seconds[n : n + width]) for n in range(0, len(seconds), width)]
    panels[2].plot(at[::width], middle, color="C0", linewidth=1.2, label=f"median of {width} epochs")
    # which other work on the machine hardly changes
    marks = np.linspace(0, len(minutes) - 1, min(len(minutes), 31)).astype(int)
    spent = np.diff(np.asarray(samples["cpu_s"])[marks]) / np.maximum(
        1, np.diff(epochs[marks]) * SETTINGS["epoch_length"]
    )
    panels[2].plot(minutes[marks][1:], spent, color="C1", linewidth=1.2, label="computing of all processes")
    panels[2].set_ylabel("seconds per iteration")
    panels[2].set_ylim(0, 2.5 * statistics.median(seconds))
    for panel in panels:
        panel.set_xlabel("minutes")
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        panel.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(args: Sequence[str] | None = None) -> dict[str, Any]:
    """Train, and write a JSON file and a picture of the same name."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.soak", description=__doc__)
    parser.add_argument("--folder", required=True, help="where the training writes")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=float, default=5, help="seconds between two looks")
    parser.add_argument("--settle", type=float, default=10, help="minutes before slopes are taken, at most half of all")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--data", help="a phantom of ACDC; by default one is drawn")
    parser.add_argument("--output", required=True, help="a JSON file; the picture goes beside it")
    options = parser.parse_args(args)
    output = Path(options.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    task = {"minutes": options.minutes, "every": options.every, "num_workers": options.num_workers}
    seen = run(Path(options.folder).absolute(), data=options.data, **task)
    result = {"task": {**task, **SETTINGS}, "machine": machine("cpu"), "summary": summary(seen, options.settle), **seen}
    print(json.dumps(result["summary"], indent=1))
    text = json.dumps(result, allow_nan=False).replace('}, "', '},\n"').replace('], "', '],\n"')
    output.write_text(text + "\n")
    plot(seen, output.with_suffix(".png"))
    return result


if __name__ == "__main__":
    main()
