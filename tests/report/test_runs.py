"""Which runs share a line, and what a file of tables and figures may say."""

import re

import pandas as pd
import pytest

from monai_spct.report import Figure, Run, Table, find_runs, read_show
from monai_spct.report.runs import lines_of
from monai_spct.workflow import bundles_folder
from tests.report.made_up import make_run, make_runs

DSC = Table(("dsc",))


def runs_with(*cells: dict[str, object]) -> list[Run]:
    usual = {"dataset": "acdc", "method": "dan", "network": "enet"}
    return [
        Run(bundles_folder() / str(n), {key: cell.pop(key, usual[key]) for key in usual} | {"axes": cell})
        for n, cell in enumerate(dict(cell) for cell in cells)
    ]


@pytest.mark.parametrize(
    ("cells", "keys", "lines"),
    [
        ([{"seed": 0}, {"seed": 1}], ["method"], [("dan",)]),
        (
            [
                {"method": name, "labeled_ratio": ratio}
                for ratio in (0.05, 0.1)
                for name in ("mine", "dan", "labeled_only")
            ],
            ["labeled_ratio", "method"],
            [(ratio, name) for ratio in (0.1, 0.05) for name in ("labeled_only", "dan", "mine")],
        ),
        # of one method there is no more than one number of networks
        ([{"method": "ua_mt", "num_views": 1}, {"num_views": 2}], ["method"], [("dan",), ("ua_mt",)]),
        # an amount of labels is worth a line wherever it differs
        (
            [{"method": "full_supervision", "labeled_ratio": 1.0}, {"labeled_ratio": 0.1}],
            ["labeled_ratio", "method"],
            [(1.0, "full_supervision"), (0.1, "dan")],
        ),
        # what some methods have not is a detail of the others
        (
            [{"adversarial_weight": 0.1}, {"adversarial_weight": 0.01}, {"method": "ua_mt"}],
            ["method", "adversarial_weight"],
            [("dan", 0.01), ("dan", 0.1), ("ua_mt", None)],
        ),
        ([{"alpha": 0.1}, {"alpha": 0}], ["alpha"], [(0,), (0.1,)]),
        (
            [{"dataset": "acdc", "labeled_ratio": 0.1}, {"dataset": "spleen", "labeled_ratio": 0.2}],
            ["method"],
            [("dan",)],
        ),
        ([{"size": [96, 64]}, {"size": [64, 64]}], ["size"], [("[64, 64]",), ("[96, 64]",)]),
    ],
)
def test_lines_are_what_varies_in_the_order_of_the_paper(cells, keys, lines):
    runs = runs_with(*cells)
    found = lines_of(DSC, runs)
    assert (found[0], list(found[1])) == (keys, lines)
    assert {run for members in found[1].values() for run in members} == set(runs)


