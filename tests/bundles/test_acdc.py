"""The bundle for ACDC does what its user asks on the command line, or says why not: on phantoms, and on real data."""

import csv
import json
import logging
import math
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import matplotlib.image
import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser, ConfigWorkflow
from monai.transforms import LoadImage
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import monai_spct
from monai_spct.data import VolumeReader, acdc_cases, split_cases, write_acdc_phantom
from monai_spct.handlers import read_history
from monai_spct.metrics import case_name
from monai_spct.workflow import bundles_folder, copy
from tests.bundles.states import loaded_safely, same

pytestmark = [
    pytest.mark.filterwarnings("ignore:parsing config_file:UserWarning"),  # what MONAI says of every config
    pytest.mark.filterwarnings("ignore:parsing meta_file:UserWarning"),
]

BUNDLES = bundles_folder()
CONFIGS = BUNDLES / "acdc" / "configs"
TRAIN, EVALUATE, INFERENCE, SMALL = (CONFIGS / f"{name}.json" for name in ("train", "evaluate", "inference", "small"))
LABELED_ONLY = BUNDLES / "methods" / "labeled_only.json"
PATIENTS = 5  # 1 labeled, 2 unlabeled, 1 for validation, 1 for testing; 2 cases each
LITTLE = {
    "crop_size": 32,
    "labeled_batch_size": 2,
    "unlabeled_batch_size": 2,
    "labeled_patients": 1,
    "epoch_length": 2,
    "max_epochs": 2,
}
STRUCTURES = ("RV", "Myo", "LV")
LOSSES = ("loss", "supervised_loss", "co_training_loss", "consistency_loss")
NOTES = ("gamma", "selected_share", "disagreement", "co_training_weight", "consistency_weight")


# Two ways to run a config: as users do, and in this process, which saves the seconds that imports take


def command(verb: str, config: str, *options: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """``python -m monai.bundle run``, as it is typed."""
    parent = str(Path(monai_spct.__file__).parents[1])
    paths = os.pathsep.join(path for path in (parent, os.environ.get("PYTHONPATH")) if path)
    return subprocess.run(
        [sys.executable, "-m", "monai.bundle", "run", verb, "--config_file", config, *map(str, options)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        timeout=540,
    )


def options(**settings: object) -> list[object]:
    return [word for name, value in settings.items() for word in (f"--{name}", value)]


def workflow(*configs: Path, kind: str = "infer", **settings: object) -> ConfigWorkflow:
    """A config with overrides, initialized."""
    result = ConfigWorkflow([str(path) for path in configs], workflow_type=kind, logging_file=False, **settings)
    result.initialize()
    return result


def training(data: Path, output: Path, *overlays: Path, **settings: object) -> ConfigWorkflow:
    settings = {**LITTLE, "dataset_dir": str(data), "output_dir": str(output), "num_workers": 0, **settings}
    return workflow(TRAIN, *overlays, kind="train", **settings)


def trained(data: Path, output: Path, *overlays: Path, **settings: object) -> ConfigWorkflow:
    result = training(data, output, *overlays, **settings)
    result.run()
    return result


def causes(error: BaseException | None) -> list[BaseException]:
    """An error and what it came from."""
    return [] if error is None else [error, *causes(error.__cause__)]


def first_cause(error: BaseException) -> BaseException:
    return causes(error)[-1]


# Data


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("acdc") / "data"
    return write_acdc_phantom(folder, patients=PATIENTS, size=(40, 44), spacing=(3.2, 3.5), slices=(4, 5))


def lists(data: Path):
    """The split that a little training makes."""
    return split_cases(acdc_cases(data), labeled_patients=1, num_validation=0)


@pytest.fixture
def own_data(data, tmp_path) -> Path:
    """A copy of the data that a test may spoil."""
    return Path(shutil.copytree(data, tmp_path / "spoiled data"))


def rewrite(path: str, change, affine=None) -> None:
    image = nib.load(path)
    voxels = change(np.asarray(image.dataobj))
    header = image.header.copy()
    header.set_data_dtype(voxels.dtype)
    nib.save(nib.Nifti1Image(voxels, image.affine if affine is None else affine, header), path)


def an_image(path: Path, voxels: np.ndarray, spacing=(3.3, 3.3, 10.0)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(voxels, np.diag([-spacing[0], -spacing[1], spacing[2], 1])), path)
    return path


# The way of a user: train, evaluate, predict


class Runs(NamedTuple):
    """What a user typed, and what came of it."""

    output: Path
    images: Path
    train: subprocess.CompletedProcess[str]
    evaluate: subprocess.CompletedProcess[str]
    inference: subprocess.CompletedProcess[str]
    mistyped: subprocess.CompletedProcess[str]
    no_data: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory) -> Runs:
    base = tmp_path_factory.mktemp("runs")
    output, images = base / "output", base / "images"
    for case in acdc_cases(data)[:2]:
        (images / case["patient"]).mkdir(parents=True, exist_ok=True)
        shutil.copy(case["image"], images / case["patient"])
    an_image(images / "odd.nii.gz", np.random.default_rng(0).integers(0, 300, (37, 29, 5)).astype(np.int16))

    where = options(output_dir=output)
    settings = options(**LITTLE, num_validation=1, val_interval=1, kept_epochs=[1])
    relative = f"{BUNDLES.name}/acdc/configs/train.json"
    with ThreadPoolExecutor(2) as pool:  # each from another place
        train = pool.submit(
            command, "training", relative, *options(dataset_dir=data), *where, *settings, cwd=BUNDLES.parent
        )
        mistyped = pool.submit(
            *(command, "training", str(TRAIN)), *options(dataset_dir=data, max_epoch=7, labelled_ratio=0.2), cwd=base
        )
        no_data = pool.submit(
            command, "training", str(TRAIN), *options(dataset_dir="nowhere", output_dir=base / "none"), cwd=base
        )
        train.result()
        evaluate = pool.submit(
            *(command, "evaluating", "configs/evaluate.json", *options(dataset_dir=data), *where),
            cwd=BUNDLES / "acdc",
        )
        inference = pool.submit(
            *(command, "inferring", str(INFERENCE), *options(dataset_dir=images, uncertainty="true"), *where), cwd=base
        )
    return Runs(output, images, *(f.result() for f in (train, evaluate, inference, mistyped, no_data)))


@pytest.mark.parametrize("name", ["train", "evaluate", "inference"])
def test_each_config_runs_to_its_end_from_its_own_place(runs, name):
    done = getattr(runs, name)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["model.pt", "best.pt", "epoch_001.pt"])
