"""The plain loop agrees with the project, and the benchmarks run. What they measure is no test."""

import json
import os
import sys
import time

import pytest
import torch
from ignite.engine import Events
from monai.utils import set_determinism

from monai_spct.data import write_acdc_phantom
from monai_spct.engines import SemiSupervisedTrainer
from monai_spct.handlers import EMATeacher
from monai_spct.inferers import SemiSupervisedInferer
from monai_spct.networks import ENet, build_ensemble, frozen_copy
from monai_spct.objectives import Consistency, Objective, SelfPacedCoTraining, Supervised, WeightedTerm
from monai_spct.transforms import RandomQuarterTurn
from tests.benchmarks import growth, inference, kernels, memory, soak, step, volumes
from tests.benchmarks.contenders import DECAY, LOSS, Plain, Task, plain_copy
from tests.bundles.little import ROOT
from tests.forks import forked


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "acdc"
    return str(write_acdc_phantom(folder, patients=8, size=(48, 56), spacing=(2.8, 3.0)))


@pytest.fixture(autouse=True)
def no_determinism_left():
    yield
    set_determinism(None)


@pytest.mark.parametrize("training", [True, False])
def test_the_plain_enet_is_the_enet(training):
    enet = ENet(dropout=(0.0, 0.0)).double().train(training)
    plain = plain_copy(enet).train(training)
    for module in plain.modules():
        if isinstance(module, torch.nn.Dropout2d):
            module.p = 0.0
    images = torch.rand(2, 1, 48, 40, dtype=torch.double)
    torch.testing.assert_close(enet(images), plain(images), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("views", [2, 3])
def test_the_fast_path_and_the_plain_path_agree(views):
    """Losses, students and teachers after some iterations with dropout, in double precision."""
    generator = torch.Generator().manual_seed(0)
    batches = [
        {
            "image": torch.rand(4, 1, 32, 32, generator=generator, dtype=torch.double),
            "label": torch.randint(4, (4, 1, 32, 32), generator=generator),
            "unlabeled": torch.rand(6, 1, 32, 32, generator=generator, dtype=torch.double),
        }
        for _ in range(4)
    ]
    students = build_ensemble(ENet, num_views=views, seed=0).double()
    plain = Plain(students.networks, seed=7)
    students = students.to(memory_format=torch.channels_last)
    teachers = frozen_copy(students)
    trainer = SemiSupervisedTrainer(
        device="cpu",
        max_epochs=1,
        train_data_loader=batches,
        network=students,
        optimizer=torch.optim.RAdam(students.parameters(), lr=0.01, foreach=True),
        objective=Objective(
            supervised=Supervised(),
            co_training=WeightedTerm(
                SelfPacedCoTraining(LOSS["gamma"], alpha=LOSS["alpha"], eps=LOSS["eps"]), LOSS["co_training_weight"]
            ),
            consistency=WeightedTerm(Consistency(), LOSS["consistency_weight"]),
        ),
        inferer=SemiSupervisedInferer(teachers=teachers, transform=RandomQuarterTurn(seed=7)),
        to_kwargs={"memory_format": torch.channels_last},
        train_handlers=[EMATeacher(teachers, students, decay=DECAY)],
    )
    losses = []
    trainer.add_event_handler(Events.ITERATION_STARTED, lambda engine: torch.manual_seed(engine.state.iteration))
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output["loss"]))
    trainer.run()
    expected = []
    for number, batch in enumerate(batches, start=1):
        torch.manual_seed(number)
        expected.append(plain.iteration(batch, 0.01))
    torch.testing.assert_close(torch.stack(losses), torch.stack(expected), rtol=1e-6, atol=1e-9)
    for mine, theirs in ((students.networks, plain.students), (teachers.networks, plain.teachers)):
        for fast, slow in zip(mine, theirs, strict=True):
            for value, other in zip(fast.state_dict().values(), slow.state_dict().values(), strict=True):
                torch.testing.assert_close(value, other, rtol=1e-4, atol=1e-6)


def test_a_quick_run_of_the_step_benchmark(data, tmp_path):
    path = tmp_path / "step.json"
    options = ["--data", data, "--views", "2", "--size", "48", "--iterations", "5", "--warmup", "1"]
    step.main([*options, "--labeled", "2", "--unlabeled", "3", "--no-memory", "--output", str(path)])
    result = json.loads(path.read_text())
    assert {len(blocks) for blocks in result["blocks"].values()} == {4}
    assert result["task"]["data"] == "acdc"  # no path of a machine
    mine, plain = (torch.tensor(result["losses"][name]) for name in ("project", "reference"))
    torch.testing.assert_close(mine[:2], plain[:2], rtol=1e-3, atol=1e-3)  # later float32 has its way


