"""How an iteration grows with networks, images, pixels and patients: ``python -m tests.benchmarks.growth --help``."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.ticker import NullFormatter, ScalarFormatter

from monai_spct.data import write_acdc_phantom
from tests.benchmarks.contenders import Task
from tests.benchmarks.step import compare, machine, some_data

AXES = {
    "networks K": [{"views": views} for views in (1, 2, 3, 4)],
    "images": [{"labeled": 2 * n, "unlabeled": 3 * n} for n in (1, 2, 4, 8)],
    "pixels of an image": [{"size": size} for size in (96, 136, 192, 272)],
}


def value(axis: str, change: dict[str, int]) -> int:
    """Where a change lies on its axis."""
    if axis == "images":
        return change["labeled"] + change["unlabeled"]
    return change["size"] ** 2 if "size" in change else change["views"]


def seconds(task: Task, iterations: int) -> float:
    """Median of the project's iterations after the first two."""
    measured = compare(replace(task, iterations=iterations + 2), warmup=2, block=1, plain=False)
    return statistics.median(measured["times_s"]["project"])


def patients(task: Task, numbers: Sequence[int], iterations: int) -> list[tuple[int, float]]:
    """Small images of more and more patients, where the data would be the first to show."""
    points = []
    for number in numbers:
        with tempfile.TemporaryDirectory() as parent:
            data = write_acdc_phantom(Path(parent) / "acdc", patients=number, size=(64, 72), spacing=(2.0, 2.2))
            points.append((number, seconds(replace(task, data=str(data), size=64), iterations)))
    return points


def plot(result: dict[str, Any], path: Path) -> None:
    """One panel for each axis, with a line of slope 1 through the first point."""
    figure, panels = plt.subplots(1, len(result["growth"]), figsize=(13, 3.2), layout="constrained", sharey=False)
    for panel, (axis, points) in zip(panels, result["growth"].items(), strict=True):
        xs, ys = zip(*points, strict=True)
        panel.loglog(xs, ys, "o-", color="C0", label="measured")
        if axis != "patients":
            panel.loglog(xs, [ys[0] * x / xs[0] for x in xs], "--", color="0.6", label="linear")
        else:
            panel.set_ylim(ys[0] / 3, ys[0] * 3)
        panel.set_xticks(xs, [f"{x:,}" for x in xs])
        panel.yaxis.set_major_formatter(ScalarFormatter())
        panel.yaxis.set_minor_formatter(NullFormatter() if ys[-1] > 10 * ys[0] else ScalarFormatter())
        panel.minorticks_off()
        panel.set_yticks(
            [*ys] if axis != "patients" else [ys[0]], [f"{y:.2f}" for y in (ys if axis != "patients" else ys[:1])]
        )
        panel.set_xlabel(axis)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("seconds an iteration")
    panels[0].legend(frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(args: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, and write ``growth.json`` and ``growth.png``."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.growth", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--patients", type=int, nargs="*", default=[20, 60, 200])
    parser.add_argument("--folder", required=True, help="where the two files go")
    options = parser.parse_args(args)
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    growth: dict[str, list[tuple[int, float]]] = {}
    with some_data(None, 192) as data:
        base = Task(data=data, device=options.device)
        for axis, changes in AXES.items():
            growth[axis] = []
            for change in changes:
                point = (value(axis, change), seconds(replace(base, **change), options.iterations))
                print(axis, *point, flush=True)
                growth[axis].append(point)
        growth["patients"] = patients(base, options.patients, options.iterations)
        print("patients", growth["patients"], flush=True)
    result = {"task": {**asdict(base), "data": "phantom"}, "machine": machine(options.device), "growth": growth}
    (folder / "growth.json").write_text(json.dumps(result, indent=1) + "\n")
    plot(result, folder / "growth.png")
    return result


if __name__ == "__main__":
    main()
