"""The exponential moving average that makes a teacher of a student."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from monai_spct.functional.checks import in_unit_interval

__all__ = ["StatePairs", "ema_decay", "ema_update"]


def ema_decay(step: int, *, maximum: float = 0.99) -> float:
    r"""Decay of the ``step``-th average, :math:`\min(1 - 1/(t + 1), \beta)`.

    The first averages then are plain means of the students so far and do not cling to the untrained start.

    Args:
        step: number of this update, from 1.
        maximum: :math:`\beta`, the decay in the long run.

    Example:
        >>> from monai_spct.functional import ema_decay
        >>> [round(ema_decay(step), 3) for step in (1, 2, 9, 99, 1000)]
        [0.5, 0.667, 0.9, 0.99, 0.99]
    """
    return min(1.0 - 1.0 / (step + 1.0), maximum)


@dataclass(frozen=True)
class StatePairs:
    """The tensors of a teacher beside those of its student, checked and listed once for many averages.

    Listing the hundreds of tensors of a network takes ten times as long as averaging them. The lists are those of the
    moment: list anew after a module was moved to a device, or one of its tensors was replaced.

    Args:
        averaged: floating parameters and buffers, of the teacher and of the student.
        copied: integer ones, as counters.

    Example:
        >>> import torch
        >>> from monai_spct.functional import StatePairs
        >>> teacher, student = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
        >>> _ = teacher.weight.data.fill_(4.0), student.weight.data.fill_(2.0)
        >>> pairs = StatePairs.of(teacher, student)
        >>> pairs.update(decay=0.5), pairs.update(decay=0.5), teacher.weight.item()
        (None, None, 2.5)
    """

    averaged: tuple[list[Tensor], list[Tensor]]
    copied: tuple[list[Tensor], list[Tensor]]

    @classmethod
    def of(cls, teacher: nn.Module, student: nn.Module) -> StatePairs:
        """All parameters and buffers of two modules, or a ``ValueError`` if they differ in names or shapes."""
        mine, theirs = _tensors(teacher), _tensors(student)
        if mine.keys() != theirs.keys():
            raise ValueError(f"teacher and student differ in their states: {sorted(mine.keys() ^ theirs.keys())[:5]}.")
        for name in mine:
            if mine[name].shape != theirs[name].shape:
                raise ValueError(
                    f"teacher and student differ in the shape of `{name}`: "
                    f"{tuple(mine[name].shape)} and {tuple(theirs[name].shape)}."
                )
        averaged = [name for name, value in mine.items() if value.is_floating_point()]
        copied = [name for name, value in mine.items() if not value.is_floating_point()]
        return cls(
            averaged=([mine[name] for name in averaged], [theirs[name] for name in averaged]),
            copied=([mine[name] for name in copied], [theirs[name] for name in copied]),
        )

    @torch.no_grad()
    def update(self, *, decay: float) -> None:
        """Move the teacher toward the student in place, see :func:`ema_update`."""
        in_unit_interval("decay", decay)
        # all tensors in a few kernels: a network has hundreds of small ones
        if self.averaged[0]:
            torch._foreach_lerp_(*self.averaged, 1.0 - decay)
        if self.copied[0]:
            torch._foreach_copy_(*self.copied)


def ema_update(teacher: nn.Module, student: nn.Module, *, decay: float) -> None:
    r"""In place: :math:`\theta_T \leftarrow \beta\, \theta_T + (1 - \beta)\, \theta_S`, for parameters and buffers.

    Floating buffers, as the running statistics of a batch normalization, are averaged like parameters; integer ones, as
    counters, are copied. For an average after each of many iterations, :class:`StatePairs` lists the tensors once.

    Args:
        teacher: the module that is changed.
        student: a module with the same state.
        decay: :math:`\beta`, 0 to 1.

    Raises:
        ValueError: when ``decay`` is out of its range, or the two modules differ in names or shapes of their tensors.

    Reference:
        Tarvainen and Valpola, "Mean teachers are better role models", NeurIPS 2017.

    Example:
        >>> import torch
        >>> from monai_spct.functional import ema_update
        >>> teacher, student = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
        >>> _ = teacher.weight.data.fill_(4.0), student.weight.data.fill_(2.0)
        >>> ema_update(teacher, student, decay=0.75)
        >>> teacher.weight.item()
        3.5
    """
    StatePairs.of(teacher, student).update(decay=decay)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    # not the state_dict, which has a shared tensor once for each of its names
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
