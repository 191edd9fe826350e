"""An iteration of training, the project's against the plain loop's: ``python -m tests.benchmarks.step --help``.

Both start from the same weights and see the same batches; they take turns within one process, so that what else the
machine does falls on both. The project's time is all of ``trainer.run``: data, engine, handlers, logging. The plain
loop's is that of its batches and its steps. Peak memory is that of processes of their own.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Events
from monai.engines import IterationEvents
from torch import Tensor

from monai_spct.data import write_acdc_phantom
from tests.benchmarks.contenders import Plain, Task, batches, bundle, project


class Clock:
    """Seconds since the last look, with the device's work done."""

    def __init__(self, device: str) -> None:
        self.cuda = torch.device(device).type == "cuda"
        self.last = 0.0

    def start(self) -> None:
        self.seconds()

    def seconds(self) -> float:
        if self.cuda:
            torch.cuda.synchronize()
        now = time.perf_counter()
        passed, self.last = now - self.last, now
        return passed


def compare(task: Task, *, warmup: int, block: int, plain: bool = True) -> dict[str, Any]:
    """Time the two in alternating blocks of iterations.

    Returns:
        Seconds an iteration in each block after ``warmup`` iterations, seconds of the first iteration, parts of the
        project's iterations, and the losses of the first iterations of both.
    """
    with tempfile.TemporaryDirectory() as output:
        parser = bundle(task, output)
        trainer = project(parser)
        other = Plain.of(task, parser) if plain else None
        draws = iter(batches(parser)) if plain else iter(())
        optimizer = parser.get_parsed_content("optimizer")
        times: dict[str, list[float]] = {"project": [], "reference": []}
        losses: dict[str, list[Tensor]] = {"project": [], "reference": []}
        rates: list[float] = []
        parts = {"data": 0.0, "step": 0.0}
        clock, inner = Clock(task.device), Clock("cpu")
        first = {}

        def started(engine: Any) -> None:
            rates.append(optimizer.param_groups[0]["lr"])
            torch.manual_seed(engine.state.iteration)  # both contenders draw the same dropout
            inner.start()

        def wait_began(engine: Any) -> None:  # noqa: ARG001
            inner.start()

        def add(part: str) -> Callable[[Any], None]:
            def handler(engine: Any) -> None:
                if engine.state.iteration > warmup:
                    parts[part] += inner.seconds()

            return handler

        def completed(engine: Any) -> None:
            losses["project"].append(engine.state.output["loss"].detach())
            done = engine.state.iteration
            if done == 1:
                first["project"] = clock.seconds()
            if done % block and done != task.iterations:
                return
            seconds = clock.seconds()
            if done > max(warmup, block):
                times["project"].append(seconds / block)
            if other is None:
                return
            for number in range(done - block + 1, done + 1):
                batch = next(draws)
                torch.manual_seed(number)
                losses["reference"].append(other.iteration(batch, rates[number - 1]))
            seconds = clock.seconds()
            if done > max(warmup, block):
                times["reference"].append(seconds / block)

        trainer.add_event_handler(Events.GET_BATCH_STARTED, wait_began)
        trainer.add_event_handler(Events.GET_BATCH_COMPLETED, add("data"))
        trainer.add_event_handler(Events.ITERATION_STARTED, started)
        trainer.add_event_handler(IterationEvents.MODEL_COMPLETED, add("step"))
        trainer.add_event_handler(Events.ITERATION_COMPLETED, completed)
        clock.start()
        trainer.run()
        counted = task.iterations - warmup
    return {
        "first_iteration_s": first["project"],
        "times_s": times,
        "data_s": parts["data"] / counted,
        "step_s": parts["step"] / counted,
        "losses": {name: [float(loss) for loss in values] for name, values in losses.items()},
    }


def peak(task: Task, contender: str, iterations: int) -> tuple[float, float]:
    """Resident memory in MB of this process before the first of some iterations, and at its highest."""
    with tempfile.TemporaryDirectory() as output:
        parser = bundle(task, output)
        trainer = project(parser)
        cuda = torch.device(task.device).type == "cuda"

        def now() -> float:
            if cuda:
                return torch.cuda.max_memory_allocated() / 1e6
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e3 if sys.platform == "linux" else 1e6)

        if contender == "project":
            before = now()
            trainer.run()
        else:
            plain, draws = Plain.of(task, parser), iter(batches(parser))
            before = now()
            for _ in range(iterations):
                plain.iteration(next(draws), 1e-3)
    return before, now()


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Smallest, median and largest."""
    return {"min": min(seconds), "median": statistics.median(seconds), "max": max(seconds)}


def machine(device: str) -> dict[str, Any]:
    """What the numbers are of."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    return {
        "cpu": model,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.device(device).type == "cuda" else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit.stdout.strip() or None,
    }


