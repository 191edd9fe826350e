import copy
from functools import partial

import pytest
import torch
from monai.networks import nets
from torch import nn

from monai_spct.inferers import SemiSupervisedInferer
from monai_spct.networks import ENet, Ensemble, build_ensemble, frozen_copy
from monai_spct.objectives import Consistency, PseudoLabels, Step, Supervised
from monai_spct.transforms import CopyPaste, RandomQuarterTurn


class Lamp(nn.Module):
    """A network that says another thing at each position: 1x1 convolution of the image times a fixed ramp."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        height, width = image.shape[2:]
        ramp = torch.arange(height * width, dtype=image.dtype).reshape(height, width) / (height * width)
        return self.conv(image * ramp)


class Ratio(nn.Module):
    """A discriminator that compares image and first class."""

    def forward(self, image: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
        return (image[:, 0] * probs[:, 0]).flatten(1).mean(1)


def with_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Dropout2d(0.5))


def students_of(network, count: int = 2) -> Ensemble:
    return build_ensemble(network, num_views=count, seed=0).train()


LABELED, UNLABELED = torch.rand(14, 1, 6, 6, generator=torch.Generator().manual_seed(0)).split([2, 12])


def turned(images: torch.Tensor, turns) -> torch.Tensor:
    """Each image turned by itself."""
    return torch.stack([torch.rot90(image, int(k), (1, 2)) for image, k in zip(images, turns, strict=True)])


def test_students_see_the_augmented_images_and_teachers_the_original_ones_and_both_answers_fit_together():
    students, teachers, transform = students_of(Lamp), frozen_copy(students_of(Lamp)), RandomQuarterTurn(seed=0)
    inferer = SemiSupervisedInferer(
        teachers=teachers,
        transform=transform,
        uncertainty=lambda networks, images: networks.logits(images).square().sum(2),
        discriminator=Ratio(),
    )
    predictions = inferer(LABELED, students, unlabeled=UNLABELED)
    assert set(transform.turns.tolist()) == {0, 1, 2, 3}
    augmented = turned(UNLABELED, transform.turns)
    torch.testing.assert_close(predictions["labeled"], students(LABELED))
    torch.testing.assert_close(predictions["unlabeled"], students(augmented).log_softmax(2))
    for k, teacher in enumerate(teachers.networks):
        answer = teacher(UNLABELED)
        torch.testing.assert_close(predictions["teacher"][k], turned(answer.log_softmax(1), transform.turns))
        uncertain = turned(answer.square().sum(1, keepdim=True), transform.turns)[:, 0]
        torch.testing.assert_close(predictions["uncertainty"][k], uncertain)
    assert torch.equal(predictions["image"], LABELED)
    assert torch.equal(predictions["unlabeled_image"], augmented)
    for logits, log_probs in zip(predictions["discriminator_logits"], predictions["unlabeled"], strict=True):
        torch.testing.assert_close(logits, Ratio()(augmented, log_probs.exp()))


@pytest.mark.parametrize("network", [lambda: nn.Conv2d(1, 3, 1), lambda: nn.Conv3d(1, 3, 1)], ids=["2-D", "3-D"])
def test_a_turn_of_everything_does_not_matter_to_networks_that_look_at_single_voxels(network):
    students = students_of(network)
    teachers = frozen_copy(build_ensemble(network, num_views=2, seed=1))
    size = (6, 6, 3)[: len(students.networks[0].weight.shape) - 2]
    labeled, unlabeled = torch.rand(2, 1, *size), torch.rand(5, 1, *size)
    errors = []
    for transform in (None, RandomQuarterTurn(seed=0)):
        inferer = SemiSupervisedInferer(teachers=teachers, transform=transform)
        predictions = inferer(labeled, students, unlabeled=unlabeled)
        errors.append(Consistency()(Step(0.0, labeled, **predictions)))
    torch.testing.assert_close(*errors)


def test_teachers_learn_nothing_and_stay_as_they_are():
    students = students_of(with_norm)
    teachers = frozen_copy(students)
    # even a teacher that could have a gradient gets none
    teachers.requires_grad_(True)
    before = {name: value.clone() for name, value in teachers.state_dict().items()}
    inferer = SemiSupervisedInferer(teachers=teachers)
    first, second = (inferer(LABELED, students, unlabeled=UNLABELED) for _ in range(2))
    assert not first["teacher"].requires_grad
    assert first["unlabeled"].requires_grad
    assert torch.equal(first["teacher"], second["teacher"])  # no dropout
    assert not torch.equal(first["unlabeled"], second["unlabeled"])
    assert not any(module.training for module in teachers.modules())
    for name, value in teachers.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("by_batch", [True, False])
def test_teachers_normalize_by_the_unlabeled_batch_unless_told_otherwise(by_batch):
    students = students_of(with_norm, 2)
    teachers = frozen_copy(students)
    inferer = SemiSupervisedInferer(teachers=teachers, batch_statistics=by_batch)
    predictions = inferer(LABELED, students, unlabeled=5 + UNLABELED)["teacher"]
    for prediction, (conv, norm, _) in zip(predictions, copy.deepcopy(teachers).networks, strict=True):
        expected = norm.train(by_batch)(conv(5 + UNLABELED)).log_softmax(1)
        torch.testing.assert_close(prediction, expected)
        other = norm.train(not by_batch)(conv(5 + UNLABELED)).log_softmax(1)
        assert not torch.allclose(prediction, other, atol=0.1)


def test_students_have_the_batch_statistics_of_both_kinds_of_images():
    students = students_of(lambda: nn.BatchNorm2d(1, affine=False, momentum=1.0), 1)
    SemiSupervisedInferer()(LABELED, students, unlabeled=UNLABELED)
    expected = torch.cat([LABELED, UNLABELED]).mean()
    torch.testing.assert_close(students.networks[0].running_mean[0], expected)


def test_predictions_are_logits_for_labeled_and_log_probabilities_for_unlabeled_images():
    students = students_of(ENet, 2)
    inferer = SemiSupervisedInferer(teachers=frozen_copy(students), transform=RandomQuarterTurn(seed=0))
    predictions = inferer(torch.rand(2, 1, 32, 32), students, unlabeled=torch.rand(3, 1, 32, 32))
    assert {name: tuple(value.shape) for name, value in predictions.items()} == {
        "labeled": (2, 2, 4, 32, 32),
        "unlabeled": (2, 3, 4, 32, 32),
        "teacher": (2, 3, 4, 32, 32),
    }
    for name in ("unlabeled", "teacher"):
        torch.testing.assert_close(predictions[name].exp().sum(2), torch.ones(2, 3, 32, 32))
    assert not torch.allclose(predictions["labeled"].exp().sum(2), torch.ones(2, 2, 32, 32), atol=0.1)


def test_without_unlabeled_images_it_is_supervised():
    students = students_of(Lamp)
    inferer = SemiSupervisedInferer(teachers=frozen_copy(students), transform=RandomQuarterTurn(seed=0))
    predictions = inferer(LABELED, students)
    assert list(predictions) == ["labeled"]
    torch.testing.assert_close(predictions["labeled"], students(LABELED))


@pytest.mark.parametrize("shape", [(12, 1, 6, 7), (12, 2, 6, 6)], ids=["size", "channels"])
def test_images_of_another_size_are_refused(shape):
    with pytest.raises(ValueError, match="must have the same channels and size") as e:
        SemiSupervisedInferer()(LABELED, students_of(Lamp), unlabeled=torch.rand(shape))
    assert f"(1, 6, 6) and {shape[1:]}" in str(e.value)


def test_a_word_is_no_truth_value():
    with pytest.raises(ValueError, match="`batch_statistics` must be True or False, got 'false'"):
        SemiSupervisedInferer(batch_statistics="false")


def test_students_see_mixed_images_once_and_each_voxel_is_labeled_or_unlabeled():
    students, teachers, transform = students_of(Lamp), frozen_copy(students_of(Lamp)), RandomQuarterTurn(seed=0)
    passes = []
    for network in students.networks:
        network.register_forward_hook(lambda module, inputs, output: passes.append(len(inputs[0])))  # noqa: ARG005
    labeled = torch.rand(12, 1, 6, 6)
    inferer = SemiSupervisedInferer(teachers=teachers, transform=transform, mix=CopyPaste(seed=1))
    predictions = inferer(labeled, students, unlabeled=UNLABELED)
    assert passes == [12, 12]
    augmented = turned(UNLABELED, transform.turns)
    mixed, known = CopyPaste(seed=1)(labeled, augmented)
    torch.testing.assert_close(predictions["labeled"], students(mixed))
    torch.testing.assert_close(predictions["unlabeled"], students(mixed).log_softmax(2))
    torch.testing.assert_close(
        predictions["teacher"][0], turned(teachers.logits(UNLABELED)[0], transform.turns).log_softmax(1)
    )
    for weight, mask in (("label_weight", known), ("unlabeled_weight", ~known)):
        assert torch.equal(predictions[weight] > 0, mask)
        assert predictions[weight].mean().item() == pytest.approx(1)
        assert predictions[weight][mask].unique().numel() == 1


@pytest.mark.parametrize("share", [0.0, 1.0], ids=["nothing labeled", "nothing unlabeled"])
def test_a_mask_of_nothing_has_a_finite_loss(share):
    mix = lambda labeled, unlabeled: (labeled, torch.full((2, 6, 6), share, dtype=torch.bool))  # noqa: ARG005, E731
    students = students_of(Lamp)
    inferer = SemiSupervisedInferer(teachers=frozen_copy(students), mix=mix)
    step = Step(0.0, torch.zeros(2, 1, 6, 6), **inferer(LABELED, students, unlabeled=UNLABELED[:2]))
    loss = Supervised()(step) + PseudoLabels()(step)
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in students.parameters())


def test_a_discriminator_has_nothing_to_tell_of_mixed_images():
    with pytest.raises(ValueError, match="`discriminator` tells labeled from unlabeled images"):
        SemiSupervisedInferer(mix=CopyPaste(), discriminator=Ratio())


@pytest.mark.parametrize("mix", [None, CopyPaste(seed=1)], ids=["plain", "mixed"])
def test_outputs_of_deep_supervision_are_those_of_labeled_images(mix):
    network = partial(nets.DynUNet, 2, 1, 3, [3] * 3, [1, 2, 2], [2] * 2, filters=[4, 4, 4], deep_supervision=True)
    students = students_of(network)
    teachers = frozen_copy(students)
    labeled, unlabeled = torch.rand(4, 1, 16, 16), torch.rand(4, 1, 16, 16)
    predictions = SemiSupervisedInferer(teachers=teachers, mix=copy.copy(mix))(labeled, students, unlabeled=unlabeled)
    seen = labeled if mix is None else CopyPaste(seed=1)(labeled, unlabeled)[0]
    every = torch.stack([each(seen) for each in students.networks])  # (K, B, H, C, *S)
    torch.testing.assert_close(predictions["labeled"], every[:, :, 0])
    torch.testing.assert_close(predictions["deep"], every[:, :, 1:].movedim(2, 0))
    assert predictions["unlabeled"].shape == predictions["teacher"].shape == (2, 4, 3, 16, 16)
    assert SemiSupervisedInferer()(labeled, students)["deep"].shape == (1, 2, 4, 3, 16, 16)
    step = Step(0.0, torch.zeros(4, 1, 16, 16), **predictions)
    (Supervised()(step) + Consistency()(step)).backward()
    assert all(parameter.grad.isfinite().all() for parameter in students.parameters())
