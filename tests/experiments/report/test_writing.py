"""A report on a folder of results, done or not: its files, its page, and what a user types for it."""

import base64
import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from PIL import Image

import monai_spct
from monai_spct.experiments import (
    Cell,
    Figure,
    Grid,
    GridError,
    Study,
    Table,
    expand,
    parse_grid,
    plan,
    planned_studies,
    record_study,
)
from monai_spct.experiments import cell as on_disk
from monai_spct.experiments.__main__ import report, run
from monai_spct.experiments.report import write_report
from tests.experiments.finished import finish

CELLS = expand(Grid(("acdc",), ("labeled_only", "ua_mt"), axes={"seed": (0, 1)}, settings={"max_epochs": 4}))
TABLES = Study((), "Systems & <scores>", (Table(("dsc",), pair_by=r"patient\d+"), Table(("hd",), title="a < b")))
CURVES = Study((), "Curves", (Figure("curves"), Figure("alpha_jsd", title="Divergence", alphas=(0.0,))))


class Page(HTMLParser):
    """What a page has, with a check that each tag is closed where it should be."""

    VOID = ("meta", "img", "br", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        if "style" not in self.open:
            self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]

    @property
    def said(self) -> str:
        return " ".join(" ".join(self.text).split())


def folder_with(root: Path, *cells: Cell, **studies: Study) -> Path:
    for number, cell in enumerate(cells):
        finish(root, cell, better=0.02 * number)
    for name, study in studies.items():
        record_study(root, name, study, CELLS)
    return root


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# Files


def test_each_table_and_figure_of_each_study_has_its_files(tmp_path):
    folder_with(tmp_path, *CELLS, mine=TABLES, other=CURVES)
    assert write_report(tmp_path) == tmp_path / "report" / "report.html"
    tables = {f"mine_{number}.{kind}" for number in (1, 2) for kind in ("csv", "tex")}
    assert names(tmp_path / "report") == {
        "report.html", "mine.md", *tables, "other.md", "other_1.png", "other_2.png",
    }  # fmt: skip


def test_numbers_are_those_of_the_cells(tmp_path):
    folder_with(tmp_path, *CELLS, mine=TABLES)
    write_report(tmp_path)
    with (tmp_path / "report" / "mine_1.csv").open(newline="") as file:
        rows = {(row["methods"], row["of"]): row for row in csv.DictReader(file)}
    # cells are better by 0, 0.02, 0.04 and 0.06; cases by 0, 0.01 and 0.02, twice
    assert float(rows["labeled_only", "RV"]["mean"]) == pytest.approx(0.8 + 0.01 + 0.01)
    assert float(rows["ua_mt", "mean"]["mean"]) == pytest.approx(0.8 + 0.01 + 0.05)
    assert (rows["ua_mt", "LV"]["best"], rows["labeled_only", "LV"]["best"]) == ("True", "False")
    text = (tmp_path / "report" / "mine.md").read_text(encoding="utf-8")
    assert text.startswith("# Systems & <scores>\n\n4 of 4 runs are done.\n\nMade with seeds 0, 1; commit 0123abc;")
    assert "| UA-MT | <u>**86.00 (1.41)**</u> | <u>**76.00 (1.41)**</u> |" in text
    assert "over the 3 patients" in text
    assert "Settings of all runs: max_epochs = 4." in text
    assert "Evaluated on: CPU, 1 threads." in text


def test_a_name_with_dots_and_blanks_is_a_name(tmp_path):
    folder_with(tmp_path, **{"grid v1.2": Study((), show=(Table(("dsc",)), Figure("alpha_jsd", alphas=(1.0,))))})
    write_report(tmp_path)
    assert names(tmp_path / "report") == {
        "report.html", "grid v1.2.md", "grid v1.2_1.csv", "grid v1.2_1.tex", "grid v1.2_2.png",
    }  # fmt: skip
    assert "](grid%20v1.2_2.png)" in (tmp_path / "report" / "grid v1.2.md").read_text()


def test_a_grid_that_was_run_from_python_has_the_usual_tables(tmp_path):
    folder_with(tmp_path, *CELLS[:3])
    write_report(tmp_path)
    text = (tmp_path / "report" / "results.md").read_text()
    assert text.startswith("# results\n\n3 of 3 runs are done.")
    assert "## Hausdorff distance (mm)" in text


