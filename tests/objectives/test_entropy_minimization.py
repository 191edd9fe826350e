import math

import numpy as np
import pytest
import torch

from monai_spct.objectives import EntropyMinimization, Step


def step_of(views: torch.Tensor) -> Step:
    students, _, classes, *space = views.shape
    return Step(0.0, torch.zeros(2, 1, *space), torch.zeros(students, 2, classes, *space), unlabeled=views)


def log_probs_of(students: int, classes: int = 4, *, scale: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (scale * torch.randn(students, 3, classes, 7, 5, generator=generator)).log_softmax(2)


@pytest.mark.parametrize("students", [1, 3], ids=lambda k: f"{k} students")
def test_it_is_the_mean_entropy_of_each_student_at_each_voxel_by_hand(students):
    views = log_probs_of(students)
    entropies = [
        -sum(p * math.log(p) for p in views[k, u, :, y, x].double().exp().tolist())
        for k, u, y, x in np.ndindex(students, 3, 7, 5)
    ]
    step = step_of(views)
    assert EntropyMinimization()(step).item() == pytest.approx(np.mean(entropies), abs=1e-6)
    assert step.notes == {}


def test_it_is_not_the_entropy_of_the_students_mean():
    """Students that contradict each other, each of them certain, have nothing to be blamed for."""
    certain = (60.0 * torch.eye(2)).log_softmax(1).reshape(2, 1, 2, 1, 1)
    assert EntropyMinimization()(step_of(certain)).item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("classes", [2, 4, 9], ids=lambda c: f"{c} classes")
def test_it_lies_between_certainty_and_the_logarithm_of_the_number_of_classes(classes):
    uniform = torch.zeros(1, 3, classes, 7, 5).log_softmax(2)
    certain = torch.full_like(uniform, -1e4)
    certain[:, :, 1] = 0.0
    assert EntropyMinimization()(step_of(uniform)).item() == pytest.approx(math.log(classes))
    assert EntropyMinimization()(step_of(certain)).item() == 0.0
    assert 0 < EntropyMinimization()(step_of(log_probs_of(1, classes))).item() < math.log(classes)


def test_a_step_along_the_gradient_makes_students_surer_of_what_they_say():
    logits = torch.randn(1, 3, 4, 7, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    EntropyMinimization()(step_of(logits.log_softmax(2))).backward()
    surer = logits.detach() - 10 * logits.grad
    before, after = (x.softmax(2).amax(2).mean() for x in (logits.detach(), surer))
    assert after > before
    assert torch.equal(surer.argmax(2), logits.argmax(2))
