"""Runs in a folder: their settings, scores and training curves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from monai_spct.functional.spelling import did_you_mean
from monai_spct.handlers.history import read_history
from monai_spct.report.names import rank
from monai_spct.report.show import Figure, Table

__all__ = ["SEED", "Run", "find_runs", "lines_of"]

SEED = "seed"
# how much a method may see: never a detail of the method, also where each method has its own
_AMOUNTS = ("labeled_ratio", "labeled_patients")
_SCORES = ("dsc", "hd", "hd95")


@dataclass(frozen=True, eq=False)
class Run:
    """A training and its evaluation.

    Args:
        folder: of its ``cell.json``.
        record: what that file holds, and ``trained.json`` where there is one.

    Example:
        >>> from pathlib import Path
        >>> from monai_spct.report import Run
        >>> Run(Path("runs/a"), {"dataset": "acdc", "method": "dan", "axes": {"seed": 0}}).labels
        {'dataset': 'acdc', 'method': 'dan', 'seed': 0}
    """

    folder: Path
    record: Mapping[str, Any]

    @property
    def is_done(self) -> bool:
        """Whether it is trained and evaluated."""
        return (self.folder / "eval" / "summary.json").is_file()

    @cached_property
    def labels(self) -> dict[str, Any]:
        """Dataset, method, network and all settings; lists as JSON text."""
        names = {key: self.record[key] for key in ("dataset", "method", "network", "overlays") if key in self.record}
        found = {**names, **self.record.get("settings", {}), **self.record["axes"]}
        return {key: _plain(value) for key, value in found.items()}

    @cached_property
    def scores(self) -> pd.DataFrame:
        """A row for each ``score``, ``structure`` and ``case``; times in ms have neither structure nor case.

        The training time is that of an iteration, the median over all epochs but the first, which fills caches; the
        inference time is that of a slice.
        """
        with _reading(self.folder / "eval" / "scores.csv") as path:
            types = {"case": str, "structure": str} | dict.fromkeys(_SCORES, float)
            found = pd.read_csv(path, usecols=list(types), dtype=types, keep_default_na=False)
            found = found.melt(["case", "structure"], list(_SCORES), "score", "value")
            if not np.isfinite(found.value).all():
                raise ValueError("a score is not finite")
        times = {}
        if self.history:
            times["training_time"] = pd.Series([row["seconds"] for row in self.history[1:] or self.history]).median()
        if self.inference:
            times["inference_time"] = float(self.inference["seconds_per_slice"])
        rows = [{"case": "", "structure": "", "score": key, "value": 1000 * value} for key, value in times.items()]
        return pd.concat([found, pd.DataFrame(rows)]) if rows else found

    @cached_property
    def history(self) -> list[dict[str, float]]:
        """The training, one row an epoch; empty without ``history.csv``."""
        with _reading(self.folder / "eval" / "history.csv") as path:
            rows = read_history(path) if path.is_file() else []
        # the former name of `gamma`
        return [{"gamma" if key == "pace" else key: value for key, value in row.items()} for row in rows]

    @cached_property
    def inference(self) -> dict[str, Any]:
        """Seconds for a slice and the device; empty without ``inference_time.json``."""
        path = self.folder / "eval" / "inference_time.json"
        return _read_json(path, ("seconds_per_slice", "device")) if path.is_file() else {}


def find_runs(*folders: str | Path) -> list[Run]:
    """All runs in and below folders, that is, all folders with a ``cell.json``.

    Raises:
        ValueError: naming a file that cannot be read.

    Example:
        >>> from monai_spct.report import find_runs
        >>> find_runs("nowhere")
        []
    """
    runs = []
    for path in sorted({path for folder in folders for path in Path(folder).rglob("cell.json")}):
        record = _read_json(path, ("dataset", "method", "axes"))
        for file in (path.with_name("done.json"), path.with_name("trained.json")):  # of earlier grids, and of trainings
            more = _read_json(file) if file.is_file() else {}
            record |= {**more.get("versions", {}), **more}
        runs.append(Run(path.parent, record))
    return runs


def lines_of(item: Table | Figure, runs: Sequence[Run]) -> tuple[list[str], dict[tuple[Any, ...], list[Run]]]:
    """The keys of the lines of a table or figure, and the runs by the values of these keys.

    Raises:
        ValueError: when no run has a key, none is chosen, or runs of one line differ in more than the seed.
    """
    _refuse_unknown("where", [key for key, wanted in item.where.items() if wanted is not None], runs)
    chosen = [run for run in runs if all(_matches(run.labels.get(key), wanted) for key, wanted in item.where.items())]
    if not chosen:
        raise ValueError(f"no run matches `where` {dict(item.where)}.")
    apart = item.columns if isinstance(item, Table) else ()
    keys = [key for key in _default_rows(chosen) if key not in apart] if item.rows is None else list(item.rows)
    _refuse_unknown("rows", keys, chosen)
    _refuse_unknown("columns", apart, chosen)
    lines: dict[tuple[Any, ...], list[Run]] = {}
    for run in chosen:
        lines.setdefault(tuple(run.labels.get(key) for key in keys), []).append(run)
    for labels, members in lines.items():
        _refuse_mixture(labels, members, {*keys, *apart})
    return keys, dict(sorted(lines.items(), key=lambda line: list(map(rank, keys, line[0]))))


def _default_rows(runs: Sequence[Run]) -> list[str]:
    """What varies: amounts of labels and what does so for one method, then methods, then details that some lack."""
    keys = list(dict.fromkeys(key for run in runs for key in run.labels if key not in ("dataset", "method", SEED)))
    table = pd.DataFrame([run.labels for run in runs], columns=["dataset", "method", *keys]).astype(object)
    among = {key: ["dataset"] if key in _AMOUNTS else ["dataset", "method"] for key in keys}
    varied = [key for key in keys if (table.groupby(among[key])[key].nunique(dropna=False) > 1).any()]
    varied.sort(key=lambda key: key not in _AMOUNTS)
    own = [key for key in varied if table.groupby("method")[key].count().eq(0).any()]
    methods = ["method"] if table.method.nunique() > 1 or not varied else []
    return [*(key for key in varied if key not in own), *methods, *own]


def _refuse_mixture(labels: Sequence[Any], members: Sequence[Run], apart: set[str]) -> None:
    first_of: dict[str, Run] = {}
    places: dict[tuple[Any, ...], Run] = {}
    for run in members:
        first = first_of.setdefault(run.labels["dataset"], run)
        for key in sorted((first.labels.keys() | run.labels.keys()) - apart - {SEED}):
            one, other = first.labels.get(key), run.labels.get(key)
            if one != other:
                name = ", ".join(map(str, labels)) or "all"
                raise ValueError(
                    f"{name} would have one line for {key} {one} and {other}: add `{key}` to `rows`, or choose by "
                    "`where`."
                )
        place = tuple(run.labels.get(key) for key in ("dataset", SEED, *sorted(apart)))
        if (other_run := places.setdefault(place, run)) is not run:
            raise ValueError(f"{other_run.folder} and {run.folder} are the same run: report on one of them.")


def _refuse_unknown(name: str, keys: Sequence[str], runs: Sequence[Run]) -> None:
    # datasets have columns of their own, and seeds are what is averaged over
    known = {key for run in runs for key in run.labels} - (set() if name == "where" else {SEED, "dataset"})
    for key in keys:
        if key not in known:
            raise ValueError(f"there is no `{key}` for `{name}` in these runs.{did_you_mean(key, known)}")


def _matches(value: Any, wanted: Any) -> bool:
    return value in [_plain(one) for one in (wanted if isinstance(wanted, list) else [wanted])]


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _read_json(path: Path, needed: Sequence[str] = ()) -> dict[str, Any]:
    with _reading(path):
        content = json.loads(path.read_text(encoding="utf-8"))
        if missing := [key for key in needed if key not in content]:
            raise KeyError(missing[0])
        return dict(content)


@contextmanager
def _reading(path: Path) -> Iterator[Path]:
    try:
        yield path
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error!r}).") from error
