"""The page of a run: its scores, curves and pictures, and how they were made."""

from __future__ import annotations

import csv
import json
import logging
import os
import shlex
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import ignite.distributed as idist
from markupsafe import Markup

from monai_spct.files import Part, write_html
from monai_spct.metrics import summary_cells
from monai_spct.workflow.output_dir import as_typed

__all__ = ["read_record", "validation_in_words", "write_page"]

logger = logging.getLogger(__name__)

_RECORDS = {
    "training": "trained.json",
    "evaluation": "eval/evaluated.json",
    "prediction": "predictions/predicted.json",
}


def read_record(path: Path) -> dict[str, Any]:
    """A record of what was done, or nothing where there is none."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def validation_in_words(trained: Mapping[str, Any]) -> str:
    """How good the last and the best validation of a training were, and which weights are theirs.

    Args:
        trained: the record of the training.

    Example:
        >>> from monai_spct.workflow.page import validation_in_words
        >>> last, best = {"epoch": 100, "mean_dsc": 0.79}, {"epoch": 60, "mean_dsc": 0.812}
        >>> validation_in_words({"epochs": 100, "validation": {"last": last, "best": best}})
        'mean DSC 0.790 in epoch 100, the last (model.pt); 0.812 in epoch 60, the best (best.pt)'
    """
    if not trained.get("validation"):
        return ""
    last, best, epochs = *(trained["validation"][name] for name in ("last", "best")), trained["epochs"]
    whose = "the last (model.pt)" if last["epoch"] == epochs else f"the last validated (model.pt is of epoch {epochs})"
    words = f"mean DSC {last['mean_dsc']:.3f} in epoch {last['epoch']}, {whose}; "
    if best == last:
        return f"{words}none was better (best.pt)"
    return f"{words}{best['mean_dsc']:.3f} in epoch {best['epoch']}, the best (best.pt)"


def write_page(output_dir: str | os.PathLike[str]) -> None:
    """Write ``index.html``, the page of a run, from what is in its folder; it opens without a server.

    It has the scores by structure and by case, the worst first, the curves of the training, the pictures of evaluation
    and prediction, and the commands, versions, seed and split that made them. Only rank 0 writes.

    Args:
        output_dir: of the run.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.workflow import record_command, write_page
        >>> folder = Path(tempfile.mkdtemp())
        >>> record_command(folder / "eval" / "evaluated.json", scored="test")
        >>> write_page(folder)
        >>> "scored test" in (folder / "index.html").read_text()
        True
    """
    if idist.get_rank() > 0:
        return
    folder = Path(output_dir)
    records = {name: read_record(folder / file) for name, file in _RECORDS.items()}
    summary, cases = read_record(folder / "eval" / "summary.json"), _scores(folder / "eval" / "scores.csv")
    parts = []
    if summary:
        note = Markup("Mean ± standard deviation over the volumes. As numbers: {}").format(_link("eval/summary.json"))
        parts.append(Part(title="Scores", tables=[summary_cells(summary)], notes=[note]))
    if (folder / "eval" / "curves.png").is_file():
        note = Markup("By epoch. As numbers: {}").format(_link("eval/history.csv"))
        parts.append(Part(title="Training", pictures=[("eval/curves.png", "")], notes=[note]))
    parts.append(_origin_part(records))
    if cases:
        parts.append(_cases_part(folder, cases))
    if (ranking := folder / "predictions" / "ranking.csv").is_file():
        parts.append(_predictions_part(folder, ranking))
    about = _about(records["training"])
    if summary:
        who = f"{records['evaluation'].get('scored', '')} volumes".lstrip()
        about.append(f"Mean DSC of {summary['mean']['n_volumes']} {who}: {summary['mean']['dsc_mean']:.3f}.")
    write_html(folder / "index.html", title=folder.absolute().name, about=about, parts=parts)
    logger.info("the page of this run: %s", folder / "index.html")


def _about(trained: Mapping[str, Any]) -> list[str]:
    if not trained:
        return []
    length = f"{trained['epochs']} epochs"
    if trained.get("stopped_early"):
        length = f"{trained['epochs']} of {trained['max_epochs']} epochs, stopped early"
    lasted = f", in {trained['seconds'] / 60:.1f} minutes" if trained.get("seconds") else ""
    said = validation_in_words(trained)
    return [f"Trained for {length}{lasted}.", *([f"Validation: {said}."] if said else [])]


def _scores(path: Path) -> dict[str, list[dict[str, str]]]:
    """The rows of ``scores.csv`` by case, the case with the lowest mean DSC first."""
    cases: dict[str, list[dict[str, str]]] = {}
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                cases.setdefault(row["case"], []).append(row)
    return dict(sorted(cases.items(), key=lambda item: _mean(item[1], "dsc")))


def _mean(rows: list[dict[str, str]], score: str) -> float:
    return statistics.fmean(float(row[score]) for row in rows)


def _cases_part(folder: Path, cases: Mapping[str, list[dict[str, str]]]) -> Part:
    structures = [row["structure"] for row in next(iter(cases.values()))]
    table = [["case", *(f"DSC {name}" for name in structures), "mean DSC", "mean HD (mm)", "mean HD95 (mm)"]]
    pictures = []
    for case, rows in cases.items():
        name, picture, mean = case, f"eval/pictures/{case}.png", _mean(rows, "dsc")
        if (folder / picture).is_file():
            name = _link(picture, case)
            pictures.append((quote(picture), f"{case}: mean DSC {mean:.3f}"))
        values = [f"{float(row['dsc']):.3f}" for row in rows]
        table.append([name, *values, f"{mean:.3f}", *(f"{_mean(rows, score):.1f}" for score in ("hd", "hd95"))])
    note = Markup("As numbers: {}").format(_link("eval/scores.csv"))
    return Part(title="Cases, the worst first", tables=[table], pictures=pictures, notes=[note])


def _predictions_part(folder: Path, ranking: Path) -> Part:
    with ranking.open(encoding="utf-8", newline="") as file:
        expected = {row["case"]: float(row["expected_dsc"]) for row in csv.DictReader(file)}
    drawn = {case: f"predictions/pictures/{case}.png" for case in expected}
    pictures = [
        (quote(file), f"{case}: expected mean DSC {expected[case]:.3f}")
        for case, file in drawn.items()
        if (folder / file).is_file()
    ]
    note = Markup("As numbers: {}").format(_link("predictions/ranking.csv"))
    return Part(title="Predictions, the least certain first", pictures=pictures, notes=[note])


def _origin_part(records: Mapping[str, Mapping[str, Any]]) -> Part:
    commands = []
    for name, record in records.items():
        if "command" in record:  # those of former versions have none
            facts = {key: record[key] for key in ("ended", "seed", "weights", "scored") if record.get(key) is not None}
            facts |= record["versions"] | ({"commit": record["commit"]} if record["commit"] else {})
            note = ", ".join(f"{key} {value}" for key, value in facts.items())
            command = as_typed(shlex.split(record["command"]), between=" \\\n    ")
            commands.append((f"{name.capitalize()}, in {record['folder']}", command, note))
    lines = [line.split(": ", 2) for line in records["training"].get("split", [])]
    details = [(f"{name}: {count}", " ".join(who) or "nobody") for name, count, *who in lines]
    return Part(title="How it was made", commands=commands, details=details)


def _link(file: str, words: str | None = None) -> Markup:
    return Markup('<a href="{}">{}</a>').format(quote(file), words or file)
