"""A run goes on as if nothing had happened, or says why it cannot."""

import logging
import os
import random
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from ignite.engine import Engine, Events
from monai.engines import SupervisedEvaluator
from monai.handlers import LrScheduleHandler, MeanDice, from_engine
from monai.optimizers import WarmupCosineSchedule
from monai.transforms import AsDiscreted, Compose, RandFlipd, RandGaussianNoised
from torch import nn

from monai_spct.data import PairedLoader, VolumeDataset
from monai_spct.engines import SemiSupervisedTrainer
from monai_spct.files import save_atomically
from monai_spct.functional import geometric_growth, sigmoid_rampup
from monai_spct.handlers import EMATeacher, SaveBest, SaveCheckpoints, SaveHistory
from monai_spct.inferers import SemiSupervisedInferer
from monai_spct.networks import build_ensemble, frozen_copy
from monai_spct.objectives import Consistency, Objective, SelfPacedCoTraining, Supervised, WeightedTerm
from monai_spct.transforms import RandomQuarterTurn
from tests.bundles.states import same

ITERATIONS, EPOCHS = 2, 4


def small_network() -> nn.Module:
    """With running statistics and dropout, as an ENet has them."""
    first, last = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
    return nn.Sequential(first, nn.BatchNorm2d(4), nn.PReLU(), nn.Dropout2d(0.2), last)


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

    def __init__(self, folder, *, resume=False, max_epochs=EPOCHS, sigterm_at=None, **settings) -> None:
        transform = RandomQuarterTurn(seed=0)
        self.students = build_ensemble(small_network, num_views=2, seed=0)
        self.teachers = frozen_copy(self.students)
        optimizer = torch.optim.RAdam(self.students.parameters(), lr=0.01)
        total = ITERATIONS * EPOCHS
        schedule = WarmupCosineSchedule(optimizer, warmup_steps=3, t_total=total, warmup_multiplier=1 / 300)
        ema = EMATeacher(self.teachers, self.students)
        history = SaveHistory(folder / "eval", optimizer=optimizer)
        augment = [
            RandFlipd(["image", "label"], prob=0.5, allow_missing_keys=True),
            RandGaussianNoised("image", prob=0.5),
        ]
        self.trainer = SemiSupervisedTrainer(
            device="cpu",
            max_epochs=max_epochs,
            train_data_loader=PairedLoader(
                VolumeDataset(cases(1, seed=1), dict, augment),
                VolumeDataset(cases(2, seed=2), dict, augment, keys=["image"]),
                labeled_batch_size=2,
                unlabeled_batch_size=2,
                epoch_length=ITERATIONS,
            ),
            network=self.students,
            optimizer=optimizer,
            objective=Objective(
                supervised=Supervised(),
                co_training=WeightedTerm(
                    SelfPacedCoTraining(lambda progress: geometric_growth(progress, initial=0.2, final=10.0)),
                    lambda progress: sigmoid_rampup(progress, value=0.5),
                ),
                consistency=WeightedTerm(Consistency(), lambda progress: sigmoid_rampup(progress, value=4.0)),
            ),
            inferer=SemiSupervisedInferer(teachers=self.teachers, transform=transform),
            train_handlers=[ema, LrScheduleHandler(schedule, print_lr=False, epoch_level=False), history],
            **settings,
        )
        self.log: list[tuple[float, ...]] = []
        self.trainer.add_event_handler(
            Events.ITERATION_COMPLETED,
            lambda engine: self.log.append(
                (engine.state.output["loss"].item(), engine.state.output["gamma"], optimizer.param_groups[0]["lr"])
            ),
        )
        objects = {"students": self.students, "teachers": self.teachers, "optimizer": optimizer, "schedule": schedule}
        objects |= {"ema": ema, "transform": transform, "history": history}
        if sigterm_at is not None:
            self.trainer.add_event_handler(sigterm_at, sigterm)
        SaveCheckpoints(folder / "models", self.teachers, objects, resume=resume).attach(self.trainer)


def sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def crash() -> None:
    raise KeyError("the machine is gone")


def state_of(folder: Path) -> dict:
    """All that must be the same, which the seconds in the history are not."""
    state = torch.load(folder / "models" / "last.pt", weights_only=True)
    for row in state["history"]["rows"]:
        row.pop("seconds")
    return state


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> tuple[Run, Path]:
    folder = tmp_path_factory.mktemp("whole")
    torch.manual_seed(0)  # of dropout
    run = Run(folder)
    run.trainer.run()
    return run, folder


