"""What an evaluation found is on the screen, in a table and in a summary that agree with each other."""

import csv
import json
import logging

import ignite.distributed as idist
import pytest
import torch
from ignite.engine import Engine
from monai.data import DataLoader, Dataset, MetaTensor
from monai.engines import SupervisedEvaluator

from monai_spct.handlers import SaveScores
from monai_spct.metrics import VolumeScores, format_table, score_volume, summarize

STRUCTURES = {1: "RV", 3: "LV"}
SPACING = (1.25, 1.25, 10.0)


def volume(seed: int, *, classes: int = 4) -> torch.Tensor:
    return torch.randint(classes, (1, 6, 5, 3), generator=torch.Generator().manual_seed(seed)).float()


def case(name: str, *, pred: torch.Tensor, label: torch.Tensor) -> dict[str, MetaTensor]:
    affine = torch.diag(torch.tensor([-SPACING[0], -SPACING[1], SPACING[2], 1.0]))
    return {
        "image": MetaTensor(pred, affine=affine, meta={"filename_or_obj": f"{name}.nii.gz"}),
        "label": MetaTensor(label, affine=affine, meta={"filename_or_obj": f"{name}_gt.nii.gz"}),
    }


CASES = {name: {"pred": volume(n), "label": volume(10 + n)} for n, name in enumerate(("a", "b", "c"))}
CASES["missed"] = {"pred": torch.zeros(1, 6, 5, 3), "label": volume(20)}


def evaluate(folder, cases=CASES):
    """An evaluator whose network says what it is shown."""
    scores = VolumeScores(structures=STRUCTURES)
    evaluator = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=DataLoader(Dataset([case(name, **both) for name, both in cases.items()]), batch_size=1),
        network=torch.nn.Identity(),
        key_val_metric={"mean_dsc": scores},
        val_handlers=[SaveScores(folder, scores)],
    )
    evaluator.run()
    return scores, evaluator


def expected(cases=CASES):
    return [
        row
        for name, both in cases.items()
        for row in score_volume(both["pred"], both["label"], structures=STRUCTURES, spacing=SPACING, case=name)
    ]


def test_files_and_screen_hold_the_scores_of_every_volume(tmp_path, caplog):
    folder = tmp_path / "new" / "eval"
    with caplog.at_level(logging.INFO, "monai_spct"):
        scores, evaluator = evaluate(folder)
    rows = expected()
    assert scores.rows == rows

    with (folder / "scores.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["case"], line["structure"]) for line in lines] == [(name, s) for name in CASES for s in ("RV", "LV")]
    for line, row in zip(lines, rows, strict=True):
        assert [float(line[name]) for name in ("dsc", "hd", "hd95")] == [row.dsc, row.hd, row.hd95]
        assert line["missed"] == str(row.missed)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary == summarize(rows)
    assert summary["LV"]["n_missed"] == 1
    assert summary["mean"]["dsc_mean"] == pytest.approx(evaluator.state.metrics["mean_dsc"])

    assert str(folder) in caplog.text
    assert format_table(summarize(rows)) in caplog.text


def test_a_second_evaluation_replaces_the_first(tmp_path):
    evaluate(tmp_path)
    one = {"z": {"pred": volume(0), "label": volume(0)}}
    evaluate(tmp_path, one)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["mean"]["n_volumes"] == 1
    assert summary["mean"]["dsc_mean"] == 1
    assert (tmp_path / "scores.csv").read_text().count("\n") == 1 + len(STRUCTURES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scores.csv", "summary.json"]


def test_of_several_processes_one_writes(tmp_path, monkeypatch):
    metric = VolumeScores(structures=STRUCTURES)
    metric.update(([volume(0)], [case("a", **CASES["a"])["label"]]))
    metric.compute()
    evaluator = Engine(lambda engine, batch: batch)  # noqa: ARG005
    SaveScores(tmp_path / "eval", metric).attach(evaluator)
    monkeypatch.setattr(idist, "get_rank", lambda: 1)
    evaluator.run([0])
    assert not (tmp_path / "eval").exists()
    monkeypatch.setattr(idist, "get_rank", lambda: 0)
    evaluator.run([0])
    assert (tmp_path / "eval" / "scores.csv").is_file()
