"""The bundle for ACDC does what its user asks on the command line, or says why not: on phantoms, and on real data."""

import csv
import html
import json
import logging
import math
import os
import re
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import matplotlib.image
import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.transforms import LoadImage
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from monai_spct.data import VolumeReader, acdc_cases, split_cases
from monai_spct.handlers import read_history
from monai_spct.metrics import case_name
from monai_spct.workflow import copy, write_page
from tests.bundles.little import (
    BACKBONE,
    BUNDLES,
    LITTLE,
    config,
    failure,
    overlay,
    part,
    predicting,
    python,
    trained,
    training,
    typed,
    workflow,
    written,
)
from tests.bundles.states import loaded_safely, same
from tests.forks import forked

STRUCTURES = ("RV", "Myo", "LV")
LOSSES = ("loss", "supervised_loss", "co_training_loss", "consistency_loss")
NOTES = ("gamma", "selected_share", "disagreement", "co_training_weight", "consistency_weight")
SMALL = config("small")
NOTHING_FOUND = "$lambda image, network: torch.cat([torch.ones_like(image)] + 3 * [torch.zeros_like(image)], 1)"


def lists(data: Path, num_validation: int = 0):
    """The split that a little training makes."""
    return split_cases(acdc_cases(data), labeled_patients=1, num_validation=num_validation)


def names(cases) -> list[str]:
    return [case["case"] for case in cases]


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


def saved(output: Path, name: str) -> dict:
    return torch.load(output / "models" / name, weights_only=True)


def scores(output: Path) -> list[dict[str, str]]:
    with (output / "eval" / "scores.csv").open() as file:
        return list(csv.DictReader(file))


def summary(output: Path) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads((output / "eval" / "summary.json").read_text(), parse_constant=refuse)


def recorded(output: Path) -> EventAccumulator:
    events = EventAccumulator(str(output / "eval"), size_guidance={"images": 0})
    events.Reload()
    return events


# The way of a user: train, evaluate, predict


class Runs(NamedTuple):
    """What a user typed, and what came of it."""

    output: Path
    images: Path
    train: subprocess.CompletedProcess[str]
    evaluate: subprocess.CompletedProcess[str]
    inference: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory) -> Runs:
    base = tmp_path_factory.mktemp("runs")
    output, images = base / "output", base / "images"
    for case in acdc_cases(data)[:2]:
        (images / case["patient"]).mkdir(parents=True, exist_ok=True)
        shutil.copy(case["image"], images / case["patient"])
    an_image(images / "odd.nii.gz", np.random.default_rng(0).integers(0, 300, (37, 29, 5)).astype(np.int16))
    settings = {**LITTLE, "num_validation": 1, "val_interval": 1, "kept_epochs": [1]}
    relative, where = f"{BUNDLES.name}/acdc/configs/train.json", {"output_dir": output, **BACKBONE}
    with ThreadPoolExecutor(2) as pool:  # each from another place
        train = pool.submit(
            python, typed("training", relative, dataset_dir=data, **where, **settings), cwd=BUNDLES.parent
        )
        train.result()
        evaluate = pool.submit(
            python, typed("evaluating", "configs/evaluate.json", dataset_dir=data, **where), cwd=BUNDLES / "acdc"
        )
        words = typed("inferring", config("inference"), dataset_dir=images, uncertainty="true", **where)
        inference = pool.submit(python, words, cwd=base)
    return Runs(output, images, *(f.result() for f in (train, evaluate, inference)))


@pytest.mark.parametrize(
    ("name", "bar"), [("train", "training"), ("evaluate", "evaluating"), ("inference", "predicting")]
)
def test_each_config_runs_to_its_end_from_its_own_place_and_shows_the_way(runs, name, bar):
    done, steps = getattr(runs, name), {"train": 4, "evaluate": 2, "inference": 3}[name]
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(rf"{bar}: 100%\|.*\| {steps}/{steps} \[\d\d:\d\d<\d\d:\d\d", done.stderr), done.stderr


def test_files_are_whole_and_can_be_loaded_safely(runs):
    models = [f"models/{name}.pt" for name in ("best", "epoch_001", "last", "last_1", "model")]
    assert [path.relative_to(runs.output).as_posix() for path in loaded_safely(runs.output)] == models
    found = {path.name for path in (runs.output / "models").iterdir()}
    assert found == {"model.json", *(Path(name).name for name in models)}
    assert [path.name for path in runs.output.rglob(".*")] == [".lock"]
    last = saved(runs.output, "last.pt")
    assert (last["run"]["epoch"], last["run"]["epoch_length"]) == (2, 2)
    assert {"network", "teachers", "optimizer", "lr_scheduler"} <= set(last)


