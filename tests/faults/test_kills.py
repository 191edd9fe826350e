"""A training that is killed, at whatever moment, ends as one that was not: with real signals."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from monai_spct.data import write_acdc_phantom
from monai_spct.handlers import read_history
from tests.bundles.little import BACKBONE, LITTLE, ROOT, environment, handler, typed
from tests.bundles.states import same
from tests.faults.runs_to_kill import TRAIN
from tests.forks import forks, two_forked

EVERY = pytest.mark.every_fault
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells how long others worked")

EPOCHS, ITERATIONS = 3, 4
CURVES, PICTURES = handler("SaveCurves"), handler("TensorBoardPictures", "validate")
SETTINGS = {
    **LITTLE,
    **BACKBONE,
    "num_validation": 1,
    "num_test": 1,
    "val_interval": 1,
    "log_interval": 1,
    "epoch_length": ITERATIONS,
    "max_epochs": EPOCHS,
    "kept_epochs": [2],
    f"{CURVES}#_disabled_": True,  # drawing takes most of the time of so short a run
    f"{PICTURES}#max_pictures": 1,
    f"{PICTURES}#slices": 1,
}
SEED = 20261128


@dataclass
class Ended:
    """How a training ended, how many seconds it worked, and what it said."""

    status: int
    seconds: float
    log: str


class Runs:
    """Where trainings go, what an uninterrupted one left, and how long it worked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = write_acdc_phantom(folder / "data", patients=4, size=(40, 44), spacing=(3.2, 3.5), slices=(4, 5))
        self.number = 0
        self.whole = self.new()
        ended = self.finish(self.whole, resume=False)
        self.seconds = ended.seconds
        assert ended.status == 0, ended.log

    def new(self) -> Path:
        self.number += 1
        return self.folder / f"run_{self.number:02d}"

    def start(self, output: Path, *, resume: bool, sigterm_at: list[Any] | None = None) -> int:
        where = {"dataset_dir": str(self.data), "cache_dir": str(output / "cache"), "output_dir": str(output)}
        words = ["-m", "tests.faults.runs_to_kill", json.dumps({**SETTINGS, **where, "resume": resume})]
        self.log = output.with_suffix(".log")
        return forks().start([*words, json.dumps(sigterm_at)], cwd=ROOT, out=self.log, err=self.log)

    def wait(self, process: int) -> Ended:
        return Ended(*forks().wait(process), self.log.read_text())

    def finish(self, output: Path, *, resume: bool = True, sigterm_at: list[Any] | None = None) -> Ended:
        return self.wait(self.start(output, resume=resume, sigterm_at=sigterm_at))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Runs:
    return Runs(tmp_path_factory.mktemp("kills"))


# What has to be the same


def states(output: Path) -> dict[str, Any]:
    found = {}
    for path in (output / "models").glob("*.pt"):
        if path.stem in ("last", "best", "model", "epoch_002"):
            found[path.name] = torch.load(path, weights_only=True)
    found["last.pt"]["run"].pop("settings")  # of a command line, which one run alone has
    for row in found["last.pt"]["history"]["rows"]:
        row.pop("seconds")
    return found


def curves(output: Path) -> dict[str, list[Any]]:
    events = EventAccumulator(str(output / "eval"), size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    tags = events.Tags()
    found = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags["scalars"] if tag != "seconds"}
    return found | {tag: [(e.step, e.encoded_image_string) for e in events.Images(tag)] for tag in tags["images"]}


def rows(output: Path) -> list[dict[str, float]]:
    return [{**row, "seconds": 0.0} for row in read_history(output / "eval" / "history.csv")]


def assert_as_uninterrupted(runs: Runs, output: Path) -> None:
    expected, found = states(runs.whole), states(output)
    assert sorted(found) == sorted(expected) == ["best.pt", "epoch_002.pt", "last.pt", "model.pt"]
    for name, state in expected.items():
        assert [
            key for key in state.keys() | found[name].keys() if not same(state.get(key), found[name].get(key))
        ] == []
    assert rows(output) == rows(runs.whole)
    assert curves(output) == curves(runs.whole)
    assert list((output / "models").glob(".*")) == []


def iterations_saved(output: Path) -> int:
    try:
        return int(torch.load(output / "models" / "last.pt", weights_only=True)["run"]["iteration"])
    except FileNotFoundError:
        return 0


def test_the_uninterrupted_run_is_what_it_should_be(runs):
    assert {tag: len(points) for tag, points in curves(runs.whole).items()}["loss"] == EPOCHS
    assert [row["epoch"] for row in rows(runs.whole)] == [1, 2, 3]


def assert_gone_on(runs: Runs, output: Path, ended: Ended) -> None:
    if ended.status != 0:
        ended = runs.finish(output)
        assert ended.status == 0, ended.log
    assert_as_uninterrupted(runs, output)


# Killed