def assert_goes_on_to_the_same_end(folder: Path, done: int, uninterrupted: tuple[Run, Path]) -> None:
    torch.manual_seed(99)  # another process starts with another state
    second = Run(folder, resume=True)
    second.trainer.run()
    whole, expected = uninterrupted
    assert second.log == whole.log[done:]
    state = state_of(folder)
    assert [name for name, item in state_of(expected).items() if not same(item, state[name])] == []
    assert same(*(torch.load(path / "models" / "model.pt", weights_only=True) for path in (expected, folder)))


def test_a_resumed_run_is_the_uninterrupted_one_bit_by_bit(tmp_path, uninterrupted):
    torch.manual_seed(0)
    first = Run(tmp_path)
    # in the middle of the third epoch, whose beginning is then done again
    first.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2 * ITERATIONS + 1), crash)
    with pytest.raises(KeyError, match="the machine is gone"):
        first.trainer.run()
    assert_goes_on_to_the_same_end(tmp_path, 2 * ITERATIONS, uninterrupted)
    names = ["ema", "history", "optimizer", "run", "schedule", "students", "teachers", "transform"]
    assert sorted(state_of(tmp_path)) == names


def test_the_model_file_is_the_predictor_alone(uninterrupted):
    run, folder = uninterrupted
    fresh = build_ensemble(small_network, num_views=2, seed=5).eval()
    fresh.load_state_dict(torch.load(folder / "models" / "model.pt", weights_only=True))
    image = torch.rand(1, 1, 32, 32)
    assert torch.equal(fresh(image), run.teachers(image))
    assert sorted(os.listdir(folder / "models")) == ["last.pt", "last_1.pt", "model.pt"]  # noqa: PTH208


# Asked to end


@pytest.mark.parametrize(
    ("when", "done"),
    [
        (Events.EPOCH_STARTED(once=1), 1),
        (Events.ITERATION_STARTED(once=3), 3),
        (Events.ITERATION_COMPLETED(once=4), 4),  # the last one of its epoch
        (Events.EPOCH_COMPLETED(once=2), 4),  # in place of a validation
        (Events.EPOCH_COMPLETED(once=EPOCHS), ITERATIONS * EPOCHS),
    ],
    ids=["at the very start", "amid an epoch", "after the last iteration of an epoch", "before an epoch is closed",
         "before the last epoch is closed"],
)  # fmt: skip
def test_a_run_that_is_asked_to_end_loses_nothing(tmp_path, uninterrupted, caplog, when, done):
    before = signal.getsignal(signal.SIGTERM)
    torch.manual_seed(0)
    first = Run(tmp_path, sigterm_at=when)
    first.trainer.add_event_handler(Events.INTERRUPT, sigterm)  # further signals change nothing
    with pytest.raises(SystemExit) as ended:
        first.trainer.run()
    assert ended.value.code == 143
    assert f"ended by SIGTERM: the state after iteration {done}, in epoch" in caplog.text
    assert signal.getsignal(signal.SIGTERM) == before
    assert state_of(tmp_path)["run"]["iteration"] == done
    assert_goes_on_to_the_same_end(tmp_path, done, uninterrupted)


@pytest.mark.filterwarnings("ignore:Detected call of")  # torch's, of the learning rate that goes on between the steps
def test_gradients_that_wait_for_those_of_the_next_batch_are_not_lost(tmp_path):
    run = Run(tmp_path, sigterm_at=Events.ITERATION_COMPLETED(once=3), accumulation_steps=2)
    with pytest.raises(SystemExit):
        run.trainer.run()
    assert state_of(tmp_path)["run"]["iteration"] == 4


def test_a_run_that_is_asked_when_all_is_done_just_ends(tmp_path):
    run = Run(tmp_path, max_epochs=1)
    run.trainer.add_event_handler(Events.EPOCH_COMPLETED, sigterm)  # after the checkpoint
    run.trainer.run()
    assert state_of(tmp_path)["run"]["epoch"] == 1


def test_a_loader_that_cannot_start_amid_an_epoch_starts_at_its_beginning(tmp_path, caplog):
    run = Run(tmp_path, sigterm_at=Events.ITERATION_COMPLETED(once=3))
    run.trainer.data_loader = list(run.trainer.data_loader)
    with pytest.raises(SystemExit):
        run.trainer.run()
    assert "ended by SIGTERM: the run goes on from the beginning of epoch 2" in caplog.text
    assert state_of(tmp_path)["run"]["iteration"] == ITERATIONS