@pytest.mark.parametrize("name", ["model.pt", "best.pt", "epoch_001.pt"])
def test_the_weights_that_predict_are_a_bare_state_dict_of_two_networks_that_differ(runs, name):
    state = saved(runs.output, name)
    assert {tuple(key.split(".")[:2]) for key in state} == {("networks", "0"), ("networks", "1")}
    assert all(value.isfinite().all() for value in state.values())
    kernels = [key for key in state if key.startswith("networks.0.") and state[key].ndim == 4]
    assert kernels
    for key in kernels:
        assert not torch.equal(state[key], state[key.replace("networks.0.", "networks.1.")])


def test_losses_gamma_agreement_and_scores_are_on_record(runs):
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

    events = recorded(runs.output)
    assert {*events.Tags()["scalars"], "epoch"} == history[0].keys()
    for name in events.Tags()["scalars"]:
        points = [(point.step, point.value) for point in events.Scalars(name)]
        assert points == [(row["epoch"], pytest.approx(row[name], rel=1e-6)) for row in history]


def test_patients_slices_and_validations_are_printed(runs):
    for line in (
        "labeled: 1 patient, 2 cases",
        "unlabeled: 2 patients, 4 cases",
        "validation: 1 patient, 2 cases",
        "test: 1 patient, 2 cases",
    ):
        assert f"\n{line}\n" in runs.train.stdout
    for name, volumes in (("labeled", 2), ("unlabeled", 4)):
        assert re.search(rf" {name}: \d+ slices of {volumes} volumes\n", runs.train.stdout), runs.train.stdout
    for epoch in (1, 2):
        assert re.search(rf"Epoch\[{epoch}\] Metrics -- mean_dsc: 0\.\d+", runs.train.stdout)


def test_the_last_lines_say_where_everything_is_and_what_to_run_next(runs, data):
    score, weights, page, curves, board, evaluate = runs.train.stdout.strip().splitlines()[-6:]
    dsc = [row["validation_mean_dsc"] for row in read_history(runs.output / "eval" / "history.csv")]
    assert score.startswith(f"validation:   mean DSC {dsc[-1]:.3f} in epoch 2, the last (model.pt); ")
    assert score.endswith("none was better (best.pt)" if dsc[1] > dsc[0] else "in epoch 1, the best (best.pt)")
    for line, name in ((weights, "models/model.pt"), (page, "index.html"), (curves, "eval/curves.png")):
        path = Path(line.split(maxsplit=1)[1])
        assert path == runs.output / name
        assert path.is_file()
    assert board.endswith(f"tensorboard --logdir {runs.output / 'eval'}")
    words = shlex.split(evaluate.split(maxsplit=1)[1])
    assert words[:5] == ["python", "-m", "monai.bundle", "run", "evaluating"]
    given = dict(zip(words[5::2], words[6::2], strict=True))
    assert Path(given.pop("--config_file")).samefile(config("evaluate"))
    assert given == {"--dataset_dir": str(data), "--output_dir": str(runs.output)}


def test_the_page_has_the_commands_as_they_were_typed(runs):
    assert (runs.output / "index.html").is_file()
    for name in ("trained.json", "eval/evaluated.json", "predictions/predicted.json"):
        done = {"t": runs.train, "e": runs.evaluate, "p": runs.inference}[Path(name).name[0]]
        record = json.loads((runs.output / name).read_text())
        assert shlex.split(record["command"]) == done.args
    write_page(runs.output)  # as the last of them does: here, two ran at once
    page = html.unescape((runs.output / "index.html").read_text()).replace(" \\\n    ", " ")  # an option on each line
    for text in (shlex.join(runs.train.args), shlex.join(runs.inference.args), "unlabeled: 2 patients, 4 cases"):
        assert text in page
    pictures = re.findall('src="([^"]*)"', page)
    assert len(pictures) == 6  # the curves, two scored cases and three predictions
    assert all((runs.output / picture).is_file() for picture in pictures)


