import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from monai.losses import DiceCELoss, DiceLoss
from torch import nn

from monai_spct.functional import kl_divergence, linear_rampup, log_softmax, mixture, self_paced_weights
from monai_spct.inferers import MonteCarloDropout, SemiSupervisedInferer
from monai_spct.losses import SelfPacedJSDLoss, VoxelWeightedDiceCELoss
from monai_spct.networks import Discriminator, Ensemble, build_ensemble, frozen_copy
from monai_spct.objectives import (
    Adversarial,
    Agreement,
    CertainConsistency,
    Confidence,
    Consistency,
    CoTraining,
    EntropyMinimization,
    Objective,
    PseudoLabels,
    SelfPacedCoTraining,
    Step,
    Supervised,
    WeightedTerm,
    cross_entropy,
)
from monai_spct.transforms import RandomQuarterTurn


def each_kl(log_p, log_q):
    return kl_divergence(log_p, log_q, dim=2)


UNLABELED_TERMS = {
    "consistency": Consistency(),
    "consistency by KL": Consistency(each_kl),
    "certain consistency": CertainConsistency(0.8),
    "entropy": EntropyMinimization(),
    "co-training": CoTraining(),
    "co-training, easy voxels": SelfPacedCoTraining(gamma=0.01),
    "co-training, all voxels": SelfPacedCoTraining(gamma=50.0),
    "co-training, certain": SelfPacedCoTraining(gamma=1.0, alpha=0.5),
    "pseudo-labels": PseudoLabels(),
    "pseudo-labels, crossed": PseudoLabels(VoxelWeightedDiceCELoss(), weight=Agreement(0.5), crossed=True),
    "weighted": WeightedTerm(SelfPacedCoTraining(gamma=1.0), weight=0.5),
}


def toy_networks(count: int, seed: int) -> list[nn.Module]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return [nn.Conv2d(1, 4, 3, padding=1) for _ in range(count)]


def toy_step(students: list[nn.Module], teachers: list[nn.Module] | None = None, *, progress: float = 0.0) -> Step:
    """What an iteration with these networks would hand to a term; here even what teachers say has a graph."""
    generator = torch.Generator().manual_seed(0)
    labeled, unlabeled = torch.rand(2, 1, 7, 5, generator=generator), torch.rand(3, 1, 7, 5, generator=generator)
    label = torch.randint(4, (2, 1, 7, 5), generator=generator)

    def predict(networks, images):
        return torch.stack([network(images) for network in networks])

    teacher = predict(teachers, unlabeled).log_softmax(2) if teachers else None
    sharper = None if teacher is None else (4 * teacher).softmax(2)  # as certain here as not
    return Step(
        progress=progress,
        label=label,
        labeled=predict(students, labeled),
        unlabeled=predict(students, unlabeled).log_softmax(2),
        teacher=teacher,
        uncertainty=None if sharper is None else -(sharper * sharper.log()).sum(2),
    )


def softmax_by_hand(logits: torch.Tensor, axis: int) -> np.ndarray:
    x = np.exp(logits.detach().double().numpy())
    return x / x.sum(axis, keepdims=True)


# Who learns


def small_network(dropout: float = 0.3) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.Dropout2d(dropout), nn.Conv2d(6, 3, 1)),
    )


def everyone(network=small_network, count: int = 2) -> tuple[Ensemble, Ensemble, Discriminator]:
    """Students, teachers and a discriminator, the latter two with opinions."""
    students = build_ensemble(network, num_views=count, seed=0).train()
    teachers = frozen_copy(build_ensemble(network, num_views=count, seed=1))
    with torch.random.fork_rng():
        torch.manual_seed(2)
        discriminator = Discriminator(num_classes=3, features=2, num_layers=1)
    with torch.no_grad():
        for parameter in [*discriminator.parameters(), *(teacher[-1].weight for teacher in teachers.networks)]:
            parameter.mul_(6)
    # even a teacher that could have a gradient gets none
    return students, teachers.requires_grad_(True), discriminator


