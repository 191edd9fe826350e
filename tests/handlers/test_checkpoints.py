import logging
import os
import random
import signal
import threading
import zipfile
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

from monai_spct.data import PairedLoader, SliceDataset
from monai_spct.engines import SemiSupervisedTrainer
from monai_spct.files.checkpoints import newest_checkpoint
from monai_spct.functional import geometric_growth, sigmoid_rampup
from monai_spct.handlers import (
    EMATeacher,
    SaveBest,
    SaveCheckpoints,
    SaveHistory,
    Terminated,
    read_history,
    save_atomically,
)
from monai_spct.handlers.finite_loss import _Losses
from monai_spct.inferers import SemiSupervisedInferer
from monai_spct.networks import ENet, build_ensemble, frozen_copy
from monai_spct.objectives import Consistency, Objective, SelfPacedCoTraining, Supervised, WeightedTerm
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
        # torch itself says where in its archive it is
        with pytest.raises(OSError, match=r"^\[Errno \d+\] .*/model\.pt'$"):
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

    def __init__(self, folder, *, resume=False, max_epochs=EPOCHS, sigterm_at=None, **settings) -> None:
        transform = RandomQuarterTurn(seed=0)
        self.students = build_ensemble(small_enet, num_views=2, seed=0)
        self.teachers = frozen_copy(self.students)
        optimizer = torch.optim.RAdam(self.students.parameters(), lr=0.01)
        total = ITERATIONS * EPOCHS
        schedule = WarmupCosineSchedule(optimizer, warmup_steps=3, t_total=total, warmup_multiplier=1 / 300)
        ema = EMATeacher(self.teachers, self.students)
        history = SaveHistory(folder / "history.csv", optimizer=optimizer)
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
        SaveCheckpoints(folder, self.teachers, objects, resume=resume).attach(self.trainer)


def sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


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
    assert sorted(last) == ["ema", "history", "transform", "optimizer", "run", "schedule", "students", "teachers"]
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
    assert sorted(os.listdir(tmp_path)) == ["history.csv", "last.pt", "model.pt"]  # noqa: PTH208


# Asked to end


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> tuple[Run, Path]:
    folder = tmp_path_factory.mktemp("whole")
    torch.manual_seed(0)
    run = Run(folder)
    run.trainer.run()
    return run, folder


@pytest.mark.parametrize(
    ("when", "done"),
    [
        (Events.EPOCH_STARTED(once=1), 1),
        (Events.ITERATION_STARTED(once=3), 3),
        (Events.ITERATION_COMPLETED(once=3), 3),
        (Events.ITERATION_COMPLETED(once=4), 4),  # the last one of its epoch
        (Events.EPOCH_COMPLETED(once=2), 4),  # in place of a validation
        (Events.EPOCH_COMPLETED(once=EPOCHS), ITERATIONS * EPOCHS),
    ],
    ids=["at the very start", "at the start of an iteration", "amid an epoch", "after the last iteration of an epoch",
         "before an epoch is closed", "before the last epoch is closed"],
)  # fmt: skip
def test_a_run_that_is_asked_to_end_loses_nothing(tmp_path, uninterrupted, when, done):
    whole, folder = uninterrupted
    before = signal.getsignal(signal.SIGTERM)
    torch.manual_seed(0)
    first = Run(tmp_path, sigterm_at=when)
    with pytest.raises(Terminated, match=f"ended by SIGTERM: the state after iteration {done}, in epoch") as ended:
        first.trainer.run()
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before
    assert torch.load(tmp_path / "last.pt", weights_only=True)["run"]["iteration"] == done
    torch.manual_seed(99)
    second = Run(tmp_path, resume=True)
    second.trainer.run()
    assert second.log == whole.log[done:]
    for name in ("last.pt", "model.pt"):
        assert_same(*(torch.load(path / name, weights_only=True) for path in (folder, tmp_path)))
    expected, got = ([{**row, "seconds": 0} for row in read_history(p / "history.csv")] for p in (folder, tmp_path))
    assert got == expected


@pytest.mark.filterwarnings("ignore:Detected call of")  # torch's, of the learning rate that goes on between the steps
def test_gradients_that_wait_for_those_of_the_next_batch_are_not_lost(tmp_path):
    run = Run(tmp_path, sigterm_at=Events.ITERATION_COMPLETED(once=3), accumulation_steps=2)
    with pytest.raises(Terminated, match="the state after iteration 4"):
        run.trainer.run()


