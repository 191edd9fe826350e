"""Numbers, marks and notes of a table, against what one would work out by hand."""

import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from monai_spct.experiments import Cell, Grid, GridError, Table, expand
from monai_spct.experiments.report.tables import Column, Entry, ScoreTable, tabulate

CASES = ("p1_a", "p1_b", "p2_a", "p2_b", "p3_a", "p3_b")
DSC = Table(("dsc",))


def grid(*methods: str, seeds: int = 2, **more) -> list[Cell]:
    return expand(Grid(("acdc",), methods, axes={**more, "seed": tuple(range(seeds))}))


def of(cells, values, score="dsc", structure="LV", cases=CASES):
    """Scores of one structure: for each cell its values by case."""
    return {
        cell.name: {score: {structure: dict(zip(cases, one, strict=True))}}
        for cell, one in zip(cells, values, strict=True)
    }


def column(table: ScoreTable, place: int = -1) -> dict[object, Entry]:
    return {line.labels[-1]: line.entries[place] for line in table.lines}


def said(table: ScoreTable) -> str:
    return " ".join(table.notes)


# Means


def test_an_entry_is_the_mean_over_seeds_of_the_mean_over_cases():
    cells = grid("dan", seeds=3)
    scores = of(cells, [(0.1, 0.3), (0.5, 0.7), (0.9, 0.9)], cases=("a", "b"))
    entry = column(tabulate(DSC, cells, scores))["dan"]
    assert entry.mean == pytest.approx((0.2 + 0.6 + 0.9) / 3)
    assert entry.std == pytest.approx(
        math.sqrt(((0.2 - 1.7 / 3) ** 2 + (0.6 - 1.7 / 3) ** 2 + (0.9 - 1.7 / 3) ** 2) / 2)
    )
    assert (entry.runs, entry.planned, entry.is_complete) == (3, 3, True)


def test_the_mean_over_structures_is_that_of_each_case():
    [cell] = grid("dan", seeds=1)
    scores = {cell.name: {"dsc": {"RV": {"a": 0.2, "b": 0.4}, "LV": {"a": 0.6, "b": 1.0}}}}
    table = tabulate(DSC, [cell], scores)
    assert table.columns == tuple(Column("acdc", "dsc", name) for name in ("RV", "LV", "mean"))
    assert [entry.mean for entry in table.lines[0].entries] == pytest.approx([0.3, 0.8, 0.55])


def test_one_structure_has_no_mean_of_its_own():
    cells = grid("dan")
    assert [one.structure for one in tabulate(DSC, cells, of(cells, [(0.1,) * 6] * 2)).columns] == ["LV"]


def test_one_seed_has_neither_deviation_nor_test_and_the_table_says_so():
    cells = grid("dan", "ua_mt", seeds=1)
    table = tabulate(DSC, cells, of(cells, [(0.1, 0.2, 0.3) * 2, (0.7, 0.9, 0.8) * 2]))
    assert (
        {entry.std for entry in column(table).values()} == {entry.p_value for entry in column(table).values()} == {None}
    )
    assert table.notes == ("One seed: no standard deviation and no test.", "Bold: the best.")


def test_seeds_may_be_missing_from_the_grid():
    cell = Cell("acdc", "dan")
    assert column(tabulate(DSC, [cell], of([cell], [(0.5,) * 6])))["dan"] == Entry(0.5, None, 1, 1)


# The best


