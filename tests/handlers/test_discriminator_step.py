import copy
import math

import pytest
import torch
from ignite.engine import Events
from torch import nn

from monai_spct.engines import SemiSupervisedTrainer
from monai_spct.handlers import DiscriminatorStep, SaveCheckpoints, scalars
from monai_spct.inferers import SemiSupervisedInferer
from monai_spct.networks import Discriminator, build_ensemble
from monai_spct.objectives import Adversarial, Objective, Supervised, WeightedTerm, discrimination_loss
from tests.bundles.states import same

ITERATIONS = 3


def small_network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1))


def discriminator_of(seed: int = 0) -> Discriminator:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Discriminator(num_classes=3, features=4, num_layers=1)


def batches_of(count: int = ITERATIONS, *, unlike: bool = False) -> list[dict[str, torch.Tensor]]:
    """Where both kinds are unlike, unlabeled images have stripes, and so has what students make of them."""
    generator = torch.Generator().manual_seed(0)
    stripes = torch.arange(16) % 4 // 2 if unlike else torch.zeros(16)
    return [
        {
            "image": torch.rand(2, 1, 16, 16, generator=generator),
            "label": torch.randint(3, (2, 1, 16, 16), generator=generator),
            "unlabeled": torch.rand(3, 1, 16, 16, generator=generator) + 3 * stripes,
        }
        for _ in range(count)
    ]


class Run:
    """A small adversarial run, whose parts are made anew as a new process would."""

    def __init__(
        self,
        batches=None,
        *,
        students=1,
        weight=0.1,
        max_epochs=1,
        judge=True,
        step=True,
        seed=0,
    ) -> None:
        self.students = build_ensemble(small_network, num_views=students, seed=seed)
        self.optimizer = torch.optim.RAdam(self.students.parameters(), lr=0.01)
        self.discriminator = discriminator_of(seed)
        self.step = DiscriminatorStep(self.discriminator, torch.optim.Adam(self.discriminator.parameters(), lr=0.01))
        self.trainer = SemiSupervisedTrainer(
            device="cpu",
            max_epochs=max_epochs,
            train_data_loader=batches_of() if batches is None else batches,
            network=self.students,
            optimizer=self.optimizer,
            objective=Objective(
                supervised=Supervised(), **({"adversarial": WeightedTerm(Adversarial(), weight)} if judge else {})
            ),
            inferer=SemiSupervisedInferer(discriminator=self.discriminator if judge else None),
            train_handlers=[self.step] if step else [],
        )
        self.log: list[dict[str, float]] = []
        self.trainer.add_event_handler(
            Events.ITERATION_COMPLETED,
            lambda engine: self.log.append({name: float(x) for name, x in scalars(engine.state.output).items()}),
        )

    def go(self) -> "Run":
        self.trainer.run()
        return self


# What it learns


@pytest.mark.parametrize("students", [1, 2], ids=lambda k: f"{k} students")
def test_it_learns_to_tell_predictions_that_differ(students):
    run = Run(batches_of(40, unlike=True), students=students, weight=0.0).go()
    losses = [entry["discriminator_loss"] for entry in run.log]
    assert losses[0] == pytest.approx(math.log(2), abs=0.1)
    assert sum(losses[-5:]) / 5 < 0.5 * losses[0]
    labeled, unlabeled = logits_of_both(run)
    assert (labeled > 0).float().mean() > 0.9
    assert (unlabeled < 0).float().mean() > 0.9


def logits_of_both(run: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """On the last labeled and unlabeled images, by the network as it is now."""
    step, judge = run.trainer.step, run.discriminator
    with torch.no_grad():
        labeled = [judge(step.image, logits.softmax(1)) for logits in step.labeled]
        unlabeled = [judge(step.unlabeled_image, log_probs.exp()) for log_probs in step.unlabeled]
    return torch.stack(labeled), torch.stack(unlabeled)


@pytest.mark.parametrize("students", [1, 2], ids=lambda k: f"{k} students")
def test_a_step_is_that_of_a_plain_loop(students):
    run = Run(students=students, weight=0.0)
    plain = copy.deepcopy(run.discriminator)
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.01)
    expected = []

    @run.trainer.on(Events.ITERATION_COMPLETED)
    def loop(engine):
        batch = engine.state.batch
        labeled, unlabeled = [], []
        for k in range(students):
            labeled += plain(batch["image"], engine.step.labeled[k].detach().softmax(1))
            unlabeled += plain(batch["unlabeled"], engine.step.unlabeled[k].detach().exp())
        loss = discrimination_loss(torch.stack(labeled), torch.stack(unlabeled))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())

    run.go()
    assert [entry["discriminator_loss"] for entry in run.log] == pytest.approx(expected, abs=1e-5)
    for mine, theirs in zip(run.discriminator.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)
    assert not same(plain.state_dict(), discriminator_of().state_dict())


