"""What a file holds: grids of runs, and the tables and figures that their results are to be shown in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import yaml

from monai_spct.experiments.grid import GRID_KEYS, Grid, parse_grid
from monai_spct.experiments.refusals import GridError
from monai_spct.experiments.values import Value, check_value
from monai_spct.workflow import bundles_folder
from monai_spct.workflow.spelling import did_you_mean

__all__ = [
    "FIGURES",
    "SCORES",
    "Figure",
    "Study",
    "Table",
    "parse_shown",
    "parse_study",
    "read_study",
    "shipped_studies",
    "shown_content",
]

SCORES = ("dsc", "hd", "hd95", "training_time", "inference_time")
FIGURES = ("curves", "comparison", "entropy", "alpha_jsd")

Slices = int | list[str]  # how many, or `case:slice`


@dataclass(frozen=True)
class Table:
    """A table of scores: a line for each combination of ``rows``, a column for each structure.

    Args:
        scores: which ones, of ``dsc``, ``hd``, ``hd95``, ``training_time`` and ``inference_time``.
        title: what stands above it.
        rows: keys of the grid (``methods``, ``networks``, an axis); by default those that vary, the methods last.
        within: those of ``rows`` whose lines are a block, in which the best is marked; by default all but the last.
        where: which cells, by their values; all by default. A list of values means any of them.
        columns: keys whose values have columns of their own: a ``structure`` that is segmented alone.
        pair_by: a regular expression that finds the patient in the name of a case; by default, and in a dataset where
            it does not find all, each case is its own.

    Example:
        >>> from monai_spct.experiments import Table
        >>> Table(("dsc",), rows=("labeled_ratio", "methods")).scores
        ('dsc',)
    """

    scores: Sequence[str]
    title: str = ""
    rows: Sequence[str] | None = None
    within: Sequence[str] | None = None
    where: Mapping[str, Value] = field(default_factory=dict)
    columns: Sequence[str] = ()
    pair_by: str | None = None
    kind: ClassVar[str] = "table"


@dataclass(frozen=True)
class Figure:
    """A figure.

    Args:
        kind: ``curves`` of training; ``comparison`` of predictions; ``entropy`` of predictions over epochs;
            ``alpha_jsd``, the divergence of two Bernoulli distributions, which needs no runs.
        title: what stands above it.
        rows: as in a table: what the curves, columns or lines of the figure differ in.
        where: which cells.
        slices: for each dataset the slices to draw, as ``patient004_frame01:5``, the slice counted from 1; or how many.
            An ``entropy`` figure shows one.
        epochs: for ``entropy``, those of the grid's ``kept_epochs`` that are to be shown.
        alphas: for ``alpha_jsd``.

    Example:
        >>> from monai_spct.experiments import Figure
        >>> Figure("entropy", slices={"acdc": 1}, epochs=(20, 40)).kind
        'entropy'
    """

    kind: str
    title: str = ""
    rows: Sequence[str] | None = None
    where: Mapping[str, Value] = field(default_factory=dict)
    slices: Slices | Mapping[str, Slices] = 2
    epochs: Sequence[int] = ()
    alphas: Sequence[float] = (0.0, 0.1, 0.5, 1.0)


@dataclass(frozen=True)
class Study:
    """Grids, and what their results are shown in.

    Args:
        grids: all their cells are run; a cell of two grids is run once.
        title: the heading of the report.
        show: tables and figures, in this order.

    Example:
        >>> from monai_spct.experiments import Study, parse_grid
        >>> Study((parse_grid({"datasets": ["acdc"]}),)).show[0]
        Table(scores=('dsc',), title='', rows=None, within=None, where={}, columns=(), pair_by=None)
    """

    grids: Sequence[Grid]
    title: str = ""
    show: Sequence[Table | Figure] = (Table(("dsc",)), Table(("hd",)), Figure("curves"), Figure("comparison"))


def shipped_studies() -> dict[str, Path]:
    """The files that come with the package, by name: one for each table and figure of the paper, and some more.

    Example:
        >>> from monai_spct.experiments import shipped_studies
        >>> "acdc_dsc" in shipped_studies()
        True
    """
    return {
        path.stem: path for path in sorted((bundles_folder() / "experiments").glob("*.yaml")) if "." not in path.stem
    }


def read_study(file: str | Path) -> Study:
    r"""The study that a YAML file describes.

    Args:
        file: a path, or the name of a study that comes with the package, for example ``acdc_dsc``.

    Raises:
        GridError: when there is no such file, or it is not a study; the message names the key and the nearest right.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.experiments import read_study
        >>> file = Path(tempfile.mkdtemp()) / "grid.yaml"
        >>> _ = file.write_text("datasets: [acdc]\nmethods: [labeled_only]\naxes: {seed: [0, 1]}")
        >>> read_study(file).grids[0].axes
        {'seed': (0, 1)}
    """
    path = Path(file)
    if not path.is_file():
        shipped = shipped_studies()
        if str(file) not in shipped:
            raise GridError(f"there is no grid at {path.absolute()}.{did_you_mean(str(file), shipped)}")
        path = shipped[str(file)]
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - as safe as its parent
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise GridError(f"{path} is not YAML: {error}") from error
    try:
        return parse_study(content)
    except GridError as error:
        raise GridError(f"{path}: {error}") from None


def parse_study(content: object) -> Study:
    """A study from what a YAML file holds: a grid, or a list of them as ``grids``, with ``title`` and ``show``.

    Raises:
        GridError: naming the key, the rule and the value.

    Example:
        >>> from monai_spct.experiments import parse_study
        >>> parse_study({"grids": [{"datasets": ["acdc"]}], "show": [{"table": "dice"}]})
        Traceback (most recent call last):
        ...
        monai_spct.experiments.refusals.GridError: `show` 1: there is no score `dice`, but dsc, hd, hd95, \
