"""Several networks for one task as one module, and frozen copies that serve as teachers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from monai_spct.functional.checks import at_least

__all__ = ["Ensemble", "build_ensemble", "compiled", "frozen_copy"]

Module = TypeVar("Module", bound=nn.Module)


class Ensemble(nn.Module):
    """K networks for one task, of equal or different architectures.

    In training mode the forward pass returns what each network says, in evaluation mode their soft vote, so that one
    module has one optimizer, one checkpoint and one export. The vote is a probability: no softmax belongs behind it.

    Args:
        networks: modules from ``(B, C_in, *S)`` to logits ``(B, C, *S)``.

    Raises:
        ValueError: when there is no network.

    Example:
        >>> import torch
        >>> from monai_spct.networks import ENet, Ensemble
        >>> ensemble = Ensemble([ENet(), ENet(), ENet()])
        >>> images = torch.rand(2, 1, 32, 32)
        >>> ensemble.train()(images).shape, ensemble.eval()(images).shape
        (torch.Size([3, 2, 4, 32, 32]), torch.Size([2, 4, 32, 32]))
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        if not networks:
            raise ValueError("`networks` must hold at least one network, got none.")
        self.networks = nn.ModuleList(networks)

    def logits(self, image: Tensor) -> Tensor:
        """What each network says, in any mode: logits ``(K, B, C, *S)`` for ``(B, C_in, *S)``."""
        return torch.stack([network(image) for network in self.networks])

    def forward(self, image: Tensor) -> Tensor:
        """``(B, C_in, *S)`` to logits ``(K, B, C, *S)`` in training mode, else to the mean softmax ``(B, C, *S)``."""
        logits = self.logits(image)
        if self.training:
            return logits
        return torch.softmax(logits, dim=2).mean(dim=0)


def build_ensemble(network: Callable[[], nn.Module], *, num_views: int, seed: int) -> Ensemble:
    """An ensemble of networks of one architecture whose first weights all differ and depend on the seed alone.

    Args:
        network: makes a network with fresh random weights.
        num_views: number of networks K.
        seed: of the weights. The global random state is neither read nor changed, since building a data loader beside
            the networks resets it.

    Raises:
        ValueError: when ``num_views`` is not a whole number of at least 1.

    Example:
        >>> from monai_spct.networks import ENet, build_ensemble
        >>> len(build_ensemble(ENet, num_views=2, seed=0).networks)
        2
    """
    at_least("num_views", num_views, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Ensemble([network() for _ in range(num_views)])


def compiled(module: Module, **kwargs: Any) -> Module:
    """The same networks, with the same weights, behind ``torch.compile``.

    Each network of an :class:`Ensemble` is compiled by itself. So networks of one architecture share what the first of
    them was compiled to, and the cost does not grow with their number. The given module stays as it is, for validation
    with images of many sizes, for checkpoints and for export.

    Args:
        module: an ensemble, or any other module, which is compiled as a whole.
        kwargs: arguments of ``torch.compile``. By default every new size of image is compiled anew (``dynamic=False``):
            training has one size.

    Example:
        >>> import torch
        >>> from monai_spct.networks import Ensemble, compiled
        >>> ensemble = Ensemble([torch.nn.Conv2d(1, 4, 3), torch.nn.Conv2d(1, 4, 3)])
        >>> fast = compiled(ensemble, backend="eager")
        >>> bool((fast(torch.ones(1, 1, 8, 8)) == ensemble(torch.ones(1, 1, 8, 8))).all())
        True
    """
    kwargs = {"dynamic": False, **kwargs}
    if not isinstance(module, Ensemble):
        return cast(Module, torch.compile(module, **kwargs))
    networks: list[Any] = [torch.compile(network, **kwargs) for network in module.networks]
    ensemble = Ensemble(networks)
    ensemble.training = ensemble.networks.training = module.training  # not `train`, which would change the networks
    return cast(Module, ensemble)


def frozen_copy(module: nn.Module) -> nn.Module:
    """A copy in evaluation mode that no optimizer will change: what a teacher starts as.

    Args:
        module: any module.

    Example:
        >>> import torch
        >>> from monai_spct.networks import frozen_copy
        >>> teacher = frozen_copy(torch.nn.Linear(2, 2))
        >>> teacher.training, any(p.requires_grad for p in teacher.parameters())
        (False, False)
    """
    return copy.deepcopy(module).requires_grad_(False).eval()