@pytest.mark.parametrize("ignored", [False, True])
def test_the_signal_is_afterwards_as_it_was(tmp_path, ignored):
    before = signal.getsignal(signal.SIGTERM)
    try:
        if ignored:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            Run(tmp_path, max_epochs=1, sigterm_at=Events.ITERATION_COMPLETED(once=1)).trainer.run()
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
        else:
            run = Run(tmp_path)
            run.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=3), crash)
            with pytest.raises(KeyError):
                run.trainer.run()
            assert signal.getsignal(signal.SIGTERM) == before
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_run_may_be_in_another_thread(tmp_path):
    thread = threading.Thread(target=Run(tmp_path, max_epochs=1).trainer.run)
    thread.start()
    thread.join()
    assert state_of(tmp_path)["run"]["epoch"] == 1


def test_weights_that_are_not_numbers_are_not_saved_by_a_run_that_is_asked_to_end(tmp_path, monkeypatch):
    """As on a GPU, where losses are looked at later than they are computed."""
    monkeypatch.setattr("monai_spct.handlers.finite_loss.StopAtNonFiniteLoss.__call__", late)
    run = Run(tmp_path, sigterm_at=Events.ITERATION_COMPLETED(once=3))
    run.trainer.add_event_handler(
        Events.ITERATION_STARTED(once=3), lambda: next(run.students.parameters()).data.fill_(torch.nan)
    )
    with pytest.raises(FloatingPointError, match="not finite in iteration 3"):
        run.trainer.run()
    assert state_of(tmp_path)["run"]["iteration"] == ITERATIONS


def late(handler, engine) -> None:
    losses = torch.stack([engine.state.output["loss"].detach()])
    handler.pending.append((f"iteration {engine.state.iteration}", ["loss"], losses, None))


# Where to go on from


def plain_run(folder, module: nn.Module, *, max_epochs: int, resume: bool = False, objects=None, **options) -> Engine:
    """Each iteration adds one to the weight."""

    def update(engine, batch):  # noqa: ARG001
        with torch.no_grad():
            module.weight += 1

    trainer = Engine(update)
    objects = {"module": module} if objects is None else objects
    SaveCheckpoints(folder, module, objects, resume=resume, **options).attach(trainer)
    trainer.run([0, 0], max_epochs=max_epochs)
    return trainer


def one_weight() -> nn.Linear:
    module = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(module.weight)
    return module


@pytest.fixture
def models(tmp_path) -> Path:
    """Of a run of two epochs."""
    plain_run(tmp_path / "models", one_weight(), max_epochs=2)
    return tmp_path / "models"


def refused(folder: Path, message: str, *, module=None, max_epochs: int = 4, **options) -> str:
    """A run does not go on, and nothing has changed."""
    module, files = module or one_weight(), {path: path.read_bytes() for path in folder.iterdir()}
    before = module.weight.clone()
    with pytest.raises(ValueError, match=message) as error:
        plain_run(folder, module, max_epochs=max_epochs, resume=True, **options)
    assert torch.equal(module.weight, before)
    assert files == {path: path.read_bytes() for path in folder.iterdir()}
    return str(error.value)


def test_without_a_file_the_run_starts_anew_and_says_so(tmp_path, caplog):
    module = one_weight()
    with caplog.at_level(logging.INFO, logger="monai_spct"):
        plain_run(tmp_path, module, max_epochs=2, resume=True)
    assert module.weight.item() == 4.0
    assert f"nothing to resume at {tmp_path / 'last.pt'}: starting anew." in caplog.text


def test_a_finished_run_says_so_and_does_nothing(models, caplog):
    module, before = one_weight(), (models / "last.pt").read_bytes()
    with caplog.at_level(logging.INFO, logger="monai_spct"):
        plain_run(models, module, max_epochs=2, resume=True)
    assert f"nothing to do: {models / 'last.pt'} is of a finished run of 2 epochs." in caplog.text
    assert module.weight.item() == 4.0
    assert (models / "last.pt").read_bytes() == before


def test_a_run_with_another_epoch_length_is_refused(models):
    trainer = Engine(lambda *_: None)
    SaveCheckpoints(models, one_weight(), {"module": one_weight()}, resume=True).attach(trainer)
    with pytest.raises(ValueError, match="has 2 iterations in an epoch, not 3"):
        trainer.run([0, 0, 0], max_epochs=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_epochs": 1}, "has 2 epochs, and `max_epochs` is 1"),
        ({"objects": {"network": one_weight()}}, "another kind of run: it holds"),
        ({"objects": {}}, "another kind of run: it holds"),
        ({"module": nn.Linear(2, 3)}, "is of a run with another `module`: resume with the same settings"),
    ],
    ids=["fewer epochs", "other objects", "no objects", "another network"],
)
def test_a_checkpoint_of_another_run_is_refused(models, changes, message):
    assert "\n" not in refused(models, message, **changes)


