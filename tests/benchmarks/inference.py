"""A volume through K networks, some slices at a time: ``python -m tests.benchmarks.inference --help``."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from monai_spct.inferers import VolumeInferer
from monai_spct.networks import ENet, build_ensemble
from tests.benchmarks.step import machine


def main(args: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.inference", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--views", type=int, default=2)
    parser.add_argument("--size", type=int, nargs=3, default=[256, 256, 10])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--output")
    options = parser.parse_args(args)
    network = build_ensemble(ENet, num_views=options.views, seed=0).eval()
    network = network.to(options.device, memory_format=torch.channels_last)
    volume = torch.rand(1, 1, *options.size, device=options.device)
    seconds = {}
    for batch_size in (1, 2, 4, 8, 16):
        inferer = VolumeInferer(batch_size=batch_size)
        times = []
        for _ in range(options.repeats + 2):
            start = time.perf_counter()
            with torch.no_grad():
                inferer(volume, network).sum().item()
            times.append(time.perf_counter() - start)
        seconds[batch_size] = statistics.median(times[2:])
        print(f"{batch_size:3d} slices at a time: {seconds[batch_size]:.3f} s a volume")
    result = {"size": options.size, "views": options.views, "seconds": seconds, "machine": machine(options.device)}
    if options.output:
        Path(options.output).write_text(json.dumps(result, indent=1) + "\n")
    return result


if __name__ == "__main__":
    main()