def test_the_weights_that_predict_are_a_bare_state_dict(runs, name):
    state = torch.load(runs.output / "models" / name, weights_only=True)
    assert {key.split(".")[0] for key in state} == {"networks"}
    assert {key.split(".")[1] for key in state} == {"0", "1"}
    assert all(value.isfinite().all() for value in state.values())


def test_p31_every_file_that_is_written_can_be_loaded_safely(runs):
    names = [path.relative_to(runs.output).as_posix() for path in loaded_safely(runs.output)]
    assert names == [f"models/{name}.pt" for name in ("best", "epoch_001", "last", "last_1", "model")]
    for folder in ("eval", "predictions"):  # which are there too, and hold no such file
        assert any((runs.output / folder).iterdir())


@pytest.mark.parametrize(
    ("save", "refused"),
    [
        (lambda path: torch.save({"a": torch.ones(2)}, path), False),
        (lambda path: np.save(path.with_suffix(".npy"), np.ones(2)), False),
        (lambda path: torch.save({"a": Path("a")}, path), True),
        (lambda path: np.save(path.with_suffix(".npy"), np.array([{}])), True),
        (lambda path: path.with_suffix(".pkl").write_bytes(pickle.dumps(Path("a"))), True),
    ],
    ids=["tensors", "numbers", "objects", "objects in an array", "a pickle"],
)
def test_p31_a_file_that_needs_code_would_be_noticed(tmp_path, save, refused):
    save(tmp_path / "model.pt")
    with pytest.raises(Exception, match=r"weights_only|allow_pickle") if refused else nullcontext():
        assert len(loaded_safely(tmp_path)) == 1


def test_the_last_state_of_the_run_can_be_loaded_safely(runs):
    state = torch.load(runs.output / "models" / "last.pt", weights_only=True)
    assert (state["run"]["epoch"], state["run"]["epoch_length"]) == (2, 2)
    assert {"network", "teachers", "optimizer", "lr_scheduler"} <= set(state)


def test_p18_the_views_differ_in_the_file(runs):
    state = torch.load(runs.output / "models" / "model.pt", weights_only=True)
    kernels = [name for name in state if name.startswith("networks.0.") and state[name].ndim == 4]
    assert kernels
    for name in kernels:
        assert not torch.equal(state[name], state[name.replace("networks.0.", "networks.1.")])


def test_no_file_is_left_half_written(runs):
    hidden = [path.name for path in runs.output.rglob(".*")]
    assert hidden == []
    models = sorted(path.name for path in (runs.output / "models").iterdir())
    assert models == ["best.pt", "epoch_001.pt", "last.pt", "last_1.pt", "model.pt"]


def test_p18_losses_gamma_and_agreement_are_on_record(runs):
    history = read_history(runs.output / "eval" / "history.csv")
    assert [row["epoch"] for row in history] == [1, 2]
    for row in history:
        assert row.keys() >= {*LOSSES, *NOTES, "validation_mean_dsc"}
        assert all(math.isfinite(value) for value in row.values())
        assert row["loss"] == pytest.approx(sum(row[name] for name in LOSSES[1:]), rel=1e-5)
        assert all(0 <= row[name] <= 1 for name in ("selected_share", "disagreement", "validation_mean_dsc"))
        assert 0 < row["seconds"] < 60
    assert history[0]["gamma"] == pytest.approx(0.2)
    assert history[0]["gamma"] < history[1]["gamma"]
    assert history[0]["learning_rate"] > history[1]["learning_rate"] >= 0

    events = EventAccumulator(str(runs.output / "eval"))
    events.Reload()
    assert {*events.Tags()["scalars"], "epoch"} == history[0].keys()
    for name in events.Tags()["scalars"]:
        points = [(point.step, point.value) for point in events.Scalars(name)]
        assert points == [(row["epoch"], pytest.approx(row[name], rel=1e-6)) for row in history]


def test_p08_patients_cases_and_slices_are_printed(runs):
    for line in (
        "labeled: 1 patient, 2 cases",
        "unlabeled: 2 patients, 4 cases",
        "validation: 1 patient, 2 cases",
        "test: 1 patient, 2 cases",
    ):
        assert f"\n{line}\n" in runs.train.stdout
    for name, volumes in (("labeled", 2), ("unlabeled", 4)):
        assert re.search(rf" {name}: \d+ slices of {volumes} volumes\n", runs.train.stdout), runs.train.stdout


def test_a_bar_shows_the_way_and_the_time_left(runs):
    for done, what, steps in (
        (runs.train, "training", 4),
        (runs.evaluate, "evaluating", 2),
        (runs.inference, "predicting", 3),
    ):
        assert re.search(rf"{what}: 100%\|.*\| {steps}/{steps} \[\d\d:\d\d<\d\d:\d\d", done.stderr), done.stderr


