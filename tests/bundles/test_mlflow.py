"""``--tracking mlflow`` of MONAI's command line: losses, learning rate and scores are in the database."""

import importlib.util
import json
import sqlite3
from pathlib import Path

import pytest

from monai_spct.handlers import read_history
from tests.bundles.little import LITTLE, config, python, typed

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason='needs mlflow: pip install "monai-spct[mlflow]"'
)


@pytest.fixture(scope="module")
def output(data, tmp_path_factory) -> Path:
    """What a training and an evaluation wrote."""
    base = tmp_path_factory.mktemp("tracked")
    for name, verb, settings in (
        ("train", "training", {**LITTLE, "val_interval": 1, "log_interval": 1}),
        ("evaluate", "evaluating", {}),
    ):
        where = {"dataset_dir": data, "output_dir": "$'output'", "num_validation": 1}
        tracked = {"tracking": "mlflow", "experiment_name": verb}
        done = python(typed(verb, config(name), **tracked, **where, **settings), cwd=base)
        assert done.returncode == 0, done.stderr[-3000:]
    return base / "output"


def query(output: Path, words: str) -> list[tuple]:
    with sqlite3.connect(output / "mlruns.db") as database:
        return database.execute(words).fetchall()


def points(output: Path, experiment: str, name: str) -> list[tuple[int, float]]:
    return query(
        output,
        "select step, value from metrics join runs using (run_uuid) join experiments using (experiment_id) "
        f"where experiments.name = '{experiment}' and metrics.key = '{name}' order by step",
    )


def test_each_part_of_the_loss_is_on_record_and_agrees_with_the_history(output):
    history = read_history(output / "eval" / "history.csv")
    for name in ("loss", "supervised_loss", "co_training_loss", "consistency_loss", "gamma", "disagreement"):
        steps, values = zip(*points(output, "training", name), strict=True)
        assert steps == (1, 2, 3, 4), name
        means = [(values[0] + values[1]) / 2, (values[2] + values[3]) / 2]
        assert means == pytest.approx([row[name] for row in history], rel=1e-5), name


def test_the_learning_rate_is_on_record(output):
    rates = [value for _, value in points(output, "training", "lr_group_0")]
    assert len(rates) == 4
    assert rates[1] == pytest.approx(read_history(output / "eval" / "history.csv")[0]["learning_rate"])


def test_scores_of_validation_and_test_patients_are_on_record(output):
    assert [step for step, _ in points(output, "training", "mean_dsc")] == [1, 2]
    [(_, score)] = points(output, "evaluating", "mean_dsc")
    summary = json.loads((output / "eval" / "summary.json").read_text())
    assert score == pytest.approx(summary["mean"]["dsc_mean"], abs=1e-6)


def test_runs_are_finished_and_have_their_config_as_an_artifact(output):
    assert query(output, "select status from runs") == [("FINISHED",), ("FINISHED",)]
    artifacts = sorted(path.name for path in (output / "mlruns").rglob("*.json"))
    assert artifacts == sorted(path.name for path in output.glob("config_*.json"))
    assert len(artifacts) == 2