def inferred_step(students: Ensemble, teachers: Ensemble, discriminator: Discriminator) -> Step:
    """What an iteration hands to a term when everyone takes part; the same draws each time."""
    inferer = SemiSupervisedInferer(
        teachers=teachers,
        transform=RandomQuarterTurn(seed=0),
        uncertainty=MonteCarloDropout(passes=2),
        discriminator=discriminator,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        labeled, unlabeled, label = torch.rand(2, 1, 16, 16), torch.rand(3, 1, 16, 16), torch.randint(3, (2, 1, 16, 16))
        return Step(0.0, label, **inferer(labeled, students, unlabeled=unlabeled))


INFERRED_TERMS = {
    "supervised": Supervised(),
    **UNLABELED_TERMS,
    "certain consistency": CertainConsistency(0.9),
    "adversarial": Adversarial(),
}


@pytest.mark.parametrize("term", INFERRED_TERMS.values(), ids=INFERRED_TERMS.keys())
def test_of_all_networks_students_alone_learn_from_a_term(term):
    students, teachers, discriminator = everyone()
    step = inferred_step(students, teachers, discriminator)
    term(step).backward()
    for name, parameter in students.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name
    for network in (teachers, discriminator):
        assert {parameter.grad for parameter in network.parameters()} == {None}
    assert not any(isinstance(note, torch.Tensor) and note.requires_grad for note in step.notes.values())
    assert 0 < step.notes.get("certain_share", 0.5) < 1  # else nothing was shown


@pytest.mark.parametrize(
    "name", ["supervised", "consistency", "certain consistency", "entropy", "co-training", "adversarial"]
)
def test_a_step_of_the_students_along_a_term_lowers_it(name):
    students, *others = everyone(lambda: small_network(dropout=0.0))
    optimizer = torch.optim.SGD(students.parameters(), lr=0.1)
    before = INFERRED_TERMS[name](inferred_step(students, *others))
    before.backward()
    optimizer.step()
    assert INFERRED_TERMS[name](inferred_step(students, *others)) < before - 1e-5


# a term, and what it has a gradient for
LEARNED_FROM = {
    "supervised": (Supervised(), {"labeled"}),
    **{name: (term, {"unlabeled"}) for name, term in UNLABELED_TERMS.items()},
    "adversarial": (Adversarial(), {"discriminator_logits"}),
}


@pytest.mark.parametrize(("term", "expected"), LEARNED_FROM.values(), ids=LEARNED_FROM.keys())
def test_a_term_has_a_gradient_for_what_students_say_and_for_nothing_else(term, expected):
    generator = torch.Generator().manual_seed(0)
    logits = {name: torch.randn(2, 3, 4, 7, 5, generator=generator) for name in ("labeled", "unlabeled", "teacher")}
    tensors = {
        "labeled": logits["labeled"],
        **{name: logits[name].log_softmax(2) for name in ("unlabeled", "teacher")},
        "uncertainty": torch.rand(2, 3, 7, 5, generator=generator),
        "discriminator_logits": torch.randn(2, 3, generator=generator),
        "image": torch.rand(3, 1, 7, 5, generator=generator),
        "unlabeled_image": torch.rand(3, 1, 7, 5, generator=generator),
    }
    for tensor in tensors.values():
        tensor.requires_grad_()
    term(Step(0.0, torch.randint(4, (3, 1, 7, 5), generator=generator), **tensors)).backward()
    assert {name for name, tensor in tensors.items() if tensor.grad is not None} == expected
    for name in expected:  # for each student
        assert all(student.abs().sum() > 0 for student in tensors[name].grad)


# Logits of any size

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:])
MAGNITUDES = pytest.mark.parametrize("magnitude", [200.0, 1e4], ids="{:g}".format)
DICE = DiceLoss(to_onehot_y=True, softmax=True)
EXTREME_TERMS = {
    "pseudo-labels where confident": PseudoLabels(VoxelWeightedDiceCELoss(), weight=Confidence(0.3)),
    **{name: term for name, (term, _) in LEARNED_FROM.items()},
    "supervised by Dice": Supervised(DICE),
    "supervised by both": Supervised(lambda logits, label: cross_entropy(logits, label) + DICE(logits, label)),
}