def test_scores_are_there_for_each_volume_and_structure_and_on_the_screen(runs, data):
    rows, cases = scores(runs.output), names(lists(data, 1).test)
    assert [(row["case"], row["structure"]) for row in rows] == [(case, s) for case in cases for s in STRUCTURES]
    for row in rows:
        assert 0 <= float(row["dsc"]) <= 1
        assert 0 <= float(row["hd95"]) <= float(row["hd"]) < math.inf
    assert list(summary(runs.output)) == [*STRUCTURES, "mean"]
    assert "| structure | DSC | HD (mm) | HD95 (mm) | missed |" in runs.evaluate.stdout
    for name, row in summary(runs.output).items():
        assert row["n_volumes"] == 2
        assert f"| {name} | {row['dsc_mean']:.3f} ± {row['dsc_std']:.3f} |" in runs.evaluate.stdout
    record = json.loads((runs.output / "eval" / "inference_time.json").read_text())
    assert 0 < record.pop("seconds_per_slice") < 10
    assert record["volumes"] == 2


def test_curves_and_pictures_can_be_looked_at(runs, data):
    curves = matplotlib.image.imread(runs.output / "eval" / "curves.png")
    assert min(curves.shape[:2]) > 1000
    assert curves[..., :3].std() > 0.05
    for folder, expected in (
        ("eval", names(lists(data, 1).test)),
        ("predictions", [case_name(path) for path in runs.images.rglob("*.nii.gz")]),
    ):
        pictures = sorted((runs.output / folder / "pictures").glob("*"))
        assert {path.stem for path in pictures} == set(expected)
        for path in pictures:
            picture = matplotlib.image.imread(path)
            assert min(picture.shape[:2]) > 100
            assert picture[..., :3].std() > 0.05
    events = recorded(runs.output)
    assert events.Tags()["images"] == [f"validation/{case}" for case in names(lists(data, 1).validation)]
    for tag in events.Tags()["images"]:
        assert [image.step for image in events.Images(tag)] == [1, 2]


def test_cases_are_ranked_by_how_certain_the_networks_are(runs, data):
    for folder, expected in (
        ("eval", names(lists(data, 1).test)),
        ("predictions", [case_name(path) for path in runs.images.rglob("*.nii.gz")]),
    ):
        with (runs.output / folder / "ranking.csv").open(encoding="utf-8") as file:
            table = list(csv.DictReader(file))
        assert sorted(row["case"] for row in table) == sorted(expected)
        assert all(Path(row["image"]).is_file() and float(row["disagreement"]) > 0 for row in table)
        assert ("dsc" in table[0]) == (folder == "eval")


def test_maps_of_entropy_are_below_the_contours(runs):
    magma = np.array([0.716387, 0.214982, 0.47529])  # the middle of the scale
    for path in (runs.output / "predictions" / "pictures").glob("*"):
        picture = matplotlib.image.imread(path)[..., :3]
        found = np.flatnonzero((np.abs(picture - magma).max(-1) < 0.02).any(1))
        assert found.size, path.name
        assert found.min() > len(picture) / 3


def test_predictions_lie_on_the_grid_of_their_images(runs):
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
            for code in ("sform_code", "qform_code"):
                assert int(result.header[code]) == int(source.header[code])
        assert set(np.unique(mask.dataobj)) <= {0, 1, 2, 3}
        values = np.asarray(uncertainty.dataobj)
        assert 0 <= values.min() <= values.max() <= math.log(4) + 1e-6
        assert values.std() > 0


# Where a bundle is run from


def test_a_copy_keeps_its_results_to_itself_and_a_short_run_has_its_losses_on_record(tmp_path, data):
    copy("acdc", tmp_path / "mine")
    files = (tmp_path / "mine" / "configs" / "train.json", tmp_path / "mine" / "methods" / "labeled_only.json")
    workflow(*files, dataset_dir=data, **LITTLE).run()
    assert (tmp_path / "mine" / "output" / "models" / "model.pt").is_file()
    assert "loss" in recorded(tmp_path / "mine" / "output").Tags()["scalars"]


# Overrides


