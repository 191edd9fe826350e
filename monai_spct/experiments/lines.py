"""Which cells share a line of a table, a curve or a column of a figure: those that differ in the seed alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from monai_spct.experiments.grid import Cell, matches
from monai_spct.experiments.refusals import GridError
from monai_spct.experiments.study import Figure, Study, Table
from monai_spct.experiments.values import Value, same
from monai_spct.workflow.spelling import did_you_mean

__all__ = ["SEED", "Labels", "cell_lines", "default_rows", "refuse_tables"]

SEED = "seed"
# how much a method may see: never a detail of the method, also where each method has its own
_AMOUNTS = ("labeled_ratio", "labeled_patients")

Labels: TypeAlias = tuple[Value, ...]


def cell_lines(item: Table | Figure, cells: Sequence[Cell]) -> tuple[tuple[str, ...], dict[Labels, list[Cell]]]:
    """The keys of a table or figure, and for each combination of their values the cells that have it.

    Raises:
        GridError: when a key is none of the cells', or when cells that differ in more than the seed would share a line.

    Example:
        >>> from monai_spct.experiments import Figure, Grid, expand
        >>> from monai_spct.experiments.lines import cell_lines
        >>> keys, lines = cell_lines(Figure("curves"), expand(Grid(("acdc",), ("dan",), axes={"seed": (0, 1)})))
        >>> keys, {labels: len(members) for labels, members in lines.items()}
        (('methods',), {('dan',): 2})
    """
    _refuse_unknown("where", item.where, {key for cell in cells for key in cell.places})
    chosen = [cell for cell in cells if matches(cell.places, item.where)]
    if not chosen:
        raise GridError(f"no cell matches `where` {dict(item.where)}.")
    keys = _keys(item, chosen)
    return keys, _lines(keys, item, chosen)


def default_rows(cells: Sequence[Cell]) -> tuple[str, ...]:
    """The keys whose values are worth a line each: axes that a method was run with several values of, and methods last.

    The amount of labels is also worth one where it differs among methods, as that of full supervision does: the best of
    a block is then one of those that saw the same.

    Example:
        >>> from monai_spct.experiments import Grid, expand
        >>> from monai_spct.experiments.lines import default_rows
        >>> axes = {"labeled_ratio": (0.1, 0.05), "split_seed": (0,), "seed": (0, 1)}
        >>> default_rows(expand(Grid(("acdc",), ("dan", "ua_mt"), axes=axes)))
        ('labeled_ratio', 'methods')
    """
    names = list(dict.fromkeys(key for cell in cells for key in cell.axes if key != SEED))
    varied = []
    for key in [*names, "networks"]:
        of: dict[tuple[str, str], set[str]] = {}
        for cell in cells:
            method = "" if key in _AMOUNTS else cell.method
            of.setdefault((cell.dataset, method), set()).add(repr(cell.places.get(key)))
        if any(len(values) > 1 for values in of.values()):
            varied.append(key)
    return (*varied, "methods")


def refuse_tables(study: Study, cells: Sequence[Cell]) -> None:
    """Find out, before anything is run, whether the results could be shown as the study wants them.

    Raises:
        GridError: as :func:`cell_lines`.

    Example:
        >>> from monai_spct.experiments import Grid, Study, Table, expand
        >>> from monai_spct.experiments.lines import refuse_tables
        >>> grid = Grid(("acdc",), ("dan",), axes={"labeled_ratio": (0.1, 0.05)})
        >>> refuse_tables(Study((grid,), show=(Table(("dsc",), rows=("methods",)),)), expand(grid))
        Traceback (most recent call last):
        ...
        monai_spct.experiments.refusals.GridError: in a table, dan would have one line for labeled_ratio 0.1 and 0.05: \
add `labeled_ratio` to `rows`, or choose by `where`.
    """
    for item in study.show:
        if item.kind == "alpha_jsd":
            continue
        _, lines = cell_lines(item, cells)
        if not isinstance(item, Figure):
            continue
        chosen = [cell for members in lines.values() for cell in members]
        if isinstance(item.slices, Mapping):
            _refuse_unknown("slices", item.slices, {cell.dataset for cell in chosen})
        for cell in chosen:
            kept = {**cell.settings, **cell.axes}.get("kept_epochs")
            lost = [epoch for epoch in item.epochs if not isinstance(kept, list) or epoch not in kept]
            if lost:
                raise GridError(
                    f"a figure shows epochs {lost}, which are not in the `kept_epochs` of the grid: {kept}."
                )


def _keys(item: Table | Figure, cells: Sequence[Cell]) -> tuple[str, ...]:
    keys = default_rows(cells) if item.rows is None else tuple(item.rows)
    known = {key for cell in cells for key in cell.places} - {"datasets", SEED}
    _refuse_unknown("rows", keys, known)
    if isinstance(item, Table):
        _refuse_unknown("columns", item.columns, known)
    return keys


def _refuse_unknown(name: str, keys: Iterable[str], known: set[str]) -> None:
    for key in keys:
        if key not in known:
            raise GridError(f"there is no `{key}` for `{name}` in these cells.{did_you_mean(key, known)}")


def _lines(keys: Sequence[str], item: Table | Figure, cells: Sequence[Cell]) -> dict[Labels, list[Cell]]:
    """The cells of each line, which may differ in the seed and in what has columns of its own, and in nothing else."""
    lines: dict[Labels, list[Cell]] = {}
    for cell in cells:
        lines.setdefault(tuple(_hashable(cell.places.get(key)) for key in keys), []).append(cell)
    apart = (*keys, SEED, "datasets", *(item.columns if isinstance(item, Table) else ()))
    for labels, members in lines.items():
        first_of: dict[str, Cell] = {}
        for cell in members:
            first = first_of.setdefault(cell.dataset, cell)
            for key in sorted(first.places.keys() | cell.places.keys()):
                one, other = first.places.get(key), cell.places.get(key)
                if key not in apart and not same(one, other):
                    what = item.kind if isinstance(item, Table) else f"figure of {item.kind}"
                    name = ", ".join(str(label) for label in labels) or "all"
                    raise GridError(
                        f"in a {what}, {name} would have one line for {key} {one} and {other}: "
                        f"add `{key}` to `rows`, or choose by `where`."
                    )
    return lines


def _hashable(value: Value) -> Value:
    return value if not isinstance(value, list) else str(value)