def test_the_best_of_each_block_is_the_highest_dsc_and_the_lowest_distance():
    cells = grid("dan", "ua_mt", seeds=1, labeled_ratio=(0.1, 0.05))
    values = zip(cells, (0.5, 0.8, 0.9, 0.7), strict=True)  # dan at 10 % and 5 %, ua_mt at both
    scores = {cell.name: {"dsc": {"LV": {"a": value}}, "hd": {"LV": {"a": value}}} for cell, value in values}
    table = tabulate(Table(("dsc", "hd")), cells, scores)
    assert [line.labels for line in table.lines] == [(0.1, "dan"), (0.1, "ua_mt"), (0.05, "dan"), (0.05, "ua_mt")]
    assert [line.block for line in table.lines] == [(0.1,), (0.1,), (0.05,), (0.05,)]
    assert [[entry.best for entry in line.entries] for line in table.lines] == [
        [False, True], [True, False], [True, False], [False, True],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("within", "best"),
    [
        ((), {(0.05, "dan")}),
        (("labeled_ratio",), {(0.1, "ua_mt"), (0.05, "dan")}),
        (None, {(0.1, "ua_mt"), (0.05, "dan")}),
        (("methods",), {(0.05, "dan"), (0.05, "ua_mt")}),
    ],
    ids=str,
)
def test_blocks_may_be_chosen(within, best):
    cells = grid("dan", "ua_mt", seeds=1, labeled_ratio=(0.1, 0.05))
    values = {(0.1, "dan"): 0.5, (0.1, "ua_mt"): 0.7, (0.05, "dan"): 0.9, (0.05, "ua_mt"): 0.8}
    scores = of(cells, [(values[cell.axes["labeled_ratio"], cell.method],) * 6 for cell in cells])
    table = tabulate(Table(("dsc",), rows=("labeled_ratio", "methods"), within=within), cells, scores)
    assert {line.labels for line in table.lines if line.entries[0].best} == best
    blocks = [line.block for line in table.lines]
    assert blocks == sorted(blocks, key=blocks.index), "lines of a block stand together"


def test_the_best_are_several_where_they_are_equal_and_none_is_tested():
    cells = grid("dan", "ua_mt", "co_training")
    table = tabulate(DSC, cells, of(cells, [(0.5, 0.7) * 3, (0.5, 0.7) * 3] * 2 + [(0.1, 0.2) * 3] * 2))
    assert {name: entry.best for name, entry in column(table).items()} == {
        "dan": True,
        "ua_mt": True,
        "co_training": False,
    }
    assert all(entry.p_value is None for entry in column(table).values())


def test_a_line_without_another_is_not_the_best():
    cells = grid("dan")
    table = tabulate(DSC, cells, of(cells, [(0.5,) * 6] * 2))
    assert not column(table)["dan"].best
    assert "Bold" not in said(table)


# The test


def p_by_hand(differences) -> float:
    """Of the one-sided paired t-test: the tail of Student's t, by a sum over its density."""
    n = len(differences)
    t = np.mean(differences) / (np.std(differences, ddof=1) / np.sqrt(n))
    x = np.linspace(t, t + 2000, 2_000_001)
    return float(np.trapezoid(stats.t(n - 1).pdf(x), x))


def random_scores(cells, seed, cases=CASES):
    values = np.random.default_rng(seed).random((len(cells), len(cases)))
    return values, of(cells, values.tolist(), cases=cases)


@pytest.mark.parametrize("score", ["dsc", "hd", "hd95"])
def test_the_best_is_tested_against_the_second_best_over_patients(score):
    cells = grid("dan", "ua_mt", "co_training", seeds=3)
    values, _ = random_scores(cells, 5)
    scores = of(cells, values.tolist(), score)
    table = tabulate(Table((score,), pair_by=r"p\d"), cells, scores)
    # methods, seeds, patients, volumes: seeds and volumes are averaged first
    patients = values.reshape(3, 3, 3, 2).mean((1, 3))
    sign = 1 if score == "dsc" else -1
    best, second, _ = np.argsort(-sign * patients.mean(1))
    entries = list(column(table).values())
    assert [entry.best for entry in entries] == [place == best for place in range(3)]
    differences = sign * (patients[best] - patients[second])
    assert entries[best].p_value == pytest.approx(p_by_hand(differences), rel=1e-3)
    direction = "greater" if score == "dsc" else "less"
    reference = stats.ttest_rel(patients[best], patients[second], alternative=direction).pvalue
    assert entries[best].p_value == pytest.approx(reference, rel=1e-9)
    assert [entry.p_value for place, entry in enumerate(entries) if place != best] == [None, None]
    assert (
        "by a one-sided paired t-test over the 3 patients, each averaged over its volumes and the seeds first."
        in said(table)
    )


def test_without_patients_the_pairs_are_volumes_and_the_table_says_so():
    cells = grid("dan", "ua_mt")
    values, scores = random_scores(cells, 7)
    for pair_by in (None, "nobody", "p1"):  # also where some are found: the others would be patients of one volume
        table = tabulate(Table(("dsc",), pair_by=pair_by), cells, scores)
        one, other = values.reshape(2, 2, 6).mean(1)
        if one.mean() < other.mean():
            one, other = other, one
        [p_value] = [entry.p_value for entry in column(table).values() if entry.best]
        assert p_value == pytest.approx(stats.ttest_rel(one, other, alternative="greater").pvalue)
        assert "over the 6 volumes, each averaged over the seeds first." in said(table)


