"""Several processes train one set of networks: two of them, on the CPU."""

import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from monai.bundle import ConfigParser, ConfigWorkflow

from monai_spct.data import write_spleen_phantom
from monai_spct.handlers import read_history
from tests.bundles.in_two_processes import MORE
from tests.bundles.little import BACKBONE, LITTLE, config, failure, predicting, torchrun, training, typed, written
from tests.bundles.states import same
from tests.forks import two_forked

pytestmark = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no Gloo")

TRAIN, PHANTOM, MULTI_GPU = (config(name, "spleen") for name in ("train", "phantom", "multi_gpu_train"))
SIZES = {"patients": 8, "size": [48, 52], "spacing": [6.7, 7.0], "slices": [4, 5]}
METHODS = ("method", "dan", "labeled_only", "ua_mt", "uneven", "resumed")
EACH = pytest.mark.parametrize("name", METHODS)


# As users type it: the method on a phantom, three cases to validate


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    output = tmp_path_factory.mktemp("together") / "output"
    sizes = {f"dataset_dir#{key}": value for key, value in SIZES.items()}
    settings = {**LITTLE, **BACKBONE, **MORE, **sizes, "output_dir": output, "num_validation": 3}
    words = typed("training", TRAIN, PHANTOM, MULTI_GPU, **settings)
    return output, torchrun(*words)


def single(together, output: Path, **settings: object) -> ConfigWorkflow:
    """One process on the same data, which writes elsewhere."""
    return training(together[0] / "data", output, bundle="spleen", **{**MORE, "num_validation": 3, **settings})


def test_two_processes_train_to_their_end(together):
    assert together[1].returncode == 0, together[1].stderr
    assert "Traceback" not in together[1].stderr


def test_one_of_them_writes_and_speaks(together):
    output, done = together
    files = {name for name in written(output) if not name.startswith(("data/", "cache/"))}
    events = {name for name in files if "tfevents" in name}
    models = {f"models/{name}" for name in ("best.pt", "last.pt", "last_1.pt", "model.json", "model.pt")}
    records = {f"eval/{name}" for name in ("curves.png", "history.csv")}
    assert files - events == {"index.html", "trained.json", *records, *models}
    assert len({name.split(".")[-2] for name in events}) == 1  # the process
    assert done.stdout.count("\nvalidation: 3 patients, 3 cases\n") == 1
    best = re.findall("Got new best metric of mean_dsc: .*", done.stdout)
    assert 1 <= len(best) == len(set(best))
    assert len(set(re.findall(r"training: 100%\|.*?\| 4/4 .*", done.stderr))) == 1
    assert len(re.findall(r"loading labeled volumes: 100%", done.stderr)) == 1


def test_the_files_are_those_of_one_process(together, tmp_path):
    single(together, tmp_path, val_interval=1).run()
    for name in ("model.pt", "last.pt", "best.pt"):
        one, two = (torch.load(folder / "models" / name, weights_only=True) for folder in (tmp_path, together[0]))
        assert one.keys() == two.keys()
        for key in ("network", "teachers", "optimizer", "transform", "run"):
            assert one.get(key, {}).keys() == two.get(key, {}).keys()
    one, two = (read_history(folder / "eval" / "history.csv") for folder in (tmp_path, together[0]))
    assert [row.keys() for row in one] == [row.keys() for row in two]


def test_one_process_goes_on_where_two_ended(together, tmp_path):
    before = torch.load(together[0] / "models" / "last.pt", weights_only=True)
    (tmp_path / "models").mkdir()
    torch.save(before, tmp_path / "models" / "last.pt")
    single(together, tmp_path, resume=True, accept_changes=True, max_epochs=3).run()
    after = torch.load(tmp_path / "models" / "last.pt", weights_only=True)
    assert (before["run"]["epoch"], after["run"]["epoch"]) == (2, 3)
    assert not same(before["network"], after["network"])


