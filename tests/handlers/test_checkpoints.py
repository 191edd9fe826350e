import logging
import os

import pytest
import torch
from ignite.engine import Engine, Events
from monai.engines import SupervisedEvaluator
from monai.handlers import LrScheduleHandler, MeanDice, from_engine
from monai.optimizers import WarmupCosineSchedule
from monai.transforms import AsDiscreted, Compose, RandFlipd, RandGaussianNoised
from torch import nn

from monai_spct.data import PairedLoader, SliceDataset
from monai_spct.engines import SemiSupervisedTrainer
from monai_spct.functional import geometric_growth, sigmoid_rampup
from monai_spct.handlers import EMATeacher, SaveBest, SaveCheckpoints, save_atomically
from monai_spct.inferers import SemiSupervisedInferer
from monai_spct.networks import ENet, build_ensemble, frozen_copy
from monai_spct.objectives import Consistency, Objective, SelfPacedCoTraining, Supervised, Weighted
from monai_spct.transforms import RandomQuarterTurn

ITERATIONS, EPOCHS = 2, 4


def small_enet() -> ENet:
    return ENet(features=4, dropout=(0.1, 0.2))


# A file, which torch writes by itself: all else is tested with `replacing`


def test_a_full_disk_leaves_the_old_weights_and_nothing_else(tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "model.pt"
    save_atomically({"weight": torch.ones(3)}, path)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # writing stops in the middle, as on a full disk
    try:
        with pytest.raises((OSError, RuntimeError)):
            save_atomically({"weight": torch.zeros(1_000_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.pt"]  # noqa: PTH208


# A whole run


def cases(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "image": torch.rand(1, 32, 32, 3, generator=generator),
            "label": torch.randint(4, (1, 32, 32, 3), generator=generator),
        }
        for _ in range(count)
    ]


class Run:
    """A small run of the whole method, with dropout, whose parts are made anew as a new process would."""

    def __init__(self, folder, *, resume=False, max_epochs=EPOCHS) -> None:
        move = RandomQuarterTurn(seed=0)
        self.students = build_ensemble(small_enet, num_views=2, seed=0)
        self.teachers = frozen_copy(self.students)
        optimizer = torch.optim.RAdam(self.students.parameters(), lr=0.01)
        total = ITERATIONS * EPOCHS
        schedule = WarmupCosineSchedule(optimizer, warmup_steps=3, t_total=total, warmup_multiplier=1 / 300)
        ema = EMATeacher(self.teachers, self.students)
        augment = [
            RandFlipd(["image", "label"], prob=0.5, allow_missing_keys=True),
            RandGaussianNoised("image", prob=0.5),
        ]
        self.trainer = SemiSupervisedTrainer(
            device="cpu",
            max_epochs=max_epochs,
            train_data_loader=PairedLoader(
                SliceDataset(cases(1, seed=1), dict, augment),
                SliceDataset(cases(2, seed=2), dict, augment, keys=["image"]),
                labeled_batch_size=2,
                unlabeled_batch_size=2,
                epoch_length=ITERATIONS,
            ),
            network=self.students,
            optimizer=optimizer,
            objective=Objective(
                supervised=Supervised(),
                co_training=Weighted(
                    SelfPacedCoTraining(lambda progress: geometric_growth(progress, initial=0.2, final=10.0)),
                    lambda progress: sigmoid_rampup(progress, value=0.5),
                ),
                consistency=Weighted(Consistency(), lambda progress: sigmoid_rampup(progress, value=4.0)),
            ),
            inferer=SemiSupervisedInferer(teachers=self.teachers, move=move),
            train_handlers=[ema, LrScheduleHandler(schedule, print_lr=False, epoch_level=False)],
        )
        self.log: list[tuple[float, ...]] = []
        self.trainer.add_event_handler(
            Events.ITERATION_COMPLETED,
            lambda engine: self.log.append(
                (engine.state.output["loss"].item(), engine.state.output["pace"], optimizer.param_groups[0]["lr"])
            ),
        )
        objects = {"students": self.students, "teachers": self.teachers, "optimizer": optimizer, "schedule": schedule}
        objects |= {"ema": ema, "move": move}
        SaveCheckpoints(folder, self.teachers, objects, resume=resume).attach(self.trainer)


def crash() -> None:
    raise KeyError("the machine is gone")


def assert_same(one, other, where: str = "") -> None:
    """Equal bit by bit, however deep."""
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{where}/{i}")
    else:
        assert one == other, where


def test_a_resumed_run_is_the_uninterrupted_one_bit_by_bit(tmp_path):
    torch.manual_seed(0)  # of dropout
    whole = Run(tmp_path / "whole")
    whole.trainer.run()

    torch.manual_seed(0)
    first = Run(tmp_path / "parts")
    # in the middle of the third epoch, whose beginning is then done again
    first.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2 * ITERATIONS + 1), crash)
    with pytest.raises(KeyError, match="the machine is gone"):
        first.trainer.run()
    torch.manual_seed(99)  # another process starts with another state
    second = Run(tmp_path / "parts", resume=True)
    second.trainer.run()

    assert second.log == whole.log[2 * ITERATIONS :]
    for name in ("last.pt", "model.pt"):
        expected, got = (torch.load(tmp_path / run / name, weights_only=True) for run in ("whole", "parts"))
        assert_same(expected, got)
    last = torch.load(tmp_path / "parts" / "last.pt", weights_only=True)
    assert sorted(last) == ["ema", "move", "optimizer", "run", "schedule", "students", "teachers"]
    assert (last["run"]["epoch"], last["run"]["epoch_length"]) == (EPOCHS, ITERATIONS)
    assert last["ema"] == {"num_updates": EPOCHS * ITERATIONS}


def test_the_dropout_of_that_run_is_live(tmp_path):
    logs = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        run = Run(tmp_path / str(seed), max_epochs=1)
        run.trainer.run()
        logs.append(run.log)
    assert logs[0] != logs[1]


def test_the_model_file_is_the_predictor_alone(tmp_path):
    run = Run(tmp_path, max_epochs=1)
    run.trainer.run()
    fresh = build_ensemble(small_enet, num_views=2, seed=5).eval()
    fresh.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    image = torch.rand(1, 1, 32, 32)
    assert torch.equal(fresh(image), run.teachers(image))
    assert sorted(os.listdir(tmp_path)) == ["last.pt", "model.pt"]  # noqa: PTH208


# Where to go on from


def plain_run(folder, module: nn.Module, *, max_epochs: int, resume: bool, objects=None, kept_epochs=()) -> Engine:
    def update(engine, batch):  # noqa: ARG001
        with torch.no_grad():
            module.weight += 1

    trainer = Engine(update)
    objects = {"module": module} if objects is None else objects
    SaveCheckpoints(folder, module, objects, resume=resume, kept_epochs=kept_epochs).attach(trainer)
    trainer.run([0, 0], max_epochs=max_epochs)
    return trainer


def one_weight() -> nn.Linear:
    module = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(module.weight)
    return module


def test_a_run_goes_on_where_it_ended(tmp_path):
    plain_run(tmp_path, one_weight(), max_epochs=2, resume=False)
    module = one_weight()
    trainer = plain_run(tmp_path, module, max_epochs=5, resume=True)
    assert module.weight.item() == 10.0
    assert (trainer.state.epoch, trainer.state.iteration) == (5, 10)


def test_without_a_file_the_run_starts_anew_and_says_so(tmp_path, caplog):
    module = one_weight()
    with caplog.at_level(logging.INFO, logger="monai_spct"):
        plain_run(tmp_path, module, max_epochs=2, resume=True)
    assert module.weight.item() == 4.0
    assert f"nothing to resume at {tmp_path / 'last.pt'}: starting anew." in caplog.text


def test_a_run_that_shall_not_resume_does_not(tmp_path):
    plain_run(tmp_path, one_weight(), max_epochs=2, resume=False)
    module = one_weight()
    plain_run(tmp_path, module, max_epochs=2, resume=False)
    assert module.weight.item() == 4.0


@pytest.mark.parametrize("max_epochs", [2, 1], ids=["as many epochs", "fewer epochs"])
def test_a_finished_run_is_refused(tmp_path, max_epochs):
    plain_run(tmp_path, one_weight(), max_epochs=2, resume=False)
    module = one_weight()
    with pytest.raises(ValueError, match=f"of a finished run: it has 2 epochs, and `max_epochs` is {max_epochs}"):
        plain_run(tmp_path, module, max_epochs=max_epochs, resume=True)
    assert module.weight.item() == 0.0


@pytest.mark.parametrize("names", [["module", "teachers"], ["network"], []], ids=["more", "others", "none"])
def test_a_file_with_other_objects_is_refused(tmp_path, names):
    plain_run(tmp_path, one_weight(), max_epochs=1, resume=False)
    module = one_weight()
    with pytest.raises(ValueError, match="another kind of run: it holds"):
        plain_run(tmp_path, module, max_epochs=2, resume=True, objects=dict.fromkeys(names, module))
    assert module.weight.item() == 0.0


def test_a_run_with_another_epoch_length_is_refused(tmp_path):
    plain_run(tmp_path, one_weight(), max_epochs=2, resume=False)
    trainer = Engine(lambda *_: None)
    module = one_weight()
    SaveCheckpoints(tmp_path, module, {"module": module}, resume=True).attach(trainer)
    with pytest.raises(ValueError, match="2 iterations in an epoch, and this one has 3"):
        trainer.run([0, 0, 0], max_epochs=4)
    assert module.weight.item() == 0.0


def test_a_file_with_another_network_is_refused_in_one_line(tmp_path):
    plain_run(tmp_path, one_weight(), max_epochs=1, resume=False)
    with pytest.raises(ValueError, match="is of a run with another `module`: resume with the same settings") as error:
        plain_run(tmp_path, nn.Linear(2, 3), max_epochs=2, resume=True)
    assert "\n" not in str(error.value)


def test_objects_that_a_method_does_not_have_are_left_out(tmp_path):
    module = one_weight()
    plain_run(tmp_path, module, max_epochs=1, resume=False, objects={"module": module, "teachers": None})
    assert sorted(torch.load(tmp_path / "last.pt", weights_only=True)) == ["module", "run"]


# Epochs to look back at


def weights_in(folder) -> dict[str, float]:
    return {
        path.name: torch.load(path, weights_only=True)["weight"].item()
        for path in sorted(folder.iterdir())
        if not path.name.startswith("last")
    }


def test_weights_of_chosen_epochs_stay(tmp_path):
    plain_run(tmp_path, one_weight(), max_epochs=4, resume=False, kept_epochs=[3, 1])
    assert weights_in(tmp_path) == {"epoch_001.pt": 2.0, "epoch_003.pt": 6.0, "model.pt": 8.0}


@pytest.mark.parametrize("write", range(6))  # two in the first epoch, three in the second, one in the last
def test_weights_of_a_chosen_epoch_are_there_wherever_the_run_broke_off(tmp_path, monkeypatch, write):
    written, save = [], torch.save

    def or_not(state, file):
        if len(written) == write:
            raise KeyError("the machine is gone")
        written.append(file)
        save(state, file)

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", or_not)
        with pytest.raises(KeyError):
            plain_run(tmp_path, one_weight(), max_epochs=3, resume=False, kept_epochs=[2])
    plain_run(tmp_path, one_weight(), max_epochs=3, resume=True, kept_epochs=[2])
    assert weights_in(tmp_path) == {"epoch_002.pt": 4.0, "model.pt": 6.0}


@pytest.mark.parametrize("kept", [[0], [1, -1], [1.5], [2.0], [True], ["1"], 20, "20", None], ids=repr)
def test_epochs_that_cannot_be_are_refused(tmp_path, kept):
    with pytest.raises(ValueError, match="`kept_epochs` must be a list of whole numbers of at least 1, got") as error:
        SaveCheckpoints(tmp_path, one_weight(), {}, kept_epochs=kept)
    assert str(error.value).endswith(f"got {kept!r}.")


@pytest.mark.parametrize("resume", [False, True])
def test_epochs_that_a_run_does_not_have_are_refused_when_it_starts(tmp_path, resume):
    module = one_weight()
    with pytest.raises(ValueError, match=r"`kept_epochs` must be at most `max_epochs`, which is 2, got \[3, 200\]\."):
        plain_run(tmp_path, module, max_epochs=2, resume=resume, kept_epochs=[2, 3, 200])
    assert module.weight.item() == 0.0
    assert list(tmp_path.iterdir()) == []


# The best


def evaluator_of(network: nn.Module, best: SaveBest) -> SupervisedEvaluator:
    """Its metric is the share of class 1 in the label, for a network that predicts class 1 where its weight says so."""
    return SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=[{"image": torch.linspace(0, 1, 16).reshape(1, 1, 4, 4), "label": torch.ones(1, 1, 4, 4)}],
        network=network,
        postprocessing=Compose([AsDiscreted("pred", argmax=True), AsDiscreted("pred", to_onehot=2)]),
        key_val_metric={"dice": MeanDice(include_background=False, output_transform=from_engine(["pred", "label"]))},
        val_handlers=[best],
    )


