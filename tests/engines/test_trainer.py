import copy
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ignite.engine import Events
from monai.data import MetaTensor
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from monai_spct.engines import SemiSupervisedTrainer, prepare_semi_supervised_batch
from monai_spct.functional import linear_rampup
from monai_spct.handlers import DiscriminatorStep, EMATeacher, scalars
from monai_spct.inferers import MonteCarloDropout, SemiSupervisedInferer
from monai_spct.networks import Discriminator, Ensemble, build_ensemble, frozen_copy
from monai_spct.objectives import (
    Adversarial,
    CertainConsistency,
    Consistency,
    CoTraining,
    EntropyMinimization,
    Objective,
    SelfPacedCoTraining,
    Supervised,
    WeightedTerm,
)
from monai_spct.transforms import RandomQuarterTurn

CPU = torch.device("cpu")


def small_network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1))


def students_of(count: int = 2, network=small_network) -> Ensemble:
    return build_ensemble(network, num_views=count, seed=0)


def batches_of(count: int = 3, *, labeled: int = 2, unlabeled: int = 4) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "image": torch.rand(labeled, 1, 8, 8, generator=generator),
            "label": torch.randint(3, (labeled, 1, 8, 8), generator=generator),
            "unlabeled": torch.rand(unlabeled, 1, 8, 8, generator=generator),
        }
        for _ in range(count)
    ]


def trainer_of(students: nn.Module, batches, *, objective=None, max_epochs=1, optimizer=None, device=CPU, **settings):
    return SemiSupervisedTrainer(
        device=device,
        max_epochs=max_epochs,
        train_data_loader=batches,
        network=students,
        optimizer=optimizer or torch.optim.SGD(students.parameters(), lr=0.1),
        objective=objective or Objective(supervised=Supervised(), co_training=SelfPacedCoTraining(gamma=0.2)),
        **settings,
    )


def history_of(trainer, *names: str) -> list[tuple[float, ...]]:
    """Fills while the trainer runs."""
    history = []
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED,
        lambda engine: history.append(tuple(scalars(engine.state.output)[name].item() for name in names)),
    )
    return history


# Against a loop without MONAI


def by_its_batch(teacher):
    """A copy that normalizes by its batch; what it notes of it is lost with it."""
    teacher = copy.deepcopy(teacher)
    for module in teacher.modules():
        module.train(isinstance(module, nn.modules.batchnorm._BatchNorm))
    return teacher


def plain_loop(students, teachers, batches, optimizer, *, gamma, alpha, eps, weights, beta, turns):
    """The whole method as one would write it down; returns the losses."""
    losses = []
    for step, (batch, draws) in enumerate(zip(batches, turns, strict=True), start=1):
        image, label, unlabeled = batch["image"], batch["label"][:, 0].long(), batch["unlabeled"]
        augmented = torch.stack([torch.rot90(u, k, (1, 2)) for u, k in zip(unlabeled, draws, strict=True)])

        supervised, consistency, probs = 0.0, 0.0, []
        for student, teacher in zip(students, teachers, strict=True):
            logits = student(torch.cat([image, augmented]))
            supervised += F.cross_entropy(logits[: len(image)], label) / len(students)
            answers = logits[len(image) :].softmax(1)
            with torch.no_grad():
                taught = by_its_batch(teacher)(unlabeled).softmax(1)
                target = torch.stack([torch.rot90(q, k, (1, 2)) for q, k in zip(taught, draws, strict=True)])
            consistency += (answers - target).square().mean() / len(students)
            probs.append(answers)
        p = torch.stack(probs)

        with torch.no_grad():
            mean = p.mean(0)
            divergence = (p * (p / mean).log()).sum(2)
            w = (1 - divergence / gamma).clamp(min=eps)
            rho = w.sum(0)
            pi = (w / rho).unsqueeze(2)
        mix = (pi * p).sum(0)
        entropy_of_mean = -(mix * mix.log()).sum(1)
        mean_entropy = -(pi * p * p.log()).sum((0, 2))
        co_training = (rho * (entropy_of_mean - (1 - alpha) * mean_entropy)).mean()

        loss = supervised + weights[0] * co_training + weights[1] * consistency
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(
            (loss.item(), supervised.item(), weights[0] * co_training.item(), weights[1] * consistency.item())
        )

        decay = min(1 - 1 / (step + 1), beta)
        with torch.no_grad():
            for student, teacher in zip(students, teachers, strict=True):
                for s, t in zip(student.parameters(), teacher.parameters(), strict=True):
                    t.copy_(decay * t + (1 - decay) * s)
                for s, t in zip(student.buffers(), teacher.buffers(), strict=True):
                    t.copy_(decay * t + (1 - decay) * s if s.is_floating_point() else s)
    return losses