def test_a_run_that_is_asked_when_all_is_done_just_ends(tmp_path):
    run = Run(tmp_path, max_epochs=1)
    run.trainer.add_event_handler(Events.EPOCH_COMPLETED, sigterm)  # after the checkpoint
    run.trainer.run()
    assert torch.load(tmp_path / "last.pt", weights_only=True)["run"]["epoch"] == 1


def test_more_signals_change_nothing(tmp_path):
    run = Run(tmp_path, sigterm_at=Events.ITERATION_COMPLETED(once=1))
    run.trainer.add_event_handler(Events.INTERRUPT, sigterm)
    with pytest.raises(Terminated):
        run.trainer.run()
    assert newest_checkpoint(tmp_path)[1]["run"]["iteration"] == 1


def test_a_loader_that_cannot_start_amid_an_epoch_starts_at_its_beginning(tmp_path):
    run = Run(tmp_path, sigterm_at=Events.ITERATION_COMPLETED(once=3))
    run.trainer.data_loader = list(run.trainer.data_loader)
    with pytest.raises(Terminated, match="ended by SIGTERM: the run goes on from the beginning of epoch 2"):
        run.trainer.run()
    assert newest_checkpoint(tmp_path)[1]["run"]["iteration"] == ITERATIONS


def test_an_error_leaves_the_signal_as_it_was(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    run = Run(tmp_path)
    run.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=3), crash)
    with pytest.raises(KeyError):
        run.trainer.run()
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_that_was_ignored_stays_so(tmp_path):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        Run(tmp_path, max_epochs=1, sigterm_at=Events.ITERATION_COMPLETED(once=1)).trainer.run()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_run_may_be_in_another_thread(tmp_path):
    run = Run(tmp_path, max_epochs=1)
    thread = threading.Thread(target=run.trainer.run)
    thread.start()
    thread.join()
    assert newest_checkpoint(tmp_path)[1]["run"]["epoch"] == 1


def test_weights_that_are_not_numbers_are_not_saved_by_a_run_that_is_asked_to_end(tmp_path, monkeypatch):
    """As on a GPU, where losses are looked at later than they are computed."""
    monkeypatch.setattr("monai_spct.handlers.finite_loss.StopAtNonFiniteLoss.__call__", late)
    run = Run(tmp_path, sigterm_at=Events.ITERATION_COMPLETED(once=3))
    run.trainer.add_event_handler(
        Events.ITERATION_STARTED(once=3), lambda: next(run.students.parameters()).data.fill_(torch.nan)
    )
    with pytest.raises(FloatingPointError, match="not finite in epoch 2, iteration 3"):
        run.trainer.run()
    assert newest_checkpoint(tmp_path)[1]["run"]["iteration"] == ITERATIONS


def late(handler, engine) -> None:
    losses = torch.stack([engine.state.output["loss"].detach()])
    handler.pending.append(_Losses(engine.state.epoch, engine.state.iteration, ["loss"], losses, None))


# Where to go on from


def plain_run(
    folder, module: nn.Module, *, max_epochs: int, resume: bool, objects=None, kept_epochs=(), num_checkpoints=2
) -> Engine:
    def update(engine, batch):  # noqa: ARG001
        with torch.no_grad():
            module.weight += 1

    trainer = Engine(update)
    objects = {"module": module} if objects is None else objects
    kept = {"kept_epochs": kept_epochs, "num_checkpoints": num_checkpoints}
    SaveCheckpoints(folder, module, objects, resume=resume, **kept).attach(trainer)
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


def test_a_finished_run_says_so_and_does_nothing(tmp_path, caplog):
    plain_run(tmp_path, one_weight(), max_epochs=2, resume=False)
    module, before = one_weight(), (tmp_path / "last.pt").read_bytes()
    with caplog.at_level(logging.INFO, logger="monai_spct"):
        plain_run(tmp_path, module, max_epochs=2, resume=True)
    assert f"nothing to do: {tmp_path / 'last.pt'} is of a finished run of 2 epochs." in caplog.text
    assert module.weight.item() == 4.0
    assert (tmp_path / "last.pt").read_bytes() == before


def test_a_run_with_more_epochs_is_refused(tmp_path):
    plain_run(tmp_path, one_weight(), max_epochs=2, resume=False)
    module = one_weight()
    with pytest.raises(ValueError, match="has 2 epochs, and `max_epochs` is 1"):
        plain_run(tmp_path, module, max_epochs=1, resume=True)
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