@DTYPES
@MAGNITUDES
@pytest.mark.parametrize("term", EXTREME_TERMS.values(), ids=EXTREME_TERMS.keys())
def test_extreme_logits_have_a_finite_loss_and_gradient_in_every_term(term, dtype, magnitude):
    generator = torch.Generator().manual_seed(0)

    def extreme(*shape: int) -> torch.Tensor:
        return (magnitude * torch.randint(-1, 2, shape, generator=generator)).to(dtype).requires_grad_()

    labeled, unlabeled, teacher = (extreme(2, 3, 4, 40, 30) for _ in range(3))
    discriminator_logits = extreme(2, 3)
    step = Step(
        progress=0.0,
        label=torch.randint(4, (3, 1, 40, 30), generator=generator),
        labeled=labeled,
        unlabeled=log_softmax(unlabeled, dim=2),
        teacher=log_softmax(teacher, dim=2),
        uncertainty=torch.rand(2, 3, 40, 30, generator=generator),
        discriminator_logits=discriminator_logits,
    )
    loss = term(step)
    loss.backward()
    assert loss.isfinite()
    assert loss > 0
    gradients = [x.grad for x in (labeled, unlabeled, discriminator_logits) if x.grad is not None]
    assert len(gradients) == 1
    assert gradients[0].isfinite().all()


# Supervised


def test_supervised_is_the_cross_entropy_of_each_voxel_by_hand():
    step = toy_step(toy_networks(2, seed=0))
    probs = softmax_by_hand(step.labeled, axis=2)
    losses = [
        -math.log(probs[k, b, step.label[b, 0, y, x], y, x])
        for k, b, y, x in np.ndindex(2, 2, 7, 5)
    ]  # fmt: skip
    assert Supervised()(step).item() == pytest.approx(np.mean(losses), abs=1e-6)


def test_with_deep_supervision_each_output_counts_half_as_much_as_the_one_before_it():
    step = toy_step(toy_networks(2, seed=0))
    others = [toy_step(toy_networks(2, seed=seed)).labeled for seed in (1, 2)]
    first, second, third = (Supervised()(replace(step, labeled=logits)) for logits in (step.labeled, *others))
    deep = Supervised()(replace(step, deep=torch.stack(others)))
    torch.testing.assert_close(deep, (first + second / 2 + third / 4) / (1 + 1 / 2 + 1 / 4))


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


def test_each_student_has_its_own_teacher():
    one, two = toy_networks(2, seed=0)
    assert Consistency()(toy_step([one, two], [one, two])) < Consistency()(toy_step([one, two], [two, one]))


@pytest.mark.parametrize("term", [Consistency(), CertainConsistency(0.75)], ids=lambda term: type(term).__name__)
def test_teachers_of_another_shape_are_refused(term):
    step = toy_step(toy_networks(3, seed=0), toy_networks(2, seed=1))
    with pytest.raises(ValueError, match="differ in shape") as e:
        term(step)
    assert "(2, 3, 4, 7, 5) and (3, 3, 4, 7, 5)" in str(e.value)


# Pseudo-labels


def pseudo_labels_by_hand(step: Step, weights: np.ndarray, teacher_of) -> float:
    """Cross-entropy of each voxel, weighted."""
    p, q = softmax_by_hand(step.unlabeled, axis=2), softmax_by_hand(step.teacher, axis=2)
    students, images, _, height, width = p.shape
    return float(
        np.mean(
            [
                -weights[teacher_of(k), u, y, x] * math.log(p[k, u, q[teacher_of(k), u, :, y, x].argmax(), y, x])
                for k, u, y, x in np.ndindex(students, images, height, width)
            ]
        )
    )


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("weighting", [None, Confidence(0.3), Agreement(0.05)], ids=["all", "confident", "agreeing"])
def test_pseudo_labels_are_those_of_a_slow_loop(weighting, crossed):
    step = toy_step(toy_networks(3, seed=0), toy_networks(3, seed=1))
    q = softmax_by_hand(step.teacher, axis=2)
    if weighting is None:
        weights = np.ones_like(q[:, :, 0])
    elif isinstance(weighting, Confidence):
        weights = (q.max(2) >= 0.3).astype(float)
    else:
        mean = q.mean(0)
        weights = np.maximum(1 - (q * np.log(q / mean)).sum(2) / 0.05, 1e-5)
    term = PseudoLabels(weight=weighting, crossed=crossed)
    expected = pseudo_labels_by_hand(step, weights, lambda k: (k - 1) % 3 if crossed else k)
    assert term(step).item() == pytest.approx(expected, abs=1e-6)
    assert step.notes["trusted_share"].item() == pytest.approx(weights.mean(), abs=1e-6)
    assert 0 < weights.mean() <= 1