def test_scores_have_one_line_for_each_volume_and_structure(runs, data):
    with (runs.output / "eval" / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    cases = [case["case"] for case in split_cases(acdc_cases(data), labeled_patients=1, num_validation=1).test]
    assert len(cases) == 2
    assert [(row["case"], row["structure"]) for row in rows] == [(c, s) for c in cases for s in STRUCTURES]
    for row in rows:
        assert 0 <= float(row["dsc"]) <= 1
        assert 0 <= float(row["hd95"]) <= float(row["hd"]) < math.inf


def test_the_summary_is_valid_json_and_on_the_screen(runs):
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    text = (runs.output / "eval" / "summary.json").read_text()
    summary = json.loads(text, parse_constant=refuse)
    assert list(summary) == [*STRUCTURES, "mean"]
    assert "| structure | DSC | HD (mm) | HD95 (mm) | missed |" in runs.evaluate.stdout
    for name, row in summary.items():
        assert row["n_volumes"] == 2
        assert f"| {name} | {row['dsc_mean']:.3f} ± {row['dsc_std']:.3f} |" in runs.evaluate.stdout
    assert f"scores are in {runs.output / 'eval'}" in runs.evaluate.stdout


def test_the_time_of_a_slice_is_on_record(runs):
    record = json.loads((runs.output / "eval" / "inference_time.json").read_text())
    assert 0 < record.pop("seconds_per_slice") < 10
    assert list(record) == ["volumes", "device"]
    assert record["volumes"] == 2
    assert record["device"]


def test_validation_patients_are_scored_when_they_are_asked_for(tmp_path, data, runs):
    settings = {"scored": "validation", "num_validation": 2, "inferer": NOTHING_FOUND, "max_pictures": 0}
    workflow(EVALUATE, **options_of(runs, data, tmp_path), **settings).run()
    with (tmp_path / "eval" / "scores.csv").open() as file:
        scored = {row["case"] for row in csv.DictReader(file)}
    split = split_cases(acdc_cases(data), num_validation=2)
    assert scored == {case["case"] for case in split.validation}
    assert len(scored) == 4
    assert json.loads((tmp_path / "eval" / "inference_time.json").read_text())["volumes"] == 4


def test_the_curves_of_the_run_can_be_looked_at(runs):
    picture = matplotlib.image.imread(runs.output / "eval" / "curves.png")
    assert picture.shape[:2] == (1070, 1600)  # three rows of four panels
    assert picture[..., :3].std() > 0.05


def test_validations_leave_pictures_in_tensorboard(runs, data):
    events = EventAccumulator(str(runs.output / "eval"), size_guidance={"images": 0})
    events.Reload()
    cases = [case["case"] for case in split_cases(acdc_cases(data), labeled_patients=1, num_validation=1).validation]
    assert events.Tags()["images"] == [f"validation/{case}" for case in cases]
    for tag in events.Tags()["images"]:
        assert [image.step for image in events.Images(tag)] == [1, 2]
        assert len({(image.width, image.height) for image in events.Images(tag)}) == 1


def test_each_validation_has_a_line_with_its_score(runs):
    for epoch in (1, 2):
        assert re.search(rf"Epoch\[{epoch}\] Metrics -- mean_dsc: 0\.\d+", runs.train.stdout)


def test_the_last_lines_say_where_everything_is_and_what_to_run_next(runs, data):
    weights, curves, board, evaluate = runs.train.stdout.strip().splitlines()[-4:]
    for line, name in ((weights, "models/model.pt"), (curves, "eval/curves.png")):
        path = Path(line.split(maxsplit=1)[1])
        assert path == runs.output / name
        assert path.is_file()
    assert board.endswith(f"tensorboard --logdir {runs.output / 'eval'}")
    words = shlex.split(evaluate.split(maxsplit=1)[1])
    assert words[:5] == ["python", "-m", "monai.bundle", "run", "evaluating"]
    given = dict(zip(words[5::2], words[6::2], strict=True))
    assert Path(given.pop("--config_file")).samefile(EVALUATE)
    assert given == {"--dataset_dir": str(data), "--output_dir": str(runs.output), "--num_validation": "1"}


@pytest.mark.parametrize("folder", ["eval", "predictions"])
def test_each_case_has_a_picture_that_can_be_looked_at(runs, data, folder):
    pictures = sorted((runs.output / folder / "pictures").glob("*"))
    tested = {case["case"] for case in split_cases(acdc_cases(data), num_validation=1).test}
    predicted = {case_name(path) for path in runs.images.rglob("*.nii.gz")}
    assert {path.stem for path in pictures} == (tested if folder == "eval" else predicted)
    for path in pictures:
        picture = matplotlib.image.imread(path)
        assert min(picture.shape[:2]) > 100
        assert picture[..., :3].std() > 0.05


def test_maps_of_entropy_are_below_the_contours(runs):
    magma = np.array([0.716387, 0.214982, 0.47529])  # the middle of the scale
    for path in (runs.output / "predictions" / "pictures").glob("*"):
        picture = matplotlib.image.imread(path)[..., :3]
        found = np.flatnonzero((np.abs(picture - magma).max(-1) < 0.02).any(1))
        assert found.size, path.name
        assert found.min() > len(picture) / 3


def test_p02_predictions_lie_on_the_grid_of_their_images(runs):
    images = sorted(runs.images.rglob("*.nii.gz"))
    assert len(images) == 3
    found = {path.name for path in (runs.output / "predictions").glob("*.nii.gz")}
    assert found == {f"{case_name(path)}{end}.nii.gz" for path in images for end in ("", "_uncertainty")}
    for path in images:
        source = nib.load(path)
        mask = nib.load(runs.output / "predictions" / path.name)
        uncertainty = nib.load(runs.output / "predictions" / f"{case_name(path)}_uncertainty.nii.gz")
        for result, dtype in ((mask, np.uint8), (uncertainty, np.float32)):
            assert result.get_data_dtype() == dtype
            assert result.shape == source.shape
            np.testing.assert_allclose(result.affine, source.affine, atol=1e-5)
            assert [int(result.header[code]) for code in ("sform_code", "qform_code")] == [
                int(source.header[code]) for code in ("sform_code", "qform_code")
            ]
        assert set(np.unique(mask.dataobj)) <= {0, 1, 2, 3}
        values = np.asarray(uncertainty.dataobj)
        assert values.min() >= 0
        assert values.max() <= math.log(4) + 1e-6
        assert values.std() > 0


def test_p30_a_mistyped_override_ends_with_the_right_name(runs, data):
    assert runs.mistyped.returncode != 0
    last = runs.mistyped.stderr.strip().splitlines()[-1]
    for wrong, right in {"max_epoch": "max_epochs", "labelled_ratio": "labeled_ratio"}.items():
        assert f"unknown key `{wrong}`: nothing reads it. Did you mean `{right}`?" in last
    assert "labeled:" not in runs.mistyped.stdout  # no volume was read
    assert data.is_dir()


def test_without_data_the_last_lines_say_where_it_was_looked_for_and_where_it_comes_from(runs):
    assert runs.no_data.returncode != 0
    last = runs.no_data.stderr.strip().split("What went wrong: ")[-1]
    assert len(last.splitlines()) < 10
    assert str(runs.output.parent / "nowhere") in last  # absolute
    for part in (
        "patientNNN_frameFF_gt.nii.gz",
        "www.creatis.insa-lyon.fr",
        "phantom.json",
        "monai.bundle run training",
    ):
        assert part in last
    assert not (runs.output.parent / "none").exists()


# Where a bundle is run from


def test_a_copy_keeps_its_results_to_itself(tmp_path, data):
    copy("acdc", tmp_path / "mine")
    config = tmp_path / "mine" / "configs" / "train.json"
    overlay = tmp_path / "mine" / "methods" / "labeled_only.json"
    workflow(config, overlay, kind="train", dataset_dir=str(data), **{**LITTLE, "max_epochs": 1}).run()
    assert (tmp_path / "mine" / "models" / "model.pt").is_file()


# Overrides


@pytest.mark.parametrize(
    ("settings", "labeled"),
    [({}, 7), ({"labeled_ratio": 0.05}, 3), ({"labeled_ratio": 1}, 75), ({"labeled_patients": 2}, 2)],
    ids=["default", "5 %", "all", "2 patients"],
)
def test_p08_of_a_hundred_patients_as_many_are_labeled_as_one_asks_for(tmp_path, settings, labeled):
    """P8, P10; as in the paper."""
    for n in range(1, 101):
        folder = tmp_path / "training" / f"patient{n:03d}"
        folder.mkdir(parents=True)
        (folder / f"patient{n:03d}_frame01.nii.gz").touch()
        (folder / f"patient{n:03d}_frame01_gt.nii.gz").touch()
    splits = {}
    for name, config in (("train", TRAIN), ("evaluate", EVALUATE)):
        parser = ConfigParser()
        parser.read_config(str(config))
        parser.update({"dataset_dir": str(tmp_path), **(settings if name == "train" else {})})
        splits[name] = parser.get_parsed_content("split")
    split = splits["train"]
    counts = [len({case["patient"] for case in part}) for part in (split.labeled, split.unlabeled, split.test)]
    assert counts == [labeled, 75 - labeled, 25]
    assert split.test == splits["evaluate"].test
    everyone = [case["patient"] for part in (split.labeled, split.unlabeled, split.test) for case in part]
    assert len(set(everyone)) == 100


def test_three_views_are_trained_and_found_again_by_the_evaluation(tmp_path, data):
    run = trained(data, tmp_path, num_views=3, epoch_length=1, max_epochs=1)
    assert len(run.parser.get_parsed_content("network").networks) == 3
    assert len(run.parser.get_parsed_content("teachers").networks) == 3
    tested = workflow(EVALUATE, dataset_dir=str(data), output_dir=str(tmp_path), max_pictures=0)
    tested.run()
    assert len(tested.parser.get_parsed_content("network").networks) == 3
    assert (tmp_path / "eval" / "summary.json").is_file()


def test_p28_the_seed_decides_the_first_weights_and_the_whole_run(tmp_path, data):
    first, last = {}, {}
    for name, seed in (("a", 0), ("b", 0), ("c", 2)):
        run = training(data, tmp_path / name, seed=seed, epoch_length=1)
        first[name] = torch.cat([p.detach().flatten() for p in run.parser.get_parsed_content("network").parameters()])
        run.run()
        state = torch.load(tmp_path / name / "models" / "model.pt", weights_only=True)
        last[name] = torch.cat([value.flatten().double() for value in state.values()])
    for weights in (first, last):
        assert torch.equal(weights["a"], weights["b"])
        assert not torch.equal(weights["a"], weights["c"])


def test_p28_one_seed_makes_the_same_bytes_twice_and_with_workers(tmp_path, data):
    """With deterministic algorithms, which are all there, on one machine's CPU."""
    files = {}
    torch.use_deterministic_algorithms(True)
    try:
        for name, workers in (("once", 0), ("twice", 0), ("with workers", 2)):
            settings = {"num_workers": workers, "num_validation": 1, "val_interval": 1, "kept_epochs": [1]}
            trained(data, tmp_path / name, **settings)
            made = {path.name: path.read_bytes() for path in (tmp_path / name / "models").glob("*.pt")}
            for last in ("last.pt", "last_1.pt"):
                made[last] = torch.load(tmp_path / name / "models" / last, weights_only=True)
                for row in made[last]["history"]["rows"]:
                    row.pop("seconds")
            rows = [{**row, "seconds": 0} for row in read_history(tmp_path / name / "eval" / "history.csv")]
            files[name] = {**made, "history.csv": rows}
    finally:
        torch.use_deterministic_algorithms(False)
    once = files["once"]
    assert set(once) == {"best.pt", "epoch_001.pt", "history.csv", "last.pt", "last_1.pt", "model.pt"}
    for name in ("twice", "with workers"):
        assert [file for file in once if not same(files[name][file], once[file])] == []
    assert once["model.pt"] != once["epoch_001.pt"]  # so that something was learned


def test_p28_the_overlay_of_the_guide_switches_deterministic_algorithms_on(tmp_path, data):
    page = BUNDLES.parent / "docs" / "explanation" / "reproducibility.md"
    if not page.is_file():
        pytest.skip("pages come with a checkout")
    overlay = tmp_path / "deterministic.json"
    overlay.write_text(re.findall(r"^```json\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)[0])
    assert not torch.are_deterministic_algorithms_enabled()
    try:
        training(data, tmp_path, overlay)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", ["max_epochs", "train#trainer#max_epochs"])
def test_p25_the_length_of_the_run_sets_the_schedule_of_the_learning_rate(tmp_path, data, name):
    """P25, P27."""
    run = training(data, tmp_path, **{name: 5, "epoch_length": 4})
    parsed = run.parser.get_parsed_content
    assert parsed("train#trainer").state.max_epochs == 5
    rate = parsed("lr_scheduler").lr_lambdas[0]
    assert rate(2) == 1  # the peak, after a tenth of the iterations
    assert rate(0) < rate(1) < 1
    assert all(rate(n) > rate(n + 1) for n in range(2, 20))
    assert rate(20) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("device", ["$torch.device('cpu')", "cpu"])
def test_device_workers_and_batches_follow_their_settings(tmp_path, data, device):
    run = training(data, tmp_path, device=device, num_workers=2, labeled_batch_size=3, unlabeled_batch_size=5)
    parsed = run.parser.get_parsed_content
    assert torch.device(parsed("train#trainer").state.device) == torch.device("cpu")
    loader = parsed("train#dataloader")
    assert [part.num_workers for part in loader.loaders] == [2, 2]
    run = training(data, tmp_path, num_workers=0, labeled_batch_size=3, unlabeled_batch_size=5)
    loader = run.parser.get_parsed_content("train#dataloader")
    assert [part.num_workers for part in loader.loaders] == [0, 0]
    shapes = {key: tuple(value.shape) for key, value in next(iter(loader)).items()}
    assert shapes == {"image": (3, 1, 32, 32), "label": (3, 1, 32, 32), "unlabeled": (5, 1, 32, 32)}


@pytest.mark.parametrize("term", ["co_training", "consistency"])
def test_a_term_can_be_switched_off(tmp_path, data, term):
    run = training(data, tmp_path, epoch_length=1, max_epochs=1, **{f"objective#{term}#_disabled_": True})
    run.run()
    output = run.parser.get_parsed_content("train#trainer").state.output
    assert {str(name) for name in output if str(name).endswith("_loss")} == {
        f"{name}_loss" for name in ("supervised", "co_training", "consistency") if name != term
    }


def test_p05_slices_smaller_than_the_crop_are_padded(tmp_path, data):
    loader = training(data, tmp_path, crop_size=48).parser.get_parsed_content("train#dataloader")
    batch = next(iter(loader))
    assert batch["image"].shape == (2, 1, 48, 48)
    assert batch["unlabeled"].shape == (2, 1, 48, 48)


# Bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labeled_ratio": 0, "labeled_patients": None}, r"`labeled_ratio` must be above 0 and at most 1, got 0\."),
        ({"labeled_ratio": 1.5, "labeled_patients": None}, r"`labeled_ratio` must .* at most 1, got 1\.5\."),
        ({"labeled_patients": 0}, r"`labeled_patients` must be a whole number of at least 1, got 0\."),
        ({"labeled_patients": 5}, r"`labeled_patients` must be at most the 4 training patients, got 5\."),
        ({"test_ratio": 1}, r"`test_ratio` must be at least 0 and below 1, got 1\."),
        ({"num_validation": 4}, "`num_validation` must leave a patient to train on"),
        ({"num_views": 0}, r"`num_views` must be a whole number of at least 1, got 0\."),
        ({"num_views": 1}, r"`num_views` must be .*at least 2, got 1\."),
        ({"gamma_start": -0.2}, r"`initial` must be positive, got -0\.2\."),
        ({"alpha": 2}, r"`alpha` must lie between 0 and 1, got 2\.0\."),
        ({"eps": 0}, r"`eps` must be positive, got 0\."),
        ({"ema_decay": 1.5}, r"`decay` must lie between 0 and 1, got 1\.5\."),
        ({"labeled_batch_size": 0}, r"`labeled_batch_size` must be a whole number of at least 1, got 0\."),
        ({"unlabeled_batch_size": 0}, r"`unlabeled_batch_size` must be a whole number of at least 1, got 0\."),
        ({"epoch_length": 0}, r"`epoch_length` must be a whole number of at least 1, got 0\."),
        ({"max_epochs": 0}, "max_epochs"),
        ({"learning_rate": -1}, "learning rate: -1"),
    ],
    ids=lambda value: "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_setting_out_of_its_range_is_refused_by_name_before_anything_is_written(tmp_path, data, settings, message):
    with pytest.raises(Exception, match=r"\w") as error:
        trained(data, tmp_path / "output", **settings)
    cause = first_cause(error.value)
    assert isinstance(cause, ValueError)
    assert re.search(message, str(cause)), str(cause)
    assert not (tmp_path / "output" / "models").exists()


def unlabeled_case(case):
    Path(case["label"]).unlink()


def value_outside(case):
    def change(label):
        label[3, 4, 1] = 4
        return label

    rewrite(case["label"], change)


def other_shape(case):
    rewrite(case["label"], lambda label: label[:-1])


def cut_off(case):
    content = Path(case["image"]).read_bytes()
    Path(case["image"]).write_bytes(content[: len(content) // 2])


def several_frames(case):
    rewrite(case["image"], lambda image: np.stack([image] * 3, -1))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (unlabeled_case, r"labeled, validation and test cases need a `label`, missing for: .*{image} \(labeled\)"),
        (value_outside, r"the label of {case} must hold whole numbers from 0 to 3 .*, got \[4\.0\]"),
        (other_shape, r"image and label of {case} must have the same shape, got \(\d+, \d+, \d\) and \(\d+, \d+, \d\)"),
        (cut_off, r"{image}.* is truncated or damaged"),
        (several_frames, r"{image} is 4-D \(3 frames\); give single frames"),
    ],
    ids=["no label", "label value", "label shape", "half a file", "4-D"],
)  # fmt: skip
def test_p07_data_that_cannot_be_learned_from_is_refused_by_the_name_of_the_case(tmp_path, own_data, spoil, message):
    """P6, P7."""
    case = lists(own_data).labeled[0]
    spoil(case)
    with pytest.raises(Exception, match=r"\w") as error:
        trained(own_data, tmp_path / "output")
    said = [str(cause) for cause in causes(error.value) if isinstance(cause, ValueError)]
    pattern = message.format(case=case["case"], image=re.escape(case["image"]))
    assert any(re.search(pattern, text, re.DOTALL) for text in said), said
    assert not (tmp_path / "output").exists()


def other_affine(case):
    rewrite(case["label"], lambda label: label, affine=np.eye(4))


def not_a_number(case):
    def change(image):
        image = image.astype(np.float32)
        image[5:8, 5:8] = np.nan
        image[9, 9] = np.inf
        return image

    rewrite(case["image"], change)


def constant(case):
    rewrite(case["image"], np.ones_like)


@pytest.mark.filterwarnings("ignore:Divide by zero")  # MONAI's, of the constant image
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (other_affine, "image and label of {case} have the same shape but different affines"),
        (not_a_number, r"the image of {case} has \d+ voxels that are not finite"),
        (constant, "the image of {case} is constant"),
    ],
    ids=["label affine", "NaN", "constant"],
)
def test_p03_data_that_can_be_mended_is_named_and_training_goes_on(tmp_path, own_data, spoil, message):
    case = lists(own_data).labeled[0]
    spoil(case)
    run = training(own_data, tmp_path)
    with pytest.warns(UserWarning, match=message.format(case=case["case"])):
        batches = list(run.parser.get_parsed_content("train#dataloader"))
    assert all(batch["image"].isfinite().all() for batch in batches)
    run.run()
    for name in ("model.pt", "last.pt"):
        state = torch.load(tmp_path / "models" / name, weights_only=True)
        weights = state.get("network", state)
        assert all(value.isfinite().all() for value in weights.values())


