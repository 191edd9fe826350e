"""Memory and start with large volumes, with and without a cache: ``python -m tests.benchmarks.memory --help``.

Made-up CT of 512 x 512 x 168 voxels, one patient drawn and the others copies of its files. Each row is a process of its
own, whose peak is that of the system's books. Linux alone.

Seconds are by the clock, from the start of the process, and of computing (``cpu``).

- ``data``: the two datasets and a pass over all slices, without networks;
- ``train``: the bundle up to the end of its first iteration;
- ``evaluate``: networks with random weights score one test patient on the original grid.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import nibabel as nib
import torch
from ignite.engine import Events
from monai.bundle import ConfigParser

from monai_spct.data import write_spleen_phantom
from monai_spct.networks import ENet, build_ensemble
from monai_spct.workflow import bundles_folder
from tests.benchmarks.step import machine

ROWS = ("data", "train", "evaluate")
CONFIGS = bundles_folder() / "spleen" / "configs"


def copies(folder: Path, volumes: int, size: int, slices: int) -> Path:
    """A data set of one drawn patient and its copies: one to be labeled, others unlabeled, and one for testing."""
    drawn = folder / f"drawn_{size}_{slices}"
    scale = 340 / size
    write_spleen_phantom(drawn, patients=1, size=(size, size), spacing=(scale, scale), slices=(slices, slices))
    data = folder / f"volumes_{volumes}"
    names = [f"spleen_{number}.nii.gz" for number in range(volumes + 1)]
    for kind in ("imagesTr", "labelsTr"):
        (data / kind).mkdir(parents=True, exist_ok=True)
        volume = nib.load(drawn / kind / "spleen_1.nii.gz")
        for name in names:
            volume.header["descrip"] = name  # whole copies would all be on one side of the split
            nib.save(volume, data / kind / name)
    entries = [{"image": f"imagesTr/{name}", "label": f"labelsTr/{name}"} for name in names]
    (data / "dataset.json").write_text(json.dumps({"training": entries}))
    return data


def books(name: str) -> float:
    """MB of the system's books on this process: ``VmRSS`` is what it has, ``VmHWM`` what it had at most."""
    # the peak of `resource` begins with that of the process that started this one
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(name))


def child(what: str, started: float, options: dict[str, Any]) -> dict[str, float]:
    """One row, in this process."""
    parser = ConfigParser()
    parser.read_config(str(CONFIGS / ("evaluate.json" if what == "evaluate" else "train.json")))
    parser.update(options)
    torch.manual_seed(0)
    row = {"before_mb": books("VmRSS")}

    def note(name: str) -> None:
        row.update({f"{name}_s": time.time() - started, f"{name}_cpu_s": time.process_time()})

    if what == "data":
        parts = [parser.get_parsed_content(f"train#{name}") for name in ("dataset", "unlabeled_dataset")]
        note("ready")
        for part in parts:
            for index in range(len(part)):
                part[index, index]
    elif what == "train":
        trainer = parser.get_parsed_content("train#trainer")
        trainer.add_event_handler(Events.ITERATION_STARTED(once=1), lambda _: note("ready"))
        trainer.add_event_handler(Events.ITERATION_COMPLETED(once=1), lambda _: note("first_iteration"))
        trainer.run()
    else:
        parser.get_parsed_content("evaluator").run()
    note("all")
    return {**row, "after_mb": books("VmRSS"), "peak_mb": books("VmHWM")}


def printed_by(words: Sequence[str]) -> dict[str, float]:
    """The row that a module prints last, in a process of its own."""
    words = [sys.executable, "-W", "ignore", "-m", *words]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    row: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return row


def measure(what: str, **options: Any) -> dict[str, float]:
    """One row, in a process of its own."""
    words = ["tests.benchmarks.memory", "--child", what]
    words += ["--started", str(time.time()), "--options", json.dumps(options)]
    row = printed_by(words)
    print(what, {key: options[key] for key in options if key == "cache_dir"}, row, file=sys.stderr, flush=True)
    return row


def main(args: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, and print a line for each row."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.memory", description=__doc__)
    parser.add_argument("--folder", help="scratch space, some GB")
    parser.add_argument("--volumes", type=int, nargs="*", default=[2, 6], help="that are trained on")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--slices", type=int, default=168)
    parser.add_argument("--image-size", type=int, default=256)
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=ROWS)
    parser.add_argument("--output", help="a JSON file")
    parser.add_argument("--child", choices=ROWS, help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--options", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(args)
    if options.child:
        row = child(options.child, options.started, options.options)
        print(json.dumps(row))
        return row
    folder = Path(options.folder).absolute()
    rows: dict[str, dict[str, float]] = {}
    for volumes in options.volumes:
        data = copies(folder, volumes, options.size, options.slices)
        cache, output = folder / f"cache_{volumes}", folder / f"output_{volumes}"
        shutil.rmtree(cache, ignore_errors=True)
        common = {"dataset_dir": str(data), "output_dir": str(output), "image_size": options.image_size, "num_test": 1}
        training = {**common, "labeled_patients": 1, "max_epochs": 1, "epoch_length": 1, "num_workers": 0}
        for name, cache_dir in (("memory", None), ("cold", str(cache)), ("warm", str(cache))):
            rows[f"data, {volumes} volumes, {name}"] = measure("data", **training, cache_dir=cache_dir)
        rows[f"data, {volumes} volumes, warm"]["disk_mb"] = sum(path.stat().st_size for path in cache.iterdir()) / 1e6
        if "train" in options.rows:
            rows[f"train, {volumes} volumes, warm"] = measure("train", **training, cache_dir=str(cache))
    if "evaluate" in options.rows:
        (output / "models").mkdir(parents=True, exist_ok=True)
        network = build_ensemble(partial(ENet, out_channels=2), num_views=2, seed=0)
        torch.save(network.state_dict(), output / "models" / "model.pt")
        rows["evaluate, 1 volume"] = measure("evaluate", **common, device="cpu")
    result = {"machine": machine("cpu"), "size": options.size, "slices": options.slices, "rows": rows}
    if options.output:
        Path(options.output).write_text(json.dumps(result, indent=1) + "\n")
    return result


if __name__ == "__main__":
    main()