def test_objects_that_a_method_does_not_have_are_left_out(tmp_path):
    module = one_weight()
    plain_run(tmp_path, module, max_epochs=1, objects={"module": module, "teachers": None})
    assert sorted(torch.load(tmp_path / "last.pt", weights_only=True)) == ["module", "run"]


@pytest.mark.parametrize("run", [{"epoch": 1, "epoch_length": 2}, {"format": 1}, None], ids=repr)
def test_a_file_of_another_version_is_refused(models, run):
    state = torch.load(models / "last.pt", weights_only=True)
    run = run if run is None or len(run) > 1 else {**state["run"], **run}
    save_atomically({**state, "run": run}, models / "last.pt")
    refused(models, r"last\.pt was written by another version of monai_spct")


def test_other_settings_are_shown_and_refused(tmp_path):
    plain_run(tmp_path, one_weight(), max_epochs=1, settings={"seed": 0, "loss": {"weight": 1}})
    said = refused(tmp_path, "is of a run with other settings", settings={"loss": {"weight": 2}})
    assert "\n  `seed` was 0, is not there\n  `loss#weight` was 1, is 2\nResume with those" in said


def test_other_settings_are_accepted_if_told_so_and_kept_from_then_on(tmp_path, caplog):
    settings = [{str(n): factor * n for n in range(1, 14)} for factor in (1, -1)]
    plain_run(tmp_path, one_weight(), max_epochs=1, settings=settings[0])
    refused(tmp_path, r"`10` was 10, is -10\n  and 3 more\n", settings=settings[1])
    plain_run(tmp_path, one_weight(), max_epochs=2, resume=True, settings=settings[1], accept_changes=True)
    assert "with other settings:\n  `1` was 1, is -1" in caplog.text
    plain_run(tmp_path, one_weight(), max_epochs=3, resume=True, settings=settings[1])


@pytest.mark.parametrize(("before", "after"), [({}, {"seed": 1}), ({"seed": 1}, {})])
def test_settings_that_are_not_known_are_not_compared(tmp_path, before, after):
    plain_run(tmp_path, one_weight(), max_epochs=1, settings=before)
    assert plain_run(tmp_path, one_weight(), max_epochs=2, resume=True, settings=after).state.iteration == 4


def drawing(folder, *, resume: bool, max_epochs: int, seed: int) -> list[tuple[float, ...]]:
    for generator in (random.seed, np.random.seed, torch.manual_seed):
        generator(seed)
    drawn = []

    def update(engine, batch):  # noqa: ARG001
        normal = np.random.normal()  # noqa: NPY002 - of which every second one is kept for later, as by Python's
        drawn.append((random.random(), random.gauss(0, 1), normal, torch.rand(()).item()))

    trainer = Engine(update)
    SaveCheckpoints(folder, one_weight(), {}, resume=resume).attach(trainer)
    trainer.run(range(3), max_epochs=max_epochs)
    return drawn


def test_all_that_draw_from_global_generators_go_on_with_their_draws(tmp_path):
    expected = drawing(tmp_path / "whole", resume=False, max_epochs=3, seed=3)
    assert len(set(expected)) == 9
    first = drawing(tmp_path / "parts", resume=False, max_epochs=1, seed=3)
    assert first + drawing(tmp_path / "parts", resume=True, max_epochs=3, seed=4) == expected


def test_the_scale_of_mixed_precision_goes_on(tmp_path):
    def run(*, resume: bool, max_epochs: int) -> float:
        trainer = Engine(lambda engine, batch: engine.scaler.update(engine.scaler.get_scale() / 2))  # noqa: ARG005
        trainer.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # as MONAI's trainer has one with `amp`
        trainer.scaler.scale(torch.ones(()))
        SaveCheckpoints(tmp_path, one_weight(), {}, resume=resume).attach(trainer)
        trainer.run([0, 0], max_epochs=max_epochs)
        return trainer.scaler.get_scale()

    assert run(resume=False, max_epochs=1) == 256
    assert run(resume=True, max_epochs=2) == 64


# Several files


def epochs_in(folder) -> dict[str, int]:
    return {path.name: torch.load(path, weights_only=True)["run"]["epoch"] for path in sorted(folder.glob("last*.pt"))}


