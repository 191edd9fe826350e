"""Several networks as one module, and frozen copies that serve as teachers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from monai_spct.functional import entropy, log_softmax, mixture
from monai_spct.functional.checks import at_least

__all__ = ["Ensemble", "Vote", "VoteWithEntropy", "build_ensemble", "compiled", "frozen_copy"]

Module = TypeVar("Module", bound=nn.Module)


class Ensemble(nn.Module):
    """K networks for one task, of equal or different architectures, as one module.

    In training mode the forward pass returns the logits of each network, in evaluation mode their soft vote. The vote
    is a probability: no softmax belongs behind it.

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
        """Logits ``(K, B, C, *S)`` of each network for images ``(B, C_in, *S)``, in any mode.

        Networks with deep supervision give ``(K, B, H, C, *S)`` in training mode.
        """
        return torch.stack([network(image) for network in self.networks])

    def forward(self, image: Tensor) -> Tensor:
        """``(B, C_in, *S)`` to logits ``(K, B, C, *S)`` in training mode, else to the mean softmax ``(B, C, *S)``."""
        logits = self.logits(image)
        if self.training:
            return logits
        return torch.softmax(logits, dim=2).mean(dim=0)


class Vote(Ensemble):
    """The soft vote of K trained networks as one teacher, for the distillation of an ensemble into a single network.

    Args:
        ensemble: of the networks.

    Example:
        >>> import torch
        >>> from monai_spct.networks import ENet, Ensemble, Vote
        >>> ensemble, images = Ensemble([ENet(), ENet()]).eval(), torch.rand(2, 1, 32, 32)
        >>> vote = Vote(ensemble).eval()
        >>> vote.logits(images).shape, torch.allclose(vote(images), ensemble(images), atol=1e-6)
        (torch.Size([1, 2, 4, 32, 32]), True)
    """

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__(list(ensemble.networks))

    def logits(self, image: Tensor) -> Tensor:
        """Log-probabilities ``(1, B, C, *S)`` of the vote for images ``(B, C_in, *S)``."""
        return mixture(log_softmax(super().logits(image), dim=2)).unsqueeze(0)


class VoteWithEntropy(Ensemble):
    """An ensemble in evaluation mode that says behind its vote how undecided its networks are by themselves.

    The entropy of the vote less their mean entropy is the generalized Jensen-Shannon divergence of the networks. Vote
    and mean entropy are means, and stay so when predictions of windows and of flipped images are averaged.

    Args:
        ensemble: of the networks.

    Example:
        >>> import torch
        >>> from monai_spct.networks import ENet, Ensemble
        >>> from monai_spct.networks.ensemble import VoteWithEntropy
        >>> both, images = VoteWithEntropy(Ensemble([ENet(), ENet()])).eval(), torch.rand(2, 1, 32, 32)
        >>> both(images).shape
        torch.Size([2, 5, 32, 32])
    """

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__(list(ensemble.networks))

    def forward(self, image: Tensor) -> Tensor:
        """``(B, C_in, *S)`` to the mean softmax and, as the last channel, the mean entropy, ``(B, C + 1, *S)``."""
        logits = self.logits(image)
        each = entropy(log_softmax(logits, dim=2), dim=2).mean(0)
        return torch.cat([torch.softmax(logits, dim=2).mean(dim=0), each.unsqueeze(1)], dim=1)


def build_ensemble(network: Callable[[], nn.Module], *, num_views: int, seed: int) -> Ensemble:
    """Build an ensemble of one architecture; all initial weights differ and depend on the seed alone.

    Args:
        network: makes a network with fresh random weights.
        num_views: number of networks K.
        seed: of the weights. The global random state is neither read nor changed: building a data loader resets it.

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
    """Compile a module; of an :class:`Ensemble` each network by itself, so that equal ones are compiled once.

    The result shares its weights with the given module, which stays as it is for validation, checkpoints and export.

    Args:
        module: an ensemble, or any other module, which is compiled as a whole.
        kwargs: arguments of ``torch.compile``; ``dynamic=False`` by default, since training has one size of image.

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
    ensemble = copy.copy(module)  # of its class
    ensemble._modules = {"networks": nn.ModuleList(networks)}
    ensemble.networks.training = module.training  # not `train`, which would change the networks
    return ensemble


def frozen_copy(module: nn.Module) -> nn.Module:
    """A copy in evaluation mode and without gradients, as a teacher starts.

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
