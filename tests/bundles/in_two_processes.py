"""Trainings of a bundle in the processes that ``torchrun`` starts; what was seen in each goes into a file."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from monai.bundle import ConfigWorkflow
from torch.nn.parallel import DistributedDataParallel

from monai_spct.bundles import bundles_folder, join_processes
from monai_spct.engines import SemiSupervisedTrainer
from monai_spct.functional import average_over_processes
from monai_spct.handlers import SaveCheckpoints
from monai_spct.handlers.finite_loss import StopAtNonFiniteLoss, _Losses
from monai_spct.inferers import SemiSupervisedInferer
from monai_spct.networks import build_ensemble, frozen_copy
from monai_spct.objectives import Consistency, Objective, SelfPacedCoTraining, Supervised, Weighted

BUNDLES = bundles_folder()
LITTLE = {
    "image_size": 40,
    "crop_size": 32,
    "labeled_batch_size": 2,
    "unlabeled_batch_size": 2,
    "labeled_patients": 1,
    "num_test": 1,
    "val_interval": 1,
    "epoch_length": 2,
    "max_epochs": 2,
    "num_workers": 0,
}


class StoppedError(Exception):
    """What a run that breaks off ends with."""


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
        configs = BUNDLES / "spleen" / "configs"
        methods = [] if method is None else [BUNDLES / "methods" / f"{method}.json"]
        files = [configs / "train.json", *methods, configs / "multi_gpu_train.json"]
        settings = {**LITTLE, "dataset_dir": str(data), "output_dir": str(output), **settings}
        self.workflow = ConfigWorkflow([str(f) for f in files], workflow_type="train", logging_file=False, **settings)
        self.workflow.initialize()
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
        if self["discriminator"] is not None:
            found["discriminator"] = tensors_of(self["train#handlers#1"].state_dict())
        if self["move"] is not None and hasattr(self["move"], "turns"):
            found["moves"] = [torch.from_numpy(self["move"].turns)]
        found["dropout"] = [torch.get_rng_state()]
        for name, tensors in found.items():
            self.seen.setdefault(name, []).append(digest(tensors))

    def run(self) -> dict[str, Any]:
        """Of each process, by name."""
        self.workflow.run()
        seen: dict[str, Any] = {**self.seen, "losses": [float(self.trainer.state.output["loss"])]}
        if self["split"].validation:
            evaluator = self["validate#evaluator"]
            seen["evaluated"] = [case["case"] for case in self["validate#dataset"].data]
            seen["scored"] = [row.case for row in self["validate#key_metric#mean_dsc"].rows]
            seen["best"] = [evaluator.state.best_metric, evaluator.state.best_metric_epoch]
        parts = idist.all_gather(seen)
        return {name: [part[name] for part in parts] for name in seen}


def broken_off(training: Training, epoch: int) -> None:
    def stop() -> None:
        raise StoppedError

    training.trainer.add_event_handler(Events.EPOCH_STARTED(once=epoch), stop)
    try:
        training.run()
    except RuntimeError as error:  # MONAI's parser wraps what an expression raises
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, StoppedError):
            cause = cause.__cause__
        if cause is None:
            raise


def small_network() -> torch.nn.Module:
    """Without normalization, which knows the rest of its batch."""
    return torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 3, 3, padding=2))


def gradients(*, wrapped: bool, **settings: Any) -> list[torch.Tensor]:
    """Of one step: of this process's share of a batch, or of the whole batch without the other processes."""
    generator = torch.Generator().manual_seed(0)
    whole = {
        "image": torch.rand(4, 1, 8, 8, generator=generator),
        "label": torch.randint(3, (4, 1, 8, 8), generator=generator),
        "unlabeled": torch.rand(6, 1, 8, 8, generator=generator),
    }
    share = {key: value.chunk(idist.get_world_size())[idist.get_rank()] for key, value in whole.items()}
    students = build_ensemble(small_network, num_views=2, seed=0)
    SemiSupervisedTrainer(
        device="cpu",
        max_epochs=1,
        train_data_loader=[share if wrapped else whole],
        network=DistributedDataParallel(students) if wrapped else students,
        optimizer=torch.optim.SGD(students.parameters(), lr=0.1),
        objective=Objective(
            supervised=Supervised(),
            co_training=Weighted(SelfPacedCoTraining(pace=0.5, alpha=0.1), weight=0.5),
            consistency=Weighted(Consistency(), weight=4.0),
        ),
        inferer=SemiSupervisedInferer(teachers=frozen_copy(build_ensemble(small_network, num_views=2, seed=1))),
        **settings,
    ).run()
    return [parameter.grad for parameter in students.parameters()]


def difference(**settings: Any) -> float:
    """The largest, as a share of the largest gradient."""
    shared, whole = gradients(wrapped=True, **settings), gradients(wrapped=False)
    largest = max(float(one.abs().max()) for one in whole)
    return max(float((one - other).abs().max()) for one, other in zip(shared, whole, strict=True)) / largest


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
            handler.pending.append(_Losses(2, 4, ["loss"], torch.tensor([torch.nan]), None))

    handlers = training.trainer._event_handlers[Events.EPOCH_COMPLETED]
    [handler] = [h.__self__ for h, *_ in handlers if isinstance(getattr(h, "__self__", None), StopAtNonFiniteLoss)]
    training.trainer.add_event_handler(Events.ITERATION_COMPLETED, spoil)
    training.workflow.run()


def main(data: Path, output: Path) -> None:
    join_processes("cpu")
    run = partial(Training, data)
    seen = {
        "method": run(output / "method", num_validation=3).run(),
        "dan": run(output / "dan", "dan").run(),
        "labeled_only": run(output / "labeled_only", "labeled_only", num_validation=1).run(),
        "ua_mt": run(output / "ua_mt", "ua_mt").run(),
    }
    broken_off(run(output / "resumed", num_validation=3), epoch=2)
    seen["resumed"] = run(output / "resumed", num_validation=3, resume=True).run()
    numbers = {"plain": difference(), "compiled": difference(compile=True, compile_kwargs={"backend": "eager"})}
    means = idist.all_gather(averaged())
    messages = idist.all_gather(refused(output / "method" / "models", output / "nowhere"))
    if idist.get_rank() == 0:
        (output / "seen.json").write_text(
            json.dumps({"runs": seen, "differences": numbers, "averaged": means, "refused": messages})
        )
    handlers = json.loads((BUNDLES / "spleen" / "configs" / "train.json").read_text())["train"]["handlers"]
    history = next(n for n, handler in enumerate(handlers) if "SaveHistory" in handler["_target_"])
    # without the table of means, for which the processes wait for each other too
    failing(run(output / "failing", "labeled_only", **{f"train#handlers#{history}#_disabled_": True}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
