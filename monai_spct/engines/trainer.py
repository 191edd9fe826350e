"""The trainer: MONAI's ``SupervisedTrainer`` with unlabeled images and an objective of named terms."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from ignite.engine import Events
from monai.engines import SupervisedTrainer
from monai.inferers import Inferer
from monai.utils import CommonKeys
from torch import Tensor, nn
from torch.optim import Optimizer

from monai_spct.handlers import Sigterm, StopAtNonFiniteLoss, WarnOfNoForeground
from monai_spct.inferers import SemiSupervisedInferer
from monai_spct.networks import compiled
from monai_spct.objectives import Objective, Step

__all__ = ["SemiSupervisedTrainer", "prepare_semi_supervised_batch"]


def prepare_semi_supervised_batch(
    batchdata: dict[str, Tensor], device: torch.device | str | None = None, non_blocking: bool = False, **kwargs: Any
) -> tuple[Tensor, Tensor, tuple[()], dict[str, Tensor]]:
    """Move images, labels and unlabeled images, if any, to the device as plain tensors.

    Args:
        batchdata: with ``image``, ``label`` and perhaps ``unlabeled``.
        device: where to put them.
        non_blocking: whether the copy may be asynchronous.
        kwargs: further arguments of ``Tensor.to``.

    Example:
        >>> import torch
        >>> from monai_spct.engines import prepare_semi_supervised_batch
        >>> images, label = torch.rand(4, 1, 8, 8), torch.zeros(4, 1, 8, 8)
        >>> batch = {"image": images, "label": label, "unlabeled": torch.rand(6, 1, 8, 8)}
        >>> image, label, args, kwargs = prepare_semi_supervised_batch(batch)
        >>> list(kwargs)
        ['unlabeled']
    """

    def ready(key: str) -> Tensor:
        value = batchdata[key]
        # networks gain nothing from the bookkeeping of a MetaTensor and pay for it at every operation
        plain = value.as_tensor() if hasattr(value, "as_tensor") else value
        return plain.to(device=device, non_blocking=non_blocking, **kwargs)

    extra = {"unlabeled": ready("unlabeled")} if "unlabeled" in batchdata else {}
    return ready(CommonKeys.IMAGE), ready(CommonKeys.LABEL), (), extra


class SemiSupervisedTrainer(SupervisedTrainer):
    """MONAI's ``SupervisedTrainer`` for batches of labeled and unlabeled images.

    Batches are dictionaries with ``image`` ``(B, C_in, *S)``, ``label`` ``(B, 1, *S)`` and, but for a supervised run,
    ``unlabeled`` ``(U, C_in, *S)``. After each iteration ``engine.state.output`` holds ``image``, ``label``, ``pred``
    (the students' mean logits for the labeled images, ``(B, C, *S)``), ``loss``, one ``<name>_loss`` for each term of
    the objective, and the terms' notes; ``engine.step`` is the :class:`~monai_spct.objectives.Step` that the objective
    read. A loss that is not finite stops the run; epochs without any predicted foreground are warned of.

    Args:
        device: to train on.
        max_epochs: length of the run and of all schedules.
        train_data_loader: of such batches, for example :class:`~monai_spct.data.PairedLoader`; its ``set_epoch`` is
            called before each epoch, if it has one.
        network: the students, an :class:`~monai_spct.networks.Ensemble`.
        optimizer: of the students.
        objective: what is minimized.
        inferer: :class:`~monai_spct.inferers.SemiSupervisedInferer` without teachers by default.
        decollate: whether to decollate the output, for postprocessing and metrics during training.
        train_handlers: ignite handlers.
        compile: whether to compile the networks of students and teachers; equal ones are compiled once, see
            :func:`~monai_spct.networks.compiled`. Takes a minute or so in the first iteration.
        compile_kwargs: arguments of ``torch.compile``.
        kwargs: further arguments of MONAI's ``SupervisedTrainer``, such as ``amp`` and ``accumulation_steps``.
            ``optim_set_to_none`` is True by default.

    Example:
        >>> import torch
        >>> from monai_spct.engines import SemiSupervisedTrainer
        >>> from monai_spct.networks import Ensemble
        >>> from monai_spct.objectives import Objective, SelfPacedCoTraining, Supervised, WeightedTerm
        >>> students = Ensemble([torch.nn.Conv2d(1, 2, 3, padding=1) for _ in range(2)])
        >>> images, label = torch.rand(4, 1, 16, 16), torch.ones(4, 1, 16, 16)
        >>> batch = {"image": images, "label": label, "unlabeled": torch.rand(6, 1, 16, 16)}
        >>> trainer = SemiSupervisedTrainer(
        ...     device=torch.device("cpu"),
        ...     max_epochs=1,
        ...     train_data_loader=[batch],
        ...     network=students,
        ...     optimizer=torch.optim.RAdam(students.parameters(), lr=0.01),
        ...     objective=Objective(
        ...         supervised=Supervised(),
        ...         co_training=WeightedTerm(SelfPacedCoTraining(gamma=0.2), weight=0.5),
        ...     ),
        ... )
        >>> trainer.run()
        >>> sorted(str(name) for name in trainer.state.output if name.endswith("loss"))
        ['co_training_loss', 'loss', 'supervised_loss']
    """

    def __init__(
        self,
        *,
        device: torch.device | str,
        max_epochs: int,
        train_data_loader: Iterable[dict[str, Tensor]],
        network: nn.Module,
        optimizer: Optimizer,
        objective: Objective,
        inferer: Inferer | None = None,
        decollate: bool = False,
        train_handlers: Sequence[Any] | None = None,
        compile: bool = False,  # noqa: A002 - the name in MONAI
        compile_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.objective = objective
        self.sigterm = Sigterm()  # for `SaveCheckpoints`
        self.step: Step | None = None
        inferer = SemiSupervisedInferer() if inferer is None else inferer
        if compile:
            network = compiled(network, **(compile_kwargs or {}))
            teachers = getattr(inferer, "teachers", None)
            if teachers is not None:
                inferer = copy.copy(inferer)  # another trainer may use the one given
                inferer.teachers = compiled(teachers, **(compile_kwargs or {}))  # type: ignore[attr-defined]
        super().__init__(
            device=device,
            max_epochs=max_epochs,
            train_data_loader=train_data_loader,
            network=network,
            optimizer=optimizer,
            loss_function=self._objective_of,
            inferer=inferer,
            decollate=decollate,
            # first, since a loss is checked before a checkpoint is written
            train_handlers=[StopAtNonFiniteLoss(), WarnOfNoForeground(), *(train_handlers or [])],
            **{"prepare_batch": prepare_semi_supervised_batch, "optim_set_to_none": True, **kwargs},
        )
        self.add_event_handler(Events.ITERATION_STARTED, self._forget_step)  # its tensors are not needed any more
        if hasattr(train_data_loader, "set_epoch"):  # batches then are a function of the epoch, also after a resume
            self.add_event_handler(Events.EPOCH_STARTED, lambda engine: train_data_loader.set_epoch(engine.state.epoch))

    def run(self) -> None:  # type: ignore[override]  # as in MONAI
        """Train; at SIGTERM :class:`~monai_spct.handlers.SaveCheckpoints`, if there is one, saves and stops."""
        try:
            super().run()
        finally:
            self.sigterm.leave()

    def _forget_step(self) -> None:
        self.step = None

    def _objective_of(self, predictions: dict[str, Any], label: Tensor) -> Tensor:
        """The loss of this iteration; its parts go into the output that handlers read."""
        self.step = step = Step(progress=(self.state.epoch - 1) / self.state.max_epochs, label=label, **predictions)
        losses = self.objective(step)
        logged = {name: value.detach() for name, value in losses.items() if name != CommonKeys.LOSS}
        # the output is cut along its first axis when decollated: students' predictions, K first, must not stay in it
        pred = step.labeled.detach().mean(0)
        self.state.output.update({CommonKeys.PRED: pred, **logged, **step.notes})
        return losses[CommonKeys.LOSS]