def test_a_file_of_another_version_is_refused(tmp_path):
    module = one_weight()
    save_atomically({"module": module.state_dict(), "run": {"epoch": 1, "epoch_length": 2}}, tmp_path / "last.pt")
    with pytest.raises(ValueError, match=r"last\.pt was written by another version of monai_spct"):
        plain_run(tmp_path, module, max_epochs=2, resume=True)


def test_weights_in_place_of_a_state_are_refused(tmp_path):
    module = one_weight()
    save_atomically(torch.ones(3), tmp_path / "last.pt")
    with pytest.raises(ValueError, match=r"last\.pt must hold a dictionary by name, got a Tensor"):
        plain_run(tmp_path, module, max_epochs=2, resume=True)


# What is drawn


def drawing(folder, *, resume: bool, max_epochs: int) -> list[tuple[float, ...]]:
    drawn = []

    def update(engine, batch):  # noqa: ARG001
        normal = np.random.normal()  # noqa: NPY002 - of which every second one is kept for later, as by Python's
        drawn.append((random.random(), random.gauss(0, 1), normal, torch.rand(()).item()))

    trainer = Engine(update)
    SaveCheckpoints(folder, one_weight(), {}, resume=resume).attach(trainer)
    trainer.run(range(3), max_epochs=max_epochs)
    return drawn


def test_all_that_draw_from_global_generators_go_on_with_their_draws(tmp_path):
    expected = drawing(tmp_path / "whole", resume=False, max_epochs=4)
    assert len(set(expected)) == 12
    for generator in (random.seed, np.random.seed, torch.manual_seed):
        generator(3)
    expected = drawing(tmp_path / "whole", resume=False, max_epochs=3)
    for generator in (random.seed, np.random.seed, torch.manual_seed):
        generator(3)
    first = drawing(tmp_path / "parts", resume=False, max_epochs=1)
    for generator in (random.seed, np.random.seed, torch.manual_seed):
        generator(4)
    assert first + drawing(tmp_path / "parts", resume=True, max_epochs=3) == expected


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


# More than one checkpoint


def epochs_in(folder) -> dict[str, int]:
    return {path.name: torch.load(path, weights_only=True)["run"]["epoch"] for path in sorted(folder.glob("last*.pt"))}


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (1, {"last.pt": 5}),
        (2, {"last.pt": 5, "last_1.pt": 4}),
        (4, {"last.pt": 5, "last_1.pt": 4, "last_2.pt": 3, "last_3.pt": 2}),
        (9, {"last.pt": 5, "last_1.pt": 4, "last_2.pt": 3, "last_3.pt": 2, "last_4.pt": 1}),
    ],
)
def test_the_last_checkpoints_stay(tmp_path, monkeypatch, keep, expected, links):
    if not links:
        monkeypatch.setattr(os, "link", refuse)
    plain_run(tmp_path, one_weight(), max_epochs=5, resume=False, num_checkpoints=keep)
    assert epochs_in(tmp_path) == dict(sorted(expected.items()))
    assert list(tmp_path.glob(".*")) == []


def refuse(*_) -> None:
    raise OSError("a file system that has no such thing")


def test_fewer_may_stay_than_before(tmp_path):
    plain_run(tmp_path, one_weight(), max_epochs=5, resume=False, num_checkpoints=4)
    plain_run(tmp_path, one_weight(), max_epochs=6, resume=True, num_checkpoints=2)
    assert epochs_in(tmp_path) == {"last.pt": 6, "last_1.pt": 5}


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
@pytest.mark.parametrize("keep", [2, 3])
def test_wherever_the_saving_breaks_off_a_whole_checkpoint_is_there(tmp_path, monkeypatch, keep, links):
    """Each call that changes the folder is the last one, in turn."""
    if not links:
        monkeypatch.setattr(os, "link", refuse)
    for step in range(20):
        folder = tmp_path / str(step)
        plain_run(folder, one_weight(), max_epochs=3, resume=False, num_checkpoints=keep)
        left = [step]

        def stop_at(function, left=left):
            def call(*args, **kwargs):
                left[0] -= 1
                if left[0] < 0:
                    raise KeyError("the machine is gone")
                return function(*args, **kwargs)

            return call

        module, path = one_weight(), type(folder)
        with monkeypatch.context() as patched:
            for owner, name in ((os, "link"), (os, "fsync"), (path, "replace"), (path, "unlink"), (torch, "save")):
                patched.setattr(owner, name, stop_at(getattr(owner, name)))
            try:
                plain_run(folder, module, max_epochs=4, resume=True, num_checkpoints=keep)
            except KeyError:
                left = None
        if left is not None:  # there are fewer calls
            break
        assert newest_checkpoint(folder)[1]["run"]["epoch"] in (3, 4)
        plain_run(folder, one_weight(), max_epochs=5, resume=True, num_checkpoints=keep)
        assert weights_in(folder) == {"model.pt": 10.0}
        assert list(epochs_in(folder).values())[:2] == [5, 4]
        assert list(folder.glob(".*")) == []
    assert 8 < step < 19