def test_p10_training_reads_neither_test_patients_nor_labels_that_it_must_not_know(tmp_path, own_data):
    split = lists(own_data)
    labels = {case["image"]: case["label"] for case in acdc_cases(own_data)}
    for case in split.test:
        Path(case["image"]).write_bytes(b"spoiled")
        Path(case["label"]).write_bytes(b"spoiled")
    for case in split.unlabeled:
        Path(labels[case["image"]]).write_bytes(b"spoiled")
    trained(own_data, tmp_path / "output", epoch_length=1, max_epochs=1)
    assert (tmp_path / "output" / "models" / "model.pt").is_file()


@pytest.mark.parametrize("config", [EVALUATE, INFERENCE], ids=lambda path: path.stem)
def test_without_weights_the_message_says_to_train_first(tmp_path, data, config):
    with pytest.raises(RuntimeError) as error:
        workflow(config, dataset_dir=str(data), output_dir=str(tmp_path)).run()
    cause = first_cause(error.value)
    assert isinstance(cause, FileNotFoundError)
    assert str(tmp_path / "models" / "model.pt") in str(cause)
    assert "train first" in str(cause)


def test_a_folder_without_images_is_named(tmp_path, runs):
    with pytest.raises(RuntimeError) as error:
        workflow(INFERENCE, dataset_dir=str(tmp_path), output_dir=str(runs.output)).run()
    assert str(first_cause(error.value)).startswith(f"no image (*.nii.gz, *.nii, *.mhd, *.mha) in {tmp_path}")