@pytest.mark.parametrize("count", [2, 3], ids=lambda k: f"{k} students")
def test_three_iterations_equal_those_of_a_plain_loop(count):
    gamma, alpha, eps, weights, beta = 0.3, 0.01, 1e-5, (0.5, 4.0), 0.6
    batches = batches_of(3)
    names = ("loss", "supervised_loss", "co_training_loss", "consistency_loss")

    students = students_of(count)
    teachers = frozen_copy(students)
    trainer = trainer_of(
        students,
        batches,
        optimizer=torch.optim.RAdam(students.parameters(), lr=0.05),
        objective=Objective(
            supervised=Supervised(),
            co_training=WeightedTerm(SelfPacedCoTraining(gamma, alpha=alpha, eps=eps), weights[0]),
            consistency=WeightedTerm(Consistency(), weights[1]),
        ),
        inferer=SemiSupervisedInferer(teachers=teachers, transform=RandomQuarterTurn(seed=5)),
        train_handlers=[EMATeacher(teachers, students, decay=beta)],
    )
    history = history_of(trainer, *names)
    trainer.run()

    plain = students_of(count).train()
    plain_teachers = frozen_copy(plain)
    draws = np.random.RandomState(5)
    expected = plain_loop(
        list(plain.networks),
        list(plain_teachers.networks),
        batches,
        torch.optim.RAdam(plain.parameters(), lr=0.05),
        gamma=gamma,
        alpha=alpha,
        eps=eps,
        weights=weights,
        beta=beta,
        turns=[draws.randint(4, size=4).tolist() for _ in batches],
    )
    np.testing.assert_allclose(history, expected, rtol=0, atol=1e-6)
    for mine, theirs in ((students, plain), (teachers, plain_teachers)):
        for name, value in theirs.state_dict().items():
            torch.testing.assert_close(mine.state_dict()[name], value, rtol=0, atol=1e-6, msg=name)
    moved = [
        (new - old).abs().max() for new, old in zip(plain.parameters(), students_of(count).parameters(), strict=True)
    ]
    assert max(moved) > 1e-3  # so that the comparison says something


# What comes out


def test_the_output_has_images_losses_and_notes():
    students = students_of(3)
    trainer = trainer_of(students, batches_of())
    logits = {}
    trainer.add_event_handler(Events.ITERATION_STARTED, lambda: logits.clear())
    students.register_forward_hook(lambda module, inputs, output: logits.update(last=output))  # noqa: ARG005
    trainer.run()
    output = trainer.state.output
    shapes = {str(getattr(name, "value", name)): getattr(value, "shape", None) for name, value in output.items()}
    scalar = torch.Size([])
    assert shapes == {
        "image": (2, 1, 8, 8),
        "label": (2, 1, 8, 8),
        "pred": (2, 3, 8, 8),
        "loss": scalar,
        "supervised_loss": scalar,
        "co_training_loss": scalar,
        "gamma": None,
        "selected_share": scalar,
        "disagreement": scalar,
    }
    torch.testing.assert_close(output["pred"], logits["last"][:, :2].mean(0))
    parts = output["supervised_loss"] + output["co_training_loss"]
    torch.testing.assert_close(output["loss"], parts)
    assert not output["pred"].requires_grad
    assert not output["co_training_loss"].requires_grad