def test_what_two_trained_is_evaluated_by_one(together, tmp_path):
    settings = {"ckpt_path": together[0] / "models" / "model.pt", "num_test": 1, "image_size": 40}
    predicting("evaluate", together[0] / "data", tmp_path, bundle="spleen", **settings).run()
    assert json.loads((tmp_path / "eval" / "summary.json").read_text())["mean"]["n_volumes"] == 1


# From within: see the other file


SCRIPT = Path(__file__).with_name("in_two_processes.py")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> tuple[Path, Path]:
    """The data, and a folder for results."""
    output = tmp_path_factory.mktemp("looked_into")
    return write_spleen_phantom(output / "data", **SIZES), output


@pytest.fixture(scope="module")
def killed(place) -> tuple[list[subprocess.CompletedProcess[str]], bytes]:
    """A run of which one process was killed, and its last checkpoint."""
    done = two_forked(["-m", "tests.bundles.in_two_processes", "killed", *place])
    return done, (place[1] / "resumed" / "models" / "last.pt").read_bytes()


@pytest.fixture(scope="module")
def looked_into(place, killed) -> tuple[Path, list[subprocess.CompletedProcess[str]]]:  # noqa: ARG001 - it is resumed
    return place[1], two_forked(["-m", "tests.bundles.in_two_processes", "look", *place])


@pytest.fixture(scope="module")
def seen(looked_into) -> dict[str, dict[str, list]]:
    """What each process saw, by run and name: a list with a digest for each iteration, of the first and the second."""
    output, done = looked_into
    assert (output / "seen.json").is_file(), "".join(one.stderr for one in done)
    return json.loads((output / "seen.json").read_text())


@EACH
def test_both_have_the_same_gradients_after_each_iteration_and_learn_from_other_images(seen, name):
    run = seen["runs"][name]
    first, second = run["gradients"]
    assert first == second
    assert len(set(first)) == len(first) == (2 if name == "resumed" else 4)
    assert not set(run["batch"][0]) & set(run["batch"][1])
    assert run["losses"][0] != run["losses"][1]


@EACH
def test_students_teachers_and_optimizer_are_the_same_in_both_after_each_iteration(seen, name):
    """Their running statistics too."""
    run = seen["runs"][name]
    parts = {"students", "optimizer"}
    parts |= {"discriminator"} if name == "dan" else set() if name == "labeled_only" else {"teachers"}
    assert parts == run.keys() & {"students", "optimizer", "teachers", "discriminator"}
    for part in parts:
        first, second = run[part]
        assert first == second, part
        assert len(set(first)) == len(first), part  # and they learn


@EACH
def test_each_draws_its_own_dropout_and_moves(seen, name):
    run = seen["runs"][name]
    assert "turns" in run or name in ("dan", "labeled_only")
    for draws in ("dropout", *({"turns"} & run.keys())):
        assert run[draws][0] != run[draws][1]


@pytest.mark.parametrize(
    ("name", "shares", "count"), [("method", [2, 1], 3), ("labeled_only", [1, 1], 1), ("uneven", [3, 2], 5)]
)
def test_each_case_is_scored_once_and_both_know_the_best_score(seen, name, shares, count):
    """Three cases on two processes; five; and one, which the second process scores too."""
    run = seen["runs"][name]
    assert [len(cases) for cases in run["evaluated"]] == shares
    cases = sorted({case for cases in run["evaluated"] for case in cases})
    assert len(cases) == count
    assert run["scored"] == [cases, cases]
    assert run["best"][0] == run["best"][1]
    assert 0 <= run["best"][0][0] <= 1


def test_fewer_slices_than_two_batches_recycle_in_both(seen):
    """Of one labeled patient and one unlabeled one."""
    [labeled, unlabeled] = seen["runs"]["uneven"]["slices"][0]
    assert 3 < labeled < 2 * 3
    assert 3 < unlabeled < 2 * 3


