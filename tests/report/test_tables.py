"""Numbers, marks and notes of a table, against what one would work out by hand."""

import io
import math
import re
import shutil
import statistics
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from monai_spct.report import ScoreTable, Table, find_runs, read_show, tabulate
from tests.report.made_up import CASES, make_run, make_runs

DSC = Table(("dsc",), pair_by=r"p\d")
RESULTS = Path(__file__).parents[2] / "docs" / "results"


def entry(table: ScoreTable, *labels: object, of: str = "LV", score: str = "dsc") -> pd.Series:
    found = table.entries
    for key, label in zip(table.keys, labels, strict=True):
        found = found[found[key] == label]
    [(_, row)] = found[(found.of == of) & (found.score == score)].iterrows()
    return row


def best(table: ScoreTable) -> list[tuple[object, ...]]:
    return [tuple(row[key] for key in table.keys) for _, row in table.entries[table.entries.best].iterrows()]


def said(table: ScoreTable) -> str:
    return " ".join(table.notes)


# Means


def test_an_entry_is_the_mean_over_seeds_of_the_mean_over_cases(tmp_path):
    runs = make_runs(tmp_path, {"dan": [(0.1, 0.3), (0.5, 0.7), (0.9, 0.9)]}, cases=("a", "b"))
    row = entry(tabulate(DSC, runs), "dan")
    means = [0.2, 0.6, 0.9]
    assert (row["mean"], row["std"]) == pytest.approx((statistics.fmean(means), statistics.stdev(means)))
    assert (row.runs, row.planned) == (3, 3)


def test_the_mean_over_structures_is_that_of_each_case(tmp_path):
    run = make_run(tmp_path / "a", {"RV": (0.2, 0.4), "LV": (0.6, 1.0)}, cases=("a", "b"))
    table = tabulate(Table(("dsc", "hd")), [run])
    assert list(table.entries.of) == ["RV", "LV", "mean"] * 2
    assert list(table.entries["mean"]) == pytest.approx([0.3, 0.8, 0.55, 70, 20, 45])


def test_one_seed_has_neither_deviation_nor_test_and_the_table_says_so(tmp_path):
    table = tabulate(DSC, make_runs(tmp_path, {"dan": [(0.1, 0.2, 0.3) * 2], "ua_mt": [(0.7, 0.9, 0.8) * 2]}))
    assert table.entries[["std", "p_value"]].isna().all(axis=None)
    assert table.notes == ("One seed: no standard deviation and no test.", "Bold: the best.")
    assert list(table.entries.of) == ["LV"] * 2, "one structure has no mean of its own"


def test_times_are_medians_and_not_compared(tmp_path):
    slow = "epoch,seconds\n1,9.0\n2,0.6\n3,0.7\n4,0.8\n"
    runs = [
        make_run(tmp_path / "a", {"LV": [0.5] * 6}),
        make_run(tmp_path / "b", {"LV": [0.5] * 6}, history=slow, seed=1),
    ]
    table = tabulate(Table(("training_time", "inference_time")), runs)
    assert list(table.entries["mean"]) == pytest.approx([(300 + 700) / 2, 12.5])  # without the first epoch
    assert not table.entries.best.any()
    assert "| DAN | 500 (283) | 12.5 (0.0) |" in re.sub(" +", " ", table.to_markdown())
    assert "Training: the median over the epochs but the first" in said(table)


# The best


@pytest.mark.parametrize(
    ("within", "expected"),
    [
        ([], {(0.05, "dan")}),
        (None, {(0.1, "ua_mt"), (0.05, "dan")}),
        (["method"], {(0.05, "dan"), (0.05, "ua_mt")}),
    ],
    ids=["all", "by ratio", "by method"],
)
def test_the_best_is_that_of_its_block(tmp_path, within, expected):
    values = {(0.1, "dan"): 0.5, (0.1, "ua_mt"): 0.7, (0.05, "dan"): 0.9, (0.05, "ua_mt"): 0.8}
    runs = [
        make_run(tmp_path / f"{n}", {"LV": [dsc] * 6}, method=method, labeled_ratio=ratio)
        for n, ((ratio, method), dsc) in enumerate(values.items())
    ]
    for score in ("dsc", "hd"):  # the highest DSC is the lowest distance
        table = tabulate(Table((score,), rows=("labeled_ratio", "method"), within=within), runs)
        assert set(best(table)) == expected
        blocks = list(table.blocks)
        assert blocks == sorted(blocks), "lines of a block stand together"
    with pytest.raises(ValueError, match="`within` must be some of `rows`, labeled_ratio, method, got alpha"):
        tabulate(Table(("dsc",), within=("alpha",)), runs)