def test_agreement_is_the_self_paced_weight_at_the_pace_of_the_progress():
    teachers = torch.randn(3, 2, 4, 7, 5).log_softmax(2)
    weights = Agreement(lambda progress: 0.1 + progress)(teachers, 0.5)
    torch.testing.assert_close(weights, self_paced_weights(teachers, mixture(teachers), gamma=0.6))


def test_a_teacher_alone_cannot_be_crossed():
    with pytest.raises(ValueError, match="`num_views` must be at least 2, got 1"):
        PseudoLabels(crossed=True)(toy_step(toy_networks(1, seed=0), toy_networks(1, seed=1)))


def test_the_largest_component_of_each_class_alone_is_a_pseudo_label():
    label = torch.zeros(1, 1, 1, 8, 8, dtype=torch.long)
    label[..., 1:4, 1:4], label[..., 6, 6], label[..., 5:7, 0:2], label[..., 7, 7] = 1, 1, 2, 2
    kept = label.clone()
    kept[..., 6, 6] = kept[..., 7, 7] = 0
    said = []
    teacher = 10.0 * nn.functional.one_hot(label[:, :, 0], 3).movedim(-1, 2)
    step = Step(0.0, torch.zeros(1), torch.zeros(1), unlabeled=teacher.log_softmax(2), teacher=teacher.log_softmax(2))

    def loss(logits, label, weight):
        said.append(label)
        return (weight * logits[:, 0]).mean()

    PseudoLabels(loss, largest_component=True)(step)
    assert torch.equal(said[0], kept[0])


# Mixed images: what is labeled and what is not are voxels of the same images

MIXED_TERMS = {
    "supervised": (Supervised(), "labeled"),
    "supervised by both": (Supervised(VoxelWeightedDiceCELoss()), "labeled"),
    **{name: (term, "unlabeled") for name, term in UNLABELED_TERMS.items()},
}


@pytest.mark.parametrize(("term", "kind"), MIXED_TERMS.values(), ids=MIXED_TERMS.keys())
def test_a_term_looks_at_the_voxels_alone_that_it_has_something_to_say_of(term, kind):
    """A mean over them, and no gradient at the others."""
    draws = torch.Generator().manual_seed(0)
    known = torch.rand(3, 7, 5, generator=draws) < 0.4
    counts = known if kind == "labeled" else ~known
    weights = {"label_weight": known / known.float().mean(), "unlabeled_weight": ~known / (~known).float().mean()}
    logits, teacher = torch.randn(2, 2, 3, 4, 7, 5, generator=draws)
    label, uncertainty = torch.randint(4, (3, 1, 7, 5), generator=draws), torch.rand(2, 3, 7, 5, generator=draws)
    logits.requires_grad_()
    rest = {"uncertainty": uncertainty, "unlabeled": logits.log_softmax(2), "teacher": teacher.log_softmax(2)}
    loss = term(Step(0.5, label, logits, **rest, **weights))
    loss.backward()
    learned = logits.grad.abs().sum((0, 2)) > 0
    assert not (learned & ~counts).any()
    assert learned.any()

    # the same voxels as one image of one row
    flat = [x.movedim(2, -1)[:, counts].movedim(-1, 1)[:, None, :, None] for x in (logits, *list(rest.values())[1:])]
    plain = Step(
        0.5,
        label[:, 0][counts][None, None, None],
        flat[0],
        unlabeled=flat[1],
        teacher=flat[2],
        uncertainty=uncertainty[:, counts][:, None, None],
    )
    torch.testing.assert_close(loss, term(plain))


# Consistency where teachers are certain


def certain_consistency_by_hand(step: Step, threshold: float) -> tuple[float, float]:
    """Its value, and the share of voxels that count."""
    p, q = softmax_by_hand(step.unlabeled, axis=2), softmax_by_hand(step.teacher, axis=2)
    students, images, classes, height, width = p.shape
    errors = [
        sum((p[k, u, c, y, x] - q[k, u, c, y, x]) ** 2 for c in range(classes)) / classes
        for k, u, y, x in np.ndindex(students, images, height, width)
        if step.uncertainty[k, u, y, x].item() < threshold * math.log(classes)
    ]
    return sum(errors) / len(errors), len(errors) / (students * images * height * width)