def test_its_loss_is_in_the_output_as_a_scalar_without_a_graph():
    run = Run().go()
    assert not run.trainer.state.output["discriminator_loss"].requires_grad
    assert [sorted(entry) for entry in run.log] == [
        ["adversarial_loss", "adversarial_weight", "discriminator_loss", "loss", "supervised_loss"]
    ] * ITERATIONS
    # it is not part of what students minimize
    assert run.log[0]["loss"] == pytest.approx(run.log[0]["adversarial_loss"] + run.log[0]["supervised_loss"])


# Who else learns


@pytest.mark.parametrize("students", [1, 2], ids=lambda k: f"{k} students")
def test_students_are_left_alone_by_its_step(students):
    run = Run(students=students).go()
    everything = {**run.students.state_dict(), **{f"grad {n}": p.grad for n, p in run.students.named_parameters()}}
    before, judge = copy.deepcopy(everything), copy.deepcopy(run.discriminator.state_dict())
    run.step(run.trainer)
    assert same(everything, before)
    assert not same(run.discriminator.state_dict(), judge)


def test_students_whose_adversarial_term_has_no_weight_learn_as_without_a_discriminator():
    with_it, without = Run(weight=0.0).go(), Run(judge=False, step=False).go()
    for mine, theirs in zip(with_it.students.parameters(), without.students.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)


# Going on


def checkpointed(folder, *, resume: bool, seed: int = 0) -> Run:
    run = Run(max_epochs=4, students=2, seed=seed)
    objects = {"students": run.students, "optimizer": run.optimizer, "discriminator_step": run.step}
    SaveCheckpoints(folder, run.students, objects, resume=resume).attach(run.trainer)
    return run


def crash() -> None:
    raise KeyError("the machine is gone")


def test_a_run_that_broke_off_ends_where_it_would_have_ended(tmp_path):
    whole = checkpointed(tmp_path / "whole", resume=False).go()
    first = checkpointed(tmp_path / "parts", resume=False)
    first.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2 * ITERATIONS + 1), crash)
    with pytest.raises(KeyError, match="the machine is gone"):
        first.go()
    second = checkpointed(tmp_path / "parts", resume=True, seed=1).go()
    assert second.log == whole.log[2 * ITERATIONS :]
    assert len(second.log) == 2 * ITERATIONS
    expected, got = (torch.load(tmp_path / run / "last.pt", weights_only=True) for run in ("whole", "parts"))
    assert sorted(got) == ["discriminator_step", "optimizer", "run", "students"]
    assert sorted(got["discriminator_step"]) == ["discriminator", "optimizer"]
    for name in ("discriminator_step", "students", "optimizer"):
        assert same(got[name], expected[name]), name
    steps = {int(state["step"]) for state in got["discriminator_step"]["optimizer"]["state"].values()}
    assert steps == {4 * ITERATIONS}


# What is refused


def test_an_inferer_without_a_discriminator_is_refused():
    with pytest.raises(ValueError, match=r"`DiscriminatorStep` needs `image`: give .* its `discriminator`"):
        Run(judge=False).go()


@pytest.mark.parametrize("reader", ["Adversarial", "DiscriminatorStep"])
def test_batches_without_unlabeled_images_are_refused_by_the_name_of_what_is_missing(reader):
    """The discriminator is there."""
    run = Run([{key: batch[key] for key in ("image", "label")} for batch in batches_of()])
    if reader == "DiscriminatorStep":
        run.trainer.objective = Objective(supervised=Supervised())
    with pytest.raises(ValueError, match=rf"`{reader}` .*an entry `unlabeled`"):
        run.go()