# Runs that break off, and runs that go on

# cross-entropy, until it has been asked for more than the first epoch's two iterations with two networks
SPOILED_LOSS = (
    "$lambda logits, label, calls=[]: (calls.append(0), torch.nn.functional.cross_entropy(logits, label[:, 0].long())"
    " * (float('nan') if len(calls) > 4 else 1))[1]"
)


def test_a_loss_that_is_not_a_number_stops_the_run_and_keeps_the_last_good_epoch(tmp_path, data):
    with pytest.raises(RuntimeError) as error:
        trained(data, tmp_path, **{"objective#supervised#loss": SPOILED_LOSS})
    cause = first_cause(error.value)
    assert isinstance(cause, FloatingPointError)
    assert "the loss is not finite in epoch 2, iteration 3: supervised_loss nan" in str(cause)
    last = torch.load(tmp_path / "models" / "last.pt", weights_only=True)
    assert last["run"]["epoch"] == 1
    for weights in (last["network"], torch.load(tmp_path / "models" / "model.pt", weights_only=True)):
        assert all(value.isfinite().all() for value in weights.values())


def test_a_learning_rate_that_blows_up_is_found_at_once(tmp_path, data):
    with pytest.raises(RuntimeError) as error:
        trained(data, tmp_path, learning_rate=1e30, epoch_length=1, max_epochs=4)
    cause = first_cause(error.value)
    assert isinstance(cause, FloatingPointError)
    assert "A lower learning rate" in str(cause)
    epoch = int(re.search(r"in epoch (\d)", str(cause))[1])
    assert torch.load(tmp_path / "models" / "last.pt", weights_only=True)["run"]["epoch"] == epoch - 1


