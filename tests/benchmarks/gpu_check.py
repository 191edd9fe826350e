"""All that a GPU is asked, in one command of a few minutes: ``python -m tests.benchmarks.gpu_check --help``.

Tests that need CUDA; an iteration of training for K = 1, 2, 3, eager and compiled, and for other backbones; the whole
ACDC experiment with its scores. It needs this checkout, the packages, and an ACDC folder. Each part writes its files as
soon as it ends, and a part that fails or takes too long does not stop the others.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "bundles" / "acdc" / "configs"
BACKBONES = {"unet": "monai_spct.networks.UNet", "segnet": "monai_spct.networks.SegNet"}


def part(folder: Path, name: str, command: Sequence[str], limit: float) -> dict[str, Any]:
    """Run one part with its output in a file."""
    start = time.monotonic()
    with (folder / f"{name}.log").open("w") as log:
        try:
            code = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, timeout=limit, check=False)
            outcome = "passed" if code.returncode == 0 else f"failed with {code.returncode}"
        except subprocess.TimeoutExpired:
            outcome = f"stopped after {limit:.0f} s"
    done = {"outcome": outcome, "seconds": round(time.monotonic() - start, 1)}
    print(f"{name}: {outcome}, {done['seconds']} s", flush=True)
    return done


def main(args: Sequence[str] | None = None) -> dict[str, Any]:
    """Run all parts; ``check.json`` says what came of each."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--data", required=True, help="the ACDC folder")
    parser.add_argument("--folder", required=True, help="where results go")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=float, default=360.0, help="seconds for everything")
    parser.add_argument("--iterations", type=int, default=300, help="of each timing")
    parser.add_argument("--size", type=int, default=192)
    parser.add_argument("--epochs", type=int, default=100, help="of the whole experiment")
    parser.add_argument("--epoch-length", type=int, default=200)
    parser.add_argument(
        "--compile", default="default", help="a mode of `torch.compile`; with `no`, nothing is compiled"
    )
    options = parser.parse_args(args)
    folder = Path(options.folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.limit
    python = [sys.executable, "-m"]
    done: dict[str, Any] = {}

    def run(name: str, command: Sequence[str], limit: float = 120.0) -> None:
        left = end - time.monotonic()
        done[name] = part(folder, name, command, min(limit, left)) if left > 1 else {"outcome": "no time left"}
        (folder / "check.json").write_text(json.dumps(done, indent=1) + "\n")

    run(
        "tests",
        [*python, "pytest", "-q", "-k", "cuda or gpu", "tests/bundles/test_cuda.py", "tests/engines", "tests/handlers"],
    )
    block = str(max(1, options.iterations // 6))
    compiling = [] if options.compile == "no" else ["--compile", options.compile]

    def timing(name: str, *more: str) -> None:
        common = ["--data", options.data, "--device", options.device, "--size", str(options.size), "--no-memory"]
        common += ["--iterations", str(options.iterations), "--warmup", block, "--block", block]
        run(name, [*python, "tests.benchmarks.step", *common, "--output", str(folder / f"{name}.json"), *more], 90.0)

    timing("enet_k2")
    if compiling:
        timing("enet_k2_compiled", *compiling)
    common = ["--dataset_dir", options.data, "--output_dir", str(folder / "acdc")]
    common += ["--device", f"$torch.device('{options.device}')", "--crop_size", str(options.size)]
    bundle = [*python, "monai.bundle", "run"]
    schedule = ["--max_epochs", str(options.epochs), "--epoch_length", str(options.epoch_length)]
    schedule += ["--compile", "true", "--compile_mode", options.compile] if compiling else []
    run("training", [*bundle, "training", "--config_file", str(CONFIGS / "train.json"), *common, *schedule], 300.0)
    run("evaluating", [*bundle, "evaluating", "--config_file", str(CONFIGS / "evaluate.json"), *common[:-2]])
    for views in (1, 3):
        timing(f"enet_k{views}", "--views", str(views))
        if compiling:
            timing(f"enet_k{views}_compiled", "--views", str(views), *compiling)
    for name, network in BACKBONES.items():
        timing(f"{name}_k2", "--network", network)
    return done


if __name__ == "__main__":
    main()