@pytest.mark.parametrize(
    ("settings", "labeled"),
    [({}, 7), ({"labeled_ratio": 0.05}, 3), ({"labeled_ratio": 1}, 75), ({"labeled_patients": 2}, 2)],
    ids=["default", "5 %", "all", "2 patients"],
)
def test_of_a_hundred_patients_as_many_are_labeled_as_one_asks_for(tmp_path, settings, labeled):
    """As in the paper."""
    for n in range(1, 101):
        folder = tmp_path / "training" / f"patient{n:03d}"
        folder.mkdir(parents=True)
        (folder / f"patient{n:03d}_frame01.nii.gz").touch()
        (folder / f"patient{n:03d}_frame01_gt.nii.gz").touch()
    splits = {}
    for name in ("train", "evaluate"):
        parser = ConfigParser()
        parser.read_config(str(config(name)))
        parser.update({"dataset_dir": str(tmp_path), **(settings if name == "train" else {})})
        splits[name] = parser.get_parsed_content("split")
    split = splits["train"]
    counts = [len({case["patient"] for case in part}) for part in (split.labeled, split.unlabeled, split.test)]
    assert counts == [labeled, 75 - labeled, 25]
    assert split.test == splits["evaluate"].test
    assert len({case["patient"] for part in (split.labeled, split.unlabeled, split.test) for case in part}) == 100


def test_three_views_are_trained_and_found_again_by_the_evaluation(tmp_path, data):
    run = trained(data, tmp_path, num_views=3, epoch_length=1, max_epochs=1)
    tested = predicting("evaluate", data, tmp_path)
    tested.run()
    for found in (part(run, "network"), part(run, "teachers"), part(tested, "network")):
        assert len(found.networks) == 3
    assert summary(tmp_path)["mean"]["n_volumes"] == 2


def test_a_seed_makes_the_same_bytes_again_and_with_workers_and_another_does_not(tmp_path, data):
    """With deterministic algorithms, which are all there, on one machine's CPU."""
    files, first = {}, {}
    torch.use_deterministic_algorithms(True)
    try:
        for name, seed, workers in (("once", 0, 0), ("with workers", 0, 2), ("another", 2, 0)):
            settings = {
                "seed": seed,
                "num_workers": workers,
                "num_validation": 1,
                "val_interval": 1,
                "kept_epochs": [1],
            }
            run = training(data, tmp_path / name, **settings)
            first[name] = torch.cat([p.detach().flatten() for p in part(run, "network").parameters()])
            run.run()
            made = {path.name: path.read_bytes() for path in (tmp_path / name / "models").glob("*.pt")}
            for last in ("last.pt", "last_1.pt"):
                made[last] = saved(tmp_path / name, last)
                for row in made[last]["history"]["rows"]:
                    row.pop("seconds")
            rows = [{**row, "seconds": 0} for row in read_history(tmp_path / name / "eval" / "history.csv")]
            files[name] = {**made, "history.csv": rows}
    finally:
        torch.use_deterministic_algorithms(False)
    once = files["once"]
    assert set(once) == {"best.pt", "epoch_001.pt", "history.csv", "last.pt", "last_1.pt", "model.pt"}
    assert [file for file in once if not same(files["with workers"][file], once[file])] == []
    assert [file for file in once if same(files["another"][file], once[file])] == []
    assert torch.equal(first["once"], first["with workers"])
    assert not torch.equal(first["once"], first["another"])
    assert once["model.pt"] != once["epoch_001.pt"]  # so that something was learned


def test_the_overlay_of_the_guide_switches_deterministic_algorithms_on(tmp_path, data):
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


def test_a_training_stops_early_and_stays_so_and_needs_someone_to_validate_on(tmp_path, data):
    assert "`patience` counts validations" in failure(lambda: training(data, tmp_path, patience=1))
    settings = {"max_epochs": 40, "epoch_length": 1, "num_validation": 1, "val_interval": 1, "learning_rate": 1e-9}
    trained(data, tmp_path, overlay("labeled_only"), patience=2, **settings)
    record, history = json.loads((tmp_path / "trained.json").read_text()), read_history(tmp_path / "eval/history.csv")
    dsc = [row["validation_mean_dsc"] for row in history]
    assert record["stopped_early"]
    assert record["epochs"] == len(history) < 40
    assert max(dsc[:-2]) >= max(dsc[-2:])
    weights = (tmp_path / "models" / "model.pt").read_bytes()
    trained(data, tmp_path, overlay("labeled_only"), patience=2, resume=True, **settings)
    assert (tmp_path / "models" / "model.pt").read_bytes() == weights
    assert read_history(tmp_path / "eval" / "history.csv") == history


@pytest.mark.parametrize("name", ["max_epochs", "train#trainer#max_epochs"])
def test_the_length_of_the_run_sets_the_schedule_of_the_learning_rate(tmp_path, data, name):
    run = training(data, tmp_path, **{name: 5, "epoch_length": 4})
    assert part(run, "train#trainer").state.max_epochs == 5
    rate = part(run, "lr_scheduler").lr_lambdas[0]
    assert rate(2) == 1  # the peak, after a tenth of the iterations
    assert rate(0) < rate(1) < 1
    assert all(rate(n) > rate(n + 1) for n in range(2, 20))
    assert rate(20) == pytest.approx(0, abs=1e-6)