@pytest.mark.parametrize("students", [1, 3], ids=lambda k: f"{k} students")
@pytest.mark.parametrize("threshold", [0.75, 0.9])
def test_certain_consistency_is_the_mean_over_the_certain_voxels_by_hand(students, threshold):
    step = toy_step(toy_networks(students, seed=0), toy_networks(students, seed=1))
    loss, share = certain_consistency_by_hand(step, threshold)
    assert CertainConsistency(threshold)(step).item() == pytest.approx(loss, abs=1e-7)
    assert step.notes["certain_share"].item() == pytest.approx(share)
    assert 0.05 < share < 0.95


def of_uncertainty(uncertainty: float, classes: int) -> Step:
    student, teacher = torch.randn(2, 1, 3, classes, 7, 5).log_softmax(3)
    labeled = torch.zeros(1, 2, classes, 7, 5)
    everywhere = torch.full((1, 3, 7, 5), uncertainty)
    return Step(0.0, torch.zeros(2, 1, 7, 5), labeled, unlabeled=student, teacher=teacher, uncertainty=everywhere)


@pytest.mark.parametrize("classes", [2, 4, 9], ids=lambda c: f"{c} classes")
@pytest.mark.parametrize("threshold", [0.5, 0.75, 1.0])
def test_the_threshold_is_a_share_of_the_largest_entropy_which_depends_on_the_classes(classes, threshold):
    bound = threshold * math.log(classes)
    for uncertainty, share in ((bound - 1e-3, 1.0), (bound, 0.0), (bound + 1e-3, 0.0)):
        step = of_uncertainty(uncertainty, classes)
        loss = CertainConsistency(threshold)(step)
        assert step.notes["certain_share"].item() == share
        assert (loss.item() > 0) == (share > 0)


def test_where_no_voxel_is_certain_there_is_no_loss_and_no_gradient():
    students, teachers = toy_networks(2, seed=0), toy_networks(2, seed=1)
    step = toy_step(students, teachers)
    loss = CertainConsistency(0.0)(step)
    loss.backward()
    assert loss.item() == 0.0
    assert step.notes["certain_share"].item() == 0.0
    assert all(p.grad is not None and (p.grad == 0).all() for student in students for p in student.parameters())


def test_students_are_pulled_at_the_certain_voxels_alone():
    uncertainty = math.log(4) * torch.rand(2, 3, 7, 5, generator=torch.Generator().manual_seed(0))
    step = toy_step(toy_networks(2, seed=0), toy_networks(2, seed=1))
    step = replace(step, uncertainty=uncertainty.requires_grad_())
    step.unlabeled.retain_grad()
    CertainConsistency(0.6)(step).backward()
    pulled = step.unlabeled.grad.abs().sum(2) > 0
    assert torch.equal(pulled, uncertainty < 0.6 * math.log(4))
    assert pulled.any()
    assert uncertainty.grad is None


def test_the_threshold_follows_the_progress():
    students, teachers = toy_networks(2, seed=0), toy_networks(2, seed=1)
    term = CertainConsistency(lambda progress: 0.75 + progress / 4)
    for progress, threshold in ((0.0, 0.75), (0.6, 0.9)):
        step, expected = (toy_step(students, teachers, progress=p) for p in (progress, 0.0))
        torch.testing.assert_close(term(step), CertainConsistency(threshold)(expected))
        assert step.notes == expected.notes


@pytest.mark.parametrize(
    ("threshold", "got"),
    [(-0.1, "-0.1"), (1.1, "1.1"), (math.nan, "nan"), (lambda progress: 2 * progress, "2.0")],
    ids=["below 0", "above 1", "nan", "rises above 1"],
)
def test_a_threshold_out_of_its_range_is_refused_at_once(threshold, got):
    with pytest.raises(ValueError, match=f"`threshold` must lie between 0 and 1, got {got}"):
        CertainConsistency(threshold)


# Co-training


@pytest.mark.parametrize("students", [2, 3], ids=lambda k: f"{k} students")
@pytest.mark.parametrize(("gamma", "alpha"), [(0.01, 0.0), (0.2, 1e-4), (20.0, 0.3)], ids=str)
def test_co_training_is_the_loss_on_the_logits(students, gamma, alpha):
    logits = torch.randn(students, 3, 4, 7, 5)
    step = Step(0.0, torch.zeros(2, 1, 7, 5), torch.zeros(students, 2, 4, 7, 5), unlabeled=logits.log_softmax(2))
    torch.testing.assert_close(
        SelfPacedCoTraining(gamma, alpha=alpha)(step), SelfPacedJSDLoss(gamma=gamma, alpha=alpha)(logits)
    )


