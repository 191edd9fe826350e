"""The page of a run has what is in its folder, opens from there, and shows names as they are."""

import json
import re
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import ignite.distributed as idist
import matplotlib.image
import numpy as np
import pytest
import torch
from ignite.engine import Engine

from monai_spct.data import Split
from monai_spct.metrics import StructureScore, write_scores
from monai_spct.workflow import record_command, record_training, tell_results, write_page

ODD = 'site 1/<b>100% & "more"</b>#1?'  # as a file may be called
DSC = {"good": 0.9, ODD: 0.3, "middle": 0.6}


class Page:
    """A page, which must be well-formed XML but for its ``meta`` and ``img``."""

    def __init__(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        self.root = ElementTree.fromstring(
            re.sub("<(meta|img)([^>]*)>", r"<\1\2/>", text.removeprefix("<!DOCTYPE html>"))
        )
        self.links = [value for tag in self.root.iter() for name, value in tag.items() if name in ("src", "href")]
        self.heads = [head.text for head in self.root.iter("h2")]
        self.tables = [[["".join(cell.itertext()) for cell in row] for row in t] for t in self.root.iter("table")]
        self.captions = [caption.text for caption in self.root.iter("figcaption")]
        self.commands = [command.text for command in self.root.iter("pre")]
        self.said = " ".join("".join(self.root.itertext()).split())


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    matplotlib.image.imsave(path, np.eye(9))


def train(folder: Path, scores: dict[int, float], *, epochs: int = 6, planned: int = 6) -> None:
    """What a training leaves, without its weights."""
    (folder / "eval").mkdir(parents=True)
    rows = [f"{n}.0,0.5,{scores.get(n, '')}" for n in range(1, epochs + 1)]
    (folder / "eval" / "history.csv").write_text("\n".join(["epoch,seconds,validation_mean_dsc", *rows]))
    picture(folder / "eval" / "curves.png")
    trainer = Engine(lambda *_: None)
    trainer.run([0, 0], max_epochs=epochs)
    trainer.state.max_epochs = planned
    split = Split([{"patient": "p<1>"}], [{"patient": "p2"}, {"patient": "p3"}], [], [{"patient": "p4"}])
    record_training(folder, trainer, {"seed": 7}, split)


def evaluate(folder: Path) -> None:
    rows = [StructureScore(case, s, dsc, 9.0, 4.5, missed=False) for case, dsc in DSC.items() for s in ("A & B", "LV")]
    write_scores(rows, folder / "eval")
    for case in ("good", ODD):
        picture(folder / "eval" / "pictures" / f"{case}.png")
    record_command(folder / "eval" / "evaluated.json", weights="models/model.pt", scored="test")


def test_a_page_has_scores_curves_pictures_and_how_they_were_made(tmp_path):
    folder = tmp_path / "run <1>"
    train(folder, {2: 0.5, 4: 0.8, 6: 0.7})
    evaluate(folder)
    picture(folder / "predictions" / "pictures" / "new.png")
    (folder / "predictions" / "ranking.csv").write_text("case,image,expected_dsc\nother,,0.25\nnew,,0.75\n")
    write_page(folder)
    page = Page(folder / "index.html")
    assert page.heads == [
        "Scores",
        "Training",
        "How it was made",
        "Cases, the worst first",
        "Predictions, the least certain first",
    ]
    for text in (
        "run <1>",
        "Trained for 6 epochs",
        "mean DSC 0.700 in epoch 6, the last",
        "0.800 in epoch 4, the best",
    ):
        assert text in page.said
    assert "Mean DSC of 3 test volumes: 0.600." in page.said
    by_structure, by_case = page.tables
    assert by_structure[1] == ["A & B", "0.600 ± 0.245", "9.0 ± 0.0", "4.5 ± 0.0", "0 of 3"]
    heads = ["case", "DSC A & B", "DSC LV", "mean DSC", "mean HD (mm)", "mean HD95 (mm)"]
    assert by_case[:2] == [heads, [ODD, "0.300", "0.300", "0.300", "9.0", "4.5"]]
    assert [row[0] for row in by_case[1:]] == [ODD, "middle", "good"]
    assert page.captions == [f"{ODD}: mean DSC 0.300", "good: mean DSC 0.900", "new: expected mean DSC 0.750"]
    assert len(page.commands) == 2
    recorded = [json.loads((folder / name).read_text()) for name in ("trained.json", "eval/evaluated.json")]
    assert [command.replace(" \\\n", "").split() for command in page.commands] == [
        one["command"].split() for one in recorded
    ]
    for text in (
        f"Training, in {Path.cwd()}",
        f"Evaluation, in {Path.cwd()}",
        "seed 7",
        "scored test",
        torch.__version__,
    ):
        assert text in page.said
    assert "labeled: 1 patient, 1 case" in page.said
    assert "p<1>" in page.said


def test_all_it_refers_to_is_below_its_folder(tmp_path):
    train(tmp_path, {})
    evaluate(tmp_path)
    write_page(tmp_path)
    page = Page(tmp_path / "index.html")
    assert len(page.links) >= 8
    for link in page.links:
        assert (tmp_path / unquote(link)).is_file(), link
    assert not [tag for tag in page.root.iter() if tag.tag in ("script", "link", "b")]


def test_a_folder_without_a_training_has_a_page_of_its_evaluation(tmp_path):
    evaluate(tmp_path)
    write_page(tmp_path)
    page = Page(tmp_path / "index.html")
    assert page.heads == ["Scores", "How it was made", "Cases, the worst first"]
    assert "Trained" not in page.said


def test_of_several_processes_one_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(idist, "get_rank", lambda: 1)
    record_command(tmp_path / "evaluated.json")
    write_page(tmp_path)
    assert list(tmp_path.iterdir()) == []


# What a training says at its end


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        (
            {2: 0.5, 4: 0.8, 6: 0.7},
            "mean DSC 0.700 in epoch 6, the last (model.pt); 0.800 in epoch 4, the best (best.pt)",
        ),
        ({4: 0.8, 5: 0.8}, "in epoch 5, the last validated (model.pt is of epoch 6); 0.800 in epoch 4, the best"),
        ({3: 0.4, 6: 0.7}, "mean DSC 0.700 in epoch 6, the last (model.pt); none was better (best.pt)"),
    ],
    ids=["worse", "not the last epoch", "the last is the best"],
)
def test_a_training_says_how_good_the_last_and_the_best_weights_are(tmp_path, capsys, scores, said):
    train(tmp_path, scores)
    tell_results(tmp_path)
    assert said in capsys.readouterr().out
    validation = json.loads((tmp_path / "trained.json").read_text())["validation"]
    assert validation["best"] == {"epoch": max(scores, key=scores.get), "mean_dsc": max(scores.values())}
    assert validation["last"] == {"epoch": max(scores), "mean_dsc": scores[max(scores)]}


def test_where_nobody_was_validated_there_is_nothing_to_say(tmp_path, capsys):
    train(tmp_path, {})
    tell_results(tmp_path)
    assert "DSC" not in capsys.readouterr().out
    assert json.loads((tmp_path / "trained.json").read_text())["validation"] is None


def test_a_training_that_was_stopped_early_is_on_record(tmp_path):
    train(tmp_path, {2: 0.8, 3: 0.7, 4: 0.7}, epochs=4, planned=4)
    assert json.loads((tmp_path / "trained.json").read_text())["stopped_early"] is False
    train(tmp_path / "stopped", {2: 0.8, 3: 0.7, 4: 0.7}, epochs=4, planned=9)
    assert json.loads((tmp_path / "stopped" / "trained.json").read_text())["stopped_early"] is True
    write_page(tmp_path / "stopped")
    assert "Trained for 4 of 9 epochs, stopped early" in Page(tmp_path / "stopped" / "index.html").said