def test_device_workers_and_batches_follow_their_settings_and_slices_are_padded(tmp_path, data):
    settings = {"labeled_batch_size": 3, "unlabeled_batch_size": 5, "crop_size": 48}
    for device, workers in (("$torch.device('cpu')", 2), ("cpu", 0)):
        run = training(data, tmp_path, device=device, num_workers=workers, **settings)
        assert torch.device(part(run, "train#trainer").state.device) == torch.device("cpu")
        loader = part(run, "train#dataloader")
        assert [one.num_workers for one in loader.loaders] == [workers, workers]
    shapes = {key: tuple(value.shape) for key, value in next(iter(loader)).items()}
    assert shapes == {"image": (3, 1, 48, 48), "label": (3, 1, 48, 48), "unlabeled": (5, 1, 48, 48)}


@pytest.mark.parametrize("term", ["co_training", "consistency"])
def test_a_term_can_be_switched_off(tmp_path, data, term):
    run = training(data, tmp_path, **{f"objective#{term}#_disabled_": True})
    assert set(part(run, "objective").terms) == {"supervised", "co_training", "consistency"} - {term}


def test_no_means_no(tmp_path, data, runs):
    """The command line hands `--resume false` on as a word."""
    shutil.copytree(runs.output / "models", tmp_path / "models")
    before = (tmp_path / "models" / "last.pt").stat().st_mtime_ns
    trained(data, tmp_path, resume="false")  # which would do nothing
    assert (tmp_path / "models" / "last.pt").stat().st_mtime_ns > before
    case = lists(data).test[0]
    predicting("inference", Path(case["image"]), tmp_path, uncertainty="False").run()
    assert [path.name for path in (tmp_path / "predictions").glob("*.nii.gz")] == [f"{case['case']}.nii.gz"]


# Bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labeled_patients": 5}, r"`labeled_patients` must be at most the 4 training patients, got 5\."),
        ({"num_views": 1}, r"`num_views` must be .*at least 2, got 1\."),
        ({"gamma_start": 0}, "`initial` must be positive, got 0"),
        ({"ema_decay": 1.5}, r"`decay` must lie between 0 and 1, got 1\.5\."),
        ({"unlabeled_batch_size": 0}, r"`unlabeled_batch_size` must be a whole number of at least 1, got 0\."),
        ({"epoch_length": 0}, r"`epoch_length` must be a whole number of at least 1, got 0\."),
        ({"max_epochs": 0}, "max_epochs"),
        ({"learning_rate": -1}, "learning rate: -1"),
        ({"dataset_dir": "nowhere"}, "no ACDC frames in .*/nowhere .*To try everything on made-up data"),
    ],
    ids=str,
)
def test_a_setting_out_of_its_range_is_refused_by_name_before_anything_is_written(tmp_path, data, settings, message):
    said = failure(lambda: trained(data, tmp_path / "output", **settings))
    assert re.search(message, said, re.DOTALL), said
    assert not {file for file in written(tmp_path / "output") if file.startswith("models")}


def value_outside(case):
    def change(label):
        label[3, 4, 1] = 4
        return label

    rewrite(case["label"], change)


def other_shape(case):
    rewrite(case["label"], lambda label: label[:-1])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (value_outside, r"the label of {case} must hold whole numbers from 0 to 3 .*, got \[4\.0\]"),
        (other_shape, r"image and label of {case} must have the same shape, got \(\d+, \d+, \d\) and \(\d+, \d+, \d\)"),
        (lambda case: Path(case["label"]).unlink(), "missing for: .*{image}"),
    ],
    ids=["voxels", "header", "no label"],
)
def test_data_that_cannot_be_learned_from_are_refused_by_the_name_of_the_case(tmp_path, own_data, spoil, message):
    case = lists(own_data).labeled[0]
    spoil(case)
    said = failure(lambda: trained(own_data, tmp_path / "output"))
    assert re.search(message.format(case=case["case"], image=re.escape(case["image"])), said, re.DOTALL), said
    assert written(tmp_path / "output") == set()


def not_finite(image):
    image = image.astype(np.float32)
    image[5:8, 5:8], image[9, 9] = np.nan, np.inf
    return image


