"""A line of a table is of cells that differ in the seed alone; all else is refused before anything runs."""

import pytest

from monai_spct.experiments import Cell, Figure, Grid, GridError, Study, Table, expand
from monai_spct.experiments.__main__ import run
from monai_spct.experiments.lines import cell_lines, default_rows, refuse_tables

A, SEEDS, RATIO = ("a",), (0, 1), "labeled_ratio"


def cells(*grids: Grid) -> list[Cell]:
    return [cell for grid in grids for cell in expand(grid)]


# Which lines there are


@pytest.mark.parametrize(
    ("grids", "rows"),
    [
        ([Grid(A, ("x", "y"), axes={"seed": SEEDS})], ("methods",)),
        ([Grid(("a", "b"))], ("methods",)),
        ([Grid(A, ("x",), ("n", "m"), axes={"alpha": (0.0, 1.0), "seed": SEEDS})], ("alpha", "networks", "methods")),
        # what each method has in its own way is no line of its own
        ([Grid(A, ("x",), axes={"num_views": (1,)}), Grid(A, ("y",), axes={"num_views": (2,)})], ("methods",)),
        ([Grid(A, axes={"alpha": (0.1,)}), Grid(("b",), axes={"alpha": (0.2,)})], ("methods",)),
        # but how much they see is
        ([Grid(A, ("x",), axes={RATIO: (1.0,)}), Grid(A, ("y",), axes={RATIO: (0.1,)})], (RATIO, "methods")),
        ([Grid(A, axes={RATIO: (0.1,)}), Grid(("b",), axes={RATIO: (0.2,)})], ("methods",)),
    ],
    ids=str,
)
def test_what_varies_is_a_line(grids, rows):
    assert default_rows(cells(*grids)) == rows
    assert cell_lines(Table(("dsc",)), cells(*grids))[0] == rows


def test_lines_hold_the_seeds_of_all_datasets_in_the_order_of_the_grid():
    keys, lines = cell_lines(Table(("dsc",)), cells(Grid(("b", "a"), ("y", "x"), axes={"seed": (1, 0)})))
    assert keys == ("methods",)
    assert list(lines) == [("y",), ("x",)]
    assert [(cell.dataset, cell.axes["seed"]) for cell in lines["y",]] == [("b", 1), ("b", 0), ("a", 1), ("a", 0)]


def test_where_chooses_cells_by_any_of_several_values():
    grid = Grid(("a",), ("x", "y", "z"), axes={"labeled_ratio": (1.0, 0.1, 0.05)})
    item = Table(("dsc",), where={"labeled_ratio": [1.0, 0.05], "methods": "x"})
    assert list(cell_lines(item, expand(grid))[1]) == [(1.0, "x"), (0.05, "x")]


def test_a_list_may_be_the_value_of_a_line():
    _, lines = cell_lines(Table(("dsc",)), expand(Grid(("a",), axes={"size": ([1, 2], [3, 4])})))
    assert list(lines) == [("[1, 2]", "default"), ("[3, 4]", "default")]


def test_structures_segmented_alone_may_share_a_line():
    grid = Grid(("a",), ("x", "y"), axes={"structure": (1, 2, 3), "seed": SEEDS})
    table = Table(("dsc",), rows=("methods",), columns=("structure",))
    assert {len(members) for members in cell_lines(table, expand(grid))[1].values()} == {6}
    with pytest.raises(GridError, match="x would have one line for structure 1 and 2: add `structure` to `rows`"):
        cell_lines(Table(("dsc",), rows=("methods",)), expand(grid))


# Refused


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (Table(("dsc",), rows=("methods",)), r"in a table, x would have one line for alpha 0\.0 and 1\.0: add `alpha`"),
        (Figure("curves", rows=("alpha",)), r"in a figure of curves, 0\.0 would have one line for methods x and y"),
        (Table(("dsc",), rows=()), "all would have one line for"),
        (Table(("dsc",), rows=("alhpa", "methods")), r"no `alhpa` for `rows` in these cells\. Did you mean `alpha`\?"),
        (Table(("dsc",), rows=("seed",)), "no `seed` for `rows`"),
        (Table(("dsc",), columns=("structure",)), "no `structure` for `columns`"),
        (Table(("dsc",), where={"alhpa": 0.0}), r"no `alhpa` for `where` in these cells\. Did you mean `alpha`\?"),
        (Table(("dsc",), where={"alpha": 0.5}), r"no cell matches `where` \{'alpha': 0\.5\}"),
        (Figure("comparison", slices={"acdd": 1}), r"no `acdd` for `slices` in these cells\. Did you mean `acdc`\?"),
        (Figure("entropy", epochs=(2, 4)), r"epochs \[2, 4\], which are not in the `kept_epochs` of the grid: None"),
    ],
    ids=str,
)
def test_what_cannot_be_shown_is_refused(item, message):
    planned = expand(Grid(("acdc",), ("x", "y"), axes={"alpha": (0.0, 1.0), "seed": SEEDS}))
    with pytest.raises(GridError, match=message):
        refuse_tables(Study((), show=(Figure("alpha_jsd"), Table(("dsc",)), item)), planned)


def test_lines_of_one_dataset_are_told_apart_also_around_those_of_another():
    planned = cells(*(Grid((name,), axes={"alpha": (value,)}) for name, value in (("a", 0.1), ("b", 0.2), ("a", 0.3))))
    with pytest.raises(GridError, match=r"one line for alpha 0\.1 and 0\.3"):
        cell_lines(Table(("dsc",), rows=("methods",)), planned)


def test_a_cell_without_the_axis_is_not_one_with_it():
    with pytest.raises(GridError, match=r"one line for alpha None and 0\.3"):
        cell_lines(Table(("dsc",), rows=("methods",)), cells(Grid(("a",)), Grid(("a",), axes={"alpha": (0.3,)})))


def test_epochs_of_a_figure_must_be_kept():
    item = Figure("entropy", epochs=(2, 4))
    kept = Grid(("a",), settings={"kept_epochs": [2, 4, 6]})
    refuse_tables(Study((), show=(item,)), expand(kept))
    with pytest.raises(GridError, match=r"epochs \[4\], which are not in the `kept_epochs` of the grid: \[2\]"):
        refuse_tables(Study((), show=(item,)), expand(Grid(("a",), settings={"kept_epochs": [2]})))


def test_a_run_that_could_not_be_shown_is_refused_before_anything_is_written(tiny, tmp_path, capsys):
    (tmp_path / "grid.yaml").write_text(
        "datasets: [tiny]\naxes: {ratio: [0.25, 0.75]}\nshow: [{table: dsc, rows: [methods]}]"
    )
    for dry in (False, True):
        with pytest.raises(SystemExit) as error:
            run(str(tmp_path / "grid.yaml"), folder=str(tmp_path / "runs"), bundles=str(tiny), dry_run=dry)
        assert error.value.code == 2
        assert "default would have one line for ratio 0.25 and 0.75" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