def views_of(students: int) -> Step:
    views = (2 * torch.randn(students, 3, 4, 7, 5, generator=torch.Generator().manual_seed(0))).log_softmax(2)
    return Step(0.0, torch.zeros(2, 1, 7, 5), torch.zeros(students, 2, 4, 7, 5), unlabeled=views)


@pytest.mark.parametrize("students", [2, 3], ids=lambda k: f"{k} students")
def test_plain_co_training_is_the_divergence_at_each_voxel_by_hand(students):
    step = views_of(students)
    probs = softmax_by_hand(step.unlabeled, axis=2)

    def entropy(p: np.ndarray) -> float:
        return -sum(float(value) * math.log(value) for value in p)

    divergences, differ = [], 0
    for u, y, x in np.ndindex(3, 7, 5):
        voxel = probs[:, u, :, y, x]
        divergences.append(entropy(voxel.mean(0)) - sum(map(entropy, voxel)) / students)
        differ += len({int(p.argmax()) for p in voxel}) > 1
    assert CoTraining()(step).item() == pytest.approx(np.mean(divergences), abs=1e-6)
    assert {name: note.item() for name, note in step.notes.items()} == {
        "disagreement": pytest.approx(differ / len(divergences))
    }
    assert 0 < differ < len(divergences)


@pytest.mark.parametrize("students", [2, 3], ids=lambda k: f"{k} students")
def test_self_paced_co_training_without_a_gamma_is_the_plain_one_for_each_student(students):
    endless = SelfPacedCoTraining(gamma=1e9)
    torch.testing.assert_close(endless(views_of(students)), students * CoTraining()(views_of(students)))


@pytest.mark.parametrize("students", [2, 3], ids=lambda k: f"{k} students")
def test_the_notes_are_right(students):
    step = views_of(students)
    SelfPacedCoTraining(gamma=0.3)(step)

    probs = softmax_by_hand(step.unlabeled, axis=2)
    differ, selected = 0, 0
    for b, y, x in np.ndindex(3, 7, 5):
        voxel = probs[:, b, :, y, x]
        differ += len({int(p.argmax()) for p in voxel}) > 1
        mean = voxel.mean(0)
        for p in voxel:
            selected += 1 - (p * np.log(p / mean)).sum() / 0.3 > 1e-5
    assert step.notes["disagreement"].item() == pytest.approx(differ / (3 * 7 * 5))
    assert step.notes["selected_share"].item() == pytest.approx(selected / (students * 3 * 7 * 5))
    assert step.notes["gamma"] == 0.3
    assert 0 < differ < 3 * 7 * 5
    assert 0 < selected < students * 3 * 7 * 5


def test_pace_and_alpha_follow_the_progress():
    students = toy_networks(2, seed=0)
    term = SelfPacedCoTraining(gamma=lambda progress: 0.1 + progress, alpha=lambda progress: progress / 2)
    step = toy_step(students, progress=0.5)
    torch.testing.assert_close(term(step), SelfPacedCoTraining(0.6, alpha=0.25)(toy_step(students)))
    assert step.notes["gamma"] == 0.6


@pytest.mark.parametrize("term", [CoTraining(), SelfPacedCoTraining(gamma=0.2)], ids=["plain", "self-paced"])
def test_one_student_alone_is_refused(term):
    with pytest.raises(ValueError, match="`num_views` must be at least 2, got 1"):
        term(toy_step(toy_networks(1, seed=0)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 0.0}, "`gamma` must be positive, got 0.0"),
        ({"gamma": lambda progress: 1 - progress}, "`gamma` must be positive, got 0.0"),
        ({"gamma": 0.2, "alpha": lambda progress: 3 * progress}, "`alpha` must lie between 0 and 1, got 1.5"),
        ({"gamma": 0.2, "eps": 0.0}, "`eps` must be positive, got 0.0"),
    ],
    ids=["gamma", "gamma falls to 0", "alpha rises above 1", "eps"],
)
def test_a_setting_out_of_its_range_is_refused_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        SelfPacedCoTraining(**settings)


