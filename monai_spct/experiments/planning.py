"""From cells to jobs: the files of the bundles, the merged configuration, and all that can be refused beforehand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from monai.bundle import ConfigParser

from monai_spct.experiments.grid import DEFAULT, Cell, Grid, expand, idle_rules
from monai_spct.experiments.refusals import GridError
from monai_spct.experiments.values import Value, same
from monai_spct.workflow import bundles_folder
from monai_spct.workflow.comparison import differences, with_options, without_places
from monai_spct.workflow.spelling import did_you_mean

__all__ = ["Job", "Phase", "Plan", "changes", "plan"]

# configs of a bundle that are no overlays
_NO_OVERLAYS = ("train", "evaluate", "inference", "metadata")
_RESERVED = {
    "output_dir": "each cell has its own folder below that of the grid",
    "bundle_root": "each cell has its own folder below that of the grid",
    "ckpt_path": "a cell is evaluated with its own weights",
    "resume": "a cell goes on by itself",
    "accept_changes": "a cell goes on with the settings that it began with",
    "dataset_dir": "give it as `--data`",
}
# where and on what a cell runs: another value does not make it another experiment. A report makes data and networks
# from all the others
_PLACES = ("output_dir", "ckpt_path", "resume", "accept_changes", "device", "num_workers")


@dataclass(frozen=True)
class Phase:
    """One of the two commands of a cell.

    Args:
        verb: ``training`` or ``evaluating``.
        files: the config and its overlays.
        options: the keys that are given on the command line.
        content: what files and options add up to.

    Example:
        >>> from monai_spct.experiments import Cell, Grid, plan
        >>> job = plan(Grid(("acdc",), axes={"seed": (3,)})).jobs[0]
        >>> job.training.options, job.evaluating.options  # the evaluation has no seed
        ({'seed': 3}, {})
    """

    verb: str
    files: tuple[Path, ...]
    options: Mapping[str, Value]
    content: Mapping[str, Any]


@dataclass(frozen=True)
class Job:
    """A cell with what is needed to run it.

    Args:
        cell: its axes and settings, as they are given to the bundle.
        training: the first command.
        evaluating: the second one.
        data: the folder of the dataset; the bundle's own by default.

    Example:
        >>> from monai_spct.experiments import Grid, plan
        >>> job = plan(Grid(("acdc",), ("mean_teacher",), ("unet",))).jobs[0]
        >>> [path.name for path in job.training.files]
        ['train.json', 'mean_teacher.json', 'unet.json']
        >>> [path.name for path in job.evaluating.files]
        ['evaluate.json', 'unet.json']
    """

    cell: Cell
    training: Phase
    evaluating: Phase
    data: str | None = None

    @property
    def name(self) -> str:
        """The cell's name."""
        return self.cell.name

    @property
    def configuration(self) -> dict[str, Any]:
        """Both merged configs, without places and devices. They make the cell this experiment and no other."""
        return {phase.verb: without_places(phase.content, _PLACES) for phase in (self.training, self.evaluating)}

    @property
    def digest(self) -> str:
        """A hash of the configuration."""
        return hashlib.sha256(json.dumps(self.configuration, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Plan:
    """What a grid comes to.

    Args:
        jobs: one for each cell.
        notes: what the user may not expect.

    Example:
        >>> from monai_spct.experiments import Grid, plan
        >>> found = plan(Grid(("acdc",), ("full_supervision",), axes={"labeled_ratio": (0.1, 0.05)}))
        >>> [job.name for job in found.jobs]
        ['acdc/full_supervision/default/labeled_ratio=1.0']
        >>> print(*found.notes)
        full_supervision keeps its own labeled_ratio, 1.0
    """

    jobs: list[Job]
    notes: list[str] = field(default_factory=list)


def plan(
    grids: Grid | Sequence[Grid], *, bundles: str | Path | None = None, data: Mapping[str, str | Path] | None = None
) -> Plan:
    """Everything that the cells of one or more grids need, or the reason why they cannot be run.

    A value of an axis or of the settings does not change what makes a method: where the method's overlay sets a key to
    another value than the bundle, or to null, the cells of this method have the overlay's value, and are one cell if
    they differ in nothing else. So full supervision is the same for all labeled ratios, and is run once.

    Args:
        grids: what is to be run. Grids may have cells in common; these are run once.
        bundles: the folder of the bundles; that of the package by default.
        data: for each dataset, the folder that holds it; by default the ``dataset_dir`` of its bundle.

    Raises:
        GridError: naming the file or key that does not exist and the nearest one that does, or two cells alike.

    Example:
        >>> from monai_spct.experiments import Grid, plan
        >>> plan(Grid(("acdc",), ("mean_techer",)))
        Traceback (most recent call last):
        ...
        monai_spct.experiments.refusals.GridError: there is no `mean_techer` in `methods`. Did you mean `mean_teacher`?
        >>> plan(Grid(("acdc",), settings={"max_epoch": 3}))
        Traceback (most recent call last):
        ...
        monai_spct.experiments.refusals.GridError: `max_epoch` is no key of acdc/default/default. \
Did you mean `max_epochs`?
    """
    root = bundles_folder() if bundles is None else Path(bundles).absolute()
    grids = (grids,) if isinstance(grids, Grid) else grids
    datasets = {dataset for grid in grids for dataset in grid.datasets}
    for dataset in data or {}:
        if dataset not in datasets:
            raise GridError(f"`{dataset}` in `data` is no dataset of this grid.{did_you_mean(dataset, datasets)}")
    _merged.cache_clear()  # files may have been edited since the last plan
    jobs: dict[str, Job] = {}
    notes: dict[str, None] = {}
    for grid in grids:
        cells = expand(grid)
        if not cells:
            raise GridError("no cell is left: `exclude` leaves all of them out.")
        for cell in cells:
            job, kept = _job(cell, root, (data or {}).get(cell.dataset))
            notes.update(dict.fromkeys(kept))
            _refuse_two_of_one_name(jobs.setdefault(job.name, job), job)
        notes.update(dict.fromkeys(f"no cell matches {dict(rule)} in exclude" for rule in idle_rules(grid)))
    _refuse_alike(list(jobs.values()))
    return Plan(list(jobs.values()), list(notes))


def changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In words, where two configurations differ.

    Example:
        >>> from monai_spct.experiments.planning import changes
        >>> changes({"training": {"seed": 0, "loss": {"weight": 1}}}, {"training": {"loss": {"weight": 2}}})
        ['`seed` was 0, is not there', '`loss#weight` was 1, is 2']
    """
    lines: dict[str, None] = {}
    for verb in ("training", "evaluating"):
        before, after = (side.get(verb, {}) for side in (then, now))
        if not ("dataset_dir" in before and "dataset_dir" in after):  # one of them was told a folder
            before, after = ({key: side[key] for key in side if key != "dataset_dir"} for side in (before, after))
        lines.update(dict.fromkeys(differences(before, after)))
    return list(lines)


def _job(cell: Cell, root: Path, data: str | Path | None) -> tuple[Job, list[str]]:
    """A cell's job, and what its method keeps to itself."""
    bundle = _bundle(root, cell.dataset)
    overlays = [_overlay(bundle, name) for name in cell.overlays]
    method, network = (_shared(root, cell, kind, getattr(cell, kind[:-1])) for kind in ("methods", "networks"))
    base = (bundle / "configs" / "train.json", *overlays)
    folder = None if data is None else str(Path(data).expanduser().absolute())

    cell, notes = _as_the_method_has_it(cell, base, method)
    files = {
        "training": (*base, *method, *network),
        "evaluating": (bundle / "configs" / "evaluate.json", *overlays, *network),
    }
    merged = {verb: _merged(paths) for verb, paths in files.items()}
    if folder is not None:
        merged = {verb: {**content, "dataset_dir": folder} for verb, content in merged.items()}
    given = {**cell.settings, **cell.axes}
    _refuse_unknown(cell, given, list(merged.values()))
    phases = {}
    for verb, content in merged.items():
        options = {key: value for key, value in given.items() if _missing(content, key) is None}
        phases[verb] = Phase(verb, files[verb], options, with_options(content, options))
    return Job(cell, phases["training"], phases["evaluating"], folder), notes


# Files


def _bundle(root: Path, dataset: str) -> Path:
    there = sorted(path.parents[1].name for path in root.glob("*/configs/train.json"))
    if dataset not in there:
        raise GridError(f"there is no bundle `{dataset}` in {root}, but {there}.{did_you_mean(dataset, there)}")
    if not (root / dataset / "configs" / "evaluate.json").is_file():
        raise GridError(f"the bundle `{dataset}` has no evaluate.json: its cells would have no scores.")
    return root / dataset


def _overlay(bundle: Path, name: str) -> Path:
    there = {path.stem: path for path in (bundle / "configs").glob("*.json") if path.stem not in _NO_OVERLAYS}
    if name not in there:
        raise GridError(f"`{bundle.name}` has no overlay `{name}`.{did_you_mean(name, there)}")
    return there[name]


def _shared(root: Path, cell: Cell, kind: str, name: str) -> tuple[Path, ...]:
    """The overlay for a method or a network: a copied bundle may have its own, and the package's are there too."""
    folders = [bundles_folder() / kind, root / kind, root / cell.dataset / kind]
    there = {path.stem: path for folder in folders for path in sorted(folder.glob("*.json"))}
    if name == DEFAULT:
        return ()
    if name not in there:
        raise GridError(f"there is no `{name}` in `{kind}`.{did_you_mean(name, [*there, DEFAULT])}")
    return (there[name],)


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = ConfigParser.load_config_file(path)
    except ValueError as error:
        raise GridError(f"{path} cannot be read: {error}") from error
    return content


@cache  # cells share their files
def _merged(paths: tuple[Path, ...]) -> dict[str, Any]:
    for path in paths:
        _read(path)  # for a message with the name of the file
    content: dict[str, Any] = ConfigParser.load_config_files([str(path) for path in paths])
    return content


# Keys


def _as_the_method_has_it(cell: Cell, base: tuple[Path, ...], method: tuple[Path, ...]) -> tuple[Cell, list[str]]:
    """The cell with the method's own values in place of the grid's, and a note on each."""
    own: dict[str, Value] = {}
    bundle = _merged(base)
    for path in method:
        for key, value in _read(path).items():
            name = str(key).replace("::", "#")
            given = {**cell.settings, **cell.axes}
            if name not in given or isinstance(value, dict) or same(value, given[name]):
                continue
            # what the overlay only repeats, such as two networks, is there to be varied
            if value is None or (name in bundle and bundle[name] != value):
                own[name] = value
    axes = {key: own.get(key, value) for key, value in cell.axes.items()}
    settings = {key: own.get(key, value) for key, value in cell.settings.items()}
    notes = [f"{cell.method} keeps its own {key}, {json.dumps(value)}" for key, value in own.items()]
    return replace(cell, axes=axes, settings=settings), notes


def _refuse_unknown(cell: Cell, given: Mapping[str, Value], contents: Sequence[Mapping[str, Any]]) -> None:
    problems = []
    for key in given:
        if key in _RESERVED:
            problems.append(f"`{key}` is not for a grid to set: {_RESERVED[key]}.")
            continue
        found = [_missing(content, key) for content in contents]
        absent = [missing for missing in found if missing is not None]
        if len(absent) < len(found):
            continue
        part = max((missing.part for missing in absent), key=len)  # of the config that has most of the key
        there = {name for missing in absent if missing.part == part for name in missing.there} - _RESERVED.keys()
        where = "/".join((cell.dataset, cell.method, cell.network))
        problems.append(f"`{key}` is no key of {where}.{did_you_mean(part, there)}")
    if problems:
        raise GridError(" ".join(problems))


class _Missing(NamedTuple):
    """The part of a key, from its start, that a config does not have, and what the config has in its place."""

    part: str
    there: list[str]


def _missing(content: Mapping[str, Any], key: str) -> _Missing | None:
    """What a config lacks of a key; nothing if it has it."""
    node: Any = content
    parts = key.split("#")
    for depth, part in enumerate(parts):
        before = "".join(f"{name}#" for name in parts[:depth])
        names: list[Any] = (
            list(node) if isinstance(node, Mapping) else list(range(len(node))) if isinstance(node, list) else []
        )
        if part in map(str, names):
            node = node[int(part) if isinstance(node, list) else part]
        elif depth == len(parts) - 1 and isinstance(node, Mapping) and "_target_" in node:
            return None  # a component may have arguments that its config does not name
        else:
            return _Missing(f"{before}{part}", [f"{before}{name}" for name in names] or [before.rstrip("#")])
    return None


# Configurations


def _refuse_two_of_one_name(first: Job, second: Job) -> None:
    """Two grids may say the same cell, with the same settings."""
    if changed := changes(first.configuration, second.configuration):
        raise GridError(f"two grids have a cell {first.name}, but its {'; '.join(changed[:3])} in the second one.")


def _refuse_alike(jobs: Sequence[Job]) -> None:
    seen: dict[str, Job] = {}
    for job in jobs:
        other = seen.setdefault(f"{job.cell.dataset} {job.digest}", job)
        if other is not job:
            raise GridError(f"two cells are alike: {other.name} and {job.name} have the same configuration.")
