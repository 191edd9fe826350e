"""Whoever starts a run: it has the same guards, the same record and its results beside its configs."""

import csv
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from monai_spct.data import write_acdc_phantom
from tests.bundles.little import ROOT
from tests.forks import forked
from tests.workflow import ways_in

NAMES = [way.__name__ for way in ways_in.WAYS]
LITTLE = {
    **{"labeled_patients": 1, "crop_size": 16, "max_epochs": 2, "epoch_length": 1, "num_workers": 0},
    **{"labeled_batch_size": 2, "unlabeled_batch_size": 2, "amp": True},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """With a copy of the bundle for each way, and what came of it."""
    base = tmp_path_factory.mktemp("ways")
    data = write_acdc_phantom(base / "data", patients=4, size=(24, 32), spacing=(5.5, 6.0))
    settings = [{**LITTLE, "dataset_dir": str(data)}, {"max_epoch": 7}]
    done = forked(["-m", "tests.workflow.ways_in", base, *map(json.dumps, settings)], ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return base


def result(folder: Path, name: str) -> dict[str, Any]:
    return dict(json.loads((folder / "results.json").read_text())[name])


@pytest.mark.parametrize("name", NAMES)
def test_results_are_beside_the_configs_with_one_and_the_same_record(folder, name):
    assert (folder / name / "output" / "models" / "model.pt").is_file()
    settings = result(folder, name)["settings"]
    assert settings["max_epochs"] == 2
    assert settings["amp"] is True
    assert set(settings["cases"].values()) == {"labeled", "unlabeled", "test"}
    assert settings == result(folder, NAMES[0])["settings"]


@pytest.mark.parametrize("name", NAMES)
def test_mistakes_are_refused_and_other_settings_are_not_resumed(folder, name):
    found = result(folder, name)
    assert found["mistake"] == "unknown key `max_epoch`: nothing reads it. Did you mean `max_epochs`?"
    assert "is of a run with other settings:\n  `max_epochs` was 2, is 3\nResume with" in found["resumed"]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "by_a_property_of_one"])
def test_the_command_of_the_evaluation_has_what_changes_it(folder, name):
    [line] = [line for line in result(folder, name)["said"].splitlines() if line.startswith("evaluate:")]
    words = shlex.split(line)[1:]
    assert words[:6] == ["python", "-m", "monai.bundle", "run", "evaluating", "--config_file"]
    assert Path(words[6]) == folder / name / "configs" / f"evaluate.{'yaml' if name == 'in_yaml' else 'json'}"
    assert words[7:] == ["--dataset_dir", str(folder / "data")]
    recorded = json.loads((folder / name / "output" / "models" / "model.json").read_text())
    # beside what it has seen and who is tested, its own in the place of those of the weights that come with the bundle
    tested = {"split_seed", "patient_order", "test_ratio", "num_test", "num_validation"}
    assert set(recorded) == {"backbone", "crop_size", "resampling", "seen"} | tested


def test_which_evaluates(folder):
    with (folder / NAMES[0] / "output" / "eval" / "scores.csv").open() as file:
        assert len({row["case"] for row in csv.DictReader(file)}) == 2
