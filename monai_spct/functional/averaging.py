"""Averages of network states: over time for teachers, over processes for distributed training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch import distributed as dist

from monai_spct.functional.checks import in_unit_interval

__all__ = ["StatePairs", "average_over_processes", "ema_decay", "ema_update"]


def ema_decay(step: int, *, maximum: float = 0.99) -> float:
    r"""Decay of the ``step``-th EMA update, :math:`\min(1 - 1/(t + 1), \beta)`.

    The first averages are plain means of the students so far, so that the untrained start is soon forgotten.

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
    """The tensors of a teacher paired with those of its student, for many updates.

    Pairing the hundreds of tensors of a network takes ten times as long as averaging them. Pair anew after a module was
    moved to a device, or one of its tensors was replaced.

    Args:
        averaged: floating parameters and buffers, of the teacher and of the student.
        copied: integer buffers, such as counters.

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
        """Pair all parameters and buffers; a ``ValueError`` if the modules differ in names or shapes."""
        mine, theirs = _tensors(teacher), _tensors(student)
        if mine.keys() != theirs.keys():
            raise ValueError(f"teacher and student differ in their states: {sorted(mine.keys() ^ theirs.keys())[:5]}.")
        for name in mine:
            if mine[name].shape != theirs[name].shape:
                raise ValueError(
                    f"teacher and student differ in the shape of `{name}`: "
                    f"{tuple(mine[name].shape)} and {tuple(theirs[name].shape)}."
                )
        pairs: dict[bool, tuple[list[Tensor], list[Tensor]]] = {True: ([], []), False: ([], [])}
        for name, tensor in mine.items():
            for side, value in zip(pairs[tensor.is_floating_point()], (tensor, theirs[name]), strict=True):
                side.append(value)
        return cls(averaged=pairs[True], copied=pairs[False])

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
    r"""Exponential moving average in place: :math:`\theta_T \leftarrow \beta\, \theta_T + (1 - \beta)\, \theta_S`.

    Floating buffers, such as running statistics, are averaged like parameters; integer buffers are copied. For an
    update in each of many iterations, :class:`StatePairs` pairs the tensors once.

    Args:
        teacher: the module that is changed.
        student: a module with the same state.
        decay: :math:`\beta`, 0 to 1.

    Raises:
        ValueError: when ``decay`` is out of range, or the two modules differ in names or shapes of their tensors.

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


@torch.no_grad()
def average_over_processes(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its mean over all processes, in place; a no-op in a single process.

    Args:
        tensors: floating tensors, such as gradients; of the same shapes in the same order in each process.

    Raises:
        ValueError: when a tensor is not floating.

    Example:
        >>> import torch
        >>> from monai_spct.functional import average_over_processes
        >>> gradient = torch.tensor([1.0, 2.0])
        >>> average_over_processes([gradient])  # of this process alone
        >>> gradient
        tensor([1., 2.])
    """
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        if not tensor.is_floating_point():
            raise ValueError(f"`tensors` must be floating ones, got {tensor.dtype}.")
        kinds[tensor.device, tensor.dtype].append(tensor)
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    for group in kinds.values():
        # one message instead of hundreds; divided first, since a sum of half-precision numbers may overflow
        flat = torch.cat([tensor.flatten() for tensor in group]) / dist.get_world_size()
        dist.all_reduce(flat)
        means = torch.split(flat, [tensor.numel() for tensor in group])
        torch._foreach_copy_(group, [mean.view(tensor.shape) for mean, tensor in zip(means, group, strict=True)])