@contextmanager
def some_data(folder: str | None, size: int):
    """The folder, or made-up patients about as large as the crops."""
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory() as parent:
        yield str(
            write_acdc_phantom(
                Path(parent) / "acdc",
                patients=20,
                size=(max(size, 48), max(size, 48) + 32),
                spacing=(max(1.2, 130 / max(size, 48)), max(1.2, 130 / max(size, 48)) + 0.2),
            )
        )


def arguments() -> argparse.ArgumentParser:
    """What a task can be."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.step", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--views", type=int, default=2, help="number of students K")
    parser.add_argument("--size", type=int, default=192, help="of the square images")
    parser.add_argument("--labeled", type=int, default=4, help="images in a batch")
    parser.add_argument("--unlabeled", type=int, default=6, help="images in a batch")
    parser.add_argument("--network", default="monai_spct.networks.ENet", help="import path of the backbone")
    parser.add_argument("--compile", nargs="?", const="default", help="with torch.compile, in a mode of it")
    parser.add_argument("--amp", action="store_true", help="mixed precision, on a GPU")
    parser.add_argument("--data", help="an ACDC folder; made-up patients if not given")
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--block", type=int, default=1, help="iterations between two changes of contender")
    parser.add_argument("--no-memory", action="store_true", help="leave out the two processes that measure memory")
    parser.add_argument("--memory-of", choices=["project", "reference"], help=argparse.SUPPRESS)
    parser.add_argument("--output", help="where the JSON goes")
    return parser


def main(args: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write the JSON."""
    options = arguments().parse_args(args)
    if options.warmup >= options.iterations:
        raise SystemExit(f"--warmup must be less than --iterations, got {options.warmup} and {options.iterations}.")
    with some_data(options.data, options.size) as data:
        task = Task(
            data=data,
            device=options.device,
            views=options.views,
            size=options.size,
            labeled=options.labeled,
            unlabeled=options.unlabeled,
            network=options.network,
            compile=options.compile is not None,
            compile_mode=options.compile or "default",
            amp=options.amp,
            iterations=options.iterations,
        )
        if options.memory_of:
            print(json.dumps(peak(task, options.memory_of, options.iterations)))
            return {}
        # first, since a process is born with the peak of its parent
        memory = {} if options.no_memory else {name: _memory(task, name) for name in ("project", "reference")}
        measured = compare(task, warmup=options.warmup, block=options.block)
    times = measured.pop("times_s")
    each = {name: summary(values) for name, values in times.items()}
    result = {
        "task": {**asdict(task), "data": "phantom" if options.data is None else Path(options.data).name},
        "machine": machine(task.device),
        "ratio": each["reference"]["median"] / each["project"]["median"],
        "seconds": each,
        "blocks": {name: [round(value, 5) for value in values] for name, values in times.items()},
        **measured,
        "memory_mb": memory,
    }
    show(result)
    if options.output:
        path = Path(options.output)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
    return result


def _memory(task: Task, contender: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.step", "--memory-of", contender, "--data", task.data]
    command += ["--device", task.device, "--views", str(task.views), "--size", str(task.size)]
    command += ["--labeled", str(task.labeled), "--unlabeled", str(task.unlabeled), "--network", task.network]
    command += ["--compile", task.compile_mode] if task.compile else []
    command += ["--amp"] if task.amp else []
    command += ["--iterations", "6", "--warmup", "1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True)
    before, highest = json.loads(done.stdout.splitlines()[-1])
    return {"before": before, "peak": highest}


def show(result: dict[str, Any]) -> None:
    """A few lines to read."""
    print(f"{'':10}    min  median     max   seconds an iteration")
    for name, values in result["seconds"].items():
        print(f"{name:10}" + "".join(f"{values[key]:8.4f}" for key in ("min", "median", "max")))
    print(f"reference / project, medians: {result['ratio']:.2f}")
    seconds = statistics.mean(result["blocks"]["project"])
    rest = seconds - result["step_s"] - result["data_s"]
    print(f"of the project's: data {result['data_s'] / seconds:.1%}, handlers and engine {rest / seconds:.1%}")
    print(f"first iteration: {result['first_iteration_s']:.1f} s")
    for name, values in result["memory_mb"].items():
        print(f"{name}: peak {values['peak']:.0f} MB, {values['peak'] - values['before']:.0f} of them for training")
    pairs = list(zip(result["losses"]["project"], result["losses"]["reference"], strict=False))[:3]
    print("first losses, project and reference: " + ", ".join(f"{a:.6f} {b:.6f}" for a, b in pairs))


if __name__ == "__main__":
    main()