def test_several_may_be_the_best_and_none_is_where_there_is_no_other(tmp_path):
    equal = [(0.5, 0.7) * 3] * 2
    runs = make_runs(tmp_path, {"dan": equal, "ua_mt": equal, "co_training": [(0.1, 0.2) * 3] * 2})
    table = tabulate(DSC, runs)
    assert best(table) == [("dan",), ("ua_mt",)]
    assert table.entries.p_value.isna().all()
    assert not best(tabulate(DSC, runs[:2]))


# The test


def p_by_hand(differences) -> float:
    """Of the one-sided paired t-test: the tail of Student's t, by a sum over its density."""
    n = len(differences)
    t = np.mean(differences) / (np.std(differences, ddof=1) / np.sqrt(n))
    x = np.linspace(t, t + 2000, 2_000_001)
    return float(np.trapezoid(stats.t(n - 1).pdf(x), x))


@pytest.mark.parametrize("score", ["dsc", "hd", "hd95"])
@pytest.mark.parametrize(("pair_by", "pairs"), [(r"p\d", "3 patients"), ("nobody", "6 volumes"), ("p1", "6 volumes")])
def test_the_best_is_tested_against_the_second_best(tmp_path, score, pair_by, pairs):
    values = np.random.default_rng(5).random((3, 3, 3, 2))  # methods, seeds, patients, volumes
    names = ["dan", "ua_mt", "co_training"]
    runs = make_runs(tmp_path, dict(zip(names, values.reshape(3, 3, 6).tolist(), strict=True)))
    table = tabulate(Table((score,), pair_by=pair_by), runs)
    pair_values = values.mean((1, 3)) if "patients" in pairs else values.mean(1).reshape(3, 6)
    first, second, _ = np.argsort(-values.mean((1, 2, 3)))
    row = entry(table, names[first], score=score)
    assert row.p_value == pytest.approx(p_by_hand(pair_values[first] - pair_values[second]), rel=1e-3)
    assert best(table) == [(names[first],)]
    assert table.entries.p_value.count() == 1
    averaged = "its volumes and the seeds" if "patients" in pairs else "the seeds"
    assert f"by a one-sided paired t-test over the {pairs}, each averaged over {averaged} first." in said(table)


@pytest.mark.parametrize(
    ("shift", "word"), [((0.01, 0.02, 0.03) * 2, "Underlined: better"), ((0.3, -0.2) * 3, "None is better")]
)
def test_significance_is_underlined_only_below_the_level(tmp_path, shift, word):
    base = np.array([0.1, 0.5, 0.3, 0.4, 0.2, 0.6])
    table = tabulate(Table(("dsc",)), make_runs(tmp_path, {"dan": [base] * 2, "ua_mt": [base + np.array(shift)] * 2}))
    assert best(table) == [("ua_mt",)]
    assert (entry(table, "ua_mt").p_value < 0.05) == ("<u>**" in table.to_markdown()) == (word != "None is better")
    assert f"{word} than the second best with p < 0.05 by a one-sided" in said(table)


@pytest.mark.parametrize(
    ("cases", "others"),
    [(CASES[:3], (*CASES[:2], CASES[4])), (CASES[:3], CASES[:2]), (CASES[:2], CASES[:2])],
    ids=["other cases", "fewer cases", "one patient"],
)
def test_what_cannot_be_paired_is_not_tested(tmp_path, cases, others):
    runs = make_runs(tmp_path, {"dan": [(0.7, 0.8, 0.9)[: len(cases)]] * 2}, cases=cases)
    runs += make_runs(tmp_path, {"ua_mt": [(0.1, 0.3, 0.4)[: len(others)]] * 2}, cases=others)
    table = tabulate(DSC, runs)
    assert best(table) == [("dan",)]
    assert table.entries.p_value.isna().all()
    assert "t-test" not in said(table)
    assert ("Not all of these runs were scored on the same cases" in said(table)) == (cases != others)


# What is missing


