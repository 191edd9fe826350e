"""A grid is read, checked and expanded; its cells have names that people can read."""

import itertools
import json
import re
import string

import pytest
from fire.parser import DefaultParseValue
from hypothesis import given
from hypothesis import strategies as st

from monai_spct.experiments import Cell, Grid, GridError, expand, parse_grid, read_study, shard
from monai_spct.experiments.grid import idle_rules
from monai_spct.experiments.values import name_of, same, word_of

WHOLE = """
datasets: [acdc]
overlays: [small]
methods: [labeled_only, self_paced_self_consistent]
networks: [enet]
axes:
  labeled_ratio: [0.1, 0.05]
  seed: [0, 1, 2]
settings: {max_epochs: 100}
exclude:
  - {methods: labeled_only, labeled_ratio: 0.05}
"""
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = SCALARS | st.lists(SCALARS)


def read(tmp_path, text: str) -> Grid:
    path = tmp_path / "grid.yaml"
    path.write_text(text, encoding="utf-8")
    [grid] = read_study(path).grids
    return grid


# Reading


def test_a_file_becomes_a_grid(tmp_path):
    assert read(tmp_path, WHOLE) == Grid(
        datasets=("acdc",),
        methods=("labeled_only", "self_paced_self_consistent"),
        networks=("enet",),
        overlays=("small",),
        axes={"labeled_ratio": (0.1, 0.05), "seed": (0, 1, 2)},
        settings={"max_epochs": 100},
        exclude=({"methods": "labeled_only", "labeled_ratio": 0.05},),
    )


def test_a_dataset_is_all_that_a_grid_needs(tmp_path):
    assert expand(read(tmp_path, "datasets: [acdc]")) == [Cell("acdc", "default", "default")]


@pytest.mark.parametrize("empty", ["overlays:", "overlays: []", "axes:", "settings: {}", "exclude:", "exclude: "])
def test_what_is_empty_may_be_left_there(tmp_path, empty):
    assert read(tmp_path, f"datasets: [acdc]\n{empty}") == Grid(("acdc",))


@pytest.mark.parametrize("word", ["1e-3", "1E-3", "1.0e-3", "+1e-3", "0.001"])
def test_a_small_number_is_a_number_however_it_is_written(tmp_path, word):
    assert read(tmp_path, f"datasets: [a]\nsettings: {{rate: {word}}}").settings["rate"] == 0.001


@pytest.mark.parametrize("word", ["1e-3x", "e3", "'1e-3'", "v1e-3"])
def test_a_string_stays_one(tmp_path, word):
    assert read(tmp_path, f"datasets: [a]\nsettings: {{rate: {word}}}").settings["rate"] == word.strip("'")