def test_p26_a_run_goes_on_from_its_last_epoch(tmp_path, data, runs, caplog):
    """P26."""
    shutil.copytree(runs.output / "models", tmp_path / "models")
    before = torch.load(tmp_path / "models" / "last.pt", weights_only=True)
    with caplog.at_level(logging.INFO, "monai_spct"):
        run = trained(data, tmp_path, resume=True, accept_changes=True, max_epochs=3, num_validation=1)
    assert "resuming after epoch 2 of 3" in caplog.text
    after = torch.load(tmp_path / "models" / "last.pt", weights_only=True)
    assert (before["run"]["epoch"], after["run"]["epoch"]) == (2, 3)
    steps = [{int(state["step"]) for state in whole["optimizer"]["state"].values()} for whole in (before, after)]
    assert steps == [{4}, {6}]  # the optimizer went on too
    assert run.parser.get_parsed_content("lr_scheduler").last_epoch == 6


def test_p26_a_run_that_broke_off_ends_where_it_would_have_ended(tmp_path, data):
    """P26: weights, teachers, optimizer, learning rate, random state, exactly."""
    settings = {"max_epochs": 3, "num_validation": 1, "val_interval": 2}
    trained(data, tmp_path / "whole", **settings)
    with pytest.raises(RuntimeError):
        trained(data, tmp_path / "broken", **settings, **{"objective#supervised#loss": SPOILED_LOSS})
    trained(data, tmp_path / "broken", **settings, resume=True, accept_changes=True)  # the right loss
    for name in ("last.pt", "model.pt", "best.pt"):
        whole, broken = (torch.load(tmp_path / run / "models" / name, weights_only=True) for run in ("whole", "broken"))
        differing = [key for key in whole.keys() | broken.keys() if not same(whole.get(key), broken.get(key))]
        assert set(differing) <= {"history"}, name  # which has seconds in it, see below
    whole, broken = (read_history(tmp_path / run / "eval" / "history.csv") for run in ("whole", "broken"))
    assert [{**row, "seconds": 0} for row in broken] == [{**row, "seconds": 0} for row in whole]


def test_p26_a_run_that_is_finished_says_so(tmp_path, data, runs, caplog):
    """P26."""
    shutil.copytree(runs.output / "models", tmp_path / "models")
    before = (tmp_path / "models" / "last.pt").read_bytes()
    with caplog.at_level(logging.INFO, "monai_spct"):
        trained(data, tmp_path, resume=True, accept_changes=True, num_validation=1)
    assert "is of a finished run of 2 epochs" in caplog.text
    assert (tmp_path / "models" / "last.pt").read_bytes() == before


def test_a_run_that_starts_anew_leaves_nothing_of_another_one_among_its_files(tmp_path, data):
    def files(folder):
        return {path.relative_to(folder).as_posix() for path in folder.rglob("*.*") if path.name != ".lock"}

    short = {"max_epochs": 1, "epoch_length": 1, "num_validation": 1, "val_interval": 1}
    trained(data, tmp_path, **short, kept_epochs=[1])
    for name in ("eval/scores.csv", "predictions/a.nii.gz"):  # of other commands
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    first = files(tmp_path)
    assert first >= {"models/best.pt", "models/epoch_001.pt", "eval/history.csv", "trained.json"}
    trained(data, tmp_path, **short, seed=1)
    assert files(tmp_path / "previous_1") == first
    second = {name for name in files(tmp_path) if not name.startswith("previous_1")}
    assert {name for name in second if "tfevents" not in name} == {
        *("eval/history.csv", "eval/curves.png", "trained.json"),
        *(f"models/{name}.pt" for name in ("best", "last", "model")),
    }
    assert len(read_history(tmp_path / "eval" / "history.csv")) == 1