@pytest.mark.filterwarnings("ignore:Divide by zero")  # MONAI's, of the constant image
def test_data_that_can_be_mended_are_named_and_training_goes_on(tmp_path, own_data):
    first, second = lists(own_data).labeled
    other = lists(own_data).unlabeled[0]
    rewrite(first["label"], lambda label: label, affine=np.eye(4))
    rewrite(second["image"], not_finite)
    rewrite(other["image"], np.ones_like)
    with pytest.warns(UserWarning) as caught:  # noqa: PT030 - all three are looked for
        trained(own_data, tmp_path)
    said = "\n".join(str(warning.message) for warning in caught)
    assert f"image and label of {first['case']} have the same shape but different affines" in said
    assert re.search(rf"the image of {second['case']} has \d+ voxels that are not finite", said)
    assert f"the image of {other['case']} is constant" in said
    assert all(value.isfinite().all() for value in saved(tmp_path, "last.pt")["network"].values())


def test_training_reads_neither_test_patients_nor_labels_that_it_must_not_know(tmp_path, own_data):
    split = lists(own_data)
    labels = {case["image"]: case["label"] for case in acdc_cases(own_data)}
    for file in (*(case[key] for case in split.test for key in ("image", "label")),
                 *(labels[case["image"]] for case in split.unlabeled)):  # fmt: skip
        Path(file).write_bytes(b"spoiled")
    trained(own_data, tmp_path / "output", epoch_length=1, max_epochs=1)
    assert (tmp_path / "output" / "models" / "model.pt").is_file()


def test_without_weights_the_message_says_to_train_first(tmp_path, data):
    said = failure(lambda: predicting("evaluate", data, tmp_path).run())
    assert str(tmp_path / "models" / "model.pt") in said
    assert "train first" in said


def test_what_cannot_be_evaluated_or_predicted_is_named(tmp_path, data, runs):
    last = runs.output / "models" / "last.pt"
    assert str(last) in failure(lambda: predicting("evaluate", data, tmp_path, ckpt_path=last).run())
    said = failure(lambda: predicting("evaluate", data, tmp_path, ckpt_path=model_of(runs), test_ratio=0).run())
    assert "there must be at least one test patient" in said
    said = failure(lambda: predicting("inference", tmp_path, runs.output).run())
    assert said.startswith(f"no image (*.nii.gz, *.nii, *.mhd, *.mha, *.nrrd) in {tmp_path}")


# Runs that break off, and runs that go on

# cross-entropy, until it has been asked for more than the first epoch's two iterations with two networks
SPOILED_LOSS = (
    "$lambda logits, label, calls=[]: (calls.append(0), torch.nn.functional.cross_entropy(logits, label[:, 0].long())"
    " * (float('nan') if len(calls) > 4 else 1))[1]"
)


def test_a_run_that_broke_off_keeps_its_last_good_epoch_and_ends_where_it_would_have_ended(tmp_path, data, caplog):
    """Weights, teachers, optimizer, learning rate and random state, exactly."""
    settings = {"max_epochs": 3, "num_validation": 1, "val_interval": 2}
    trained(data, tmp_path / "whole", **settings)
    broken = tmp_path / "broken"
    said = failure(lambda: trained(data, broken, **settings, **{"objective#supervised#loss": SPOILED_LOSS}))
    assert "the loss is not finite in epoch 2, iteration 3: supervised_loss nan" in said
    assert saved(broken, "last.pt")["run"]["epoch"] == 1
    for weights in (saved(broken, "last.pt")["network"], saved(broken, "model.pt")):
        assert all(value.isfinite().all() for value in weights.values())

    with caplog.at_level(logging.INFO, "monai_spct"):
        trained(data, broken, **settings, resume=True, accept_changes=True)
    assert "resuming after epoch 1 of 3" in caplog.text
    for name in ("last.pt", "model.pt", "best.pt"):
        one, other = (saved(tmp_path / run, name) for run in ("whole", "broken"))
        differing = {key for key in one.keys() | other.keys() if not same(one.get(key), other.get(key))}
        assert differing <= {"history"}, name  # which has seconds in it, see below
    one, other = (read_history(tmp_path / run / "eval" / "history.csv") for run in ("whole", "broken"))
    # but for the rounding of the loss that was spoiled
    for row, expected in zip(other, one, strict=True):
        assert {**row, "seconds": 0} == pytest.approx({**expected, "seconds": 0}, rel=1e-6)


