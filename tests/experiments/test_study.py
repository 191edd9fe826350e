"""A file says what to run and what to show; the files of the paper's tables and figures say what the paper has."""

import json
import re

import pytest

from monai_spct.experiments import (
    Figure,
    Grid,
    GridError,
    Job,
    Study,
    Table,
    parse_grid,
    parse_shown,
    parse_study,
    plan,
    read_study,
    shipped_studies,
)
from monai_spct.experiments.lines import cell_lines, refuse_tables
from monai_spct.experiments.study import shown_content

# Reading


def test_a_grid_alone_is_shown_by_the_usual_tables_and_figures():
    study = parse_study({"datasets": ["acdc"], "axes": {"seed": [0, 1]}})
    assert study == Study((Grid(("acdc",), axes={"seed": (0, 1)}),))
    assert [item.kind for item in study.show] == ["table", "table", "curves", "comparison"]


def test_a_file_may_hold_several_grids_a_title_and_what_to_show():
    study = parse_study(
        {
            "title": "Two\n  data sets ",
            "show": [
                {"table": ["dsc", "hd"], "rows": ["methods"]},
                {"figure": "curves", "where": {"optimizer::lr": 1}},
            ],
            "grids": [{"datasets": ["a"]}, {"datasets": ["b"], "methods": ["dan"]}],
        }
    )
    assert study.title == "Two data sets"
    assert study.grids == (parse_grid({"datasets": ["a"]}), parse_grid({"datasets": ["b"], "methods": ["dan"]}))
    assert study.show == (Table(("dsc", "hd"), rows=("methods",)), Figure("curves", where={"optimizer#lr": 1}))


def test_a_figure_of_a_formula_needs_no_grid():
    assert parse_study({"show": [{"figure": "alpha_jsd"}]}) == Study((), show=(Figure("alpha_jsd"),))
    with pytest.raises(GridError, match="needs `datasets`"):
        parse_study({"show": [{"figure": "alpha_jsd"}, {"table": "dsc"}]})