def test_a_missing_run_is_named_and_nothing_in_its_block_is_marked(tmp_path):
    runs = []
    for ratio in (0.1, 0.05):
        second = None if ratio == 0.1 else [0.4] * 6
        scores = {"dan": [[0.1] * 6, [0.2] * 6], "ua_mt": [[0.3] * 6, second], "co_training": [None, None]}
        scores |= {"co_training": [[0.5] * 6] * 2} if ratio == 0.05 else {}
        runs += make_runs(tmp_path / f"{ratio}", scores, labeled_ratio=ratio)
    table = tabulate(DSC, runs)
    assert best(table) == [(0.05, "co_training")]
    assert entry(table, 0.1, "ua_mt")[["mean", "runs", "planned"]].tolist() == pytest.approx([0.3, 1, 2])
    assert math.isnan(entry(table, 0.1, "co_training")["mean"])
    text = table.to_markdown()
    assert "30.00 [1 of 2 runs]" in text
    assert re.search(r"\| co-training +\| – +\|", text)  # noqa: RUF001
    missing = [f"{tmp_path.as_posix()}/0.1/{name}" for name in ("ua_mt_1", "co_training_0", "co_training_1")]
    assert set(re.findall(r"\S*/0.1/\w+", table.notes[0])) == set(missing)
    assert "Where a run of a block is missing, the best is not marked." in table.notes


def test_nothing_done_is_a_table_of_gaps(tmp_path):
    table = tabulate(DSC, make_runs(tmp_path, {"dan": [None] * 5, "ua_mt": [None] * 5}))
    assert table.entries.planned.tolist() == [5, 5]
    assert table.entries["mean"].isna().all()
    assert table.notes[0].endswith(": 10 runs.")
    assert table.to_latex().count("–") == 2  # noqa: RUF001


# Several columns


def test_datasets_and_scores_have_columns_of_their_own(tmp_path):
    rng = np.random.default_rng(3)
    structures = {"acdc": ("RV", "LV"), "spleen": ("spleen",)}
    values = {
        (dataset, method, seed): {name: rng.random(6).tolist() for name in names}
        for dataset, names in structures.items()
        for method in ("dan", "ua_mt")
        for seed in (0, 1)
        if (dataset, method) != ("spleen", "ua_mt")
    }
    runs = [
        make_run(tmp_path / f"{n}", scores, dataset=dataset, method=method, seed=seed)
        for n, ((dataset, method, seed), scores) in enumerate(values.items())
    ]
    table = tabulate(Table(("dsc", "hd"), pair_by=r"p\d"), runs)
    heads = re.sub(" +", " ", table.to_markdown().splitlines()[0])
    assert heads == (
        "| method | ACDC DSC (%) RV | ACDC DSC (%) LV | ACDC DSC (%) Mean | ACDC HD (mm) RV | ACDC HD (mm) LV "
        "| ACDC HD (mm) Mean | Spleen DSC (%) | Spleen HD (mm) |"
    )
    for row in table.entries[table.entries.planned > 0].itertuples():
        means = []
        for (dataset, method, _), scores in values.items():
            if (dataset, method) == (row.dataset, row.method):
                chosen = scores if row.of == "mean" else [row.of]
                mean = statistics.fmean(value for name in chosen for value in scores[name])
                means.append(mean if row.score == "dsc" else 100 * (1 - mean))
        assert (row.mean, row.std) == pytest.approx((statistics.fmean(means), statistics.stdev(means)))
    assert table.entries[table.entries.planned == 0].dataset.tolist() == ["spleen"] * 2, "what was not planned is empty"
    assert "missing" not in said(table)
    assert "over the 3 patients, each" in said(
        tabulate(Table(("dsc",), pair_by=r"p\d", where={"dataset": "acdc"}), runs)
    )


def test_structures_segmented_alone_stand_side_by_side(tmp_path):
    names = ("RV", "Myo", "LV")
    values = np.random.default_rng(11).random((2, 2, 3, 6))
    whole, alone = [], []
    for m, method in enumerate(("dan", "ua_mt")):
        for seed in (0, 1):
            scores = dict(zip(names, values[m, seed].tolist(), strict=True))
            whole.append(make_run(tmp_path / "whole" / f"{m}{seed}", scores, method=method, seed=seed))
            for n, name in enumerate(names):
                place = {"method": method, "seed": seed, "structure": n}
                alone.append(make_run(tmp_path / "alone" / f"{m}{seed}{n}", {name: scores[name]}, **place))
    merged = Table(("dsc",), rows=("method",), columns=("structure",))
    pd.testing.assert_frame_equal(tabulate(merged, alone).entries, tabulate(Table(("dsc",)), whole).entries)

    (alone[0].folder / "eval" / "summary.json").unlink()
    waiting = tabulate(merged, alone)
    runs = {name: entry(waiting, "dan", of=name).runs for name in (*names, "mean")}
    assert runs == {"RV": 1, "Myo": 2, "LV": 2, "mean": 1}


