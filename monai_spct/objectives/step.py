"""The tensors of one training iteration: all that a term of an objective may read."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["Step"]

_GIVE = "give `SemiSupervisedInferer` its"
_SOURCES = {
    "unlabeled": "batches must have an entry `unlabeled`",
    "teacher": f"{_GIVE} `teachers`, and batches an entry `unlabeled`",
    "uncertainty": f"{_GIVE} `teachers` and `uncertainty=MonteCarloDropout()`, and batches an entry `unlabeled`",
}


@dataclass(frozen=True)
class Step:
    """The tensors of one training iteration, never its networks.

    Args:
        progress: share of the run's epochs that are complete, from 0 to below 1.
        label: class indices of the labeled images, ``(B, 1, *S)``.
        labeled: students' logits for the labeled images, ``(K, B, C, *S)``.
        unlabeled: students' log-probabilities for the augmented unlabeled images, ``(K, U, C, *S)``; none in a
            supervised run.
        teacher: teachers' log-probabilities for the original images, augmented alike, without gradient,
            ``(K, U, C, *S)``; none without teachers.
        uncertainty: entropy of the teachers' mean prediction over several stochastic passes, augmented alike, in nats,
            ``(K, U, *S)``; none without such passes.
        discriminator_logits: the discriminator's output for the students' predictions for unlabeled images, ``(K, U)``,
            with gradient for the students alone; none without a discriminator.
        image: the labeled images, ``(B, C_in, *S)``, for what learns beside the students; no term needs them.
        unlabeled_image: the augmented unlabeled images, ``(U, C_in, *S)``.
        label_weight: weight of each voxel of ``label``, ``(B, *S)``, 1 on average, where images are mixed: 0 where the
            label is not that of the image.
        unlabeled_weight: weight of each voxel of ``unlabeled``, ``(U, *S)``, likewise.
        deep: students' logits of the further outputs of networks with deep supervision, from fine to coarse,
            ``(H - 1, K, B, C, *S)``; none of others.
        notes: where a term leaves scalars to be logged beside its loss.

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
    label_weight: Tensor | None = None
    unlabeled_weight: Tensor | None = None
    deep: Tensor | None = None
    notes: dict[str, Tensor | float] = field(default_factory=dict)

    def mean(self, values: Tensor) -> Tensor:
        """The mean of values at each voxel of the unlabeled images, ``(..., U, *S)``, with their weights.

        Example:
            >>> import torch
            >>> from monai_spct.objectives import Step
            >>> weight = torch.tensor([[[2.0, 0.0]]])
            >>> step = Step(0.0, torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 2, 1, 2), unlabeled_weight=weight)
            >>> step.mean(torch.tensor([[[3.0, 5.0]]]))
            tensor(3.)
        """
        return values.mean() if self.unlabeled_weight is None else (self.unlabeled_weight * values).mean()

    def require(self, name: str, reader: str) -> Tensor:
        """The tensor ``name``, or a ``ValueError`` that says who should supply it to ``reader``.

        Example:
            >>> import torch
            >>> from monai_spct.objectives import Step
            >>> step = Step(progress=0.0, label=torch.zeros(4, 1, 8, 8), labeled=torch.zeros(2, 4, 3, 8, 8))
            >>> step.require("unlabeled", "MyTerm")
            Traceback (most recent call last):
            ...
            ValueError: `MyTerm` needs `unlabeled`: batches must have an entry `unlabeled`.
        """
        value: Tensor | None = getattr(self, name)
        if value is None:
            source = _SOURCES.get(name, f"{_GIVE} `discriminator`, and batches an entry `unlabeled`")
            raise ValueError(f"`{reader}` needs `{name}`: {source}.")
        return value

    def student_and_teacher(self, reader: str) -> tuple[Tensor, Tensor]:
        """``unlabeled`` and ``teacher``, or a ``ValueError`` when one is not there or their shapes differ."""
        teacher, student = self.require("teacher", reader), self.require("unlabeled", reader)
        if teacher.shape != student.shape:
            raise ValueError(
                f"predictions of teachers and students differ in shape: {tuple(teacher.shape)} and "
                f"{tuple(student.shape)}."
            )
        return student, teacher.detach()
