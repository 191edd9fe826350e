"""Train the discriminator beside the students."""

from __future__ import annotations

from typing import Any

import torch
from ignite.engine import Engine, Events
from torch import Tensor, nn
from torch.optim import Optimizer

from monai_spct.functional import average_over_processes
from monai_spct.objectives import Step, discrimination_loss

__all__ = ["DiscriminatorStep"]


class DiscriminatorStep:
    """Ignite handler for a :class:`~monai_spct.engines.SemiSupervisedTrainer` that trains the discriminator.

    After each iteration it learns to tell the students' segmentations of labeled images from those of unlabeled ones.
    Its loss is ``discriminator_loss`` in the output. Put the handler into a checkpoint.

    Args:
        discriminator: from images ``(B, C_in, *S)`` and probabilities ``(B, C, *S)`` to logits ``(B,)``, as
            :class:`~monai_spct.networks.Discriminator`; the same that the inferer has.
        optimizer: of the discriminator's parameters.

    Raises:
        ValueError: in the first iteration, when the inferer does not supply images and unlabeled predictions.

    Reference:
        Zhang et al., "Deep adversarial networks for biomedical image segmentation utilizing unannotated images",
        MICCAI 2017.

    Example:
        >>> import torch
        >>> from monai_spct.handlers import DiscriminatorStep
        >>> from monai_spct.networks import Discriminator
        >>> discriminator = Discriminator(num_classes=2, features=4)
        >>> step = DiscriminatorStep(discriminator, torch.optim.Adam(discriminator.parameters(), lr=1e-4))
        >>> sorted(step.state_dict())
        ['discriminator', 'optimizer']
    """

    def __init__(self, discriminator: nn.Module, optimizer: Optimizer) -> None:
        self.discriminator = discriminator
        self.optimizer = optimizer

    def attach(self, engine: Engine) -> None:
        """A step after each iteration of ``engine``."""
        engine.add_event_handler(Events.ITERATION_COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        """One step."""
        trainer: Any = engine
        step: Step = trainer.step
        image, unlabeled_image, unlabeled = (
            step.require(name, type(self).__name__) for name in ("image", "unlabeled_image", "unlabeled")
        )
        self.discriminator.train()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.enable_grad():
            loss = discrimination_loss(
                self._logits(image, step.labeled.detach().float().softmax(2)),
                self._logits(unlabeled_image, unlabeled.detach().exp()),
            )
            loss.backward()  # type: ignore[no-untyped-call]
        # as those of the students are, so that each process has the same discriminator
        average_over_processes(p.grad for p in self.discriminator.parameters() if p.grad is not None)
        self.optimizer.step()
        output = trainer.state.output
        for item in output if isinstance(output, list) else [output]:  # cut into images, or not
            item["discriminator_loss"] = loss.detach()

    def _logits(self, image: Tensor, views: Tensor) -> Tensor:
        return torch.stack([self.discriminator(image, probs) for probs in views])

    def state_dict(self) -> dict[str, Any]:
        """Of the network and of its optimizer."""
        return {"discriminator": self.discriminator.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        self.discriminator.load_state_dict(state_dict["discriminator"])
        self.optimizer.load_state_dict(state_dict["optimizer"])