def test_a_run_of_two_that_was_killed_ends_where_it_would_have_ended(looked_into, seen):
    """Exactly."""
    for part in ("batch", "gradients", "students", "teachers", "turns", "dropout"):
        whole, resumed = (seen["runs"][name][part] for name in ("method", "resumed"))
        assert [iterations[2:] for iterations in whole] == resumed, part
    files = [
        torch.load(looked_into[0] / run / "models" / "last.pt", weights_only=True) for run in ("method", "resumed")
    ]
    for row in (row for file in files for row in file["history"]["rows"]):
        row.pop("seconds")
    assert same(*files)


def test_a_checkpoint_that_one_of_them_does_not_find_is_refused_by_both(seen):
    for message in seen["refused"]:
        assert "find" in message
        assert "give all of them one shared folder" in message


def test_means_over_processes_are_right(seen):
    assert seen["averaged"] == [True, True]


# One process with the whole batch


@pytest.mark.parametrize("name", ["method", "co_training", "ua_mt", "dan", "compiled"])
def test_halves_of_batches_teach_what_whole_batches_teach(seen, name):
    """Each term is a mean over the images of all processes, or over the voxels of all of them that count."""
    first, second = (found[name] for found in seen["differences"])
    assert first.keys() & {"gradients", "learned", "judge"} == {"gradients", "learned", *(["judge"] * (name == "dan"))}
    for kind in first.keys() - {"certain_share"}:
        assert first[kind] < 1e-5, kind
    if name == "ua_mt":  # or a mean of the processes' means would do
        assert 0 < first["certain_share"] < second["certain_share"] / 2


def test_a_batch_normalization_makes_a_difference(seen):
    """It learns from the half of its process."""
    for found in seen["differences"]:
        assert found["normalized"]["gradients"] > 0.01
        assert found["normalized"]["statistics"] > 0.01


# Runs that end before their end


def test_a_loss_that_is_not_finite_in_one_of_them_ends_both_before_they_save(looked_into, seen):  # noqa: ARG001
    output, done = looked_into
    assert [one.returncode for one in done] == [1, 1]
    assert "the loss is not finite in epoch 2, iteration 4: loss nan" in done[1].stderr
    assert torch.load(output / "failing" / "models" / "last.pt", weights_only=True)["run"]["epoch"] == 1


def test_a_process_that_is_killed_ends_the_other_and_leaves_the_last_checkpoint_whole(killed):
    done, checkpoint = killed
    assert [one.returncode for one in done] == [1, -9]
    assert torch.load(io.BytesIO(checkpoint), weights_only=True)["run"]["epoch"] == 1


@pytest.mark.every_fault
def test_a_case_that_one_of_them_cannot_read_ends_both_and_is_named(place, tmp_path):
    data = shutil.copytree(place[0], tmp_path / "data")
    done = torchrun(SCRIPT, "unreadable", data, tmp_path)
    assert done.returncode != 0
    assert re.search(r"What went wrong: .*spleen_\d+\.nii\.gz", done.stderr)


@pytest.mark.every_fault
def test_a_process_that_is_stuck_is_not_waited_for_without_end(place):
    done = torchrun(SCRIPT, "stuck", *place)
    assert done.returncode != 0
    assert "Timed out waiting 15000ms" in done.stderr


def test_torchrun_without_the_overlay_is_refused_before_anything_is_written(together, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "add `multi_gpu_train.json` as the last config" in failure(lambda: single(together, tmp_path))
    assert not list(tmp_path.iterdir())


# GPUs, as far as a machine without one can tell


def parsed(device: str | None = None) -> ConfigParser:
    parser = ConfigParser()
    parser.read_config([str(TRAIN), str(MULTI_GPU)])
    if device is not None:
        parser["device"] = device
    return parser


@pytest.mark.parametrize(("available", "device"), [(True, "cuda:3"), (False, "cpu")])
def test_each_process_has_the_gpu_of_its_number_on_the_machine(monkeypatch, available, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert parsed().get_parsed_content("device") == torch.device(device)


@pytest.mark.parametrize(("device", "ids"), [("cuda:1", ["cuda:1"]), ("cpu", None)])
def test_gradients_are_exchanged_on_that_gpu(device, ids):
    assert parsed(device).get_parsed_content("train#trainer#network#device_ids") == ids