def test_significance_is_underlined_only_below_the_level():
    cells = grid("dan", "ua_mt")
    base = np.array([0.1, 0.5, 0.3, 0.4, 0.2, 0.6])
    small = np.array([0.01, 0.02, 0.03, 0.01, 0.02, 0.03])
    table = tabulate(DSC, cells, of(cells, [base, base, base + small, base + small]))
    assert column(table)["ua_mt"].is_significant
    assert "Underlined: better than the second best with p < 0.05 by a one-sided" in said(table)
    mixed = np.array([0.3, -0.2, 0.3, -0.2, 0.3, -0.2])
    table = tabulate(DSC, cells, of(cells, [base, base, base + mixed, base + mixed]))
    entry = column(table)["ua_mt"]
    assert entry.best
    assert entry.p_value > 0.05
    assert not entry.is_significant
    assert "None is better than the second best with p < 0.05 by a one-sided" in said(table)


def test_differences_that_are_all_alike_leave_no_doubt():
    cells = grid("dan", "ua_mt")
    table = tabulate(DSC, cells, of(cells, [(0.25, 0.5, 0.25) * 2] * 2 + [(0.5, 0.75, 0.5) * 2] * 2))
    assert column(table)["ua_mt"].p_value == 0.0


@pytest.mark.parametrize("second", [("p1_a", "p2_a", "p4_a"), ("p1_a", "p2_a")], ids=["others", "fewer"])
def test_different_cases_are_not_tested(second):
    cells = grid("dan", "ua_mt")
    scores = {
        **of(cells[:2], [(0.7, 0.8, 0.9)] * 2, cases=("p1_a", "p2_a", "p3_a")),
        **of(cells[2:], [(0.1, 0.2, 0.3)[: len(second)]] * 2, cases=second),
    }
    table = tabulate(DSC, cells, scores)
    assert column(table)["dan"].best
    assert column(table)["dan"].p_value is None
    assert "Not all of these runs were scored on the same cases: no test between those that were not." in table.notes
    assert "t-test" not in said(table)


def test_one_patient_is_not_tested():
    cells = grid("dan", "ua_mt")
    scores = of(cells, [(0.1, 0.2)] * 2 + [(0.3, 0.5)] * 2, cases=("p1_a", "p1_b"))
    table = tabulate(Table(("dsc",), pair_by=r"p\d"), cells, scores)
    assert column(table)["ua_mt"].p_value is None
    assert "t-test" not in said(table)


# What is missing


def test_a_missing_line_is_a_gap_with_its_name_and_nothing_in_its_block_is_marked():
    cells = grid("dan", "ua_mt", "co_training", labeled_ratio=(0.1, 0.05))
    scores = of(cells, [(0.1 * n,) * 6 for n in range(len(cells))])
    missing = [cell for cell in cells if cell.method == "ua_mt" and cell.axes["labeled_ratio"] == 0.1]
    for cell in missing:
        del scores[cell.name]
    table = tabulate(DSC, cells, scores)
    entries = {line.labels: line.entries[0] for line in table.lines}
    assert entries[0.1, "ua_mt"] == Entry(None, None, 0, 2)
    assert {labels for labels, entry in entries.items() if entry.best} == {(0.05, "co_training")}
    assert table.notes[0] == f"No result yet of {missing[0].name}, {missing[1].name}."
    assert "Where a run of a block is missing, the best is not marked." in table.notes


def test_a_missing_seed_is_counted_and_nothing_is_marked():
    cells = grid("dan", "ua_mt", seeds=3)
    scores = of(cells, [(0.1 * n,) * 6 for n in range(6)])
    del scores[cells[5].name]
    table = tabulate(DSC, cells, scores)
    entry = column(table)["ua_mt"]
    assert (entry.mean, entry.runs, entry.planned, entry.is_complete) == (pytest.approx(0.35), 2, 3, False)
    assert entry.std == pytest.approx(math.sqrt(0.005))
    assert not any(one.best for one in column(table).values())
    assert "In square brackets: how many of the planned runs are done; the mean is over these." in table.notes


