"""Little runs of the bundles: in this process, which saves the seconds that imports take, and as users type them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ConfigParser, ConfigWorkflow

import monai_spct
from monai_spct.workflow import bundles_folder, in_words

ROOT = Path(monai_spct.__file__).parents[1]
BUNDLES = bundles_folder()
LITTLE = {
    "crop_size": 32,
    "labeled_batch_size": 2,
    "unlabeled_batch_size": 2,
    "labeled_patients": 1,
    "epoch_length": 2,
    "max_epochs": 2,
    "num_workers": 0,
}
# a fifth of the layers of an ENet, which the commands of the guides train
BACKBONE = {"backbone#_target_": "monai_spct.networks.UNet", "backbone#features": 4, "backbone#dropout": 0.1}


def config(name: str, bundle: str = "acdc") -> Path:
    """A file of a bundle."""
    return BUNDLES / bundle / "configs" / f"{name}.json"


def overlay(name: str) -> Path:
    """The overlay of a system."""
    return BUNDLES / "methods" / f"{name}.json"


def handler(name: str, part: str = "train", bundle: str = "acdc") -> str:
    """The key of a handler in a bundle's training."""
    handlers = json.loads(config("train", bundle).read_text())[part]["handlers"]
    [place] = [n for n, item in enumerate(handlers) if item["_target_"].endswith(f".{name}")]
    return f"{part}#handlers#{place}"


# In this process


def workflow(name: str | Path, *overlays: Path, bundle: str = "acdc", **settings: Any) -> ConfigWorkflow:
    """A run of a bundle's file, or of another one, initialized."""
    first = config(name, bundle) if isinstance(name, str) else name
    files = [str(path) for path in (first, *overlays)]
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in settings.items()}
    kind = "train" if first.stem == "train" else "infer"
    result = ConfigWorkflow(files, workflow_type=kind, logging_file=False, **settings)
    result.initialize()
    return result


def training(
    data: Path | None, output: Path, *overlays: Path, bundle: str = "acdc", draws: bool = False, **settings: Any
) -> ConfigWorkflow:
    """A little training, initialized; what it would draw takes longer than its steps."""
    drawing = (handler("SaveCurves", "train", bundle), handler("TensorBoardPictures", "validate", bundle))
    off = {} if draws else {f"{key}#_disabled_": True for key in drawing}
    where = {"dataset_dir": data, "output_dir": output}
    return workflow("train", *overlays, bundle=bundle, **{**LITTLE, **BACKBONE, **off, **where, **settings})


def trained(data: Path, output: Path, *overlays: Path, **settings: Any) -> ConfigWorkflow:
    """A little training after its end."""
    result = training(data, output, *overlays, **settings)
    result.run()
    return result


def predicting(name: str, data: Path | None, output: Path, *overlays: Path, **settings: Any) -> ConfigWorkflow:
    """An evaluation or an inference, initialized; it draws nothing."""
    where = {"dataset_dir": data, "output_dir": output}
    return workflow(name, *overlays, **{**where, **BACKBONE, "max_pictures": 0, **settings})


def network_of(bundle: Path, num_views: int) -> torch.nn.Module:
    """Untrained networks of the kind that a bundle predicts with by default."""
    parser = ConfigParser(json.loads((bundle / "configs" / "inference.json").read_text()))
    parser["num_views"] = num_views
    return parser.get_parsed_content("network_def")


def part(run: ConfigWorkflow, name: str) -> Any:
    """What a key of the config has become."""
    return run.parser.get_parsed_content(name)


def written(folder: Path) -> set[str]:
    """The files below a folder, but for the lock of a training."""
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {path for path in paths if path != ".lock"}


def failure(run: Callable[[], object]) -> str:
    """What went wrong, in the words of the last line that a user sees."""
    try:
        run()
    except Exception as error:
        return in_words(error)
    raise AssertionError("nothing failed")


# In processes of their own


def environment(**more: str) -> dict[str, str]:
    """In which processes find this package, wherever they are started."""
    paths = os.pathsep.join(path for path in (str(ROOT), os.environ.get("PYTHONPATH")) if path)
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, **more}


def typed(verb: str, *files: Path | str, **settings: object) -> list[str]:
    """The words of ``python -m monai.bundle run``."""
    names = [str(file) for file in files]
    words = ["-m", "monai.bundle", "run", verb, "--config_file", names[0] if len(names) == 1 else str(names)]
    return [*words, *(str(word) for name, value in settings.items() for word in (f"--{name}", value))]


def python(words: list[str], cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """What came of a command line."""
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment(**more), timeout=540)


def torchrun(*words: object, gpus: bool = False) -> subprocess.CompletedProcess[str]:
    """Two processes, as ``torchrun --standalone --nproc_per_node=2`` starts them; by default without GPUs."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    # the second process would find no GPU of its own where there is one
    return python([*launcher, *map(str, words)], ROOT, **({} if gpus else {"CUDA_VISIBLE_DEVICES": ""}))
