"""The same table in Markdown, LaTeX and CSV, and the words that all of them share."""

import csv
import io
import re
import shutil
import subprocess

import pytest

from monai_spct.experiments import Cell, Grid, Table, expand
from monai_spct.experiments.report import as_csv, as_latex, as_markdown, tabulate, texts
from monai_spct.experiments.report.names import shown_key, shown_value

BASE = {"a": 0.5, "b": 0.75, "c": 0.25}
# full supervision by itself; at 10 % the method is best, by more than chance; at 5 % a run is missing
BETTER = {
    ("full_supervision", 1.0): 0.2, ("dan", 0.1): 0.0, ("self_paced_self_consistent", 0.1): 0.1,
    ("dan", 0.05): -0.1, ("self_paced_self_consistent", 0.05): 0.05,
}  # fmt: skip
MISSING = "acdc/dan/default/labeled_ratio=0.05/seed=1"


@pytest.fixture(scope="module")
def paper():
    """A table as the paper has it, with a gap."""
    cells = [
        Cell("acdc", method, axes={"labeled_ratio": ratio, "seed": seed}) for method, ratio in BETTER for seed in (0, 1)
    ]
    scores = {}
    for cell in cells:
        better = BETTER[cell.method, cell.axes["labeled_ratio"]] + 0.01 * cell.axes["seed"]
        values = {case: value + better + 0.003 * n * better for n, (case, value) in enumerate(BASE.items())}
        scores[cell.name] = {"dsc": {"LV": values, "RV": values}}
    del scores[MISSING]
    return tabulate(Table(("dsc",)), cells, scores)


def with_labels(*labels: str) -> str:
    """A table with labels of any kind."""
    cells = [Cell("acdc", axes={"mode": label}) for label in labels]
    return tabulate(Table(("dsc",), rows=("mode",)), cells, {cell.name: {"dsc": {"LV": BASE}} for cell in cells})


# Words


def test_labels_are_said_once_in_a_block(paper):
    words = texts(paper)
    assert words.heads == ["labeled", "method"]
    assert words.columns == ["LV", "RV", "Mean"]
    assert [[labels for labels, _ in block] for block in words.blocks] == [
        [["100 %", "full supervision"]],
        [["10 %", "DAN"], ["", "the method"]],
        [["5 %", "DAN"], ["", "the method"]],
    ]


def test_a_label_is_not_left_out_where_a_longer_one_before_it_changes():
    cells = expand(Grid(("a",), ("dan",), axes={"alpha": (0.0, 1.0), "beta": (2, 3), "seed": (0,)}))
    words = texts(tabulate(Table(("dsc",), within=()), cells, {}))
    assert [labels for block in words.blocks for labels, _ in block] == [
        ["0", "2", "DAN"], ["", "3", "DAN"], ["1", "2", "DAN"], ["", "3", "DAN"],
    ]  # fmt: skip


def test_lines_whose_labels_look_alike_keep_them():
    cells = [Cell("acdc", axes={"mode": value}) for value in (1, "1")]
    [block] = texts(tabulate(Table(("dsc",), rows=("mode",)), cells, {})).blocks
    assert [labels for labels, _ in block] == [["1"], ["1"]]


def test_numbers_are_percent_with_the_deviation_over_seeds_or_count_what_is_there(paper):
    entries = [entries[0] for block in texts(paper).blocks for _, entries in block]
    assert entries[0] == ("70.56 (0.71)", False, False)
    assert entries[2] == ("60.53 (0.71)", True, True)
    assert entries[3] == ("39.97 [1 of 2 runs]", False, False)


@pytest.mark.parametrize(
    ("datasets", "scores", "heads"),
    [
        (["acdc"], ["dsc"], ["LV"]),
        (["acdc"], ["dsc", "hd"], ["DSC (%)", "HD (mm)"]),
        (["acdc", "spleen"], ["dsc"], ["ACDC", "Spleen"]),
        (["acdc", "mine_2"], ["dsc", "hd95"], ["ACDC DSC (%)", "ACDC HD95 (mm)", "mine 2 DSC (%)", "mine 2 HD95 (mm)"]),
        (["acdc"], ["training_time"], ["training (ms / iteration)"]),
    ],
    ids=str,
)
def test_heads_say_what_tells_columns_apart(datasets, scores, heads):
    cells = [Cell(dataset) for dataset in datasets]
    found = {cell.name: {score: {"LV": BASE} for score in ("dsc", "hd", "hd95")} for cell in cells}
    assert texts(tabulate(Table(tuple(scores)), cells, found)).columns == heads


def test_units_and_digits():
    cell = Cell("acdc")
    times = {"training_time": {"": {"": 285.4}}, "inference_time": {"": {"": 87.26}}}
    scores = {cell.name: {"hd": {"LV": {"a": 8.126}}, **times}}
    words = texts(tabulate(Table(("hd", "training_time", "inference_time")), [cell], scores))
    assert [text for text, _, _ in words.blocks[0][0][1]] == ["8.13", "285", "87.3"]


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("labeled_ratio", 0.07, "7 %"),
        ("labeled_ratio", 1.0, "100 %"),
        ("methods", "mean_teacher", "Mean Teacher"),
        ("methods", "co_training", "co-training"),
        ("networks", "enet", "ENet"),
        ("mode", "mean_teacher", "mean_teacher"),  # a setting, as it is written
        ("alpha", 1e-4, "0.0001"),
        ("alpha", None, ""),
        ("flag", True, "True"),
        ("mode", "a\nb", "a b"),
    ],
)
def test_values_have_names(key, value, word):
    assert shown_value(key, value) == word
    assert shown_key("num_views") == "views"