@pytest.mark.parametrize(
    ("where", "chosen"),
    [
        ({"alpha": 0.1}, [1]),
        ({"alpha": [0.1, 0.2]}, [1, 2]),
        ({"alpha": None}, [0]),
        ({"alpha": [None, 0.2], "method": "dan"}, [0, 2]),
        ({"dataset": "acdc"}, [0, 1, 2]),
    ],
    ids=str,
)
def test_runs_are_chosen_by_their_values(where, chosen):
    runs = runs_with({}, {"alpha": 0.1}, {"alpha": 0.2})
    _, lines = lines_of(Table(("dsc",), where=where), runs)
    assert sorted(runs.index(run) for members in lines.values() for run in members) == chosen


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (Table(("dsc",), rows=("method",)), "dan would have one line for alpha 0.1 and 0.2: add `alpha` to `rows`"),
        (Figure("curves", rows=("alpa",)), "there is no `alpa` for `rows` in these runs. Did you mean `alpha`?"),
        (Table(("dsc",), rows=("dataset", "alpha")), "there is no `dataset` for `rows`"),
        (Table(("dsc",), where={"alphaa": 0}), "there is no `alphaa` for `where` in these runs. Did you mean `alpha`?"),
        (Table(("dsc",), where={"alpha": 7}), "no run matches `where` {'alpha': 7}."),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(item, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        lines_of(item, runs_with({"alpha": 0.1}, {"alpha": 0.2}))


def test_one_run_in_two_folders_is_refused(tmp_path):
    for name in ("a", "b"):
        make_run(tmp_path / name, {"LV": [0.5] * 6}, seed=0)
    with pytest.raises(ValueError, match=r"a and .*b are the same run: report on one of them"):
        lines_of(DSC, find_runs(tmp_path))


def test_old_histories_and_settings_are_read_too(tmp_path):
    [run] = make_runs(tmp_path, {"dan": [[0.5] * 6]}, history="epoch,seconds,loss,pace\n1,1,2,0.5\n")
    assert run.history == [{"epoch": 1, "seconds": 1, "loss": 2, "gamma": 0.5}]
    run.record["settings"] = {"num_validation": 10}
    assert run.labels["num_validation"] == 10


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("eval/scores.csv", "case,structure,dsc\na,LV,0.5\n", r"scores\.csv cannot be read"),
        ("eval/scores.csv", "case,structure,dsc,hd,hd95\na,LV,nan,1,1\n", r"scores\.csv cannot be read"),
        ("eval/history.csv", "epoch,seconds\n1,x\n", r"history\.csv cannot be read"),
        ("eval/inference_time.json", "{}", r"inference_time\.json cannot be read \(KeyError\('seconds_per_slice'\)\)"),
        ("cell.json", "{", r"cell\.json cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, file, content, message):
    make_run(tmp_path / "a", {"LV": [0.5] * 6})
    (tmp_path / "a" / file).write_text(content)
    with pytest.raises(ValueError, match=message):
        find_runs(tmp_path)[0].scores  # noqa: B018


# Files of tables and figures


@pytest.mark.parametrize(
    "file", sorted((bundles_folder() / "experiments").glob("*.report.yaml")), ids=lambda file: file.name
)
def test_what_comes_with_the_package_is_read_by_its_name(file):
    show = read_show(file.name.removesuffix(".report.yaml"))
    assert show.items
    assert show.title != "Results"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("show: dsc", "`show` must be a list of tables and figures"),
        ("show: [{table: dice}]", "there is no score `dice`, but dsc, hd, hd95"),
        ("show: [{figure: curve}]", "there is no figure `curve`, .* Did you mean `curves`?"),
        ("show: [{table: dsc, row: [method]}]", "there is no key `row`, .* Did you mean `rows`?"),
        ("show: [{table: dsc, rows: method}]", "`rows` must be a list, got 'method'"),
        ("show: [{table: dsc, where: [method]}]", "`where` must be a mapping"),
        ("show: [{figure: entropy}]", "an entropy figure needs `epochs`"),
        ("show: [{table: dsc, pair_by: '('}]", "unterminated subpattern"),
        ("show: [dsc]", "an item must have `table: dsc` or `figure: curves`"),
        ("{", "report.yaml: "),
    ],
)
def test_a_mistake_in_a_file_is_named(tmp_path, text, message):
    (tmp_path / "report.yaml").write_text(text)
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        read_show(tmp_path / "report.yaml")
    with pytest.raises(ValueError, match=r"nothing\.yaml"):
        read_show("nothing.yaml")


@pytest.mark.parametrize(
    "table", sorted((bundles_folder() / "experiments").glob("*.tsv")), ids=lambda table: table.stem
)
def test_each_grid_of_the_package_can_be_shown(table):
    cells = pd.read_csv(table, sep="\t").astype(object)
    runs = runs_with(*({str(k): v for k, v in row.items() if not pd.isna(v)} for row in cells.to_dict("records")))
    file = table.with_suffix(".report.yaml")
    for item in read_show(file).items if file.is_file() else (DSC, Figure("curves")):
        keys, lines = lines_of(item, runs)
        assert "seed" not in keys
        assert len(lines) > 1
