import math

import numpy as np
import pytest
import torch
from monai.losses import DiceCELoss, DiceLoss
from torch import nn

from monai_spct.functional import kl_divergence, linear_rampup
from monai_spct.losses import SelfPacedJSDLoss
from monai_spct.objectives import (
    Consistency,
    Objective,
    SelfPacedCoTraining,
    Step,
    Supervised,
    Weighted,
    as_schedule,
    cross_entropy,
    squared_error,
)


def mean_kl(log_p, log_q):
    return kl_divergence(log_p, log_q, dim=2).mean()


UNLABELED_TERMS = {
    "consistency": Consistency(),
    "consistency by KL": Consistency(mean_kl),
    "co-training, easy voxels": SelfPacedCoTraining(pace=0.01),
    "co-training, all voxels": SelfPacedCoTraining(pace=50.0),
    "co-training, certain": SelfPacedCoTraining(pace=1.0, alpha=0.5),
    "weighted": Weighted(SelfPacedCoTraining(pace=1.0), weight=0.5),
}


def toy_networks(count: int, seed: int) -> list[nn.Module]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return [nn.Conv2d(1, 4, 3, padding=1) for _ in range(count)]


def toy_step(students: list[nn.Module], teachers: list[nn.Module] | None = None, *, progress: float = 0.0) -> Step:
    """What an iteration with these networks would hand to a term; here even the teachers' predictions have a graph."""
    generator = torch.Generator().manual_seed(0)
    labeled, unlabeled = torch.rand(2, 1, 7, 5, generator=generator), torch.rand(3, 1, 7, 5, generator=generator)
    label = torch.randint(4, (2, 1, 7, 5), generator=generator)

    def predict(networks, images):
        return torch.stack([network(images) for network in networks])

    return Step(
        progress=progress,
        label=label,
        labeled=predict(students, labeled),
        unlabeled=predict(students, unlabeled).log_softmax(2),
        teacher=predict(teachers, unlabeled).log_softmax(2) if teachers else None,
    )


def softmax_by_hand(logits: torch.Tensor, axis: int) -> np.ndarray:
    x = np.exp(logits.detach().double().numpy())
    return x / x.sum(axis, keepdims=True)


# Who learns


@pytest.mark.parametrize("term", UNLABELED_TERMS.values(), ids=UNLABELED_TERMS.keys())
def test_a_term_for_unlabeled_images_moves_every_student_and_no_teacher(term):
    students, teachers = toy_networks(3, seed=0), toy_networks(3, seed=1)
    step = toy_step(students, teachers)
    term(step).backward()
    for student in students:
        assert all(p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in student.parameters())
    assert all(p.grad is None for teacher in teachers for p in teacher.parameters())
    assert not any(isinstance(note, torch.Tensor) and note.requires_grad for note in step.notes.values())


def test_the_supervised_term_moves_every_student():
    students = toy_networks(3, seed=0)
    Supervised()(toy_step(students)).backward()
    assert all(p.grad.abs().sum() > 0 for student in students for p in student.parameters())


@pytest.mark.parametrize("name", ["consistency", "consistency by KL", "co-training, all voxels"])
def test_a_step_along_the_gradient_lowers_the_term(name):
    # with a small pace the term may rise: the more students agree, the more voxels take part
    term = UNLABELED_TERMS[name]
    students, teachers = toy_networks(3, seed=0), toy_networks(3, seed=1)
    optimizer = torch.optim.SGD([p for student in students for p in student.parameters()], lr=1e-3)
    before = term(toy_step(students, teachers))
    before.backward()
    optimizer.step()
    assert term(toy_step(students, teachers)) < before


# Supervised


def test_supervised_is_the_cross_entropy_of_each_voxel_by_hand():
    step = toy_step(toy_networks(2, seed=0))
    probs = softmax_by_hand(step.labeled, axis=2)
    losses = [
        -math.log(probs[k, b, step.label[b, 0, y, x], y, x])
        for k, b, y, x in np.ndindex(2, 2, 7, 5)
    ]  # fmt: skip
    assert Supervised()(step).item() == pytest.approx(np.mean(losses), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32], ids=str)
def test_labels_may_have_any_number_type(dtype):
    step = toy_step(toy_networks(2, seed=0))
    other = Step(0.0, step.label.to(dtype), step.labeled)
    assert torch.equal(Supervised()(other), Supervised()(step))


def test_supervised_takes_the_losses_of_monai():
    step = toy_step(toy_networks(2, seed=0))
    dice_ce = DiceCELoss(to_onehot_y=True, softmax=True)
    expected = (dice_ce(step.labeled[0], step.label) + dice_ce(step.labeled[1], step.label)) / 2
    torch.testing.assert_close(Supervised(dice_ce)(step), expected)