def test_both_signs_between_the_parts_of_a_key_mean_the_same():
    grid = parse_grid({"datasets": ["a"], "axes": {"x::y": [1, 2]}, "exclude": [{"x#y": 2}]})
    assert [cell.axes for cell in expand(grid)] == [{"x#y": 1}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"dataset": ["acdc"]}, r"no key `dataset`\. Did you mean `datasets`\?"),
        ({"datasets": ["a"], "axis": {}, "seting": {}}, r"`axis`\. Did you mean `axes`\?.*`settings`\?"),
        ({"datasets": ["a"], "xyzzy": 1}, r"no key `xyzzy`\.$"),
        ({"methods": ["a"]}, "needs `datasets`"),
        (["acdc"], r"must be a mapping .*, got \['acdc'\]"),
        (None, "must be a mapping"),
        ({"datasets": "acdc"}, r"`datasets` must be a list, got 'acdc'\."),
        ({"datasets": []}, "`datasets` must not be empty"),
        ({"datasets": ["a"], "methods": []}, "`methods` must not be empty"),
        ({"datasets": ["a", "a"]}, "`datasets` has 'a' twice"),
        ({"datasets": ["../a"]}, r"`datasets` must hold names, .*, got '\.\./a'"),
        ({"datasets": ["a"], "methods": ["bundles/methods/x.json"]}, "`methods` must hold names"),
        ({"datasets": ["a"], "methods": [1]}, "`methods` must hold names, .*, got 1"),
        ({"datasets": ["a"], "axes": ["seed"]}, "`axes` must be a mapping"),
        ({"datasets": ["a"], "axes": {"seed": 0}}, r"`axes\.seed` must be a list, got 0\."),
        ({"datasets": ["a"], "axes": {"seed": []}}, r"`axes\.seed` must not be empty"),
        ({"datasets": ["a"], "axes": {"seed": [0, 1, 0]}}, r"`axes\.seed` has 0 twice"),
        ({"datasets": ["a"], "axes": {"ratio": [1, 1.0]}}, r"`axes\.ratio` has 1\.0 twice"),
        ({"datasets": ["a"], "axes": {"seed": [{"x": 1}]}}, r"a value of `axes\.seed` must be a number, .*overlay"),
        ({"datasets": ["a"], "axes": {1: [0]}}, "a key in `axes` must be a name, got 1"),
        ({"datasets": ["a"], "settings": {"x": {"y": 1}}}, r"`settings\.x` must be a number, .*, got \{'y': 1\}"),
        ({"datasets": ["a"], "settings": {"x": float("nan")}}, r"`settings\.x` must be a number, .*, got nan"),
        ({"datasets": ["a"], "settings": {"x": 1}, "axes": {"x": [1]}}, "`x` must be in `axes` or in `settings`"),
        ({"datasets": ["a"], "exclude": {"methods": "a"}}, "`exclude` must be a list"),
        ({"datasets": ["a"], "exclude": ["a"]}, "a rule of `exclude` must be a mapping, got 'a'"),
        ({"datasets": ["a"], "exclude": [{}]}, "a rule of `exclude` must be a mapping"),
        ({"datasets": ["a"], "exclude": [{"method": "a"}]}, r"`method` in `exclude` .*Did you mean `methods`\?"),
        ({"datasets": ["a"], "axes": {"seed": [0]}, "exclude": [{"sed": 0}]}, r"`sed` .*Did you mean `seed`\?"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_grid_is_refused_by_name(content, message):
    with pytest.raises(GridError, match=message):
        parse_grid(content)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("datasets: [acdc", "is not YAML"),
        ("datasets: [acdc]\naxes: {seed: [0], seed: [1]}", "`seed` is there twice"),
        ("datasets: [acdc]\ndatasets: [b]", "`datasets` is there twice"),
        ("datasets: [acdc]\nsettings: {when: 2024-01-01}", r"`settings\.when` must be a number"),
        ("datasets: !!python/object/apply:os.getcwd []", "is not YAML"),
    ],
)
def test_a_file_that_holds_none_is_refused_by_its_name(tmp_path, text, message):
    with pytest.raises(GridError, match=message) as error:
        read(tmp_path, text)
    assert str(tmp_path / "grid.yaml") in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(GridError, match=f"there is no grid at {re.escape(str(tmp_path / 'a.yaml'))}"):
        read_study(tmp_path / "a.yaml")


# Expanding