def test_the_best_weights_are_those_of_the_best_evaluation(tmp_path):
    network = nn.Conv2d(1, 2, 1)
    nn.init.zeros_(network.weight)
    network.requires_grad_(False).weight[1] = 1.0
    evaluator = evaluator_of(network, SaveBest(tmp_path / "best.pt", network))
    saved = {}
    for epoch, threshold in enumerate([0.8, 0.3, 0.5, 0.3, 0.1], start=1):
        network.bias.copy_(torch.tensor([threshold, 0.0]))
        evaluator.run(global_epoch=epoch)
        saved[epoch] = round(torch.load(tmp_path / "best.pt", weights_only=True)["bias"][0].item(), 3)
    assert saved == {1: 0.8, 2: 0.3, 3: 0.3, 4: 0.3, 5: 0.1}


def test_a_run_that_goes_on_keeps_the_best_of_its_first_part(tmp_path):
    network = nn.Conv2d(1, 2, 1)
    nn.init.zeros_(network.weight)
    network.requires_grad_(False).weight[1] = 1.0
    first = SaveBest(tmp_path / "best.pt", network)
    network.bias.copy_(torch.tensor([0.3, 0.0]))
    evaluator_of(network, first).run(global_epoch=1)

    save_atomically(first.state_dict(), tmp_path / "state.pt")
    second = SaveBest(tmp_path / "best.pt", network)
    evaluator = evaluator_of(network, second)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    network.bias.copy_(torch.tensor([0.8, 0.0]))  # worse
    evaluator.run(global_epoch=2)
    assert torch.load(tmp_path / "best.pt", weights_only=True)["bias"][0].item() == pytest.approx(0.3)
