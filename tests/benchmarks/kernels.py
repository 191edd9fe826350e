"""Where the time of an iteration goes, kernel by kernel: ``python -m tests.benchmarks.kernels --help``."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Events
from torch.profiler import ProfilerActivity, profile

from tests.benchmarks.contenders import Plain, Task, batches, bundle, project
from tests.benchmarks.step import machine, some_data


def profiled(task: Task, contender: str, warmup: int) -> list[tuple[str, float, float]]:
    """Name, milliseconds and calls an iteration of each kernel, the longest first."""
    cuda = torch.device(task.device).type == "cuda"
    profiler = profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU])
    with tempfile.TemporaryDirectory() as output:
        parser = bundle(task, output)
        trainer = project(parser)
        if contender == "project":
            trainer.add_event_handler(Events.ITERATION_COMPLETED(once=warmup), profiler.start)
            trainer.add_event_handler(Events.ITERATION_COMPLETED(once=task.iterations), profiler.stop)
            trainer.run()
        else:
            plain, draws = Plain.of(task, parser), iter(batches(parser))
            for number in range(task.iterations):
                if number == warmup:
                    profiler.start()
                plain.iteration(next(draws), 1e-3)
            profiler.stop()
    counted = task.iterations - warmup
    rows = [
        (
            event.key,
            (event.self_device_time_total if cuda else event.self_cpu_time_total) / 1e3 / counted,
            event.count / counted,
        )
        for event in profiler.key_averages()
    ]
    return sorted(rows, key=lambda row: -row[1])


def main(args: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.kernels", description=__doc__)
    parser.add_argument("contender", choices=["project", "reference"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--views", type=int, default=2)
    parser.add_argument("--size", type=int, default=192)
    parser.add_argument("--iterations", type=int, default=13)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--rows", type=int, default=25)
    parser.add_argument("--data")
    parser.add_argument("--output")
    options = parser.parse_args(args)
    with some_data(options.data, options.size) as data:
        task = Task(data, options.device, options.views, options.size, iterations=options.iterations)
        rows = profiled(task, options.contender, options.warmup)
    total = sum(milliseconds for _, milliseconds, _ in rows)
    for name, milliseconds, calls in rows[: options.rows]:
        print(f"{milliseconds:8.1f} ms {milliseconds / total:6.1%} {calls:8.1f} calls  {name}")
    print(f"{total:8.1f} ms in all")
    kernels = [{"name": n, "ms": round(m, 3), "calls": c} for n, m, c in rows[: options.rows]]
    result = {"contender": options.contender, "total_ms": total, "kernels": kernels, "machine": machine(options.device)}
    if options.output:
        Path(options.output).write_text(json.dumps(result, indent=1) + "\n")
    return result


if __name__ == "__main__":
    main()
