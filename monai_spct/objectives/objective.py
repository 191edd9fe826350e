"""Objectives: sums of named terms, with weights that may follow a schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from monai_spct.objectives.step import Step

__all__ = ["Objective", "Schedule", "Term", "WeightedTerm", "as_schedule", "checked_schedule"]

Term: TypeAlias = Callable[[Step], Tensor]
Schedule: TypeAlias = Callable[[float], float]


def as_schedule(value: float | Schedule) -> Schedule:
    """A constant schedule of a number; a schedule as it is.

    Example:
        >>> from monai_spct.objectives import as_schedule
        >>> as_schedule(0.5)(0.9)
        0.5
    """
    if callable(value):
        return value
    constant = float(value)
    return lambda progress: constant  # noqa: ARG005 - a schedule takes the progress, also where it does not matter


def checked_schedule(name: str, value: float | Schedule, check: Callable[[str, float], float]) -> Schedule:
    """A schedule whose first, middle and last value are in range: a wrong one is found before training.

    Args:
        name: of the argument.
        value: a number or a schedule.
        check: called with the name and each of these values, raises if one is out of its range.

    Example:
        >>> from monai_spct.functional.checks import positive
        >>> from monai_spct.objectives import checked_schedule
        >>> checked_schedule("gamma", lambda progress: 0.5 - progress, positive)
        Traceback (most recent call last):
        ...
        ValueError: `gamma` must be positive, got 0.0.
    """
    schedule = as_schedule(value)
    for progress in (0.0, 0.5, 1.0):
        check(name, schedule(progress))
    return schedule


class WeightedTerm:
    """A term times a weight.

    Args:
        term: from a step to a scalar.
        weight: a number, or a function of the run's progress.

    Example:
        >>> import torch
        >>> from monai_spct.objectives import Step, Supervised, WeightedTerm
        >>> step = Step(progress=0.0, label=torch.zeros(1, 1, 8, 8), labeled=torch.zeros(2, 1, 4, 8, 8))
        >>> WeightedTerm(Supervised(), weight=0.5)(step)  # half of log 4
        tensor(0.6931)
    """

    def __init__(self, term: Term, weight: float | Schedule) -> None:
        self.term = term
        self.weight = as_schedule(weight)

    def __call__(self, step: Step) -> Tensor:
        """The weighted term of this step, a scalar."""
        return self.weight(step.progress) * self.term(step)


class Objective:
    """Sum of named terms.

    The names are what is logged: ``consistency=`` appears as ``consistency_loss``, and the weight of a
    :class:`WeightedTerm` as the note ``consistency_weight``.

    Args:
        terms: from a step to a scalar, by name; at least one. One that is ``None`` is left out.

    Raises:
        ValueError: when there is no term.

    Example:
        >>> import torch
        >>> from monai_spct.objectives import Objective, Step, Supervised
        >>> step = Step(progress=0.0, label=torch.zeros(1, 1, 8, 8), labeled=torch.zeros(2, 1, 4, 8, 8))
        >>> Objective(supervised=Supervised())(step)
        {'loss': tensor(1.3863), 'supervised_loss': tensor(1.3863)}
    """

    def __init__(self, **terms: Term | None) -> None:
        self.terms = {name: term for name, term in terms.items() if term is not None}
        if not self.terms:
            raise ValueError("`Objective` needs at least one named term, got none.")

    def __call__(self, step: Step) -> dict[str, Tensor]:
        """The sum as ``loss`` and its parts as ``<name>_loss``, all scalars, with gradient."""
        parts: dict[str, Tensor] = {}
        for name, term in self.terms.items():
            if isinstance(term, WeightedTerm):
                weight = step.notes[f"{name}_weight"] = term.weight(step.progress)
                parts[f"{name}_loss"] = weight * term.term(step)
            else:
                parts[f"{name}_loss"] = term(step)
        loss, *others = parts.values()
        for other in others:
            loss = loss + other
        return {"loss": loss, **parts}
