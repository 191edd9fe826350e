"""Time and memory of training in 3-D and of sliding windows: ``python -m tests.benchmarks.volumes --help``.

Each row is a process of its own, on the phantom of the left atrium.

- ``plain``: MONAI alone, a loop over a ``CacheDataset``, with transforms, network, loss and optimizer of ``labels``;
- ``labels``: ``train.json`` of the bundle with ``labeled_only.json``;
- ``default``: ``train.json`` as it is, two networks and their teachers, labeled and unlabeled patches;
- ``predict``: two networks on a whole volume, in windows of the size of the patches.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from ignite.engine import Events
from monai.bundle import ConfigParser
from monai.data import CacheDataset, DataLoader
from monai.losses import DiceCELoss
from monai.transforms import Compose

from monai_spct.data import write_atrium_phantom
from monai_spct.inferers import VolumeInferer
from monai_spct.networks import ResidualUNet, build_ensemble
from monai_spct.workflow import bundles_folder
from tests.benchmarks.memory import books, printed_by
from tests.benchmarks.step import machine

ROWS = ("plain", "labels", "default", "predict")
CONFIGS = bundles_folder() / "atrium" / "configs"


def plain(parser: ConfigParser, iterations: int) -> list[float]:
    """Seconds of each iteration of a loop as MONAI's tutorials have it."""
    steps = parser.get_parsed_content("train#preprocessing").transforms
    transform = Compose([*steps, *parser.get_parsed_content("augmentation")])
    cases = parser.get_parsed_content("split").labeled
    batch = parser.get_parsed_content("labeled_batch_size")
    loader = DataLoader(CacheDataset(cases, transform, progress=False), batch_size=batch, shuffle=True, drop_last=True)
    network = ResidualUNet(spatial_dims=3, in_channels=1, out_channels=2)
    loss = DiceCELoss(include_background=False, to_onehot_y=True, softmax=True)
    optimizer = torch.optim.RAdam(network.parameters(), lr=0.001)
    seconds: list[float] = []
    start = time.perf_counter()
    while True:
        for item in loader:
            optimizer.zero_grad()
            loss(network(item["image"].as_tensor()), item["label"].as_tensor()).backward()
            optimizer.step()
            seconds.append(time.perf_counter() - start)
            start = time.perf_counter()
            if len(seconds) == iterations:
                return seconds


def project(parser: ConfigParser, iterations: int) -> list[float]:
    """Seconds of each iteration of the bundle's training, with all that it logs."""
    trainer = parser.get_parsed_content("train#trainer")
    times: list[float] = []
    for event in (Events.EPOCH_STARTED, Events.ITERATION_COMPLETED):
        trainer.add_event_handler(event, lambda _: times.append(time.perf_counter()))
    trainer.run()
    assert len(times) == iterations + 1
    return [end - start for start, end in pairwise(times)]


def predict(size: Sequence[int], patch: Sequence[int]) -> list[float]:
    """Seconds of the prediction of one volume."""
    network = build_ensemble(partial(ResidualUNet, spatial_dims=3, out_channels=2), num_views=2, seed=0).eval()
    start = time.perf_counter()
    with torch.inference_mode():
        VolumeInferer(patch_size=patch, batch_size=2)(torch.rand(1, 1, *size), network)
    return [time.perf_counter() - start]


def child(row: str, options: dict[str, Any]) -> dict[str, float]:
    """One row, in this process."""
    torch.manual_seed(0)
    patch, iterations = options["patch"], options["iterations"]
    before = books("VmRSS")
    if row == "predict":
        seconds = predict(options["size"], patch)
    else:
        parser = ConfigParser()
        overlays = [] if row == "default" else [bundles_folder() / "methods" / "labeled_only.json"]
        parser.read_config([str(path) for path in (CONFIGS / "train.json", *overlays)])
        settings = {"dataset_dir": options["data"], "output_dir": options["output"], "num_test": 1, "num_workers": 0}
        parser.update({**settings, "crop_size": patch, "max_epochs": 1, "epoch_length": iterations})
        parser.update(
            {"labeled_patients": 2, "supervised_loss": {"_target_": "monai_spct.losses.VoxelWeightedDiceCELoss"}}
        )
        seconds = (plain if row == "plain" else project)(parser, iterations)
    return {"seconds": median(seconds[1:] or seconds), "before_mb": before, "peak_mb": books("VmHWM")}


def measure(row: str, options: dict[str, Any]) -> dict[str, float]:
    """One row, in a process of its own."""
    return printed_by(["tests.benchmarks.volumes", "--child", row, json.dumps(options)])


def main(args: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, and print a line for each row."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.volumes", description=__doc__)
    parser.add_argument("--folder", help="scratch space")
    parser.add_argument("--patch", type=int, nargs=3, default=[112, 112, 80])
    parser.add_argument("--size", type=int, nargs=3, default=[576, 576, 88], help="of the volume to predict")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=ROWS)
    parser.add_argument("--output", help="a JSON file")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(args)
    if options.child:
        row = child(options.child[0], json.loads(options.child[1]))
        print(json.dumps(row))
        return row
    folder = Path(options.folder).absolute()
    longest = max(options.patch)
    slices = (options.patch[2] + 8,) * 2
    data = write_atrium_phantom(
        folder / "data", patients=6, size=(longest + 40,) * 2, spacing=(100 / longest,) * 2, slices=slices
    )
    rows = {}
    for row in options.rows:
        given = {"data": str(data), "output": str(folder / row), "patch": options.patch, "size": options.size}
        rows[row] = measure(row, {**given, "iterations": options.iterations})
        print(row, rows[row], flush=True)
    result = {"machine": machine("cpu"), "patch": options.patch, "size": options.size, "rows": rows}
    if options.output:
        Path(options.output).write_text(json.dumps(result, indent=1) + "\n")
    return result


if __name__ == "__main__":
    main()