def test_a_run_that_is_finished_says_so(tmp_path, data, runs, caplog):
    shutil.copytree(runs.output / "models", tmp_path / "models")
    before = (tmp_path / "models" / "last.pt").read_bytes()
    with caplog.at_level(logging.INFO, "monai_spct"):
        trained(data, tmp_path, resume=True, accept_changes=True, num_validation=1)
    assert "is of a finished run of 2 epochs" in caplog.text
    assert (tmp_path / "models" / "last.pt").read_bytes() == before


def test_a_run_that_starts_anew_leaves_nothing_of_another_one_among_its_files(tmp_path, data):
    short = {"max_epochs": 1, "epoch_length": 1, "num_validation": 1, "val_interval": 1}
    trained(data, tmp_path, **short, kept_epochs=[1])
    for name in ("eval/scores.csv", "predictions/a.nii.gz"):  # of other commands
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    first = written(tmp_path)
    assert first >= {"models/best.pt", "models/epoch_001.pt", "eval/history.csv", "trained.json"}
    trained(data, tmp_path, **short, seed=1)
    assert written(tmp_path / "previous_1") == first
    second = {name for name in written(tmp_path) if not name.startswith("previous_1")}
    models = {f"models/{name}" for name in ("best.pt", "last.pt", "model.json", "model.pt")}
    assert {name for name in second if "tfevents" not in name} == {
        "eval/history.csv",
        "index.html",
        "trained.json",
        *models,
    }
    assert len(read_history(tmp_path / "eval" / "history.csv")) == 1


def test_a_learning_rate_that_blows_up_is_found_at_once(tmp_path, data):
    said = failure(lambda: trained(data, tmp_path, learning_rate=1e30, epoch_length=1, max_epochs=4))
    assert "A lower learning rate" in said
    epoch = int(re.search(r"in epoch (\d)", said)[1])
    assert saved(tmp_path, "last.pt")["run"]["epoch"] == epoch - 1


# Overlays


def test_labels_only_train_and_validate_one_network_without_unlabeled_images(tmp_path, own_data):
    output = tmp_path / "output"
    for case in lists(own_data, 1).unlabeled:
        Path(case["image"]).write_bytes(b"spoiled")
    run = trained(own_data, output, overlay("labeled_only"), num_validation=1, val_interval=1)
    network = part(run, "network")
    assert len(network.networks) == 1
    assert part(run, "teachers") is None
    assert part(run, "predictor") is network
    assert {str(name) for name in part(run, "train#trainer").state.output if "loss" in str(name)} == {
        "loss",
        "supervised_loss",
    }
    assert saved(output, "best.pt").keys() == network.state_dict().keys()
    tested = predicting("evaluate", own_data, output)
    tested.run()
    assert len(part(tested, "network").networks) == 1
    assert summary(output)["mean"]["n_volumes"] == 2


def test_the_small_setting_learns_on_two_millimeters(tmp_path, data):
    run = training(data, tmp_path, SMALL)
    volume, label = part(run, "train#dataset").volumes[0], nib.load(part(run, "split").labeled[0]["label"])
    assert volume["image"].shape == volume["label"].shape == (label.shape[2], 1, 112, 112)
    area = math.prod(label.header.get_zooms()[:2])
    for structure in (1, 2, 3):  # as large as before, in square millimeters
        before = int((np.asarray(label.dataobj) == structure).sum()) * area
        assert int((volume["label"] == structure).sum()) * 4 == pytest.approx(before, rel=0.1)
    assert part(run, "train#unlabeled_dataset").volumes[0]["image"].shape[1:] == (1, 112, 112)


def test_one_structure_against_the_rest(data, tmp_path):
    overlay, settings = config("one_structure"), {"structure": 2}
    run = trained(data, tmp_path, overlay, epoch_length=1, max_epochs=1, **settings)
    labels = torch.cat([volume["label"].flatten() for volume in part(run, "train#dataset").volumes])
    every = [LoadImage(image_only=True)(case["label"]) for case in lists(data).labeled]
    assert labels.count_nonzero() == sum((volume == 2).sum() for volume in every)
    predicting("evaluate", data, tmp_path, overlay, **settings).run()
    assert list(summary(tmp_path)) == ["Myo", "mean"]


# On the grid of the image


def model_of(runs: Runs) -> Path:
    return runs.output / "models" / "model.pt"