def test_times_are_medians_without_the_first_epoch(tmp_path):
    finish(tmp_path, CELLS[0])
    finish(tmp_path, CELLS[2], history=None, seconds_per_slice=None)
    record_study(tmp_path, "times", Study((), show=(Table(("training_time", "inference_time")),)), CELLS[::2])
    write_report(tmp_path)
    text = (tmp_path / "report" / "times.md").read_text(encoding="utf-8")
    assert "| labels only | 300 | 12.5 |\n| UA-MT | – | – |" in text  # noqa: RUF001


# The page


def test_the_page_needs_no_other_file_and_is_whole(tmp_path):
    folder_with(tmp_path, *CELLS, mine=TABLES, other=CURVES)
    text = write_report(tmp_path).read_text(encoding="utf-8")
    page = Page(text)
    assert not re.search(r"https?:|//[a-z]|url\(|<script|@import", re.sub(r"base64,[^\"]+", "", text))
    assert {attrs["href"] for attrs in page.all("a")} == {f"#{attrs['id']}" for attrs in page.all("section")}
    curves, divergence = page.all("img")
    assert (curves["alt"], divergence["alt"]) == ("Curves", "Divergence")
    for image, file in ((curves, "other_1.png"), (divergence, "other_2.png")):
        head, _, data = image["src"].partition(",")
        assert head == "data:image/png;base64"
        content = base64.b64decode(data)
        assert content == (tmp_path / "report" / file).read_bytes()
        with Image.open(io.BytesIO(content)) as picture:
            assert min(picture.size) > 200
            assert len(np.unique(np.asarray(picture.convert("L")))) > 50, "nothing is drawn"


def test_the_page_shows_tables_marks_and_notes(tmp_path):
    folder_with(tmp_path, *CELLS, mine=TABLES)
    text = write_report(tmp_path).read_text(encoding="utf-8")
    page = Page(text)
    assert "<h1>Systems &amp; &lt;scores&gt;</h1>" in text
    assert "<h2>a &lt; b</h2>" in text
    assert page.rows[:3] == [
        ["method", "RV", "Myo", "LV", "Mean"],
        ["labels only", "82.00 (1.41)", "72.00 (1.41)", "92.00 (1.41)", "82.00 (1.41)"],
        ["UA-MT", "86.00 (1.41)", "76.00 (1.41)", "96.00 (1.41)", "86.00 (1.41)"],
    ]
    assert [attrs.get("class") for attrs in page.all("td")[:8]] == [None] * 4 + ["best significant"] * 4
    assert "p < 0.05" in page.said
    assert not page.all("nav")


def test_the_page_shows_what_is_missing(tmp_path):
    folder_with(tmp_path, *CELLS[:1], mine=TABLES, other=CURVES)
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert "1 of 4 runs are done." in page.said
    assert page.rows[1] == ["labels only", *(f"{value}.00 [1 of 2 runs]" for value in (81, 71, 91, 81))]
    assert page.rows[2] == ["UA-MT"] + ["–"] * 4  # noqa: RUF001
    assert page.said.count(f"No result yet of {', '.join(cell.name for cell in CELLS[1:])}.") == 3  # tables, curves
    assert not any("best" in (attrs.get("class") or "") for attrs in page.all("td"))


def test_nothing_done_is_a_page_of_gaps(tmp_path):
    folder_with(tmp_path, mine=Study((), show=(Table(("dsc",)), Figure("curves"), Figure("comparison"))))
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert "0 of 4 runs are done." in page.said
    assert page.said.count("There is nothing to draw yet.") == 2
    assert names(tmp_path / "report") == {"report.html", "mine.md", "mine_1.csv", "mine_1.tex"}


def test_pictures_that_cannot_be_drawn_are_explained_and_the_rest_is_there(tmp_path):
    study = Study((), show=(Figure("comparison", slices={"acdc": 1}), Figure("entropy", epochs=(2,)), Table(("dsc",))))
    folder_with(tmp_path, *CELLS[:1], mine=study)
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert f"{CELLS[0].name}: " in page.said
    assert "weights of epoch 2 were not kept; set `kept_epochs`" in page.said
    assert page.rows[1][0] == "labels only"


# Again


def test_a_report_is_of_the_present_state(tmp_path):
    folder_with(tmp_path, *CELLS[:2], mine=TABLES)
    before = write_report(tmp_path).read_text(encoding="utf-8")
    for cell in CELLS[2:]:
        finish(tmp_path, cell, better=0.1)
    after = write_report(tmp_path).read_text(encoding="utf-8")
    assert "No result yet" in before
    assert "2 of 4 runs" in before
    assert "No result yet" not in after
    assert "4 of 4 runs" in after
    assert write_report(tmp_path).read_text(encoding="utf-8") == after