def test_nothing_done_is_a_table_of_gaps():
    table = tabulate(DSC, grid("dan", "ua_mt", seeds=5), {})
    assert table.columns == (Column("acdc", "dsc", "mean"),)
    assert set(column(table).values()) == {Entry(None, None, 0, 5)}
    assert table.notes[0].endswith(": 10 runs.")
    assert "seed" not in said(table).replace("/seed=", "")


def test_keys_that_no_cell_has_are_refused():
    with pytest.raises(GridError, match="no `alpha` for `rows`"):
        tabulate(Table(("dsc",), rows=("alpha",)), grid("dan"), {})


# Several columns


def test_datasets_and_scores_have_columns_of_their_own():
    cells = expand(Grid(("acdc", "spleen"), ("dan", "ua_mt"), axes={"seed": (0, 1)}))
    rng = np.random.default_rng(3)
    structures = {"acdc": ("RV", "LV"), "spleen": ("spleen",)}
    scores = {
        cell.name: {
            score: {name: dict(zip(CASES, rng.random(6).tolist(), strict=True)) for name in structures[cell.dataset]}
            for score in ("dsc", "hd")
        }
        for cell in cells
    }
    table = tabulate(Table(("dsc", "hd"), pair_by=r"p\d"), cells, scores)
    assert [tuple(one) for one in table.columns] == [
        ("acdc", "dsc", "RV"), ("acdc", "dsc", "LV"), ("acdc", "dsc", "mean"),
        ("acdc", "hd", "RV"), ("acdc", "hd", "LV"), ("acdc", "hd", "mean"),
        ("spleen", "dsc", "spleen"), ("spleen", "hd", "spleen"),
    ]  # fmt: skip
    for line in table.lines:
        for one, entry in zip(table.columns, line.entries, strict=True):
            means = []
            for cell in cells:
                if (cell.dataset, cell.method) == (one.dataset, *line.labels):
                    found = scores[cell.name][one.score]
                    names = found if one.structure == "mean" else [one.structure]
                    means.append(statistics.fmean(value for name in names for value in found[name].values()))
            assert entry.mean == pytest.approx(statistics.fmean(means))
            assert entry.std == pytest.approx(statistics.stdev(means))
    assert "over the 3 patients of ACDC and the 3 patients of Spleen, each averaged" in said(table)


def test_a_dataset_that_a_line_was_not_planned_for_is_no_gap():
    cells = [Cell("acdc", "dan"), Cell("spleen", "dan"), Cell("acdc", "ua_mt")]
    table = tabulate(DSC, cells, of(cells, [(0.5,) * 6, (0.6,) * 6, (0.7,) * 6]))
    assert column(table, 1)["ua_mt"] == Entry(None, None, 0, 0)
    assert "missing" not in said(table)


def binary(seeds: int = 2) -> tuple[list[Cell], dict[str, dict]]:
    cells = grid("dan", "ua_mt", structure=(1, 2, 3), seeds=seeds)
    rng = np.random.default_rng(11)
    names = {1: "RV", 2: "Myo", 3: "LV"}
    return cells, {
        cell.name: of([cell], [rng.random(6).tolist()], structure=names[cell.axes["structure"]])[cell.name]
        for cell in cells
    }


MERGED = Table(("dsc",), rows=("methods",), columns=("structure",))


def test_structures_segmented_alone_stand_side_by_side():
    cells, scores = binary()
    table = tabulate(MERGED, cells, scores)
    # the same scores as if one network had them all
    whole = grid("dan", "ua_mt")
    merged = {
        cell.name: {
            "dsc": {
                name: cases
                for other in cells
                if (other.method, other.axes["seed"]) == (cell.method, cell.axes["seed"])
                for name, cases in scores[other.name]["dsc"].items()
            }
        }
        for cell in whole
    }
    expected = tabulate(Table(("dsc",), rows=("methods",)), whole, merged)
    assert [one.structure for one in table.columns] == ["RV", "Myo", "LV", "mean"]
    assert table == expected
    assert all(entry.is_complete for line in table.lines for entry in line.entries)


