"""What a report shows: tables and figures, as a YAML file lists them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from monai_spct.functional.spelling import did_you_mean
from monai_spct.workflow import bundles_folder

__all__ = ["FIGURES", "SCORES", "Figure", "Show", "Table", "read_show"]

SCORES = ("dsc", "hd", "hd95", "training_time", "inference_time")
FIGURES = {"curves": (), "comparison": ("slices",), "entropy": ("slices", "epochs"), "alpha_jsd": ("alphas",)}


@dataclass(frozen=True, kw_only=True)
class _Item:
    title: str = ""
    rows: Sequence[str] | None = None
    where: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Table(_Item):
    r"""A table of scores: a line for each combination of ``rows``, a column for each structure.

    Args:
        scores: of ``dsc``, ``hd``, ``hd95``, ``training_time`` and ``inference_time``.
        title: of the table.
        rows: keys, such as ``labeled_ratio`` and ``method``; by default those that vary, except the seed.
        where: values of the runs to show; all by default. A list means any of its values, ``null`` those without.
        within: those of ``rows`` that lines of one block share, in which the best is marked; by default all up to the
            method, or all but the last.
        columns: keys whose values have columns of their own: a ``structure`` that is segmented alone.
        pair_by: a regular expression that finds the patient in a case name; without a match, cases are paired.

    Example:
        >>> from monai_spct.report import Table
        >>> Table(("dsc",), rows=("labeled_ratio", "method")).pair_by
        'patient\\d+'
    """

    scores: Sequence[str]
    within: Sequence[str] | None = field(default=None, kw_only=True)
    columns: Sequence[str] = field(default=(), kw_only=True)
    pair_by: str = field(default=r"patient\d+", kw_only=True)

    def __post_init__(self) -> None:
        _refuse_others("score", self.scores, SCORES)


@dataclass(frozen=True)
class Figure(_Item):
    """A figure.

    Args:
        kind: ``curves`` of training; ``comparison`` of predictions; ``entropy`` of predictions over epochs;
            ``alpha_jsd``, the divergence of two Bernoulli distributions, which needs no runs.
        title: of the figure.
        rows: as in a table: what the curves, columns or lines of the figure differ in.
        where: as in a table.
        slices: such as ``patient004_frame01:5``, counted from 1, or how many; for all datasets, or by dataset. An
            ``entropy`` figure shows one.
        epochs: for ``entropy``, of the ``kept_epochs`` of the trainings.
        alphas: for ``alpha_jsd``.

    Example:
        >>> from monai_spct.report import Figure
        >>> Figure("entropy", slices={"acdc": 1}, epochs=(20, 40)).kind
        'entropy'
    """

    kind: str
    slices: Any = field(default=2, kw_only=True)
    epochs: Sequence[int] = field(default=(), kw_only=True)
    alphas: Sequence[float] = field(default=(0.0, 0.1, 0.5, 1.0), kw_only=True)

    def __post_init__(self) -> None:
        _refuse_others("figure", [self.kind], FIGURES)
        if self.kind == "entropy" and not self.epochs:
            raise ValueError("an entropy figure needs `epochs`, for example [20, 40, 50, 80].")


@dataclass(frozen=True)
class Show:
    """What a report shows.

    Args:
        items: tables and figures, in this order.
        title: of the report.

    Example:
        >>> from monai_spct.report import Show, Table
        >>> Show((Table(("dsc",)),)).title
        'Results'
    """

    items: Sequence[Table | Figure]
    title: str = "Results"


def read_show(file: str | Path) -> Show:
    r"""Read from a YAML file what a report shows.

    Args:
        file: a path, or the name of one that comes with the package, for example ``small``.

    Raises:
        ValueError: naming the key, the rule and the value.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.report import read_show
        >>> file = Path(tempfile.mkdtemp()) / "report.yaml"
        >>> _ = file.write_text("title: Times\nshow:\n  - table: [training_time, inference_time]\n    rows: [method]")
        >>> read_show(file).items[0].rows
        ['method']
    """
    shipped = bundles_folder() / "experiments" / f"{file}.report.yaml"
    try:
        path = shipped if shipped.is_file() else Path(file)
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not isinstance(content.get("show"), list):
            raise ValueError(f"`show` must be a list of tables and figures, got {content!r}.")
        _refuse_others("key", content, ("title", "show"))
        items = [_item(one) for one in content["show"]]
    except (OSError, ValueError, yaml.YAMLError, re.error) as error:
        raise ValueError(f"{file}: {error}") from error
    return Show(items, **({"title": content["title"]} if "title" in content else {}))


def _item(content: Any) -> Table | Figure:
    if not isinstance(content, dict) or ("table" in content) == ("figure" in content):
        raise ValueError(f"an item must have `table: dsc` or `figure: curves`, got {content!r}.")
    options = dict(content)
    shared = {one.name for one in fields(_Item)}
    if "figure" in options:
        kind = options.pop("figure")
        _refuse_others("figure", [kind], FIGURES)
        _refuse_others("key", options, shared.union(FIGURES[kind]))
        return Figure(kind, **_checked(options))
    scores = options.pop("table")
    _refuse_others("key", options, {one.name for one in fields(Table)} - {"scores"})
    return Table(scores if isinstance(scores, list) else [scores], **_checked(options))


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    for key, value in options.items():
        if key in ("rows", "within", "columns", "epochs", "alphas") and not isinstance(value, list):
            raise ValueError(f"`{key}` must be a list, got {value!r}.")
        if key == "where" and not isinstance(value, dict):
            raise ValueError(f"`where` must be a mapping from keys to values, got {value!r}.")
    re.compile(str(options.get("pair_by", "")))
    return options


def _refuse_others(what: str, names: Any, known: Any) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"there is no {what} `{name}`, but {', '.join(sorted(known))}.{did_you_mean(name, known)}")