# What is missing


SUPPLIED = {
    "unlabeled": ([*UNLABELED_TERMS.values()], "batches must have an entry `unlabeled`"),
    "teacher": ([Consistency(), CertainConsistency(0.75)], "give `SemiSupervisedInferer` its `teachers`"),
    "uncertainty": ([CertainConsistency(0.75)], r"its `teachers` and `uncertainty=MonteCarloDropout\(\)`"),
    "discriminator_logits": ([Adversarial()], "give `SemiSupervisedInferer` its `discriminator`"),
}


@pytest.mark.parametrize(
    ("name", "term"),
    [(name, term) for name, (terms, _) in SUPPLIED.items() for term in terms],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_term_names_the_missing_tensor_and_who_supplies_it(name, term):
    step = replace(toy_step(toy_networks(2, seed=0), toy_networks(2, seed=1)), **{name: None})
    with pytest.raises(ValueError, match=f"^`.*` needs `{name}`: .*{SUPPLIED[name][1]}"):
        term(step)


def test_an_inferer_with_uncertainty_and_without_teachers_is_refused():
    with pytest.raises(ValueError, match="`uncertainty` is that of the `teachers`, and there are none"):
        SemiSupervisedInferer(uncertainty=MonteCarloDropout())


# Gradients


@pytest.mark.parametrize("count", [2, 3], ids=lambda k: f"{k} students")
@pytest.mark.parametrize("name", ["consistency", "consistency by KL", "certain consistency", "entropy", "co-training"])
def test_gradients_are_those_of_finite_differences(name, count):
    generator = torch.Generator().manual_seed(0)
    logits, teacher = torch.randn(2, count, 2, 4, 2, 3, dtype=torch.float64, generator=generator)
    uncertainty = math.log(4) * torch.rand(count, 2, 2, 3, dtype=torch.float64, generator=generator)
    label, labeled = torch.zeros(1, 1, 2, 3), torch.zeros(count, 1, 4, 2, 3)

    def loss(x: torch.Tensor) -> torch.Tensor:
        unlabeled = x.log_softmax(2)
        step = Step(
            *(0.0, label, labeled), unlabeled=unlabeled, teacher=teacher.log_softmax(2), uncertainty=uncertainty
        )
        return UNLABELED_TERMS[name](step)

    assert torch.autograd.gradcheck(loss, logits.requires_grad_())


# Sums


def test_a_weight_may_be_a_number_or_follow_the_progress():
    students = toy_networks(2, seed=0)
    plain = Supervised()(toy_step(students))
    torch.testing.assert_close(WeightedTerm(Supervised(), 0.25)(toy_step(students)), 0.25 * plain)
    ramp = WeightedTerm(Supervised(), lambda progress: linear_rampup(progress, value=2.0))
    for progress, weight in ((0.0, 0.0), (0.25, 1.0), (0.5, 2.0), (0.9, 2.0)):
        torch.testing.assert_close(ramp(toy_step(students, progress=progress)), weight * plain)


def test_an_objective_is_the_sum_of_its_parts_by_name():
    students, teachers = toy_networks(3, seed=0), toy_networks(3, seed=1)
    terms = {
        "supervised": Supervised(),
        "co_training": WeightedTerm(SelfPacedCoTraining(gamma=0.2), 0.5),
        "consistency": WeightedTerm(Consistency(), 4.0),
    }
    step = toy_step(students, teachers)
    losses = Objective(**terms)(step)
    assert list(losses) == ["loss", "supervised_loss", "co_training_loss", "consistency_loss"]
    for name, term in terms.items():
        assert torch.equal(losses[f"{name}_loss"], term(toy_step(students, teachers)))
    assert losses["loss"].item() == pytest.approx(sum(losses[f"{name}_loss"].item() for name in terms))
    assert losses["loss"].requires_grad
    notes = {"disagreement", "gamma", "selected_share", "co_training_weight", "consistency_weight"}
    assert set(step.notes) == notes
    assert (step.notes["co_training_weight"], step.notes["consistency_weight"]) == (0.5, 4.0)


def test_a_term_may_be_none_but_not_all():
    assert list(Objective(supervised=Supervised(), consistency=None).terms) == ["supervised"]
    with pytest.raises(ValueError, match="`Objective` needs at least one named term"):
        Objective(consistency=None)
