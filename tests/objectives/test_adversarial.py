import math
from dataclasses import replace

import pytest
import torch

from monai_spct.objectives import Adversarial, Step, discrimination_loss

STEP = Step(0.0, torch.zeros(2, 1, 7, 5), torch.zeros(2, 2, 4, 7, 5))


def step_of(logits: torch.Tensor) -> Step:
    return replace(STEP, discriminator_logits=logits, notes={})


def logits_of(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def cross_entropy_by_hand(logits: torch.Tensor, truth: int) -> float:
    """Binary, of the sigmoid, mean."""
    losses = []
    for logit in logits.flatten().tolist():
        labeled = 1 / (1 + math.exp(-logit))
        losses.append(-math.log(labeled if truth else 1 - labeled))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("students", [1, 3], ids=lambda k: f"{k} students")
def test_students_are_to_pass_for_labeled_by_hand(students):
    logits = logits_of(students, 6)
    step = step_of(logits)
    assert Adversarial()(step).item() == pytest.approx(cross_entropy_by_hand(logits, truth=1), abs=1e-6)
    assert step.notes == {}


def test_the_surer_the_verdict_of_labeled_the_smaller_the_loss():
    losses = [Adversarial()(step_of(torch.full((1, 6), logit))).item() for logit in (-1e4, -5.0, 0.0, 5.0, 1e4)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] == pytest.approx(1e4)
    assert losses[2] == pytest.approx(math.log(2))
    assert losses[-1] == 0.0


def test_the_discriminator_is_to_tell_both_kinds_by_hand():
    labeled, unlabeled = logits_of(2, 4), logits_of(2, 6, seed=1)
    expected = (cross_entropy_by_hand(labeled, truth=1) + cross_entropy_by_hand(unlabeled, truth=0)) / 2
    assert discrimination_loss(labeled, unlabeled).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("count", [1, 2], ids=lambda k: f"{k} students")
def test_gradients_are_those_of_finite_differences(count):
    logits = logits_of(count, 6, dtype=torch.float64).requires_grad_()
    labeled = logits_of(count, 4, dtype=torch.float64, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: Adversarial()(step_of(x)), logits)
    assert torch.autograd.gradcheck(discrimination_loss, (labeled, logits))


def test_students_and_discriminator_pull_the_logits_apart():
    logits = logits_of(2, 6).requires_grad_()
    (towards_labeled,) = torch.autograd.grad(Adversarial()(step_of(logits)), logits)
    (towards_unlabeled,) = torch.autograd.grad(discrimination_loss(torch.zeros(4), logits), logits)
    assert (towards_labeled < 0).all()
    assert (towards_unlabeled > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("magnitude", [200.0, 1e4], ids="{:g}".format)
def test_the_discriminator_has_a_finite_loss_for_extreme_logits(dtype, magnitude):
    labeled = (magnitude * torch.tensor([1.0, -1, 0, 1])).to(dtype).requires_grad_()
    unlabeled = (magnitude * torch.tensor([1.0, -1, 0])).to(dtype).requires_grad_()
    loss = discrimination_loss(labeled, unlabeled)
    loss.backward()
    expected = ((magnitude + math.log(2)) / 4 + (magnitude + math.log(2)) / 3) / 2
    assert loss.item() == pytest.approx(expected, rel=1e-2)
    assert labeled.grad.isfinite().all()
    assert unlabeled.grad.isfinite().all()
