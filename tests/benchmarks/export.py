"""How far exported networks are from the networks: ``python -m tests.benchmarks.export --help``."""

from __future__ import annotations

import argparse
import copy
import io
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from torch import Tensor, nn

from monai_spct.networks import ENet, SegNet, UNet, build_ensemble
from tests.benchmarks.step import machine

NETWORKS = {"ENet": ENet, "U-Net": UNet, "SegNet": SegNet}
Predict = Callable[[Tensor], Tensor]


def torchscript(network: nn.Module) -> Predict:
    """The network scripted, saved and loaded."""
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(network), file)
    file.seek(0)
    return torch.jit.load(file)


def onnx_with_free_sizes(network: nn.Module) -> Predict:
    """The network in ONNX Runtime: exported once, at one size, for batches and images of any size."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # torch's exporter copies its own deprecated record of arguments
        warnings.filterwarnings("ignore", ".isinstance.treespec, LeafSpec.. is deprecated", FutureWarning)
        path = str(Path(folder) / "model.onnx")
        torch.onnx.export(
            network,
            (torch.rand(2, 1, 64, 72),),
            path,
            input_names=["image"],
            output_names=["pred"],
            dynamic_shapes=({0: "batch", 2: "height", 3: "width"},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        onnx.checker.check_model(path)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda image: torch.from_numpy(session.run(["pred"], {"image": image.numpy()})[0])


def in_double_precision(network: nn.Module) -> Predict:
    """The network itself, with less rounding: a difference that it shows as well is not one of a format."""
    double = copy.deepcopy(network).double()
    return lambda image: double(image.double()).float()


FORMATS = {"TorchScript": torchscript, "ONNX": onnx_with_free_sizes, "float64": in_double_precision}


def settled(network: Callable[[], nn.Module], views: int) -> nn.Module:
    """Views of a network in evaluation mode, with running statistics that are not the initial ones."""
    ensemble = build_ensemble(network, num_views=views, seed=0)
    torch.manual_seed(0)
    with torch.no_grad():
        ensemble.train()(torch.rand(2, 1, 64, 64))
    return ensemble.eval()


def differences(network: nn.Module, exported: Predict, sizes: Sequence[Sequence[int]]) -> Iterator[float]:
    """The largest absolute difference of two predictions, for each size, on the same images for all formats."""
    generator = torch.Generator().manual_seed(0)
    for batch, height, width in sizes:
        image = torch.rand(batch, 1, height, width, generator=generator)
        with torch.no_grad():
            yield (exported(image) - network(image)).abs().max().item()


def main(args: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print a table, and write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.export", description=__doc__)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--views", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--features", type=int, help="channels of the networks; those of the bundles by default")
    parser.add_argument("--output")
    options = parser.parse_args(args)
    sizes = [(1, 192, 192), (3, 187, 201), (1, 17, 23)]
    settings = {"features": options.features} if options.features else {}
    rows: list[dict[str, Any]] = []
    print("| network | views | format |", " | ".join(f"{b} x {h} x {w}" for b, h, w in sizes), "|")
    print("|---" * (3 + len(sizes)) + "|")
    for name in options.networks:
        for views in options.views:
            network = settled(partial(NETWORKS[name], out_channels=4, **settings), views)
            for kind in options.formats:
                found = list(differences(network, FORMATS[kind](network), sizes))
                rows.append({"network": name, "views": views, "format": kind, "differences": found})
                print(f"| {name} | {views} | {kind} |", " | ".join(f"{d:.1e}" for d in found), "|", flush=True)
    versions = {module.__name__: module.__version__ for module in (torch, onnx, onnxruntime)}
    result = {"sizes": sizes, "rows": rows, "versions": versions, "machine": machine("cpu")}
    if options.output:
        Path(options.output).write_text(json.dumps(result, indent=1) + "\n")
    return result


if __name__ == "__main__":
    main()