@pytest.mark.parametrize("loss", [cross_entropy, DiceLoss(to_onehot_y=True, softmax=True)], ids=["CE", "Dice"])
def test_perfect_logits_have_no_loss(loss):
    label = torch.arange(4).repeat(2, 15).reshape(2, 1, 6, 10)
    logits = 100.0 * nn.functional.one_hot(label[:, 0], 4).movedim(-1, 1)
    step = Step(0.0, label, logits.expand(3, 2, 4, 6, 10))
    assert abs(Supervised(loss)(step).item()) < 1e-5


# Consistency


def test_consistency_is_the_mean_squared_difference_of_probabilities_by_hand():
    step = toy_step(toy_networks(2, seed=0), toy_networks(2, seed=1))
    difference = softmax_by_hand(step.unlabeled, axis=2) - softmax_by_hand(step.teacher, axis=2)
    assert Consistency()(step).item() == pytest.approx((difference**2).mean(), abs=1e-7)


def test_consistency_is_zero_beside_equal_teachers():
    students = toy_networks(2, seed=0)
    assert Consistency()(toy_step(students, students)).item() == 0.0


def test_each_student_has_its_own_teacher():
    one, two = toy_networks(2, seed=0)
    assert Consistency()(toy_step([one, two], [one, two])) < Consistency()(toy_step([one, two], [two, one]))


def test_consistency_takes_another_distance():
    step = toy_step(toy_networks(2, seed=0), toy_networks(2, seed=1))
    p, q = softmax_by_hand(step.unlabeled, axis=2), softmax_by_hand(step.teacher, axis=2)
    assert Consistency(mean_kl)(step).item() == pytest.approx((p * np.log(p / q)).sum(2).mean(), abs=1e-6)


def test_the_squared_error_is_at_most_half():
    certain, wrong = torch.tensor([0.0, -1e4]), torch.tensor([-1e4, 0.0])
    assert squared_error(certain, wrong).item() == 1.0  # two classes, each off by one
    assert squared_error(certain, certain).item() == 0.0


def test_teachers_of_another_shape_are_refused():
    step = toy_step(toy_networks(3, seed=0), toy_networks(2, seed=1))
    with pytest.raises(ValueError, match="differ in shape") as e:
        Consistency()(step)
    assert "(2, 3, 4, 7, 5) and (3, 3, 4, 7, 5)" in str(e.value)


# Co-training


@pytest.mark.parametrize("students", [2, 3], ids=lambda k: f"{k} students")
@pytest.mark.parametrize(("pace", "alpha"), [(0.01, 0.0), (0.2, 1e-4), (20.0, 0.3)], ids=str)
def test_co_training_is_the_loss_on_the_logits(students, pace, alpha):
    logits = torch.randn(students, 3, 4, 7, 5)
    step = Step(0.0, torch.zeros(2, 1, 7, 5), torch.zeros(students, 2, 4, 7, 5), unlabeled=logits.log_softmax(2))
    torch.testing.assert_close(
        SelfPacedCoTraining(pace, alpha=alpha)(step), SelfPacedJSDLoss(gamma=pace, alpha=alpha)(logits)
    )


@pytest.mark.parametrize("students", [2, 3], ids=lambda k: f"{k} students")
def test_the_notes_are_right(students):
    views = (2 * torch.randn(students, 3, 4, 7, 5, generator=torch.Generator().manual_seed(0))).log_softmax(2)
    step = Step(0.0, torch.zeros(2, 1, 7, 5), torch.zeros(students, 2, 4, 7, 5), unlabeled=views)
    SelfPacedCoTraining(pace=0.3)(step)

    probs = softmax_by_hand(views, axis=2)
    differ, selected = 0, 0
    for b, y, x in np.ndindex(3, 7, 5):
        voxel = probs[:, b, :, y, x]
        differ += len({int(p.argmax()) for p in voxel}) > 1
        mean = voxel.mean(0)
        for p in voxel:
            selected += 1 - (p * np.log(p / mean)).sum() / 0.3 > 1e-5
    assert step.notes["disagreement"].item() == pytest.approx(differ / (3 * 7 * 5))
    assert step.notes["selected_share"].item() == pytest.approx(selected / (students * 3 * 7 * 5))
    assert step.notes["pace"] == 0.3
    assert 0 < differ < 3 * 7 * 5
    assert 0 < selected < students * 3 * 7 * 5


def test_equal_students_leave_no_loss_and_no_disagreement():
    one = toy_networks(1, seed=0)
    step = toy_step(one * 2)
    assert SelfPacedCoTraining(pace=0.2)(step).item() == pytest.approx(0.0, abs=1e-6)
    assert step.notes["disagreement"].item() == 0.0
    assert step.notes["selected_share"].item() == 1.0


