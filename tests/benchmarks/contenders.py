"""The two that a benchmark compares: the bundle's own trainer, and the plain loop with the same weights and batches."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ignite.engine import Engine
from monai.bundle import ConfigParser
from torch import nn

from monai_spct.networks import ENet
from tests.benchmarks.reference import PlainENet, plain_iteration

TRAIN = Path(__file__).parents[2] / "bundles" / "acdc" / "configs" / "train.json"
LOSS = {"gamma": 0.5, "alpha": 1e-4, "eps": 1e-5, "co_training_weight": 0.5, "consistency_weight": 4.0}
DECAY = 0.99


@dataclass(frozen=True)
class Task:
    """What an iteration works on. ``data`` is an ACDC folder; ``size`` is that of the square crops."""

    data: str
    device: str = "cpu"
    views: int = 2
    size: int = 192
    labeled: int = 4
    unlabeled: int = 6
    network: str = "monai_spct.networks.ENet"
    compile: bool = False
    compile_mode: str = "default"
    amp: bool = False
    iterations: int = 20
    seed: int = 0


def bundle(task: Task, output: str) -> ConfigParser:
    """The training config of the ACDC bundle with the weights of its losses at fixed values."""
    parser = ConfigParser()
    parser.read_config(str(TRAIN))
    parser.update(
        {
            "dataset_dir": task.data,
            "output_dir": output,
            "device": f"$torch.device('{task.device}')",
            "num_views": task.views,
            "crop_size": task.size,
            "labeled_batch_size": task.labeled,
            "unlabeled_batch_size": task.unlabeled,
            "labeled_ratio": 0.1,
            "max_epochs": 1,
            "epoch_length": task.iterations,
            "seed": task.seed,
            "amp": task.amp,
            "compile": task.compile,
            "compile_mode": task.compile_mode,
            "backbone::_target_": task.network,
            "ema_decay": DECAY,
            "objective::co_training::weight": LOSS["co_training_weight"],
            "objective::consistency::weight": LOSS["consistency_weight"],
            "objective::co_training::term::gamma": LOSS["gamma"],
            "objective::co_training::term::alpha": LOSS["alpha"],
            "objective::co_training::term::eps": LOSS["eps"],
        }
    )
    if task.views < 2:
        del parser["objective"]["co_training"]
    return parser


def project(parser: ConfigParser) -> Engine:
    """The trainer, as ``python -m monai.bundle run`` makes it."""
    parser.parse()
    parser.get_parsed_content("initialize")
    return parser.get_parsed_content("train#trainer")


def batches(parser: ConfigParser) -> Any:
    """A loader of its own that gives the batches of the first epoch."""
    other = ConfigParser(copy.deepcopy(parser.config))
    loader = other.get_parsed_content("train#dataloader")
    loader.set_epoch(1)
    return loader


class Plain:
    """The plain loop, from the weights that the project's networks have now."""

    def __init__(self, students: Iterable[nn.Module], *, device: str = "cpu", seed: int = 0) -> None:
        self.students = [plain_copy(student).to(device).train() for student in students]
        self.teachers = [copy.deepcopy(student).requires_grad_(False).eval() for student in self.students]
        for layer in (layer for teacher in self.teachers for layer in teacher.modules()):
            if isinstance(layer, torch.nn.BatchNorm2d):  # by the statistics of the batch, which leave no trace
                layer.training, layer.track_running_stats = True, False
        parameters = [parameter for student in self.students for parameter in student.parameters()]
        self.optimizer = torch.optim.RAdam(parameters)
        self.rng = np.random.RandomState(seed)  # what the project's turns are drawn from
        self.device = device
        self.updates = 0

    @classmethod
    def of(cls, task: Task, parser: ConfigParser) -> Plain:
        """Beside the trainer of a config."""
        return cls(parser.get_parsed_content("network").networks, device=task.device, seed=task.seed)

    def iteration(self, batch: dict[str, torch.Tensor], lr: float) -> torch.Tensor:
        """The next one; its loss."""
        self.optimizer.param_groups[0]["lr"] = lr
        batch = {key: torch.as_tensor(value).to(self.device) for key, value in batch.items()}
        turns = self.rng.randint(4, size=len(batch["unlabeled"])).tolist()
        self.updates += 1
        decay = min(1 - 1 / (self.updates + 1), DECAY)
        return plain_iteration(self.students, self.teachers, self.optimizer, batch, turns, decay=decay, **LOSS)


def plain_copy(network: nn.Module) -> nn.Module:
    """The same network, with the same weights, in PyTorch's plain modules and memory format."""
    if not isinstance(network, ENet):
        return copy.deepcopy(network).to(memory_format=torch.contiguous_format)
    plain = PlainENet(network.initial.conv.conv.in_channels, network.head.conv.out_channels)
    state = network.state_dict()
    plain.to(next(network.parameters()).dtype).load_state_dict(
        dict(zip(plain.state_dict(), state.values(), strict=True))
    )
    return plain