def test_what_a_study_does_not_ask_for_any_more_is_gone(tmp_path):
    folder_with(tmp_path, *CELLS, a=TABLES, a_1=TABLES, other=CURVES)
    write_report(tmp_path)
    target = tmp_path / "report"
    (target / "mine_1.csv").write_text("of somebody else")
    record_study(tmp_path, "a", Study((), show=(Figure("curves"),)), CELLS)
    write_report(tmp_path)
    rest = {f"a_1_{number}.{kind}" for number in (1, 2) for kind in ("csv", "tex")}
    assert names(target) == {
        "report.html", "a.md", "a_1.png", "a_1.md", *rest, "other.md", "other_1.png", "other_2.png", "mine_1.csv",
    }  # fmt: skip


# Refused


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(GridError, match=f"there are no results of a grid in {re.escape(str(tmp_path))}"):
        write_report(tmp_path)
    assert not list(tmp_path.iterdir())


def test_two_folders_of_one_cell_are_refused(tmp_path):
    for name in ("first", "second"):
        finish(tmp_path / name, CELLS[0])
    with pytest.raises(GridError, match=r"first/acdc.* and .*second/acdc.* hold the same cell"):
        write_report(tmp_path)


def test_data_of_another_dataset_are_refused(tmp_path):
    folder_with(tmp_path, *CELLS[:1])
    with pytest.raises(GridError, match=r"`acdd` in `data` is no dataset of these cells\. Did you mean `acdc`\?"):
        write_report(tmp_path, data={"acdd": tmp_path})


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("eval/scores.csv", "case,structure,dsc\na,LV,0.5\n", r"scores\.csv cannot be read \(KeyError\('hd'\)\)"),
        ("eval/scores.csv", "case,structure,dsc,hd,hd95\na,LV,x,1,1\n", "cannot be read"),
        ("eval/scores.csv", "case,structure,dsc,hd,hd95\na,LV,nan,1,1\n", "cannot be read .*dsc nan"),
        ("eval/history.csv", "epoch,seconds\n1,x\n", r"history\.csv cannot be read"),
        ("eval/history.csv", "epoch,loss\n1,1\n", r"history\.csv cannot be read \(KeyError\('seconds'\)\)"),
        ("eval/inference_time.json", '{"seconds_per', r"inference_time\.json cannot be read"),
        ("done.json", "[]", "is no record of a cell"),
        ("../../../../studies/mine.json", '{"title": "x"}', r"mine\.json is no record of a study .*delete it, and run"),
        ("../../../../studies/mine.json", "{", "is no record of a study"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_named(tmp_path, file, content, message):
    folder_with(tmp_path, *CELLS[:1], mine=TABLES)
    (tmp_path / CELLS[0].name / file).write_text(content)
    with pytest.raises(GridError, match=message):
        write_report(tmp_path)


# As it is typed


def typed(*words: object, cwd: Path) -> tuple[int, str, str]:
    parent = str(Path(monai_spct.__file__).parents[1])
    paths = os.pathsep.join(path for path in (parent, os.environ.get("PYTHONPATH")) if path)
    done = subprocess.run(
        [sys.executable, "-m", "monai_spct.experiments", *map(str, words)],
        cwd=cwd, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_a_report_on_the_command_line(tmp_path):
    folder_with(tmp_path / "runs", *CELLS, mine=TABLES, other=CURVES)
    code, out, error = typed("report", "runs", "--to", "here/it", cwd=tmp_path)
    assert (code, out) == (0, "here/it/report.html\n"), error
    assert "Traceback" not in error
    assert "Warning" not in error
    assert Page((tmp_path / out.strip()).read_text(encoding="utf-8")).rows
    assert not (tmp_path / "runs" / "report").exists()


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (["runs"], {"too": "x"}, r"there is no option `--too`\. Did you mean `--to`\?"),
        (["runs", "other"], {}, "one folder at a time: what is 'other'?"),
        (["nowhere"], {}, "there are no results of a grid in nowhere."),
        (["nowhere"], {"data": "x"}, "there are no results of a grid in nowhere."),
        (["runs"], {"data": "acdd=x"}, "`acdd` in `data` is no dataset of these cells"),
    ],
    ids=str,
)
def test_what_cannot_be_reported_is_refused_without_a_traceback(tmp_path, monkeypatch, capsys, words, options, message):
    monkeypatch.chdir(tmp_path)
    folder_with(tmp_path / "runs", *CELLS[:1], mine=TABLES)
    with pytest.raises(SystemExit) as error:
        report(*words, **options)
    assert error.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(message.replace("\\", ""))
    assert not (tmp_path / "runs" / "report").exists()