@pytest.mark.parametrize("overlays", [(), (SMALL,)], ids=["original grid", "2 mm"])
def test_scores_are_those_of_the_patients_and_the_grid_that_were_asked_for(tmp_path, data, runs, overlays):
    """A structure that is missed costs the diagonal of the volume, which tells the grid."""
    settings = {"scored": "validation", "num_validation": 2} if overlays else {}
    settings |= {"ckpt_path": model_of(runs), "inferer": NOTHING_FOUND}
    predicting("evaluate", data, tmp_path, *overlays, **settings).run()
    asked = lists(data, 2).validation if overlays else lists(data).test
    labels = {case["case"]: nib.load(case["label"]) for case in asked}
    rows = scores(tmp_path)
    assert {row["case"] for row in rows} == labels.keys()
    for row in rows:
        label = labels[row["case"]]
        sizes = [n * zoom for n, zoom in zip(label.shape, map(float, label.header.get_zooms()), strict=True)]
        if overlays:
            sizes[:2] = 224, 224
        assert row["missed"] == "True"
        assert float(row["hd"]) == pytest.approx(math.hypot(*sizes), rel=1e-4)


def test_an_evaluation_may_be_an_overlay_on_the_training_as_in_the_model_zoo(tmp_path, data, runs, caplog):
    shutil.copytree(runs.output / "models", tmp_path / "models")
    settings = {**BACKBONE, "dataset_dir": data, "output_dir": tmp_path, "max_pictures": 0}
    workflow("train", config("evaluate"), **settings).run()
    assert scores(tmp_path) == scores(runs.output)
    assert "differ from those of the training" not in caplog.text


# finds a voxel's class in its intensity, which is scaled to [0, 1] when the network sees it
READS = "$lambda image, network: torch.cat([1 - (image * 3 - c).abs().clamp(max=1) for c in range(4)], 1)"


@pytest.mark.parametrize(
    ("shape", "spacing"), [((37, 29, 5), (1.25, 1.25, 10)), ((84, 60, 4), (3.3, 3.0, 9))], ids=["smaller", "larger"]
)
@pytest.mark.parametrize("overlays", [(), (SMALL,)], ids=["as it is", "by way of 2 mm"])
def test_a_prediction_comes_back_to_where_it_was_seen(tmp_path, runs, shape, spacing, overlays):
    """Exactly where nothing is resampled; but for the borders where it is, and background where it was cut off."""
    truth = np.zeros(shape, np.int16)
    third = [n // 4 for n in shape[:2]]
    truth[third[0] : 2 * third[0], third[1] :] = 1
    truth[2 * third[0] :, third[1] : 3 * third[1]] = 2
    truth[: third[0], : third[1], 1:3] = 3  # one corner: neither a flip nor a turn goes unseen
    an_image(tmp_path / "images" / "a.nii.gz", truth * 100, spacing)
    settings = {"ckpt_path": model_of(runs), "inferer": READS, **({} if overlays else {"resampling": []})}
    predicting("inference", tmp_path / "images", tmp_path / "output", *overlays, **settings).run()

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


def test_images_of_one_name_keep_apart_and_predictions_below_the_images_are_not_predicted_on(tmp_path, runs):
    for n, name in enumerate("ab"):
        voxels = np.full((20 + n, 20, 4), n, np.int16) + np.arange(4, dtype=np.int16)
        an_image(tmp_path / name / "image.nii.gz", voxels)
    for _ in range(2):
        predicting("inference", tmp_path, tmp_path, ckpt_path=model_of(runs)).run()
    assert len(list((tmp_path / "predictions").rglob("*.nii.gz"))) == 2


# Real data


@pytest.fixture
def real_data() -> Path:
    folder = Path(os.environ.get("SPCT_DATA_DIR", "nowhere"), "acdc")
    if not folder.is_dir():
        pytest.skip("SPCT_DATA_DIR names no folder with acdc")
    return folder


@pytest.mark.real_data
def test_real_patients_train_as_in_the_paper_with_seven_of_75_labeled(tmp_path, real_data):
    words = typed("training", config("train"), SMALL, dataset_dir=real_data, output_dir=tmp_path, max_epochs=1,
                  epoch_length=2)  # fmt: skip
    done = forked(words, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\nlabeled: 7 patients, 14 cases\nunlabeled: 68 patients, 136 cases\n" in done.stdout
    assert "\ntest: 25 patients, 50 cases\n" in done.stdout
    last = saved(tmp_path, "last.pt")
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