def test_pace_and_alpha_follow_the_progress():
    students = toy_networks(2, seed=0)
    term = SelfPacedCoTraining(pace=lambda progress: 0.1 + progress, alpha=lambda progress: progress / 2)
    step = toy_step(students, progress=0.5)
    torch.testing.assert_close(term(step), SelfPacedCoTraining(0.6, alpha=0.25)(toy_step(students)))
    assert step.notes["pace"] == 0.6


def test_one_student_alone_is_refused():
    with pytest.raises(ValueError, match="`num_views` must be at least 2, got 1"):
        SelfPacedCoTraining(pace=0.2)(toy_step(toy_networks(1, seed=0)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pace": 0.0}, "`pace` must be positive, got 0.0"),
        ({"pace": -1.0}, "`pace` must be positive, got -1.0"),
        ({"pace": math.nan}, "`pace` must be positive, got nan"),
        ({"pace": lambda progress: 1 - progress}, "`pace` must be positive, got 0.0"),
        ({"pace": 0.2, "alpha": -0.1}, "`alpha` must lie between 0 and 1, got -0.1"),
        ({"pace": 0.2, "alpha": 1.1}, "`alpha` must lie between 0 and 1, got 1.1"),
        ({"pace": 0.2, "alpha": lambda progress: 3 * progress}, "`alpha` must lie between 0 and 1, got 1.5"),
        ({"pace": 0.2, "eps": 0.0}, "`eps` must be positive, got 0.0"),
        ({"pace": 0.2, "eps": 2.0}, "`eps` must lie between 0 and 1, got 2.0"),
    ],
    ids=[
        "pace 0",
        "pace below 0",
        "pace nan",
        "pace falls to 0",
        "alpha below 0",
        "alpha above 1",
        "alpha rises above 1",
        "eps 0",
        "eps above 1",
    ],
)
def test_a_setting_out_of_its_range_is_refused_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        SelfPacedCoTraining(**settings)


# What is missing


@pytest.mark.parametrize("term", UNLABELED_TERMS.values(), ids=UNLABELED_TERMS.keys())
def test_without_unlabeled_images_the_message_says_who_supplies_them(term):
    step = Step(0.0, torch.zeros(2, 1, 7, 5), torch.zeros(2, 2, 4, 7, 5), teacher=torch.zeros(2, 3, 4, 7, 5))
    with pytest.raises(ValueError, match="learns from unlabeled images: batches must have an entry `unlabeled`"):
        term(step)


def test_without_teachers_the_message_says_who_supplies_them():
    with pytest.raises(ValueError, match=r"`Consistency` compares .* give `SemiSupervisedInferer` its `teachers`"):
        Consistency()(toy_step(toy_networks(2, seed=0)))


# Sums


def test_a_weight_may_be_a_number_or_follow_the_progress():
    students = toy_networks(2, seed=0)
    plain = Supervised()(toy_step(students))
    torch.testing.assert_close(Weighted(Supervised(), 0.25)(toy_step(students)), 0.25 * plain)
    ramp = Weighted(Supervised(), lambda progress: linear_rampup(progress, value=2.0))
    for progress, weight in ((0.0, 0.0), (0.25, 1.0), (0.5, 2.0), (0.9, 2.0)):
        torch.testing.assert_close(ramp(toy_step(students, progress=progress)), weight * plain)


def test_a_schedule_stays_as_it_is():
    assert as_schedule(math.sqrt) is math.sqrt
    assert [as_schedule(3)(progress) for progress in (0.0, 0.7)] == [3.0, 3.0]


def test_an_objective_is_the_sum_of_its_parts_by_name():
    students, teachers = toy_networks(3, seed=0), toy_networks(3, seed=1)
    terms = {
        "supervised": Supervised(),
        "co_training": Weighted(SelfPacedCoTraining(pace=0.2), 0.5),
        "consistency": Weighted(Consistency(), 4.0),
    }
    step = toy_step(students, teachers)
    losses = Objective(**terms)(step)
    assert list(losses) == ["loss", "supervised_loss", "co_training_loss", "consistency_loss"]
    for name, term in terms.items():
        assert torch.equal(losses[f"{name}_loss"], term(toy_step(students, teachers)))
    assert losses["loss"].item() == pytest.approx(sum(losses[f"{name}_loss"].item() for name in terms))
    assert losses["loss"].requires_grad
    assert sorted(step.notes) == ["disagreement", "pace", "selected_share"]


def test_an_objective_of_no_term_is_refused():
    with pytest.raises(ValueError, match="`Objective` needs at least one named term"):
        Objective()


def test_two_steps_do_not_share_their_notes():
    students = toy_networks(2, seed=0)
    one, other = toy_step(students), toy_step(students)
    SelfPacedCoTraining(pace=0.2)(one)
    assert other.notes == {}