def test_the_step_of_an_iteration_is_there_until_the_next_begins():
    trainer = trainer_of(students_of(), batches_of(3), max_epochs=2)
    assert trainer.step is None
    read, begun, seen = [], [], []
    trainer.objective = lambda step: (read.append(step), {"loss": step.labeled.mean()})[1]
    trainer.add_event_handler(Events.ITERATION_STARTED, lambda engine: begun.append(engine.step))
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: seen.append(engine.step))
    trainer.run()
    assert begun == [None] * 6
    assert len(read) == len(seen) == 6
    assert all(mine is theirs for mine, theirs in zip(seen, read, strict=True))
    assert trainer.step is read[-1]
    assert [step.progress for step in read] == [0.0] * 3 + [0.5] * 3
    for step, batch in zip(read, batches_of(3) * 2, strict=True):
        assert torch.equal(step.label, batch["label"])


def test_the_output_can_be_decollated():
    trainer = trainer_of(students_of(3), batches_of(labeled=2), decollate=True)
    trainer.run()
    assert trainer.step.unlabeled.shape == (3, 4, 3, 8, 8)
    assert len(trainer.state.output) == 2  # images, not networks
    for b, one in enumerate(trainer.state.output):
        assert torch.equal(one["image"], batches_of(labeled=2)[-1]["image"][b])
        assert (one["pred"].shape, one["label"].shape) == ((3, 8, 8), (1, 8, 8))
        assert {type(one[name]) for name in ("loss", "supervised_loss", "gamma", "disagreement")} == {float}


@pytest.mark.parametrize("decollate", [False, True], ids=["whole", "cut"])
def test_supervised_batches_train_too(decollate):
    students = students_of(network=lambda: nn.Conv2d(1, 3, 3, padding=1))
    before = [p.detach().clone() for p in students.parameters()]
    batches = [{key: batch[key] for key in ("image", "label")} for batch in batches_of()]
    inferer = SemiSupervisedInferer(teachers=frozen_copy(students), transform=RandomQuarterTurn(seed=0))
    objective = Objective(supervised=Supervised())
    trainer_of(students, batches, objective=objective, inferer=inferer, decollate=decollate).run()
    assert all(not torch.equal(p, old) for p, old in zip(students.parameters(), before, strict=True))


def test_meta_tensors_reach_the_networks_as_plain_tensors():
    students = students_of()
    types = set()
    students.register_forward_pre_hook(lambda module, inputs: types.add(type(inputs[0])))  # noqa: ARG005
    meta = [{key: MetaTensor(value) for key, value in batch.items()} for batch in batches_of()]
    trainer = trainer_of(students, meta)
    history = history_of(trainer, "loss")
    trainer.run()
    assert types == {torch.Tensor}
    plain = trainer_of(students_of(), batches_of())
    expected = history_of(plain, "loss")
    plain.run()
    assert history == expected


def test_a_batch_is_put_on_its_device_in_its_type():
    batch = batches_of()[0]
    image, label, args, kwargs = prepare_semi_supervised_batch(batch, "meta", dtype=torch.float64)
    assert args == ()
    assert list(kwargs) == ["unlabeled"]
    for value in (image, label, kwargs["unlabeled"]):
        assert value.device.type == "meta"
        assert value.dtype == torch.float64
    assert prepare_semi_supervised_batch({"image": batch["image"], "label": batch["label"]})[3] == {}


# When


@pytest.mark.parametrize(
    ("max_epochs", "expected"),
    [(1, [0.0]), (2, [0.0, 1.0]), (3, [0.0, 2 / 3, 1.0]), (4, [0.0, 0.5, 1.0, 1.0])],
    ids=lambda value: f"{value} epochs" if isinstance(value, int) else "",
)
def test_a_weight_rises_to_its_full_value_in_a_run_of_any_length_above_one(max_epochs, expected):
    """A run of one epoch, which tries out whether all is there, has the first value alone."""
    seen = []
    trainer = trainer_of(
        students_of(),
        batches_of(1),
        objective=Objective(term=WeightedTerm(Supervised(), partial(linear_rampup, value=1.0))),
        max_epochs=max_epochs,
    )
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda engine: seen.append(engine.state.output["term_weight"])
    )
    trainer.run()
    assert seen == pytest.approx(expected)


def test_the_loader_is_told_each_epoch_before_it_is_read():
    told = []

    class Loader(list):
        def set_epoch(self, epoch: int) -> None:
            told.append(f"epoch {epoch}")

        def __iter__(self):
            told.append("read")
            return super().__iter__()

    trainer_of(students_of(), Loader(batches_of()), max_epochs=3).run()
    assert told == ["epoch 1", "read", "epoch 2", "read", "epoch 3", "read"]


