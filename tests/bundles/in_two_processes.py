"""Trainings of a bundle in the processes that ``torchrun`` starts; what was seen in each goes into a file."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from torch.nn.parallel import DistributedDataParallel

from monai_spct.engines import SemiSupervisedTrainer
from monai_spct.functional import average_over_processes, entropy, log_softmax
from monai_spct.handlers import AverageBuffers, DiscriminatorStep, SaveCheckpoints
from monai_spct.handlers.finite_loss import StopAtNonFiniteLoss
from monai_spct.inferers import SemiSupervisedInferer
from monai_spct.networks import Discriminator, Ensemble, build_ensemble, frozen_copy
from monai_spct.objectives import (
    Adversarial,
    CertainConsistency,
    Consistency,
    CoTraining,
    EntropyMinimization,
    Objective,
    SelfPacedCoTraining,
    Supervised,
    WeightedTerm,
)
from monai_spct.workflow import join_processes, synchronize_batch_norms
from tests.bundles.little import config, overlay, training

MORE = {"image_size": 40, "num_test": 1, "val_interval": 1}


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Equal for tensors that are equal bit by bit."""
    value = hashlib.sha256()
    for tensor in tensors:
        value.update(tensor.detach().contiguous().cpu().numpy().tobytes())
    return value.hexdigest()


def tensors_of(state: Any) -> list[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return [state]
    if isinstance(state, dict):
        return [tensor for key in sorted(state, key=str) for tensor in tensors_of(state[key])]
    return [tensor for part in state for tensor in tensors_of(part)] if isinstance(state, list | tuple) else []


class Training:
    """A training, with what is seen of it in each iteration and each process."""

    def __init__(self, data: Path, output: Path, method: str | None = None, **settings: Any) -> None:
        overlays = [] if method is None else [overlay(method)]
        files = (*overlays, config("multi_gpu_train", "spleen"))
        self.workflow = training(data, output, *files, bundle="spleen", **MORE, **settings)
        self.seen: dict[str, list[str]] = {}
        self.trainer = self["train#trainer"]
        self.trainer.add_event_handler(Events.ITERATION_COMPLETED, self.look)  # after the teachers, and all the others

    def __getitem__(self, key: str) -> Any:
        return self.workflow.parser.get_parsed_content(key)

    def look(self) -> None:
        found = {
            "batch": [self.trainer.state.batch["image"]],
            "gradients": [parameter.grad for parameter in self["network"].parameters()],
            "students": tensors_of(self["network"].state_dict()),
            "optimizer": tensors_of(self["optimizer"].state_dict()),
        }
        if self["teachers"] is not None:
            found["teachers"] = tensors_of(self["teachers"].state_dict())
        if "discriminator_step" in self.workflow.parser:
            found["discriminator"] = tensors_of(self["discriminator_step"].state_dict())
        if self["transform"] is not None and hasattr(self["transform"], "turns"):
            found["turns"] = [torch.from_numpy(self["transform"].turns)]
        found["dropout"] = [torch.get_rng_state()]
        for name, tensors in found.items():
            self.seen.setdefault(name, []).append(digest(tensors))

    def run(self) -> dict[str, Any]:
        """Of each process, by name."""
        self.workflow.run()
        seen: dict[str, Any] = {**self.seen, "losses": [self.trainer.state.output["loss"].item()]}
        seen["slices"] = [sampler.num_items for sampler in self["train#dataloader"].samplers]
        if self["split"].validation:
            evaluator = self["validate#evaluator"]
            seen["evaluated"] = [case["case"] for case in self["validate#dataset"].data]
            seen["scored"] = [row.case for row in self["validate#key_metric#mean_dsc"].rows]
            seen["best"] = [evaluator.state.best_metric, evaluator.state.best_metric_epoch]
        parts = idist.all_gather(seen)
        return {name: [part[name] for part in parts] for name in seen}


# Two processes with halves of a batch, beside one with the whole of it


def small_network() -> torch.nn.Module:
    """Without normalization, which knows the rest of its batch."""
    return torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 3, 3, padding=2))


def normalized_network() -> torch.nn.Module:
    first, *others = small_network()
    return torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), *others)


def undecided(teachers: Ensemble, images: torch.Tensor) -> torch.Tensor:
    """What dropout measures, without its draws."""
    return entropy(log_softmax(teachers.logits(images), dim=2), dim=2)