# Markdown


def test_markdown(paper):
    assert as_markdown(paper).splitlines() == [
        "| labeled | method | LV | RV | Mean |",
        "|---|---|---|---|---|",
        "| 100 % | full supervision | 70.56 (0.71) | 70.56 (0.71) | 70.56 (0.71) |",
        "| 10 % | DAN | 50.50 (0.71) | 50.50 (0.71) | 50.50 (0.71) |",
        "|  | the method | " + " | ".join(["<u>**60.53 (0.71)**</u>"] * 3) + " |",
        "| 5 % | DAN | " + " | ".join(["39.97 [1 of 2 runs]"] * 3) + " |",
        "|  | the method | 55.52 (0.71) | 55.52 (0.71) | 55.52 (0.71) |",
        "",
        f"No result yet of {MISSING}. "
        "In square brackets: how many of the planned runs are done; the mean is over these. "
        "Where a run of a block is missing, the best is not marked. "
        "Mean over the volumes, then mean (standard deviation) over the seeds, where there is more than one. "
        "Where there is one seed: no standard deviation and no test. "
        "Bold: the best of its block, the lines alike in labeled. "
        "Underlined: better than the second best with p < 0.05 by a one-sided paired t-test over the 3 "
        "volumes, each averaged over the seeds first.",
    ]


def test_a_bar_in_a_label_is_no_column():
    lines = as_markdown(with_labels("a|b", "c")).splitlines()
    assert lines[2].startswith(r"| a\|b | ")
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines[:4]} == {3}


def test_a_gap_is_a_dash_and_what_was_not_planned_is_empty():
    cells = [Cell("acdc", "dan"), Cell("spleen", "dan"), Cell("acdc", "ua_mt")]
    scores = {cells[1].name: {"dsc": {"spleen": BASE}}}
    lines = as_markdown(tabulate(Table(("dsc",)), cells, scores)).splitlines()
    assert lines[:4] == ["| method | ACDC | Spleen |", "|---|---|---|", "| DAN | – | 50.00 |", "| UA-MT | – |  |"]  # noqa: RUF001


# LaTeX


def test_latex(paper):
    lines = as_latex(paper).splitlines()
    comments = [line for line in lines if line.startswith("%")]
    assert comments == [f"% {note}" for note in paper.notes]
    assert lines[len(comments) :] == [
        r"\begin{tabular}{llccc}",
        r"\toprule",
        r"labeled & method & LV & RV & Mean \\",
        r"\midrule",
        r"100 \% & full supervision & 70.56 (0.71) & 70.56 (0.71) & 70.56 (0.71) \\",
        r"\midrule",
        r"10 \% & DAN & 50.50 (0.71) & 50.50 (0.71) & 50.50 (0.71) \\",
        " & the method & " + " & ".join([r"\underline{\textbf{60.53 (0.71)}}"] * 3) + r" \\",
        r"\midrule",
        r"5 \% & DAN & 39.97 [1 of 2 runs] & 39.97 [1 of 2 runs] & 39.97 [1 of 2 runs] \\",
        r" & the method & 55.52 (0.71) & 55.52 (0.71) & 55.52 (0.71) \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


ODD = ["a&b", "50%", "$x$", "#1", "a_b", "{c}", "d~e", "f^g", r"\h", "i<j>k", "l|m", "[n]", "*"]


def test_signs_that_latex_takes_for_commands_are_escaped():
    lines = as_latex(with_labels(*ODD)).splitlines()
    labels = [line.split(" & ")[0] for line in lines if line.endswith(r"\\")][1:]
    assert labels == [
        r"a\&b", r"50\%", r"\$x\$", r"\#1", r"a\_b", r"\{c\}", r"d\textasciitilde{}e", r"f\textasciicircum{}g",
        r"\textbackslash{}h", r"i\textless{}j\textgreater{}k", r"l\textbar{}m", "{}[n]", "{}*",
    ]  # fmt: skip


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_can_be_compiled(paper, tmp_path):
    body = "\n\n".join(as_latex(table) for table in (paper, with_labels(*ODD)))
    document = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{body}\end{{document}}"
    (tmp_path / "table.tex").write_text(document)
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, check=False).returncode == 0


# CSV


def test_csv_holds_the_numbers_as_they_are(paper):
    rows = list(csv.DictReader(io.StringIO(as_csv(paper))))
    expected = [
        (line.labels, column, entry)
        for line in paper.lines
        for column, entry in zip(paper.columns, line.entries, strict=True)
    ]
    assert len(rows) == len(expected) == 15
    for row, (labels, column, entry) in zip(rows, expected, strict=True):
        assert (float(row["labeled_ratio"]), row["methods"]) == labels
        assert (row["dataset"], row["score"], row["of"]) == column
        assert [float(row[key]) if row[key] else None for key in ("mean", "std", "p_value")] == [
            entry.mean, entry.std, entry.p_value,
        ]  # fmt: skip
        assert (int(row["runs"]), int(row["planned"]), row["best"] == "True") == (entry.runs, entry.planned, entry.best)


def test_csv_tells_an_axis_from_what_is_scored():
    cells = [Cell("acdc", axes={"structure": 3})]
    found = tabulate(Table(("dsc",), rows=("structure",)), cells, {cells[0].name: {"dsc": {"LV": BASE}}})
    [row] = csv.DictReader(io.StringIO(as_csv(found)))
    assert (row["structure"], row["of"], row["mean"]) == ("3", "LV", "0.5")