def test_gradients_may_be_gathered_over_batches():
    def networks():
        return students_of(network=lambda: nn.Conv2d(1, 3, 3, padding=1))

    batches = batches_of(4)
    students = networks()
    trainer_of(
        students, batches, objective=Objective(supervised=Supervised()), accumulation_steps=2, max_epochs=1
    ).run()

    plain = networks().train()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for pair in (batches[:2], batches[2:]):
        optimizer.zero_grad()
        losses = [
            F.cross_entropy(logits, batch["label"][:, 0]) for batch in pair for logits in plain(batch["image"])
        ]  # fmt: skip
        torch.stack(losses).mean().backward()
        optimizer.step()
    for mine, theirs in zip(students.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)


# What an iteration costs


def whole_method(count: int, batches, *, device: torch.device = CPU, extra=None, **settings) -> SemiSupervisedTrainer:
    """All parts of the method together, as the bundles have them."""
    students = students_of(count).to(device)
    teachers = frozen_copy(students)
    terms = {"supervised": Supervised(), "co_training": WeightedTerm(SelfPacedCoTraining(gamma=0.3, alpha=0.01), 0.5)}
    return trainer_of(
        students,
        batches,
        device=device,
        optimizer=torch.optim.RAdam(students.parameters(), lr=0.05, foreach=True),
        objective=Objective(**terms, consistency=WeightedTerm(Consistency(), 4.0), **(extra or {})),
        inferer=SemiSupervisedInferer(teachers=teachers, transform=RandomQuarterTurn(seed=5)),
        train_handlers=[EMATeacher(teachers, students)],
        **settings,
    )


@pytest.mark.parametrize("count", [2, 3], ids=lambda k: f"{k} students")
def test_each_network_runs_once_in_an_iteration_and_only_students_run_back(count):
    trainer = whole_method(count, batches_of(3))
    students, teachers = list(trainer.network.networks), list(trainer.inferer.teachers.networks)
    forward, backward, with_gradient = [], [], set()

    def ran(network, inputs, output):  # noqa: ARG001
        forward.append((trainer.state.iteration, network))
        if torch.is_grad_enabled() or output.requires_grad:
            with_gradient.add(network)

    for network in [*students, *teachers]:
        network.register_forward_hook(ran)
        # the last layer's, since torch warns of the hook of a network whose input, the image, has no gradient
        network[-1].register_full_backward_hook(
            lambda *_, network=network: backward.append((trainer.state.iteration, network))
        )
    trainer.run()
    assert Counter(forward) == Counter((i, network) for i in (1, 2, 3) for network in [*students, *teachers])
    assert Counter(backward) == Counter((i, network) for i in (1, 2, 3) for network in students)
    assert with_gradient == set(students)


WAITING = {
    torch.ops.aten._local_scalar_dense,
    torch.ops.aten.equal,
    torch.ops.aten.is_nonzero,
    torch.ops.aten.item,
    torch.ops.aten.masked_select,
    torch.ops.aten.nonzero,
}
INDEXING = {torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_}


class Waits(TorchDispatchMode):
    """Who asks for the value of a tensor, for which the host would wait for a GPU: file names of this package."""

    def __init__(self) -> None:
        super().__init__()
        self.callers: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        masked = func.overloadpacket in INDEXING and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if func.overloadpacket in WAITING or masked:
            files = stack_of_files()
            # RAdam reads its counter of steps, a tensor that torch keeps on the host: nothing is waited for
            if not any("torch/optim/" in file for file in files):
                self.callers.append(
                    next(Path(file).name for file in files if "/torch/" not in file and file != __file__)
                )
        return func(*args, **(kwargs or {}))


def stack_of_files() -> list[str]:
    """The innermost first."""
    frame, files = sys._getframe(1), []
    while frame is not None:
        files.append(Path(frame.f_code.co_filename).as_posix())
        frame = frame.f_back
    return files


def waits_of(trainer: SemiSupervisedTrainer) -> list[str]:
    """In all iterations but the first."""
    waits = Waits()
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=1), lambda: waits.callers.clear())
    with waits:
        trainer.run()
    return waits.callers