TERMS = {
    "method": {
        "co_training": WeightedTerm(SelfPacedCoTraining(gamma=0.5, alpha=0.1), weight=0.5),
        "consistency": WeightedTerm(Consistency(), weight=4.0),
    },
    "co_training": {"co_training": CoTraining(), "entropy": WeightedTerm(EntropyMinimization(), weight=0.1)},
    "ua_mt": {"consistency": WeightedTerm(CertainConsistency(0.9), weight=12.0)},
    "dan": {"adversarial": WeightedTerm(Adversarial(), weight=0.1)},
}


def batches() -> list[dict[str, torch.Tensor]]:
    """Unlabeled images become brighter, and predictions for them more certain."""
    generator = torch.Generator().manual_seed(0)
    brightness = torch.linspace(0, 12, 6).reshape(6, 1, 1, 1)
    return [
        {
            "image": torch.rand(4, 1, 8, 8, generator=generator),
            "label": torch.randint(3, (4, 1, 8, 8), generator=generator),
            "unlabeled": torch.rand(6, 1, 8, 8, generator=generator) * brightness,
        }
        for _ in range(3)
    ]


def trained(
    name: str,
    network: Callable[[], torch.nn.Module],
    *,
    shared: bool,
    device: str = "cpu",
    synchronized: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Three steps: with this process's share of each batch, or with the whole of it.

    With the whole both do the same, and means over them are what each has.
    """
    parts, part = (idist.get_world_size(), idist.get_rank()) if shared else (1, 0)
    data = [{key: value.chunk(parts)[part] for key, value in batch.items()} for batch in batches()]
    students, others = (build_ensemble(network, num_views=2, seed=seed).to(device) for seed in (0, 1))
    if shared and synchronized:
        for networks in (students, others):
            synchronize_batch_norms(networks)
    teachers = frozen_copy(others)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        judge = Discriminator(num_classes=3, features=4, num_layers=1).to(device) if name == "dan" else None
    handlers: list[Any] = [AverageBuffers(students)] if shared else []
    if judge is not None:
        handlers.append(DiscriminatorStep(judge, torch.optim.SGD(judge.parameters(), lr=0.1)))
    before = [parameter.detach().clone() for parameter in students.parameters()]
    trainer = SemiSupervisedTrainer(
        device=device,
        max_epochs=1,
        train_data_loader=data,
        network=DistributedDataParallel(students) if shared else students,
        optimizer=torch.optim.SGD(students.parameters(), lr=0.1, momentum=0.9),
        objective=Objective(supervised=Supervised(), **TERMS[name]),
        inferer=SemiSupervisedInferer(
            teachers=None if name == "dan" else teachers,
            uncertainty=undecided if name == "ua_mt" else None,
            discriminator=judge,
        ),
        train_handlers=handlers,
        **settings,
    )
    trainer.run()
    return {
        "gradients": [parameter.grad for parameter in students.parameters()],
        "learned": [now.detach() - then for now, then in zip(students.parameters(), before, strict=True)],
        "judge": [] if judge is None else [parameter.detach() for parameter in judge.parameters()],
        "statistics": [buffer for buffer in students.buffers() if buffer.is_floating_point()],
        "certain_share": float(trainer.state.output.get("certain_share", 0)),
    }


def differences(name: str, network: Callable[[], torch.nn.Module] = small_network, **settings: Any) -> dict[str, float]:
    """The largest of each kind, as a share of the largest value."""
    halves, whole = (trained(name, network, shared=shared, **settings) for shared in (True, False))
    found = {}
    for kind in ("gradients", "learned", "judge", "statistics"):
        pairs = list(zip(halves[kind], whole[kind], strict=True))
        if pairs:
            largest = max(float(one.abs().max()) for _, one in pairs)
            found[kind] = max(float((one - other).abs().max()) for one, other in pairs) / largest
    return {**found, "certain_share": halves["certain_share"]}


def averaged() -> bool:
    """Whether means are right, of tensors of several kinds and layouts, which stay as they are."""
    rank = idist.get_rank()
    tensors = [
        torch.full((2, 3), 1.0 + rank),
        (torch.arange(16.0).reshape(1, 2, 2, 4) * (1 - rank)).to(memory_format=torch.channels_last),
        torch.full((), 60000.0 * rank, dtype=torch.float16),  # twice that is out of range
        torch.tensor([]),
    ]
    expected = [torch.full((2, 3), 1.5), torch.arange(16.0).reshape(1, 2, 2, 4) / 2, torch.tensor(30000.0).half()]
    average_over_processes(tensors)
    right = all(torch.equal(one, other) for one, other in zip(tensors, expected, strict=False))
    return right and tensors[1].is_contiguous(memory_format=torch.channels_last)


def refused(found: Path, missing: Path) -> str:
    """What is said of a checkpoint that the first process finds and the second does not."""
    module = small_network()
    handler = SaveCheckpoints(found if idist.get_rank() == 0 else missing, module, {"network": module}, resume=True)
    try:
        handler.load(Engine(lambda engine, batch: None))  # noqa: ARG005
    except ValueError as error:
        return str(error)
    return ""


def failing(training: Training) -> None:
    """A loss that is not finite is found in one process at the end of the second epoch, as it would be on a GPU."""

    def spoil() -> None:
        if training.trainer.state.iteration == 4 and idist.get_rank() == 1:
            handler.pending.append(("epoch 2, iteration 4", ["loss"], torch.tensor([torch.nan]), None))

    handlers = training.trainer._event_handlers[Events.EPOCH_COMPLETED]
    [handler] = [h.__self__ for h, *_ in handlers if isinstance(getattr(h, "__self__", None), StopAtNonFiniteLoss)]
    training.trainer.add_event_handler(Events.ITERATION_COMPLETED, spoil)
    training.workflow.run()


def killed(training: Training) -> None:
    """The second process is, amid its second epoch."""

    def die() -> None:
        if training.trainer.state.iteration == 3 and idist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    training.trainer.add_event_handler(Events.ITERATION_COMPLETED, die)
    training.workflow.run()


def unreadable(training: Training) -> None:
    """Of the cases to validate, one of the second process ends early, which its header does not show."""
    if idist.get_rank() == 1:
        image = Path(training["validate#dataset"].data[0]["image"])
        image.write_bytes(image.read_bytes()[: image.stat().st_size // 2])
    training.workflow.run()


def stuck() -> None:
    """The second process is."""
    if idist.get_rank() == 1:
        signal.pause()
    average_over_processes([torch.zeros(1)])


def on_gpus(output: Path) -> None:
    """Batch normalizations by NCCL."""
    device = f"cuda:{idist.get_local_rank()}"
    found = {
        how: idist.all_gather(differences("method", normalized_network, device=device, synchronized=how == "together"))
        for how in ("together", "apart")
    }
    if idist.get_rank() == 0:
        output.write_text(json.dumps(found))


def main(scenario: str, data: Path, output: Path) -> None:
    if scenario == "on_gpus":
        join_processes(f"cuda:{os.environ['LOCAL_RANK']}")
        on_gpus(output)
        return
    join_processes("cpu", timeout_minutes=0.25 if scenario == "stuck" else 5)
    run = partial(Training, data)
    if scenario == "killed":
        killed(run(output / "resumed", num_validation=3))
    elif scenario == "unreadable":
        unreadable(run(output / "unreadable", "labeled_only", num_validation=3))
    elif scenario == "stuck":
        stuck()
    else:
        look(run, output)


def look(run: Callable[..., Training], output: Path) -> None:
    """See the runs that get to their end, and at last one that does not."""
    seen = {
        "method": run(output / "method", num_validation=3).run(),
        "dan": run(output / "dan", "dan").run(),
        "labeled_only": run(output / "labeled_only", "labeled_only", num_validation=1).run(),
        "ua_mt": run(output / "ua_mt", "ua_mt").run(),
        "uneven": run(output / "uneven", num_validation=5, labeled_batch_size=3, unlabeled_batch_size=3).run(),
        "resumed": run(output / "resumed", num_validation=3, resume=True).run(),  # see `killed`
    }
    numbers = {name: differences(name) for name in TERMS}
    numbers["compiled"] = differences("method", compile=True, compile_kwargs={"backend": "eager"})
    numbers["normalized"] = differences("method", normalized_network)
    found = {
        "runs": seen,
        "differences": idist.all_gather(numbers),
        "averaged": idist.all_gather(averaged()),
        "refused": idist.all_gather(refused(output / "method" / "models", output / "nowhere")),
    }
    if idist.get_rank() == 0:
        (output / "seen.json").write_text(json.dumps(found))
    # without the table of means and its curves, for which the processes wait for each other too
    failing(
        run(output / "failing", "labeled_only", **{"history#_disabled_": True, "train#handlers#3#_disabled_": True})
    )


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))
