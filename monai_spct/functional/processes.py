"""What the processes of one training do together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor
from torch import distributed as dist

__all__ = ["average_over_processes"]


@torch.no_grad()
def average_over_processes(tensors: Iterable[Tensor]) -> None:
    """In place: each tensor becomes its mean over all processes, and so the same in each.

    All processes give tensors of the same shapes in the same order. One process alone keeps what it has.

    Args:
        tensors: floating ones, for example gradients, or the statistics of batch normalizations.

    Raises:
        ValueError: when a tensor is not a floating one.

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
        # one message instead of hundreds; divided first, since a sum of half-precision numbers may be out of range
        flat = torch.cat([tensor.flatten() for tensor in group]) / dist.get_world_size()
        dist.all_reduce(flat)
        means = torch.split(flat, [tensor.numel() for tensor in group])
        torch._foreach_copy_(group, [mean.view(tensor.shape) for mean, tensor in zip(means, group, strict=True)])