def test_the_mean_over_structures_waits_for_all_of_them():
    cells, scores = binary()
    for cell in cells:
        if cell.axes["structure"] == 1:
            del scores[cell.name]
    table = tabulate(MERGED, cells, scores)
    assert [one.structure for one in table.columns] == ["Myo", "LV", "mean"]
    for line in table.lines:
        assert [entry.mean is None for entry in line.entries] == [False, False, True]
    assert any(line.entries[0].best for line in table.lines)


def test_what_does_not_tell_structures_apart_is_no_column():
    cells = grid("dan", alpha=(0.0, 1.0), seeds=1)
    with pytest.raises(GridError, match=r"alpha=1\.0/seed=0 and another run of its line both have LV: check `columns`"):
        tabulate(Table(("dsc",), rows=("methods",), columns=("alpha",)), cells, of(cells, [(0.5,) * 6] * 2))


# Times


def test_times_are_shown_and_not_compared():
    cells = grid("dan", "ua_mt", seeds=2)
    scores = {cell.name: {"training_time": {"": {"": 100.0 + n}}} for n, cell in enumerate(cells)}
    table = tabulate(Table(("training_time", "inference_time")), cells, scores)
    assert table.columns == (Column("acdc", "training_time", ""), Column("acdc", "inference_time", ""))
    assert [line.entries[0].mean for line in table.lines] == [100.5, 102.5]
    assert [line.entries[1].mean for line in table.lines] == [None, None]
    assert not any(entry.best for line in table.lines for entry in line.entries)
    assert table.notes == (
        "Mean (standard deviation) over the seeds.",
        "Training: the median over the epochs but the first, with loading of the batches.",
        "Inference: the median over the volumes.",
    )


# What must hold for any scores

SCORES = st.lists(st.floats(0, 1, width=16), min_size=24, max_size=24)


def entries_of(table: ScoreTable) -> dict[object, Entry]:
    return {
        (line.labels, one): entry
        for line in table.lines
        for one, entry in zip(table.columns, line.entries, strict=True)
    }


@given(SCORES, st.randoms())
def test_the_order_of_cells_and_cases_does_not_matter(values, rng: random.Random):
    cells = grid("dan", "ua_mt")
    scores = of(cells, [values[6 * n : 6 * n + 6] for n in range(4)])
    shuffled = rng.sample(cells, len(cells))
    cases = rng.sample(CASES, len(CASES))
    other = {name: {"dsc": {"LV": {case: one["dsc"]["LV"][case] for case in cases}}} for name, one in scores.items()}
    table = Table(("dsc",), pair_by=r"p\d")
    before, after = entries_of(tabulate(table, cells, scores)), entries_of(tabulate(table, shuffled, other))
    assert before.keys() == after.keys()
    for place, entry in before.items():
        assert after[place].mean == entry.mean
        assert after[place].best == entry.best
        assert after[place].p_value == pytest.approx(entry.p_value, nan_ok=False)


@given(SCORES, st.sampled_from([-2.0, 0.25, 4.0]))
def test_a_shift_of_all_scores_changes_neither_marks_nor_tests(values, shift):
    cells = grid("dan", "ua_mt")
    rows = [values[6 * n : 6 * n + 6] for n in range(4)]
    before = entries_of(tabulate(DSC, cells, of(cells, rows)))
    after = entries_of(tabulate(DSC, cells, of(cells, [[value + shift for value in row] for row in rows])))
    for place, entry in before.items():
        assert after[place].mean == pytest.approx(entry.mean + shift)
        assert after[place].std == pytest.approx(entry.std, abs=1e-9)
        assert (after[place].best, after[place].p_value is None) == (entry.best, entry.p_value is None)
        assert entry.p_value is None or after[place].p_value == pytest.approx(entry.p_value, abs=1e-6)


@given(SCORES)
def test_distances_are_judged_as_scores_turned_round(values):
    cells = grid("dan", "ua_mt")
    rows = [values[6 * n : 6 * n + 6] for n in range(4)]
    dsc = entries_of(tabulate(DSC, cells, of(cells, rows)))
    hd = entries_of(tabulate(Table(("hd",)), cells, of(cells, [[-value for value in row] for row in rows], "hd")))
    assert [(one.best, one.p_value) for one in dsc.values()] == [(one.best, one.p_value) for one in hd.values()]