training_time, inference_time. Did you mean `dsc`?
    """
    if not isinstance(content, Mapping):
        raise GridError(f"a grid must be a mapping with the keys {', '.join(GRID_KEYS)}, got {content!r}.")
    rest = {key: value for key, value in content.items() if key not in ("title", "show", "grids")}
    options: dict[str, Any] = {}
    if content.get("title") is not None:
        options["title"] = _text("title", content["title"])
    if content.get("show") is not None:
        options["show"] = parse_shown(content["show"])
    known = (*GRID_KEYS, "title", "show", "grids")
    if unknown := [key for key in content if key not in known]:
        raise GridError(" ".join(f"a grid has no key `{key}`.{did_you_mean(key, known)}" for key in unknown))
    if "grids" not in content:
        shown = options.get("show", ())
        needs_runs = not shown or any(item.kind != "alpha_jsd" for item in shown)
        return Study((parse_grid(rest),) if rest or needs_runs else (), **options)
    if rest:
        raise GridError(f"beside `grids` there may be `title` and `show` alone, got {', '.join(map(repr, rest))}.")
    if not isinstance(content["grids"], list) or not content["grids"]:
        raise GridError(f"`grids` must be a list of grids, got {content['grids']!r}.")
    grids = tuple(_numbered("grids", number, parse_grid, one) for number, one in enumerate(content["grids"], 1))
    return Study(grids, **options)


def parse_shown(content: object) -> tuple[Table | Figure, ...]:
    """The tables and figures of a study from what its file holds as ``show``.

    Raises:
        GridError: naming the key, the rule and the value.

    Example:
        >>> from monai_spct.experiments import parse_shown
        >>> [item.title for item in parse_shown([{"table": "dsc", "title": "DSC"}, {"figure": "curves"}])]
        ['DSC', '']
    """
    if not isinstance(content, list) or not content:
        raise GridError(f"`show` must be a list of tables and figures, got {content!r}.")
    return tuple(_numbered("show", n, _parse_item, item) for n, item in enumerate(content, 1))


def shown_content(item: Table | Figure) -> dict[str, Any]:
    """A table or figure as its file has it: what :func:`parse_shown` reads.

    Example:
        >>> from monai_spct.experiments import Figure
        >>> from monai_spct.experiments.study import shown_content
        >>> shown_content(Figure("comparison", slices=3))
        {'figure': 'comparison', 'slices': 3}
    """
    defaults = {one.name: one for one in fields(item)}
    content: dict[str, Any] = {}
    for name, value in asdict(item).items():
        default = defaults[name]
        usual = default.default if default.default_factory is MISSING else default.default_factory()
        if value != usual:
            key = {"scores": "table", "kind": "figure"}.get(name, name)
            content[key] = list(value) if isinstance(value, tuple) else value
    return content


def _numbered(name: str, number: int, parse: Any, item: object) -> Any:
    try:
        return parse(item)
    except GridError as error:
        raise GridError(f"`{name}` {number}: {error}") from None


def _parse_item(content: object) -> Table | Figure:
    if not isinstance(content, Mapping) or ("table" in content) == ("figure" in content):
        raise GridError(f"this must be a mapping with `table: dsc` or `figure: curves`, got {content!r}.")
    shared = {"title": _text, "rows": _names, "where": _rule}
    if "table" in content:
        scores = content["table"] if isinstance(content["table"], list) else [content["table"]]
        if not scores or len(set(map(str, scores))) < len(scores):
            raise GridError(f"`table` must be a score or a list of different ones, got {scores!r}.")
        for score in scores:
            _one_of("score", score, SCORES)
        options = _options(content, "table", {**shared, "within": _names, "columns": _names, "pair_by": _pattern})
        table = Table(tuple(scores), **options)
        if table.within and not set(table.within) < set(table.rows or ()):
            raise GridError(f"`within` must be some of `rows`, not all, got {list(table.within)}.")
        return table
    _one_of("figure", content["figure"], FIGURES)
    checks: dict[str, Mapping[str, Any]] = {
        "curves": shared,
        "comparison": {**shared, "slices": _slices},
        "entropy": {**shared, "slices": _slices, "epochs": _epochs},
        "alpha_jsd": {"title": _text, "alphas": _alphas},
    }
    options = _options(content, "figure", checks[content["figure"]])
    if content["figure"] == "entropy":
        if not options.get("epochs"):
            raise GridError("an entropy figure needs `epochs`, for example [20, 40, 50, 80].")
        slices = options.setdefault("slices", 1)
        for one in slices.values() if isinstance(slices, dict) else [slices]:
            if one != 1 and not (isinstance(one, list) and len(one) == 1):
                raise GridError(f"an entropy figure shows one slice, got `slices` {one!r}.")
    return Figure(content["figure"], **options)


def _options(content: Mapping[Any, Any], kind: str, checks: Mapping[str, Any]) -> dict[str, Any]:
    known = [kind, *checks]
    if unknown := [key for key in content if key not in known]:
        raise GridError(
            " ".join(f"a {kind} of this kind has no `{key}`.{did_you_mean(str(key), known)}" for key in unknown)
        )
    return {key: checks[key](key, value) for key, value in content.items() if key != kind}


def _one_of(what: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise GridError(f"there is no {what} `{value}`, but {', '.join(known)}.{did_you_mean(str(value), known)}")


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise GridError(f"`{key}` must be a string, got {value!r}.")
    return " ".join(value.split())  # a heading is one line


def _names(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise GridError(f"`{key}` must be a list of keys of the grid, got {value!r}.")
    if len(set(value)) < len(value):
        raise GridError(f"`{key}` must be a list of different keys, got {value!r}.")
    return tuple(name.replace("::", "#") for name in value)  # as a grid takes both


def _rule(key: str, value: object) -> dict[str, Value]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise GridError(f"`{key}` must be a mapping from keys of the grid to values, got {value!r}.")
    return {name.replace("::", "#"): check_value(f"`{key}.{name}`", one) for name, one in value.items()}


def _pattern(key: str, value: object) -> str:
    try:
        re.compile(value)  # type: ignore[call-overload]
    except (re.error, TypeError) as error:
        raise GridError(f"`{key}` must be a regular expression, got {value!r}: {error}.") from error
    return str(value)


def _slices(key: str, value: object) -> Slices | dict[str, Slices]:
    if isinstance(value, dict) and value:
        return {str(dataset): _slices_of_one(key, one) for dataset, one in value.items()}
    return _slices_of_one(key, value)


def _slices_of_one(key: str, value: object) -> Slices:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if isinstance(value, list) and value and all(isinstance(one, str) and re.search(r":\d+$", one) for one in value):
        return value
    raise GridError(f"`{key}` must be a number of slices or a list such as [patient004_frame01:5], got {value!r}.")


def _epochs(key: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(one) is int and one > 0 for one in value):
        raise GridError(f"`{key}` must be a list of epochs from 1 on, got {value!r}.")
    return tuple(value)


def _alphas(key: str, value: object) -> tuple[float, ...]:
    if (
        not isinstance(value, list)
        or not value
        or not all(type(one) in (int, float) and 0 <= one <= 1 for one in value)
    ):
        raise GridError(f"`{key}` must be a list of numbers from 0 to 1, got {value!r}.")
    return tuple(float(one) for one in value)


class _Loader(yaml.SafeLoader):
    """YAML without its two traps: ``1e-3`` is a number, and a key that is there twice is refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"`{key}` is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)