def test_grids_may_share_what_they_have_in_common(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text("grids:\n  - &a {datasets: [x], settings: {r: 1e-3}}\n  - {<<: *a, datasets: [y]}")
    one, other = read_study(path).grids
    assert (one.datasets, other.datasets) == (("x",), ("y",))
    assert one.settings == other.settings == {"r": 0.001}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "must be a mapping"),
        ({"datasets": ["a"], "titel": "x"}, r"no key `titel`\. Did you mean `title`\?"),
        ({"datasets": ["a"], "shwo": []}, r"no key `shwo`\. Did you mean `show`\?"),
        ({"grid": [{"datasets": ["a"]}]}, r"no key `grid`\. Did you mean `grids`\?"),
        ({1: 2}, r"no key `1`\.$"),
        ({"datasets": ["a"], "title": 3}, r"`title` must be a string, got 3\."),
        ({"grids": []}, r"`grids` must be a list of grids, got \[\]"),
        ({"grids": {"datasets": ["a"]}}, "`grids` must be a list of grids"),
        ({"grids": [{"datasets": ["a"]}, {"datsets": ["b"]}]}, r"^`grids` 2: .*`datsets`\. Did you mean `datasets`\?"),
        ({"grids": [{"datasets": ["a"], "show": []}]}, "^`grids` 1: a grid has no key `show`"),
        (
            {"grids": [{"datasets": ["a"]}], "axes": {}},
            "beside `grids` there may be `title` and `show` alone, .*'axes'",
        ),
        ({"datasets": ["a"], "show": []}, r"`show` must be a list of tables and figures, got \[\]"),
        ({"datasets": ["a"], "show": {"table": "dsc"}}, "`show` must be a list"),
    ],
    ids=str,
)
def test_what_is_no_study_is_refused_by_name(content, message):
    with pytest.raises(GridError, match=message):
        parse_study(content)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("dsc", "must be a mapping with `table: dsc` or `figure: curves`, got 'dsc'"),
        ({"title": "x"}, "must be a mapping with `table"),
        ({"table": "dsc", "figure": "curves"}, "must be a mapping with `table"),
        ({"table": "dice"}, r"no score `dice`, but dsc, .*Did you mean `dsc`\?"),
        ({"table": ["dsc", "hd99"]}, r"no score `hd99`.*Did you mean `hd95`\?"),
        ({"table": []}, r"`table` must be a score or a list of different ones, got \[\]"),
        ({"table": ["hd", "hd"]}, "`table` must be .* different ones"),
        ({"table": {"dsc": 1}}, "no score `{'dsc': 1}`"),
        ({"table": "dsc", "row": ["methods"]}, r"a table of this kind has no `row`\. Did you mean `rows`\?"),
        ({"table": "dsc", "rows": "methods"}, "`rows` must be a list of keys of the grid, got 'methods'"),
        ({"table": "dsc", "rows": ["a", "a"]}, "`rows` must be a list of different keys"),
        ({"table": "dsc", "rows": ["a", "b"], "within": ["c"]}, r"`within` must be some of `rows`.*\['c'\]"),
        ({"table": "dsc", "rows": ["a", "b"], "within": ["a", "b"]}, "`within` must be some of `rows`, not all"),
        ({"table": "dsc", "within": ["a"]}, "`within` must be some of `rows`"),
        ({"table": "dsc", "where": ["methods"]}, "`where` must be a mapping"),
        ({"table": "dsc", "where": {1: 2}}, "`where` must be a mapping"),
        ({"table": "dsc", "where": {"a": {"b": 1}}}, r"`where\.a` must be a number, a string"),
        ({"table": "dsc", "pair_by": "patient("}, "`pair_by` must be a regular expression, got 'patient\\('"),
        ({"table": "dsc", "pair_by": 3}, "`pair_by` must be a regular expression, got 3"),
        ({"figure": "curve"}, r"no figure `curve`.*Did you mean `curves`\?"),
        ({"figure": "curves", "slices": 2}, "a figure of this kind has no `slices`"),
        ({"figure": "alpha_jsd", "alpha": [1]}, r"has no `alpha`\. Did you mean `alphas`\?"),
        ({"figure": "alpha_jsd", "alphas": [0, 1.5]}, r"`alphas` must be a list of numbers from 0 to 1, got"),
        ({"figure": "alpha_jsd", "alphas": []}, "`alphas` must be"),
        ({"figure": "alpha_jsd", "alphas": [True]}, "`alphas` must be"),
        ({"figure": "alpha_jsd", "alphas": [float("nan")]}, "`alphas` must be"),
        ({"figure": "comparison", "slices": 0}, r"`slices` must be a number of slices or a list such as .*, got 0"),
        ({"figure": "comparison", "slices": True}, "`slices` must be"),
        ({"figure": "comparison", "slices": ["patient004"]}, "`slices` must be"),
        ({"figure": "comparison", "slices": {"acdc": ["a:b"]}}, "`slices` must be"),
        ({"figure": "comparison", "slices": {}}, "`slices` must be"),
        ({"figure": "entropy"}, "needs `epochs`"),
        ({"figure": "entropy", "epochs": []}, "needs `epochs`"),
        ({"figure": "entropy", "epochs": 20}, "`epochs` must be a list of epochs from 1 on, got 20"),
        ({"figure": "entropy", "epochs": [0]}, "`epochs` must be a list of epochs from 1 on"),
        ({"figure": "entropy", "epochs": [20.5]}, "`epochs` must be a list of epochs from 1 on"),
        ({"figure": "entropy", "epochs": [20], "slices": 2}, "shows one slice, got `slices` 2"),
        ({"figure": "entropy", "epochs": [20], "slices": {"a": ["x:1", "x:2"]}}, "shows one slice"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_shown_is_refused_by_name_and_place(item, message):
    with pytest.raises(GridError, match=message) as error:
        parse_shown([{"table": "dsc"}, item])
    assert str(error.value).startswith("`show` 2: ")


@pytest.mark.parametrize(
    "content",
    [
        {"table": ["dsc"]},
        {"table": ["training_time", "inference_time"], "title": "Times", "rows": ["methods"], "within": []},
        {
            "table": ["hd95"],
            "rows": ["labeled_ratio", "methods"],
            "within": ["labeled_ratio"],
            "where": {"seed": [0, 1], "methods": "dan"},
            "columns": ["structure"],
            "pair_by": r"patient\d+",
        },
        {"figure": "curves", "rows": ["methods"], "where": {"labeled_ratio": 0.1}},
        {"figure": "comparison", "slices": {"acdc": ["patient004_frame01:5"], "spleen": 1}},
        {"figure": "comparison", "title": "Three", "slices": 3},
        {"figure": "entropy", "slices": ["a:3"], "epochs": [20, 40]},
        {"figure": "alpha_jsd", "alphas": [0.0, 0.5]},
    ],
    ids=str,
)
def test_what_is_shown_is_written_as_it_is_read(content):
    [item] = parse_shown([content])
    assert shown_content(item) == content
    assert parse_shown([json.loads(json.dumps(shown_content(item)))]) == (item,)


def test_an_entropy_figure_shows_one_slice():
    [figure] = parse_shown([{"figure": "entropy", "epochs": [20]}])
    assert figure.slices == 1
    assert Figure("comparison").slices == 2


# Files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("datasets: [a]\ntitle: x\ntitle: y", "`title` is there twice"),
        ("datasets: [a]\nshow:\n  - {table: dsc, table: hd}", "`table` is there twice"),
        ("datasets: [a]\nshow: [{table: dice}]", "`show` 1: there is no score `dice`"),
    ],
)
def test_an_error_names_the_file(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(GridError, match=message) as error:
        read_study(path)
    assert str(error.value).startswith(str(path))


def test_a_study_that_comes_with_the_package_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_study("views") == read_study(shipped_studies()["views"])
    with pytest.raises(GridError, match=r"there is no grid at .*view\. Did you mean `views`\?"):
        read_study("view")
    (tmp_path / "views").write_text("datasets: [mine]")  # a file of one's own is nearer
    assert read_study("views").grids == (Grid(("mine",)),)


# Those of the paper


@pytest.fixture(scope="module")
def jobs() -> dict[str, list[Job]]:
    studies = {name: read_study(path) for name, path in shipped_studies().items()}
    return {name: plan(study.grids).jobs for name, study in studies.items()}


@pytest.mark.parametrize("name", shipped_studies())
def test_each_study_of_the_package_can_be_run_and_shown(jobs, name):
    study = read_study(name)
    assert study.title
    refuse_tables(study, [job.cell for job in jobs[name]])
    assert shipped_studies()[name].read_text().startswith("# ")


def test_tables_1_to_4_have_full_supervision_and_two_ratios_of_seven_systems_three_times(jobs):
    for name, low in {"acdc_dsc": 0.05, "acdc_hd": 0.05, "prostate": 0.05, "spleen": 0.07}.items():
        [table, *_] = read_study(name).show
        keys, lines = cell_lines(table, [job.cell for job in jobs[name]])
        assert keys == ("labeled_ratio", "methods")
        assert {len(members) for members in lines.values()} == {3}
        counts = {ratio: sum(labels[0] == ratio for labels in lines) for ratio in (1.0, 0.1, low)}
        assert counts == {1.0: 1, 0.1: 7, low: 7}
        assert len(jobs[name]) == (1 + 7 * 2) * 3


@pytest.mark.parametrize(
    ("name", "number"),
    # systems or networks, ratios or views, datasets, seeds
    [("ablation", 4 * 3 * 3), ("views", 2 * 2 * 3), ("backbones", 3 * 4 * 3), ("times", 5 + 2 * 2), ("alpha_jsd", 0)],
)
def test_the_other_tables_have_the_cells_of_the_paper(jobs, name, number):
    assert len(jobs[name]) == number


def test_dsc_and_distances_are_of_the_same_runs(jobs):
    assert {job.name: job.digest for job in jobs["acdc_dsc"]} == {job.name: job.digest for job in jobs["acdc_hd"]}


@pytest.mark.parametrize("name", ["comparison", "views", "ablation"])
def test_what_another_table_has_is_not_run_again(jobs, name):
    known = {job.name: job.digest for table in ("acdc_dsc", "prostate", "spleen") for job in jobs[table]}
    shared = {job.name: job.digest for job in jobs[name] if job.name in known}
    assert shared == {name: known[name] for name in shared}
    if name == "comparison":
        assert len(shared) == len(jobs[name]) == 3 * 8
    else:
        assert shared


def test_settings_are_chosen_on_validation_patients(jobs):
    for job in jobs["selection"]:
        assert job.training.options["num_validation"] == job.evaluating.options["num_validation"] > 0
        assert job.evaluating.options["scored"] == "validation"


def test_times_are_those_of_single_images(jobs):
    for job in jobs["times"]:
        assert job.training.options["labeled_batch_size"] == job.training.options["unlabeled_batch_size"] == 1
        assert job.evaluating.options["inferer#batch_size"] == 1


# Grids together


def test_grids_that_share_a_cell_run_it_once(tiny):
    grids = parse_study({"grids": [{"datasets": ["tiny"], "axes": {"seed": [0, 1]}},
                                   {"datasets": ["tiny"], "axes": {"seed": [1, 2]}}]}).grids  # fmt: skip
    assert [job.cell.axes["seed"] for job in plan(grids, bundles=tiny).jobs] == [0, 1, 2]


def test_grids_that_mean_different_runs_by_one_name_are_refused(tiny):
    one, other = ({"datasets": ["tiny"], "settings": {"ratio": ratio}} for ratio in (0.25, 0.75))
    message = "two grids have a cell tiny/default/default, but its `ratio` was 0.25, is 0.75 in the second one"
    with pytest.raises(GridError, match=re.escape(message)):
        plan(parse_study({"grids": [one, other]}).grids, bundles=tiny)
