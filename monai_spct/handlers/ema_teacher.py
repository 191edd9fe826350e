"""EMA teachers."""

from __future__ import annotations

from typing import Any

from ignite.engine import Engine, Events
from torch import nn

from monai_spct.functional import StatePairs, ema_decay
from monai_spct.functional.checks import in_unit_interval

__all__ = ["EMATeacher"]


class EMATeacher:
    r"""Ignite handler: after each iteration, :math:`\theta_T \leftarrow \beta\, \theta_T + (1 - \beta)\, \theta_S`.

    The decay rises as :math:`\min(1 - 1/(t + 1), \beta)` with the number :math:`t` of updates, so that the untrained
    start is soon forgotten. Put the handler, which counts them, into a checkpoint beside the teacher.

    Args:
        teacher: a frozen copy of the student, see :func:`~monai_spct.networks.frozen_copy`. An
            :class:`~monai_spct.networks.Ensemble` holds K of them.
        student: the module that learns; wrappers with an attribute ``module``, as for several GPUs, are looked through.
        decay: :math:`\beta`, 0 to 1.

    Raises:
        ValueError: when ``decay`` is out of its range, the teacher is the student or shares its parameters, or the
            teacher is open to an optimizer.

    Reference:
        Wang et al., Medical Image Analysis 2021: "Self-consistent co-training"; Tarvainen and Valpola, NeurIPS 2017.

    Example:
        >>> import torch
        >>> from ignite.engine import Engine
        >>> from monai_spct.handlers import EMATeacher
        >>> from monai_spct.networks import frozen_copy
        >>> student = torch.nn.Linear(2, 2)
        >>> teacher = frozen_copy(student)
        >>> optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        >>> def update(engine, batch):
        ...     optimizer.zero_grad()
        ...     student(batch).square().mean().backward()
        ...     optimizer.step()
        >>> trainer = Engine(update)
        >>> EMATeacher(teacher, student, decay=0.99).attach(trainer)  # any ignite or MONAI trainer
        >>> _ = trainer.run([torch.ones(4, 2)], max_epochs=2)
        >>> bool((teacher.weight != student.weight).any())
        True
    """

    def __init__(self, teacher: nn.Module, student: nn.Module, *, decay: float = 0.99) -> None:
        self.teacher = teacher
        self.student: nn.Module = getattr(student, "module", student)
        self.decay = in_unit_interval("decay", decay)
        self.num_updates = 0
        self._pairs: StatePairs | None = None
        if {id(p) for p in teacher.parameters()} & {id(p) for p in self.student.parameters()}:
            raise ValueError("`teacher` must not share parameters with `student`: give a `frozen_copy` of it.")
        if any(p.requires_grad for p in teacher.parameters()):
            raise ValueError("`teacher` must not require gradients: give a `frozen_copy` of the student.")

    def attach(self, engine: Engine) -> None:
        """Update after each iteration of ``engine``."""
        engine.add_event_handler(Events.EPOCH_STARTED, self._list_anew)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self)

    def _list_anew(self, engine: Engine) -> None:  # noqa: ARG002 - an event passes its engine
        self._pairs = None

    def __call__(self, engine: Engine) -> None:
        """Update now, unless the engine still gathers gradients for its next step."""
        state: Any = engine.state
        accumulation_steps = getattr(engine, "accumulation_steps", 1)
        if accumulation_steps > 1:
            iteration = (state.iteration - 1) % state.epoch_length + 1
            if iteration % accumulation_steps and iteration != state.epoch_length:
                return
        self.num_updates += 1
        if self._pairs is None:  # listed once an epoch, since modules may be moved or changed between epochs
            self._pairs = StatePairs.of(self.teacher, self.student)
        self._pairs.update(decay=ema_decay(self.num_updates, maximum=self.decay))

    def state_dict(self) -> dict[str, int]:
        """The number of updates so far."""
        return {"num_updates": self.num_updates}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on from ``state_dict``."""
        self.num_updates = state_dict["num_updates"]