def test_each_combination_is_a_cell_once_but_for_those_that_are_excluded(tmp_path):
    cells = expand(read(tmp_path, WHOLE))
    expected = [
        (method, ratio, seed)
        for method, ratio, seed in itertools.product(
            ("labeled_only", "self_paced_self_consistent"), (0.1, 0.05), (0, 1, 2)
        )
        if (method, ratio) != ("labeled_only", 0.05)
    ]
    assert [(cell.method, cell.axes["labeled_ratio"], cell.axes["seed"]) for cell in cells] == expected
    assert {(cell.dataset, cell.network, cell.overlays) for cell in cells} == {("acdc", "enet", ("small",))}
    assert all(cell.settings == {"max_epochs": 100} for cell in cells)


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        ({"x": 1}, [2, [1, 2]]),
        ({"x": [1, 2]}, []),  # any of these, and also this very list
        ({"x": [[1, 2]]}, [1, 2]),
        ({"x": 1, "methods": "b"}, [1, 2, [1, 2]]),
        ({"x": 1, "methods": ["a", "b"]}, [2, [1, 2]]),
        ({"datasets": "d", "networks": "default", "x": 2}, [1, [1, 2]]),
        ({"x": True}, [1, 2, [1, 2]]),
    ],
    ids=str,
)
def test_a_rule_leaves_out_what_matches_all_of_it(rule, left):
    grid = Grid(("d",), ("a",), axes={"x": (1, 2, [1, 2])}, exclude=(rule,))
    assert [cell.axes["x"] for cell in expand(grid)] == left


def test_a_rule_that_matches_nothing_is_found():
    grid = Grid(("d",), axes={"x": (1, 2)}, exclude=({"x": 1}, {"x": 3}, {"methods": "a"}))
    assert idle_rules(grid) == [{"x": 3}, {"methods": "a"}]


# Names


def test_the_name_of_a_cell_shows_its_axes_whatever_their_order():
    cell = Cell("acdc", "mean_teacher", "enet", axes={"seed": 0, "labeled_ratio": 0.1}, settings={"max_epochs": 3})
    assert cell.name == "acdc/mean_teacher/enet/labeled_ratio=0.1/seed=0"
    assert Cell("acdc").name == "acdc/default/default"


def test_the_name_of_a_cell_stays_when_the_grid_grows(tmp_path):
    grown = WHOLE.replace("[0, 1, 2]", "[0, 1, 2, 3]").replace("[enet]", "[enet, unet]").replace("[acdc]", "[b, acdc]")
    before, after = ({cell.name for cell in expand(read(tmp_path, text))} for text in (WHOLE, grown))
    assert before < after


@given(VALUES)
def test_a_value_in_a_name_is_one_part_of_a_path(value):
    name = f"key={name_of(value)}"
    assert set(name) <= set(string.ascii_letters + string.digits + "-_.~[],+@$%=")
    assert len(name) <= 150


@given(VALUES, VALUES)
def test_different_values_have_different_names(one, other):
    assert (name_of(one) == name_of(other)) == (json.dumps(one) == json.dumps(other))


def test_strings_that_look_like_something_else_are_told_apart():
    values = [1, "1", True, "true", None, "null", [1], "[1]", "", "~", "yes", "1e-3", 0.001]
    assert len({name_of(value) for value in values}) == len(values)


# Words of the command line


@given(VALUES.filter(lambda value: value is not None))
def test_the_command_line_reads_a_value_back(value):
    word = word_of(value)
    assert same(DefaultParseValue(word), value)
    assert not re.match(r"--?[A-Za-z_]|--?$", word), "would be taken for an option"


def test_null_arrives_as_an_expression():
    """MONAI takes an option with the value None for one that was not given."""
    assert word_of(None) == "$None"


# Parts


@pytest.mark.parametrize(("length", "parts"), [(0, 1), (1, 1), (7, 3), (16, 16), (17, 16), (3, 5), (100, 7)])
def test_parts_are_disjoint_and_complete(length, parts):
    items = list(range(length))
    found = [shard(items, f"{n}/{parts}") for n in range(1, parts + 1)]
    assert sorted(itertools.chain(*found)) == items
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_without_a_part_all_is_taken():
    assert shard((1, 2), None) == [1, 2]


@pytest.mark.parametrize("part", ["0/3", "4/3", "3", "1/0", "a/b", "-1/3", "1/3/5", "1.5/3", 3, ("1", "3")], ids=str)
def test_a_part_that_there_is_not_is_refused(part):
    with pytest.raises(GridError, match=r"`shard` must be i/n .*, got "):
        shard([1, 2, 3], part)