def test_there_may_be_nothing_to_resume(tmp_path, data, caplog):
    with caplog.at_level(logging.INFO, "monai_spct"):
        trained(data, tmp_path, resume=True, max_epochs=1, epoch_length=1)
    assert "nothing to resume" in caplog.text
    assert (tmp_path / "models" / "last.pt").is_file()


# Overlays


def test_labels_alone_train_one_network_without_teachers_and_without_unlabeled_images(tmp_path, own_data):
    output = tmp_path / "output"
    for case in lists(own_data).unlabeled:
        Path(case["image"]).write_bytes(b"spoiled")
    run = trained(own_data, output, LABELED_ONLY)
    parsed = run.parser.get_parsed_content
    assert len(parsed("network").networks) == 1
    assert parsed("teachers") is None
    assert parsed("predictor") is parsed("network")
    result = parsed("train#trainer").state.output
    assert {str(name) for name in result if str(name).endswith("loss")} == {"loss", "supervised_loss"}

    tested = workflow(EVALUATE, dataset_dir=str(own_data), output_dir=str(output), max_pictures=0)
    tested.run()
    assert len(tested.parser.get_parsed_content("network").networks) == 1
    assert json.loads((output / "eval" / "summary.json").read_text())["mean"]["n_volumes"] == 2


def test_labels_alone_are_validated_on_the_students(tmp_path, data):
    run = trained(data, tmp_path, LABELED_ONLY, num_validation=1, val_interval=1)
    best = torch.load(tmp_path / "models" / "best.pt", weights_only=True)
    assert best.keys() == run.parser.get_parsed_content("network").state_dict().keys()
    assert run.parser.get_parsed_content("validate#evaluator").state.epoch == 2


@pytest.mark.parametrize("overlays", [(), (LABELED_ONLY,)], ids=["co-training", "labeled only"])
def test_p09_all_labels_and_no_unlabeled_images_are_a_supervised_run(tmp_path, data, overlays):
    run = trained(data, tmp_path, *overlays, labeled_patients=None, labeled_ratio=1)
    output = run.parser.get_parsed_content("train#trainer").state.output
    assert {str(name) for name in output if str(name).endswith("loss")} == {"loss", "supervised_loss"}
    assert len(run.parser.get_parsed_content("split").labeled) == 8
    assert (tmp_path / "models" / "model.pt").is_file()


def test_the_small_setting_learns_on_two_millimeters(tmp_path, data):
    run = trained(data, tmp_path, SMALL, epoch_length=1, max_epochs=1)
    parsed = run.parser.get_parsed_content
    case = parsed("split").labeled[0]
    volume = parsed("train#dataset").volumes[0]
    label = nib.load(case["label"])
    slices = label.shape[2]
    assert volume["image"].shape == volume["label"].shape == (slices, 1, 112, 112)
    area = math.prod(label.header.get_zooms()[:2])
    for structure in (1, 2, 3):  # as large as before, in square millimeters
        before = int((np.asarray(label.dataobj) == structure).sum()) * area
        assert int((volume["label"] == structure).sum()) * 4 == pytest.approx(before, rel=0.1)
    assert parsed("train#unlabeled_dataset").volumes[0]["image"].shape[1:] == (1, 112, 112)


NOTHING_FOUND = "$lambda image, network: torch.cat([torch.ones_like(image)] + 3 * [torch.zeros_like(image)], 1)"


@pytest.mark.parametrize(("structure", "name"), [(1, "RV"), (2, "Myo")])
def test_one_structure_against_the_rest(data, tmp_path, structure, name):
    overlay = CONFIGS / "one_structure.json"
    settings = {"dataset_dir": str(data), "output_dir": str(tmp_path), "structure": structure, "max_pictures": 0}
    run = trained(data, tmp_path, overlay, epoch_length=1, max_epochs=1, structure=structure)
    dataset = run.parser.get_parsed_content("train#dataset")
    labels = torch.cat([volume["label"].flatten() for volume in dataset.volumes])
    every = [LoadImage(image_only=True)(case["label"]) for case in lists(data).labeled]
    assert labels.count_nonzero() == sum((volume == structure).sum() for volume in every)
    workflow(EVALUATE, overlay, **settings).run()
    assert list(json.loads((tmp_path / "eval" / "summary.json").read_text())) == [name, "mean"]


