"""Students agree with their teachers under random moves of the image."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from monai_spct.objectives.step import Step

__all__ = ["Consistency", "squared_error"]


def squared_error(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Squared difference of the probabilities, mean over voxels and classes.

    Example:
        >>> import torch
        >>> from monai_spct.objectives import squared_error
        >>> squared_error(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log())
        tensor(0.0625)
    """
    return (log_p.exp() - log_q.exp()).square().mean()


class Consistency:
    r"""What a student says about a moved image should be what its teacher says about the original.

    It is the paper's :math:`\mathcal{L}_\mathrm{reg}`, but a mean over voxels and classes.

    Args:
        distance: of two tensors of log-probabilities ``(K, U, C, *S)``, a scalar. By default the squared error of the
            probabilities, whose gradient is bounded.

    Raises:
        ValueError: in the call, when the step has no teacher or its shape is another one.

    Reference:
        Wang et al., Medical Image Analysis 2021: the self-consistency loss; Tarvainen and Valpola, NeurIPS 2017.

    Example:
        >>> import torch
        >>> from monai_spct.objectives import Consistency, Step
        >>> student, teacher = torch.randn(2, 2, 6, 4, 8, 8).log_softmax(3)
        >>> step = Step(0.0, torch.zeros(4, 1, 8, 8), torch.zeros(2, 4, 4, 8, 8), unlabeled=student, teacher=teacher)
        >>> Consistency()(step) > 0
        tensor(True)
    """

    def __init__(self, distance: Callable[[Tensor, Tensor], Tensor] = squared_error) -> None:
        self.distance = distance

    def __call__(self, step: Step) -> Tensor:
        """A scalar, with gradient for the students alone."""
        teacher = step.require_teacher(type(self).__name__)
        student = step.require_unlabeled(type(self).__name__)
        if teacher.shape != student.shape:
            raise ValueError(
                "predictions of teachers and students differ in shape: "
                f"{tuple(teacher.shape)} and {tuple(student.shape)}."
            )
        return self.distance(student, teacher.detach())
