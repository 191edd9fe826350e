"""What an evaluation found is on the screen, in a table and in a summary that agree with each other."""

import csv
import json
import logging
from types import SimpleNamespace

import ignite.distributed as idist
import pytest
import torch
from ignite.engine import Engine
from monai.data import DataLoader, Dataset, MetaTensor
from monai.engines import SupervisedEvaluator
from torch import nn

from monai_spct.handlers import SaveInferenceTime, SaveScores
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


# The time


class Clock(nn.Module):
    """A network that takes as long as each volume says; loading and postprocessing take long as well."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        self.now += image.max().item()
        return image

    def load(self, volumes):
        for batch, slices, seconds in volumes:
            self.now += 1000
            image = torch.full((batch, 1, 4, 4, slices), float(seconds))
            yield {"image": image, "label": image}

    def postprocess(self, output):
        self.now += 1000
        return output


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("monai_spct.handlers.scores.time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def evaluator_of(clock: Clock, path, volumes) -> SupervisedEvaluator:
    """Of volumes, each of a batch, of slices and of seconds."""

    class Loader:
        def __len__(self) -> int:
            return len(volumes)

        def __iter__(self):
            return clock.load(volumes)

    return SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=Loader(),
        network=clock,
        postprocessing=clock.postprocess,
        val_handlers=[SaveInferenceTime(path)],
    )


def test_seconds_per_slice_are_the_median_over_volumes_of_what_the_network_takes(clock, tmp_path):
    path = tmp_path / "eval" / "inference_time.json"
    # of a slice 9, 0.5, 2 and 1 seconds; the first is often slow
    evaluator_of(clock, path, [(1, 10, 90), (1, 8, 4), (2, 3, 12), (1, 5, 5)]).run()
    device = f"CPU, {torch.get_num_threads()} threads"
    assert json.loads(path.read_text()) == {"seconds_per_slice": 1.5, "volumes": 4, "device": device}


def test_of_several_processes_one_writes_the_time(clock, tmp_path, monkeypatch):
    evaluator = evaluator_of(clock, tmp_path / "time.json", [(1, 4, 4)])
    monkeypatch.setattr(idist, "get_rank", lambda: 1)
    evaluator.run()
    assert not (tmp_path / "time.json").exists()