def test_a_figure_of_a_formula_runs_nothing_and_is_reported(tmp_path, capsys):
    folder = str(tmp_path / "runs")
    run("alpha_jsd", folder=folder, dry_run=True)
    assert capsys.readouterr().out == ""
    assert not Path(folder).exists()
    run("alpha_jsd", folder=folder)
    assert capsys.readouterr().out == "its figures need no runs: see `report`\n"
    report(folder)
    page = capsys.readouterr().out.strip()
    assert len(Page(Path(page).read_text(encoding="utf-8")).all("img")) == 1
    assert names(tmp_path / "runs") == {"studies", "report"}


# What a run leaves for the report


@pytest.fixture
def grid(tiny, tmp_path) -> Callable[..., str]:
    """Writes `mine.yaml`, a grid of which all cells but those of seed 9 are done in `runs`."""

    def write_grid(*seeds: int, title: str = "Mine", scores: str = "dsc") -> str:
        content = {"datasets": ["tiny"], "axes": {"seed": list(seeds)}, "title": title, "show": [{"table": scores}]}
        for job in plan(parse_grid({key: content[key] for key in ("datasets", "axes")}), bundles=tiny).jobs:
            if job.cell.axes["seed"] != 9:
                on_disk.describe(job, finish(tmp_path / "runs", job.cell))
        (tmp_path / "mine.yaml").write_text(json.dumps(content))  # which is YAML too
        return str(tmp_path / "mine.yaml")

    return write_grid


def test_a_run_records_all_cells_of_the_study_whatever_its_part(grid, tiny, tmp_path, capsys):
    run(grid(0, 9, 1), folder=str(tmp_path / "runs"), bundles=str(tiny), shard="1/2")
    assert capsys.readouterr().out == "2 cells: 2 done\n"
    [study] = planned_studies(tmp_path / "runs")
    assert (study.name, study.title, study.show) == ("mine", "Mine", (Table(("dsc",)),))
    assert [cell.name for cell in study.cells] == [f"tiny/default/default/seed={seed}" for seed in (0, 9, 1)]
    report(str(tmp_path / "runs"))
    said = (tmp_path / "runs" / "report" / "mine.md").read_text()
    assert "2 of 3 runs are done." in said
    assert "No result yet of tiny/default/default/seed=9." in said


def test_a_run_that_is_only_looked_at_writes_nothing(grid, tiny, tmp_path, capsys):
    file = grid(0, 9)
    before = set(tmp_path.rglob("*"))
    run(file, folder=str(tmp_path / "runs"), bundles=str(tiny), dry_run=True)
    assert capsys.readouterr().out.count("monai.bundle run") == 2
    assert set(tmp_path.rglob("*")) == before


def test_a_study_that_was_edited_and_started_again_is_the_new_one(grid, tiny, tmp_path):
    folder = tmp_path / "runs"
    run(grid(0, 1), folder=str(folder), bundles=str(tiny))
    report(str(folder))
    run(grid(0, 1, 2, title="New", scores="hd"), folder=str(folder), bundles=str(tiny))
    [study] = planned_studies(folder)
    assert (study.title, study.show, len(study.cells)) == ("New", (Table(("hd",)),), 3)
    report(str(folder))
    assert (folder / "report" / "mine.md").read_text().startswith("# New\n\n3 of 3 runs are done.")
    assert names(folder / "report") == {"report.html", "mine.md", "mine_1.csv", "mine_1.tex"}


def test_parts_that_start_at_once_do_not_disturb_each_other(grid, tiny, tmp_path):
    file = grid(*range(6))
    start = Barrier(3)

    def part(shard: str) -> None:
        start.wait()
        run(file, folder=str(tmp_path / "runs"), bundles=str(tiny), shard=shard)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(part, ("1/3", "2/3", "3/3")))
    [study] = planned_studies(tmp_path / "runs")
    assert len(study.cells) == 6
    assert names(tmp_path / "runs" / "studies") == {"mine.json"}