@pytest.mark.parametrize("overlays", [(), (SMALL,)], ids=["original grid", "2 mm"])
def test_p12_scores_are_those_of_the_grid_that_was_asked_for(tmp_path, data, runs, overlays):
    """A structure that is missed costs the diagonal of the volume, which tells the grid."""
    folder = options_of(runs, data, tmp_path)
    workflow(EVALUATE, *overlays, **folder, inferer=NOTHING_FOUND, max_pictures=0).run()
    with (tmp_path / "eval" / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    labels = {case["case"]: nib.load(case["label"]) for case in lists(data).test}
    assert {row["case"] for row in rows} == labels.keys()
    for row in rows:
        label = labels[row["case"]]
        sizes = [n * zoom for n, zoom in zip(label.shape, map(float, label.header.get_zooms()), strict=True)]
        if overlays:
            sizes[:2] = 224, 224
        assert row["missed"] == "True"
        assert float(row["hd"]) == pytest.approx(math.hypot(*sizes), rel=1e-4)


def options_of(runs: Runs, data: Path, output: Path) -> dict[str, str]:
    model = str(runs.output / "models" / "model.pt")
    return {"dataset_dir": str(data), "output_dir": str(output), "ckpt_path": model}


# finds a voxel's class in its intensity, which is scaled to [0, 1] when the network sees it
READS = "$lambda image, network: torch.cat([1 - (image * 3 - c).abs().clamp(max=1) for c in range(4)], 1)"


@pytest.mark.parametrize(
    ("shape", "spacing"), [((37, 29, 5), (1.25, 1.25, 10)), ((84, 60, 4), (3.3, 3.0, 9))], ids=["smaller", "larger"]
)
@pytest.mark.parametrize("overlays", [(), (SMALL,)], ids=["as it is", "by way of 2 mm"])
def test_p02_a_prediction_comes_back_to_where_it_was_seen(tmp_path, runs, shape, spacing, overlays):
    """Exactly where nothing is resampled; but for the borders where it is, and background where it was cut off."""
    truth = np.zeros(shape, np.int16)
    third = [n // 4 for n in shape[:2]]
    truth[third[0] : 2 * third[0], third[1] :] = 1
    truth[2 * third[0] :, third[1] : 3 * third[1]] = 2
    truth[: third[0], : third[1], 1:3] = 3  # one corner: neither a flip nor a turn goes unseen
    an_image(tmp_path / "images" / "a.nii.gz", truth * 100, spacing)
    folder = options_of(runs, tmp_path / "images", tmp_path / "output")
    workflow(INFERENCE, *overlays, **folder, inferer=READS, max_pictures=0).run()

    result = nib.load(tmp_path / "output" / "predictions" / "a.nii.gz")
    mask = np.asarray(result.dataobj)
    assert mask.dtype == np.uint8
    assert mask.shape == shape
    np.testing.assert_allclose(result.affine, np.diag([-spacing[0], -spacing[1], spacing[2], 1]), atol=1e-6)
    if not overlays:
        np.testing.assert_array_equal(mask, truth)
        return
    seen = np.zeros(shape, bool)
    window = [
        slice(max(0, round((n - 224 / s) / 2)), n - max(0, round((n - 224 / s) / 2)))
        for n, s in zip(shape[:2], spacing[:2], strict=True)
    ]
    seen[tuple(window)] = True
    assert (mask == truth)[seen].mean() > 0.93
    assert all((mask == c)[seen].sum() > 0.7 * (truth == c)[seen].sum() for c in range(4))
    beyond = ~seen
    beyond[1:] &= ~seen[:-1]
    beyond[:-1] &= ~seen[1:]
    assert (mask[beyond] == 0).all()


# Real data


@pytest.fixture
def real_data() -> Path:
    folder = os.environ.get("SPCT_DATA_DIR")
    if not folder:
        pytest.skip("SPCT_DATA_DIR is not set: it names the folder that holds acdc/")
    if not (Path(folder) / "acdc").is_dir():
        pytest.skip(f"there is no acdc/ in SPCT_DATA_DIR ({folder})")
    return Path(folder) / "acdc"


@pytest.mark.real_data
def test_real_patients_train_as_in_the_paper_with_seven_of_75_labeled(tmp_path, real_data):
    done = command(
        "training",
        f"['{TRAIN}','{SMALL}']",
        *options(dataset_dir=real_data, output_dir=tmp_path, max_epochs=1, epoch_length=2),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "\nlabeled: 7 patients, 14 cases\nunlabeled: 68 patients, 136 cases\n" in done.stdout
    assert "\ntest: 25 patients, 50 cases\n" in done.stdout
    assert re.search(r"training: 100%\|.*\| 2/2 ", done.stderr)
    last = torch.load(tmp_path / "models" / "last.pt", weights_only=True)
    assert last["run"]["epoch"] == 1
    assert all(value.isfinite().all() for value in last["network"].values())


@pytest.mark.real_data
def test_real_headers_give_the_true_spacing(real_data):
    table = real_data / "volumes.csv"
    if not table.is_file():
        pytest.skip("there is no volumes.csv with the true spacing beside the patients")
    with table.open() as file:
        rows = {(row["patient"], int(row["frame"])): row for row in csv.DictReader(file)}
    cases = [case for case in acdc_cases(real_data) if case["patient"] in ("patient001", "patient005", "patient050")]
    assert len(cases) == 6
    for case in cases:
        row = rows[case["patient"], int(case["frame"])]
        image = LoadImage(reader=VolumeReader())(case["image"])
        expected = [float(row["inplane_mm"]), float(row["inplane_mm"]), float(row["slice_mm"])]
        assert image.pixdim.tolist() == pytest.approx(expected, rel=1e-4)
        assert image.shape == (int(row["nx"]), int(row["ny"]), int(row["nz"]))


@pytest.mark.parametrize("no", ["false", "False", False], ids=repr)
def test_no_means_no(tmp_path, data, runs, no):
    """The command line hands `--resume false` on as a word."""
    trained(data, tmp_path, max_epochs=1, epoch_length=1)
    before = (tmp_path / "models" / "last.pt").stat().st_mtime_ns
    trained(data, tmp_path, max_epochs=1, epoch_length=1, resume=no)  # which would do nothing
    assert (tmp_path / "models" / "last.pt").stat().st_mtime_ns > before
    case = lists(data).test[0]
    folder = options_of(runs, Path(case["image"]), tmp_path / "output")
    workflow(INFERENCE, **folder, uncertainty=no, max_pictures=0).run()
    assert [path.name for path in (tmp_path / "output" / "predictions").glob("*.nii.gz")] == [f"{case['case']}.nii.gz"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma_start": 0}, "`initial` must be positive, got 0"),
        ({"epoch_length": 0}, "`epoch_length`"),
    ],
    ids=str,
)
def test_a_setting_is_refused_by_its_own_name(tmp_path, data, settings, message):
    with pytest.raises(RuntimeError) as error:
        trained(data, tmp_path, **settings)
    assert re.search(message, str(first_cause(error.value)))


def test_the_last_state_in_place_of_weights_is_named(tmp_path, data, runs):
    path = runs.output / "models" / "last.pt"
    with pytest.raises(RuntimeError) as error:
        workflow(EVALUATE, dataset_dir=str(data), output_dir=str(tmp_path), ckpt_path=str(path)).run()
    assert any(str(path) in str(cause) for cause in causes(error.value))


def test_images_of_one_name_in_two_folders_do_not_overwrite_each_other(tmp_path, runs):
    for n, name in enumerate("ab"):
        voxels = np.full((20 + n, 20, 4), n, np.int16) + np.arange(4, dtype=np.int16)
        an_image(tmp_path / "images" / name / "image.nii.gz", voxels)
    folder = options_of(runs, tmp_path / "images", tmp_path / "output")
    workflow(INFERENCE, **folder, max_pictures=0).run()
    assert len(list((tmp_path / "output" / "predictions").rglob("*.nii.gz"))) == 2


def test_predictions_below_the_images_are_not_predicted_on(tmp_path, runs):
    an_image(tmp_path / "a.nii.gz", np.arange(20 * 20 * 4, dtype=np.int16).reshape(20, 20, 4))
    for _ in range(2):
        workflow(INFERENCE, **options_of(runs, tmp_path, tmp_path), max_pictures=0).run()
    assert [path.name for path in (tmp_path / "predictions").glob("*.nii.gz")] == ["a.nii.gz"]


def test_nothing_to_test_on_is_refused(tmp_path, data, runs):
    with pytest.raises(RuntimeError) as error:
        workflow(EVALUATE, **options_of(runs, data, tmp_path), test_ratio=0).run()
    assert "there must be at least one test patient" in str(first_cause(error.value))