@pytest.mark.parametrize("number", [0, -1, 1.5], ids=repr)
def test_a_number_of_checkpoints_that_cannot_be_is_refused(tmp_path, number):
    with pytest.raises(ValueError, match="`num_checkpoints` must be a whole number of at least 1, got"):
        SaveCheckpoints(tmp_path, one_weight(), {}, num_checkpoints=number)


# Another run in the same folder


def test_a_run_that_starts_anew_over_another_says_so_and_leaves_nothing_of_it(tmp_path, caplog):
    plain_run(tmp_path, one_weight(), max_epochs=5, resume=False, num_checkpoints=3)
    assert "anew" not in caplog.text
    plain_run(tmp_path, one_weight(), max_epochs=1, resume=False, num_checkpoints=3)
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert f"starts anew and will write over a run of 5 epochs in {tmp_path}" in warning.message
    assert "`--resume true`" in warning.message
    assert epochs_in(tmp_path) == {"last.pt": 1}


def test_a_run_that_starts_anew_leaves_the_other_alone_until_it_saves(tmp_path):
    plain_run(tmp_path, one_weight(), max_epochs=3, resume=False)
    trainer = Engine(lambda *_: crash())
    SaveCheckpoints(tmp_path, one_weight(), {"module": one_weight()}).attach(trainer)
    with pytest.raises(KeyError):
        trainer.run([0, 0], max_epochs=2)
    assert epochs_in(tmp_path) == {"last.pt": 3, "last_1.pt": 2}


def test_a_run_that_starts_anew_over_something_else_says_so_too(tmp_path, caplog):
    (tmp_path / "last.pt").write_text("something")
    plain_run(tmp_path, one_weight(), max_epochs=1, resume=False)
    assert f"will write over a run in {tmp_path}" in caplog.text


# Damage


def flipped(data: bytes) -> bytes:
    """One bit of the weight is another."""
    place = data.index(np.float32(10).tobytes(), data.index(b"data/0"))
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGES = {
    "empty": lambda data: b"",  # noqa: ARG005
    "first half": lambda data: data[: len(data) // 2],
    "all but the last byte": lambda data: data[:-1],
    "second half": lambda data: data[len(data) // 2 :],
    "zeros": lambda data: bytes(len(data)),
    "zeros at the end": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "one bit": flipped,
    "text": lambda data: b"something else\n",  # noqa: ARG005
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(tmp_path, caplog, damage):
    plain_run(tmp_path, one_weight(), max_epochs=5, resume=False)
    path = tmp_path / "last.pt"
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.INFO, "monai_spct"):
        module = one_weight()
        trainer = plain_run(tmp_path, module, max_epochs=6, resume=True)
    assert f"{path} is not a checkpoint, or is damaged: " in caplog.text
    assert f"resuming after epoch 4 of 6 from {tmp_path / 'last_1.pt'}" in caplog.text
    assert (module.weight.item(), trainer.state.iteration) == (12.0, 12)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_run_never_starts_anew_where_all_checkpoints_are_damaged(tmp_path, damage):
    plain_run(tmp_path, one_weight(), max_epochs=5, resume=False, num_checkpoints=1)
    (tmp_path / "last_1.pt").write_bytes(b"")
    path = tmp_path / "last.pt"
    path.write_bytes(damage(path.read_bytes()))
    module = one_weight()
    with pytest.raises(ValueError, match=r"last\.pt is not a checkpoint, or is damaged.*; .*last_1\.pt is not"):
        plain_run(tmp_path, module, max_epochs=6, resume=True)
    assert module.weight.item() == 0


def test_another_archive_is_damage(tmp_path):
    with zipfile.ZipFile(tmp_path / "last.pt", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(ValueError, match=r"no checkpoint is whole: .*last\.pt is not a checkpoint, or is damaged"):
        newest_checkpoint(tmp_path)


def test_a_lost_last_checkpoint_is_no_loss_of_the_one_before(tmp_path):
    plain_run(tmp_path, one_weight(), max_epochs=3, resume=False)
    (tmp_path / "last.pt").unlink()
    assert plain_run(tmp_path, one_weight(), max_epochs=4, resume=True).state.iteration == 8


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
