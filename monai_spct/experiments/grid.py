"""A grid of runs: checked, and expanded into its cells."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monai_spct.experiments.refusals import GridError
from monai_spct.experiments.values import Value, check_value, name_of, same
from monai_spct.workflow.spelling import did_you_mean

__all__ = ["DEFAULT", "GRID_KEYS", "Cell", "Grid", "expand", "idle_rules", "matches", "parse_grid", "shard"]

DEFAULT = "default"  # the method or network that a bundle has without an overlay

_NAMES = ("datasets", "methods", "networks", "overlays")
GRID_KEYS = (*_NAMES, "axes", "settings", "exclude")


@dataclass(frozen=True)
class Grid:
    """What is to be run: each combination of its lists, but for what is excluded.

    Args:
        datasets: bundles, by the names of their folders.
        methods: overlays in ``methods/``, by name; ``default`` is what the bundle does by itself.
        networks: overlays in ``networks/``, by name; ``default`` is the bundle's own network.
        overlays: further overlays of all cells, beside the bundles' ``train.json``.
        axes: keys of the config, each with the values to try.
        settings: keys of the config that are the same for all cells.
        exclude: rules; a cell that matches all of one is left out.

    Example:
        >>> from monai_spct.experiments import Grid, expand
        >>> grid = Grid(datasets=("acdc",), methods=("mean_teacher",), axes={"seed": (0, 1)})
        >>> [cell.name for cell in expand(grid)]
        ['acdc/mean_teacher/default/seed=0', 'acdc/mean_teacher/default/seed=1']
    """

    datasets: Sequence[str]
    methods: Sequence[str] = (DEFAULT,)
    networks: Sequence[str] = (DEFAULT,)
    overlays: Sequence[str] = ()
    axes: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    settings: Mapping[str, Value] = field(default_factory=dict)
    exclude: Sequence[Mapping[str, Value]] = ()


@dataclass(frozen=True)
class Cell:
    """One training and its evaluation.

    Args:
        dataset: the bundle.
        method: its overlay, or ``default``.
        network: its overlay, or ``default``.
        overlays: those of the grid.
        axes: the value of each axis.
        settings: those of the grid.

    Example:
        >>> from monai_spct.experiments import Cell
        >>> Cell("acdc", "mean_teacher", "enet", axes={"seed": 0, "labeled_ratio": 0.1}).name
        'acdc/mean_teacher/enet/labeled_ratio=0.1/seed=0'
    """

    dataset: str
    method: str = DEFAULT
    network: str = DEFAULT
    overlays: Sequence[str] = ()
    axes: Mapping[str, Value] = field(default_factory=dict)
    settings: Mapping[str, Value] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The folder, below that of the grid. Axes are sorted, so that their order in the file does not matter."""
        axes = (f"{key}={name_of(value)}" for key, value in sorted(self.axes.items()))
        return "/".join((self.dataset, self.method, self.network, *axes))

    @property
    def places(self) -> dict[str, Value]:
        """Where in the grid it is, by the grid's own words; what rules of ``exclude`` look at."""
        return {"datasets": self.dataset, "methods": self.method, "networks": self.network, **self.axes}


def parse_grid(content: object) -> Grid:
    """A grid from what a YAML file holds, checked as far as it can be without the bundles.

    Raises:
        GridError: naming the key, the rule and the value.

    Example:
        >>> from monai_spct.experiments import parse_grid
        >>> parse_grid({"datasets": ["acdc"], "methods": ["labeled_only"], "axes": {"seed": 0}})
        Traceback (most recent call last):
        ...
        monai_spct.experiments.refusals.GridError: `axes.seed` must be a list, got 0.
    """
    if not isinstance(content, dict):
        raise GridError(f"a grid must be a mapping with the keys {', '.join(GRID_KEYS)}, got {content!r}.")
    if unknown := [key for key in content if key not in GRID_KEYS]:
        raise GridError(" ".join(f"a grid has no key `{key}`.{did_you_mean(key, GRID_KEYS)}" for key in unknown))
    if content.get("datasets") is None:
        raise GridError("a grid needs `datasets`: a list of bundles, for example [acdc].")
    names = {key: _names(key, content[key]) for key in _NAMES if content.get(key) is not None}
    axes = {_key("axes", key): _values(f"axes.{key}", values) for key, values in _mapping("axes", content.get("axes"))}
    settings = {
        _key("settings", key): check_value(f"`settings.{key}`", value)
        for key, value in _mapping("settings", content.get("settings"))
    }
    for key in axes.keys() & settings.keys():
        raise GridError(f"`{key}` must be in `axes` or in `settings`, not in both.")
    return Grid(**names, axes=axes, settings=settings, exclude=_rules(content.get("exclude"), axes))


