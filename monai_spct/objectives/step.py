"""The record of one training iteration, which is all that a term of an objective may read."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["Step"]


@dataclass(frozen=True)
class Step:
    """All that a term may read about one iteration: tensors, never networks.

    Args:
        progress: share of the run's epochs that are complete, from 0 to below 1.
        label: class indices of the labeled images, ``(B, 1, *S)``.
        labeled: students' logits for the labeled images, ``(K, B, C, *S)``.
        unlabeled: students' log-probabilities for the unlabeled images, in the frame of the original image,
            ``(K, U, C, *S)``; none in a supervised run.
        teacher: teachers' log-probabilities for the same images, without gradient, ``(K, U, C, *S)``; none without
            teachers.
        uncertainty: entropy of the teachers' mean prediction over several stochastic passes, in nats,
            ``(K, U, *S)``; none without such passes.
        discriminator_logits: what a discriminator says about the students' predictions for the unlabeled images,
            ``(K, U)``, with gradient for the students alone; none without a discriminator.
        image: the labeled images, ``(B, C_in, *S)``, for what learns beside the students; no term needs them.
        unlabeled_image: the unlabeled ones, as they are, ``(U, C_in, *S)``.
        notes: where a term leaves scalars that are worth logging beside its loss.

    Example:
        >>> import torch
        >>> from monai_spct.objectives import Step
        >>> step = Step(progress=0.0, label=torch.zeros(4, 1, 8, 8), labeled=torch.zeros(2, 4, 3, 8, 8))
        >>> step.unlabeled is None
        True
    """

    progress: float
    label: Tensor
    labeled: Tensor
    unlabeled: Tensor | None = None
    teacher: Tensor | None = None
    uncertainty: Tensor | None = None
    discriminator_logits: Tensor | None = None
    image: Tensor | None = None
    unlabeled_image: Tensor | None = None
    notes: dict[str, Tensor | float] = field(default_factory=dict)

    def require_unlabeled(self, reader: str) -> Tensor:
        """The students' log-probabilities for unlabeled images, or a ``ValueError`` that says who supplies them."""
        if self.unlabeled is None:
            raise ValueError(f"`{reader}` learns from unlabeled images: batches must have an entry `unlabeled`.")
        return self.unlabeled

    def require_teacher(self, reader: str) -> Tensor:
        """The teachers' log-probabilities, or a ``ValueError`` that says who should supply them."""
        if self.teacher is None:
            raise ValueError(
                f"`{reader}` compares students with teachers: give `SemiSupervisedInferer` its `teachers`, and batches "
                "an entry `unlabeled`."
            )
        return self.teacher

    def require_uncertainty(self, reader: str) -> Tensor:
        """The teachers' uncertainty, or a ``ValueError`` that says who should supply it."""
        if self.uncertainty is None:
            raise ValueError(
                f"`{reader}` trusts teachers where they are certain: give `SemiSupervisedInferer` its `teachers` and "
                "`uncertainty=MonteCarloDropout()`."
            )
        return self.uncertainty

    def require_discriminator_logits(self, reader: str) -> Tensor:
        """The discriminator's logits for unlabeled images, or a ``ValueError`` that says who should supply them."""
        if self.discriminator_logits is None:
            raise ValueError(
                f"`{reader}` needs a discriminator's logits: give `SemiSupervisedInferer` its `discriminator`, and "
                "batches an entry `unlabeled`."
            )
        return self.discriminator_logits

    def require_images(self, reader: str) -> tuple[Tensor, Tensor]:
        """Labeled and unlabeled images, or a ``ValueError`` that says who should supply them."""
        if self.image is None or self.unlabeled_image is None:
            raise ValueError(
                f"`{reader}` needs the images: give `SemiSupervisedInferer` its `discriminator`, and batches an entry "
                "`unlabeled`."
            )
        return self.image, self.unlabeled_image