def worked(process: int) -> float:
    """The seconds that a process has worked, which do not depend on what else the machine does."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return math.inf
    return math.inf if fields[0] == "Z" else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def let_it_work(process: int, seconds: float) -> None:
    while worked(process) < seconds:
        time.sleep(0.002)


def killed(process: int, runs: Runs, number: int) -> Ended:
    with contextlib.suppress(ProcessLookupError):  # it is done
        os.kill(process, number)
    return runs.wait(process)


@pytest.mark.parametrize("number", [*range(3), *(pytest.param(n, marks=EVERY) for n in range(3, 15))])
def test_killed_at_any_moment_it_goes_on_to_the_same_end(runs, number):
    draws = random.Random(SEED + number)
    output, seen = runs.new(), []
    for attempt in range(draws.choice([1, 1, 2])):  # some are killed twice
        delay = draws.uniform(0, runs.seconds)
        process = runs.start(output, resume=attempt > 0 or draws.random() < 0.5)
        let_it_work(process, delay)
        ended = killed(process, runs, signal.SIGKILL)
        seen.append((round(delay, 2), ended.status, iterations_saved(output)))
        if ended.status == 0:
            break
        assert ended.status == -signal.SIGKILL, ended.log
    print(f"killed after (seconds of work, status, iterations saved): {seen}")  # noqa: T201
    assert_gone_on(runs, output, ended)


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=EVERY) for n in range(1, 4))])
def test_killed_while_it_writes_its_models_it_goes_on_to_the_same_end(runs, number):
    draws = random.Random(SEED - number)
    output, wanted, parts = runs.new(), draws.randint(1, 10), set()
    process = runs.start(output, resume=False)
    models = output / "models"
    while len(parts) < wanted:  # `best.pt`, the weights and the checkpoint of each epoch
        with contextlib.suppress(FileNotFoundError):
            parts |= {name for name in os.listdir(models) if name.endswith(".part")}  # noqa: PTH208
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            break
        time.sleep(0.0002)
    ended = killed(process, runs, signal.SIGKILL)
    print(f"killed at part {len(parts)}, status {ended.status}, {iterations_saved(output)} iterations")  # noqa: T201
    assert_gone_on(runs, output, ended)


# Asked to end


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=EVERY) for n in (1, 2))])
def test_asked_to_end_at_any_moment_it_goes_on_to_the_same_end(runs, number):
    draws = random.Random(SEED * 2 + number)
    output = runs.new()
    delay = draws.uniform(0, runs.seconds)
    process = runs.start(output, resume=False)
    let_it_work(process, delay)
    ended = killed(process, runs, signal.SIGTERM)
    print(f"asked after {delay:.2f} s, status {ended.status}, {iterations_saved(output)} iterations")  # noqa: T201
    assert ended.status in (0, 128 + signal.SIGTERM, -signal.SIGTERM), ended.log
    assert_gone_on(runs, output, ended)


@pytest.mark.parametrize(
    ("engine", "count", "saved"),
    [
        pytest.param("train#trainer", 1, 2, id="first iteration", marks=EVERY),
        pytest.param("train#trainer", 6, 7, id="amid an epoch"),
        pytest.param("train#trainer", 8, 8, id="last iteration of an epoch"),
        pytest.param("validate#evaluator", 1, 4, id="in a validation", marks=EVERY),
        pytest.param("validate#evaluator", 6, 12, id="in the last validation"),
    ],
)
def test_asked_to_end_it_loses_nothing(runs, engine, count, saved):
    """The signal comes after the handlers of an iteration, so that the next one is done too."""
    output = runs.new()
    ended = runs.finish(output, resume=False, sigterm_at=[engine, count])
    assert ended.status == 128 + signal.SIGTERM, ended.log
    assert (
        f"ended by SIGTERM: the state after iteration {saved}, in epoch {(saved - 1) // ITERATIONS + 1}," in ended.log
    )
    assert "weights:" not in ended.log  # what is said of a run that is finished
    assert iterations_saved(output) == saved
    ended = runs.finish(output)
    assert ended.status == 0, ended.log
    assert_as_uninterrupted(runs, output)


@EVERY
def test_asked_again_and_again_it_arrives(runs):
    output, ended = runs.new(), None
    for _ in range(EPOCHS * ITERATIONS):
        ended = runs.finish(output, sigterm_at=["train#trainer", 3])
        if ended.status == 0:
            break
        assert ended.status == 128 + signal.SIGTERM, ended.log
    assert ended.status == 0
    assert_as_uninterrupted(runs, output)


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no Gloo")
def test_two_processes_of_which_one_is_asked_end_together_and_go_on_together(runs):
    output = runs.folder / "two"
    first, second = two_forked(["-m", "tests.faults.two_to_end", runs.data, output])
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert [(output / f"statuses_{rank}.txt").read_text() for rank in (0, 1)] == ["[0, 143, 0]"] * 2
    assert "the state after iteration 10, in epoch 1," in first.stderr
    expected, found = states(output / "whole"), states(output / "parts")
    assert [name for name in expected if not same(expected[name], found[name])] == []
    assert rows(output / "parts") == rows(output / "whole")
    assert curves(output / "parts") == curves(output / "whole")


# As one types it


def test_killed_on_the_command_line_it_goes_on_to_the_same_end(runs):
    output = runs.new()
    drawing = {f"{CURVES}#_disabled_": False, f"{CURVES}#interval": EPOCHS}
    settings = {**SETTINGS, **drawing, "dataset_dir": runs.data, "output_dir": output, "cache_dir": output / "cache"}
    command = [sys.executable, *typed("training", TRAIN, **settings, resume="true")]
    env = environment(CUDA_VISIBLE_DEVICES="")
    with (runs.folder / "typed.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        while iterations_saved(output) < ITERATIONS and process.poll() is None:
            time.sleep(0.05)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert 0 < iterations_saved(output) < EPOCHS * ITERATIONS
        subprocess.run(command, env=env, stdout=log, stderr=log, check=True)
    assert_as_uninterrupted(runs, output)
    assert (output / "eval" / "curves.png").is_file()