def expand(grid: Grid) -> list[Cell]:
    """The cells of a grid in the order of its lists, the last axis fastest, without those that are excluded.

    Example:
        >>> from monai_spct.experiments import Grid, expand
        >>> grid = Grid(("acdc",), ("a", "b"), axes={"seed": (0, 1)}, exclude=({"methods": "a", "seed": 1},))
        >>> [cell.name for cell in expand(grid)]
        ['acdc/a/default/seed=0', 'acdc/b/default/seed=0', 'acdc/b/default/seed=1']
    """
    return [cell for cell in _product(grid) if not any(matches(cell.places, rule) for rule in grid.exclude)]


def idle_rules(grid: Grid) -> list[Mapping[str, Value]]:
    """The rules of ``exclude`` that no cell matches, perhaps because a value in them is mistyped.

    Example:
        >>> from monai_spct.experiments.grid import Grid, idle_rules
        >>> idle_rules(Grid(("acdc",), axes={"seed": (0, 1)}, exclude=({"seed": 2}, {"seed": 1})))
        [{'seed': 2}]
    """
    cells = _product(grid)
    return [rule for rule in grid.exclude if not any(matches(cell.places, rule) for cell in cells)]


def shard(items: Sequence[Any], part: str | None) -> list[Any]:
    """One part of a list that several processes share: of ``3/16`` every 16th item from the 3rd.

    Neighbors go to different parts, so that each part has some of the long runs and some of the short ones.

    Raises:
        GridError: when ``part`` is not ``i/n`` with ``i`` from 1 to ``n``.

    Example:
        >>> from monai_spct.experiments import shard
        >>> [shard("abcdefg", f"{n}/3") for n in (1, 2, 3)]
        [['a', 'd', 'g'], ['b', 'e'], ['c', 'f']]
    """
    if part is None:
        return list(items)
    found = re.fullmatch(r"(\d+)/(\d+)", str(part))
    first, step = (int(number) for number in found.groups()) if found else (0, 0)
    if not 1 <= first <= step:
        raise GridError(f"`shard` must be i/n with i from 1 to n, for example 3/16, got {part!r}.")
    return list(items[first - 1 :: step])


def matches(places: Mapping[str, Value], rule: Mapping[str, Value]) -> bool:
    """Whether a cell, by its places in the grid, has all values of a rule; of a list in it, any one.

    Example:
        >>> from monai_spct.experiments.grid import matches
        >>> matches({"methods": "dan", "seed": 1}, {"seed": [0, 1]}), matches({"methods": "dan"}, {"seed": 1})
        (True, False)
    """
    return all(
        key in places
        and (same(places[key], wanted) or (isinstance(wanted, list) and any(same(places[key], one) for one in wanted)))
        for key, wanted in rule.items()
    )


def _product(grid: Grid) -> list[Cell]:
    return [
        Cell(dataset, method, network, grid.overlays, dict(zip(grid.axes, values, strict=True)), grid.settings)
        for dataset, method, network in itertools.product(grid.datasets, grid.methods, grid.networks)
        for values in itertools.product(*grid.axes.values())
    ]


def _mapping(name: str, content: object) -> list[tuple[object, Any]]:
    if content is None:
        return []
    if not isinstance(content, dict):
        raise GridError(f"`{name}` must be a mapping from keys of the config, got {content!r}.")
    return list(content.items())


def _key(place: str, key: object) -> str:
    if not isinstance(key, str) or not key:
        raise GridError(f"a key in `{place}` must be a name, got {key!r}.")
    return key.replace("::", "#")  # MONAI takes both


def _list(name: str, content: object) -> list[Any]:
    if not isinstance(content, list):
        raise GridError(f"`{name}` must be a list, got {content!r}.")
    if not content and name != "overlays":
        raise GridError(f"`{name}` must not be empty.")
    return content


def _values(name: str, content: object) -> tuple[Value, ...]:
    values = [check_value(f"a value of `{name}`", value) for value in _list(name, content)]
    for position, value in enumerate(values):
        if any(same(value, other) for other in values[:position]):
            raise GridError(f"`{name}` has {value!r} twice.")
    return tuple(values)


def _names(name: str, content: object) -> tuple[str, ...]:
    for item in _list(name, content):
        # a name is also a part of a path, which must not lead elsewhere
        if not isinstance(item, str) or not re.fullmatch(r"\w[\w.+-]*", item):
            raise GridError(f"`{name}` must hold names, without a folder and without .json, got {item!r}.")
    return tuple(str(value) for value in _values(name, content))


def _rules(content: object, axes: Mapping[str, object]) -> tuple[dict[str, Value], ...]:
    rules = []
    known = ["datasets", "methods", "networks", *axes]
    for rule in [] if content is None else _list("exclude", content):
        if not isinstance(rule, dict) or not rule:
            raise GridError(f"a rule of `exclude` must be a mapping, got {rule!r}.")
        keys = {_key("exclude", key): value for key, value in rule.items()}
        if unknown := [key for key in keys if key not in known]:
            raise GridError(
                " ".join(f"`{key}` in `exclude` is no axis of this grid.{did_you_mean(key, known)}" for key in unknown)
            )
        rules.append({key: check_value(f"`{key}` in `exclude`", value) for key, value in keys.items()})
    return tuple(rules)