def test_a_quick_run_of_the_growth_benchmark(data, tmp_path):
    task = Task(data, size=32, labeled=2, unlabeled=3)
    result = {"growth": {"networks K": [(2, growth.seconds(task, 1))], "patients": growth.patients(task, [4], 1)}}
    growth.plot(result, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 1000


def test_a_quick_run_of_the_inference_benchmark(tmp_path):
    result = inference.main(["--size", "32", "24", "3", "--repeats", "1", "--output", str(tmp_path / "inference.json")])
    assert all(seconds > 0 for seconds in result["seconds"].values())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the books of Linux")
def test_a_quick_run_of_the_benchmark_of_volumes(tmp_path, monkeypatch):
    pytest.importorskip("h5py")
    forks = lambda row, given: forked(["-m", "tests.benchmarks.volumes", "--child", row, json.dumps(given)], ROOT)  # noqa: E731
    monkeypatch.setattr(volumes, "measure", lambda *row: json.loads(forks(*row).stdout.splitlines()[-1]))
    options = ["--patch", "32", "32", "16", "--size", "40", "40", "20", "--iterations", "2"]
    rows = volumes.main(["--folder", str(tmp_path), *options, "--output", str(tmp_path / "volumes.json")])["rows"]
    assert list(rows) == ["plain", "labels", "default", "predict"]
    assert all(row["seconds"] > 0 and 100 < row["before_mb"] < row["peak_mb"] for row in rows.values())


def in_a_fork(what, **options):
    """Which is sooner there than the process that the benchmark starts."""
    words = ["--child", what, "--started", time.time(), "--options", json.dumps(options)]
    done = forked(["-m", "tests.benchmarks.memory", *words], ROOT)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the books of Linux")
def test_a_quick_run_of_the_memory_benchmark(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "measure", in_a_fork)
    options = ["--volumes", "2", "--size", "48", "--slices", "4", "--image-size", "32", "--rows", "data"]
    result = memory.main(["--folder", str(tmp_path), *options, "--output", str(tmp_path / "memory.json")])
    assert json.loads((tmp_path / "memory.json").read_text()) == result
    assert all(100 < row["before_mb"] <= row["peak_mb"] for row in result["rows"].values())
    warm = result["rows"]["data, 2 volumes, warm"]
    # two images in float32 and one label in uint8, each with a header and a checksum
    assert warm["disk_mb"] == pytest.approx(32 * 32 * 4 * (2 * 4 + 1) / 1e6 + 3 * (128 + 4) / 1e6)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the books of Linux")
def test_a_quick_run_of_the_soak(data, tmp_path):
    before = soak.family(os.getpid())
    output, options = tmp_path / "results" / "soak.json", ["--minutes", "0.07", "--every", "0.5", "--data", data]
    soak.main(["--folder", str(tmp_path), *options, "--num-workers", "1", "--output", str(output)])
    result = json.loads(output.read_text())
    samples = {name: torch.tensor(values) for name, values in result["samples"].items()}
    assert len(samples["minutes"]) > 3
    assert max(samples["processes"]) == 3  # a worker for each of the two datasets
    assert all(samples["epochs"].diff() >= 0)
    assert 1 <= samples["epochs"][-1] <= len(result["epochs"]["seconds"]) == result["summary"]["epochs"]
    assert all(100 < value < 5000 for value in samples["rss_mb"])
    assert all(samples["all_handles"] >= samples["handles"])
    assert output.with_suffix(".png").stat().st_size > 1000
    assert soak.family(os.getpid()) == before  # nothing goes on


def test_slopes_come_with_their_errors():
    assert soak.slope([0, 1, 2, 3], [5, 7, 9, 11]) == [2, 0]
    assert soak.slope([0, 1, 2], [0, 3, 0]) == [0, 1.732]


def test_a_quick_run_of_the_profile(data):
    result = kernels.main(["project", "--data", data, "--size", "48", "--iterations", "2", "--warmup", "1"])
    assert any("conv" in kernel["name"] for kernel in result["kernels"])