# Languages


@pytest.fixture(scope="module")
def paper(tmp_path_factory) -> ScoreTable:
    """Full supervision by itself; at 10 % the method is best, by more than chance; at 5 % a run is missing."""
    folder = tmp_path_factory.mktemp("paper")
    better = {
        ("full_supervision", 1.0): 0.2, ("dan", 0.1): 0.0, ("self_paced_self_consistent", 0.1): 0.1,
        ("self_paced_self_consistent", 0.05): 0.05, ("dan", 0.05): -0.1,
    }  # fmt: skip
    runs = []
    for (method, ratio), shift in better.items():
        seeds = [np.array([0.5, 0.75, 0.25]) + s + 0.003 * np.arange(3) * s for s in (shift, shift + 0.01)]
        missing = (method, ratio) == ("dan", 0.05)
        place = {"labeled_ratio": ratio, "cases": ("a", "b", "c")}
        runs += make_runs(folder / f"{ratio}", {method: [seeds[0], None if missing else seeds[1]]}, **place)
    return tabulate(Table(("dsc",)), runs)


def odd(folder: Path, *labels: object) -> ScoreTable:
    """A table with labels of any kind."""
    runs = [make_run(folder / f"{n}", {"LV": [0.5] * 6}, mode=label) for n, label in enumerate(labels)]
    return tabulate(Table(("dsc",), rows=("mode",)), runs)


def test_markdown_and_csv(paper):
    text = re.sub(" +", " ", paper.to_markdown())
    assert text.splitlines()[2:7] == [
        "| 100 % | full supervision | 70.56 (0.71) |",
        "| 10 % | DAN | 50.50 (0.71) |",
        "| | the method | <u>**60.53 (0.71)**</u> |",
        "| 5 % | DAN | 39.97 [1 of 2 runs] |",
        "| | the method | 55.52 (0.71) |",
    ]
    assert text.endswith(" ".join(paper.notes))
    numbers = pd.read_csv(io.StringIO(paper.to_csv()))
    pd.testing.assert_frame_equal(numbers, paper.entries.reset_index(drop=True), check_dtype=False, rtol=1e-12)


def test_latex(paper):
    lines = paper.to_latex().splitlines()
    assert lines[: len(paper.notes)] == [f"% {note}" for note in paper.notes]
    assert lines[len(paper.notes) :] == [
        r"\begin{tabular}{llc}",
        r"\toprule",
        r"labeled & method & LV \\",
        r"\midrule",
        r"100 \% & full supervision & 70.56 (0.71) \\",
        r"\midrule",
        r"10 \% & DAN & 50.50 (0.71) \\",
        r" & the method & \underline{\textbf{60.53 (0.71)}} \\",
        r"\midrule",
        r"5 \% & DAN & 39.97 [1 of 2 runs] \\",
        r" & the method & 55.52 (0.71) \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


ODD = ["a&b", "50%", "$x$", "#1", "a_b", "{c}", "l|m", "*", [96, 64]]


def test_signs_that_a_language_takes_for_its_own_are_escaped(tmp_path):
    table = odd(tmp_path, *ODD)
    lines = [line for line in table.to_latex().splitlines() if line.endswith(r"\\")][1:]
    labels = {line.split(" & ")[0] for line in lines}
    assert labels == {r"a\&b", r"50\%", r"\$x\$", r"\#1", r"a\_b", r"\{c\}", "l|m", "{}*", "{}[96, 64]"}
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table.to_markdown().splitlines()[:11]} == {3}
    assert "<b>" not in odd(tmp_path / "html", "<b>", "c").to_html()


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_can_be_compiled(paper, tmp_path):
    body = paper.to_latex() + "\n\n" + odd(tmp_path / "odd", *ODD).to_latex()
    document = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{body}\end{{document}}"
    (tmp_path / "table.tex").write_text(document)
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, check=False).returncode == 0


# Real results


@pytest.mark.skipif(not RESULTS.is_dir(), reason="results come with a checkout")
@pytest.mark.parametrize(("name", "count"), [("systems", 5), ("prostate_and_spleen", 4)])
def test_the_tables_on_a_results_page_are_those_of_its_runs(name, count):
    page = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    runs = find_runs(RESULTS / name)
    tables = [item for item in read_show(RESULTS / name / "report.yaml").items if isinstance(item, Table)]
    assert len(tables) == count
    for item in tables:
        assert tabulate(item, runs).to_markdown() in page