def weights_in(folder) -> dict[str, float]:
    files = [path for path in sorted(folder.glob("*.pt")) if not path.name.startswith("last")]
    return {path.name: torch.load(path, weights_only=True)["weight"].item() for path in files}


def test_as_many_checkpoints_stay_as_were_asked_for(tmp_path):
    plain_run(tmp_path, one_weight(), max_epochs=4, num_checkpoints=3)
    assert epochs_in(tmp_path) == {"last.pt": 4, "last_1.pt": 3, "last_2.pt": 2}
    plain_run(tmp_path, one_weight(), max_epochs=5, resume=True, num_checkpoints=1)
    assert epochs_in(tmp_path) == {"last.pt": 5}


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
            plain_run(tmp_path / "models", one_weight(), max_epochs=3, kept_epochs=[2])
    plain_run(tmp_path / "models", one_weight(), max_epochs=3, resume=True, kept_epochs=[2])
    assert weights_in(tmp_path / "models") == {"epoch_002.pt": 4.0, "model.pt": 6.0}


def test_a_run_that_starts_anew_moves_another_one_aside(tmp_path, caplog):
    models, evaluated = tmp_path / "models", tmp_path / "eval"

    def run(epochs: int) -> None:
        plain_run(models, one_weight(), max_epochs=epochs, kept_epochs=[1], run_files=[evaluated, tmp_path / "none"])

    run(3)
    assert "anew" not in caplog.text
    (models / "notes.txt").write_text("of the user")
    (models / "best.pt").write_bytes(b"of the first network")
    evaluated.mkdir()
    (evaluated / "scores.csv").write_text("of the first network")
    files = {path.name: path.read_bytes() for path in models.iterdir()}
    run(1)
    previous = tmp_path / "previous_1"
    [warning] = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert f"what another one left in {tmp_path} is in {previous} now." in warning
    assert sorted(path.name for path in models.iterdir()) == ["epoch_001.pt", "last.pt", "model.pt", "notes.txt"]
    assert epochs_in(models) == {"last.pt": 1}
    assert not evaluated.exists()
    files.pop("notes.txt")
    assert {path.name: path.read_bytes() for path in (previous / "models").iterdir()} == files
    assert (previous / "eval" / "scores.csv").is_file()
    run(2)
    assert (epochs_in(tmp_path / "previous_2" / "models"), epochs_in(previous / "models")["last.pt"]) == (
        {"last.pt": 1},
        3,
    )


def flipped(data: bytes) -> bytes:
    """One bit of the weight is another."""
    place = data.index(np.float32(4).tobytes(), data.index(b"data/0"))
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one_and_never_anew(models, caplog):
    path = models / "last.pt"
    path.write_bytes(flipped(path.read_bytes()))
    with caplog.at_level(logging.INFO, "monai_spct"):
        module = one_weight()
        trainer = plain_run(models, module, max_epochs=3, resume=True)
    assert f"{path} is not a checkpoint, or is damaged: " in caplog.text
    assert f"resuming after epoch 1 of 3 from {models / 'last_1.pt'}" in caplog.text
    assert (module.weight.item(), trainer.state.iteration) == (6.0, 6)
    for path in models.glob("last*.pt"):
        path.write_bytes(b"")
    refused(models, r"no checkpoint is whole: .*last\.pt is not a checkpoint, or is damaged.*; .*last_1\.pt is not")


# Settings


@pytest.mark.parametrize("kept", [[1, -1], [1.5], [True], 20, "20"], ids=repr)
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


@pytest.fixture
def network() -> nn.Conv2d:
    network = nn.Conv2d(1, 2, 1).requires_grad_(False)
    network.weight[:] = torch.tensor([0.0, 1.0]).reshape(2, 1, 1, 1)
    return network


def test_the_best_weights_are_those_of_the_best_evaluation(tmp_path, network):
    evaluator = evaluator_of(network, SaveBest(tmp_path / "best.pt", network))
    saved = {}
    for epoch, threshold in enumerate([0.8, 0.3, 0.5, 0.3, 0.1], start=1):
        network.bias.copy_(torch.tensor([threshold, 0.0]))
        evaluator.run(global_epoch=epoch)
        saved[epoch] = round(torch.load(tmp_path / "best.pt", weights_only=True)["bias"][0].item(), 3)
    assert saved == {1: 0.8, 2: 0.3, 3: 0.3, 4: 0.3, 5: 0.1}


def test_a_run_that_goes_on_keeps_the_best_of_its_first_part(tmp_path, network):
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