def test_no_value_is_asked_for_but_whether_losses_and_the_weights_of_an_epoch_are_finite():
    """On a GPU no iteration asks, see the last of these tests."""
    assert waits_of(whole_method(3, batches_of(4))) == ["finite_loss.py"] * 4


def test_no_value_is_asked_for_by_the_parts_of_other_methods():
    students = students_of(network=lambda: nn.Sequential(small_network(), nn.Dropout2d(0.1)))
    teachers, discriminator = frozen_copy(students), Discriminator(num_classes=3, features=2, num_layers=1)
    terms = {"entropy": EntropyMinimization(), "co_training": CoTraining(), "consistency": CertainConsistency(0.9)}
    trainer = trainer_of(
        students,
        [{key: value.repeat(1, 1, 2, 2) for key, value in batch.items()} for batch in batches_of(4)],
        objective=Objective(**terms, adversarial=Adversarial()),
        inferer=SemiSupervisedInferer(
            teachers=teachers, uncertainty=MonteCarloDropout(passes=2), discriminator=discriminator
        ),
        train_handlers=[
            EMATeacher(teachers, students),
            DiscriminatorStep(discriminator, torch.optim.Adam(discriminator.parameters(), lr=1e-3)),
        ],
    )
    assert waits_of(trainer) == ["finite_loss.py"] * 4
    assert {"certain_share", "disagreement", "discriminator_loss"} <= set(trainer.state.output)


@pytest.mark.parametrize(
    "ask", [lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: x.nonzero()], ids=["a number", "a mask", "places"]
)
def test_a_value_that_is_asked_for_would_be_seen(ask):
    def term(step):
        ask(step.labeled.detach())
        return step.labeled.sum() * 0

    assert set(waits_of(whole_method(2, batches_of(2), extra={"asking": term}))) > {"finite_loss.py"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, which is not waited for")
@pytest.mark.parametrize("count", [2, 3], ids=lambda k: f"{k} students")
def test_a_gpu_is_not_waited_for_within_an_iteration(count):
    device = torch.device("cuda")
    batches = [{key: value.to(device) for key, value in batch.items()} for batch in batches_of(4)]
    trainer = whole_method(count, batches, device=device)
    for iteration, mode in ((1, "error"), (4, "default")):
        trainer.add_event_handler(Events.ITERATION_COMPLETED(once=iteration), torch.cuda.set_sync_debug_mode, mode)
    try:
        trainer.run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert trainer.state.iteration == 4


# Compiled


@pytest.fixture
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_fresh_compiler")
def test_compiled_networks_train_alike():
    names = ("loss", "supervised_loss", "co_training_loss", "consistency_loss")
    histories, states = [], []
    for settings in ({}, {"compile": True, "compile_kwargs": {"backend": "eager"}}):
        trainer = whole_method(2, batches_of(3), **settings)
        histories.append(history_of(trainer, *names))
        trainer.run()
        states.append(list(trainer.network.parameters()) + list(trainer.inferer.teachers.buffers()))
    np.testing.assert_allclose(histories[1], histories[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(states[1], states[0], rtol=0, atol=1e-6)
    assert len(set(histories[0])) == 3


@pytest.mark.usefixtures("_fresh_compiler")
def test_compiling_leaves_the_given_networks_and_inferer_as_they_are():
    students = students_of()
    teachers, transform = frozen_copy(students), RandomQuarterTurn(seed=0)
    given = SemiSupervisedInferer(teachers=teachers, transform=transform)
    trainer = trainer_of(students, batches_of(), inferer=given, compile=True, compile_kwargs={"backend": "eager"})
    trainer.run()
    assert given.teachers is teachers
    assert trainer.inferer.teachers is not teachers
    assert trainer.inferer.transform is given.transform is transform  # its state is that of the run
    assert {module.training for module in teachers.modules()} == {False}
    assert {module.training for module in students.modules()} == {True}
    # by what the trainer runs
    for mine, theirs in ((students, trainer.network), (teachers, trainer.inferer.teachers)):
        assert isinstance(theirs, Ensemble)
        assert not {type(network) for network in theirs.networks} & {nn.Sequential}
        assert all(a is b for a, b in zip(mine.parameters(), theirs.parameters(), strict=True))
