"""Scores of many runs as a table: means over seeds, the best of each block, and whether it is so significantly."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from scipy import stats

from monai_spct.experiments.grid import Cell
from monai_spct.experiments.lines import SEED, Labels, cell_lines
from monai_spct.experiments.refusals import GridError
from monai_spct.experiments.report.names import no_result_yet, shown_key
from monai_spct.experiments.report.scores import Scores
from monai_spct.experiments.study import Table
from monai_spct.experiments.values import Value

__all__ = ["Column", "Entry", "Line", "ScoreTable", "tabulate"]

MEAN = "mean"
SIGNIFICANT = 0.05
HIGHER_IS_BETTER = {"dsc": True, "hd": False, "hd95": False}  # others are not compared


class Column(NamedTuple):
    """A score of a structure in a dataset; ``mean`` is that over the structures, none for times.

    Example:
        >>> from monai_spct.experiments.report.tables import Column
        >>> Column("acdc", "dsc", "LV").structure
        'LV'
    """

    dataset: str
    score: str
    structure: str


Place: TypeAlias = tuple[Labels, Column]


@dataclass(frozen=True)
class Entry:
    """What stands in one place of a table.

    Args:
        mean: over the runs that are done; none if there is none.
        std: the standard deviation over the seeds, with ``n - 1``; none for a single one.
        runs: how many are done.
        planned: how many were planned.
        best: whether it is the best of its block.
        p_value: of the test against the second best, if this is the best.

    Example:
        >>> from monai_spct.experiments.report.tables import Entry
        >>> Entry(mean=0.75, std=None, runs=1, planned=2).is_complete
        False
    """

    mean: float | None
    std: float | None
    runs: int
    planned: int
    best: bool = False
    p_value: float | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all runs are in."""
        return self.runs == self.planned > 0

    @property
    def is_significant(self) -> bool:
        """Whether the best is better than the second best by the test."""
        return self.p_value is not None and self.p_value < SIGNIFICANT


@dataclass(frozen=True)
class Line:
    """One line of a table.

    Args:
        labels: a value for each of the table's keys.
        block: which lines it is compared with: those of the same block.
        entries: one for each column.

    Example:
        >>> from monai_spct.experiments.report import Entry, Line
        >>> Line(labels=(0.1, "dan"), block=(0.1,), entries=(Entry(0.75, None, runs=1, planned=1),)).entries[0].mean
        0.75
    """

    labels: Labels
    block: Labels
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class ScoreTable:
    """A table with all that a reader must know.

    Args:
        title: what stands above it.
        keys: of the grid, what the labels of lines are values of.
        columns: what the entries of a line are.
        lines: sorted by block.
        notes: on seeds, tests and gaps, one sentence or more each.

    Example:
        >>> from monai_spct.experiments import Cell, Table
        >>> from monai_spct.experiments.report import tabulate
        >>> table = tabulate(Table(("dsc",)), [Cell("acdc", "dan")], {})
        >>> table.title, table.keys, table.columns
        ('DSC (%)', ('methods',), (Column(dataset='acdc', score='dsc', structure='mean'),))
    """

    title: str
    keys: tuple[str, ...]
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]


def tabulate(table: Table, cells: Sequence[Cell], scores: Mapping[str, Scores]) -> ScoreTable:
    """Fill a table.

    An entry is the mean over seeds of the mean over cases. Where all runs of a block are in, its best entry is marked,
    and tested against the second best if both have at least two seeds and were scored on the same cases: a one-sided
    paired t-test over the patients, the values of each averaged over its cases and the seeds first.

    Args:
        table: what it is to show.
        cells: all that were planned.
        scores: of those that are done, by the cell's name.

    Raises:
        GridError: when a key is none of the cells', when cells that differ in more than the seed would share a line, or
            when two runs would share a place.

    Example:
        >>> from monai_spct.experiments import Cell, Table
        >>> from monai_spct.experiments.report import tabulate
        >>> cells = [Cell("acdc", method, axes={"seed": 0}) for method in ("dan", "ua_mt")]
        >>> scores = {cells[0].name: {"dsc": {"LV": {"case1": 0.5, "case2": 1.0}}}}
        >>> found = tabulate(Table(("dsc",)), cells, scores)
        >>> [(line.labels, line.entries[0].mean) for line in found.lines]
        [(('dan',), 0.75), (('ua_mt',), None)]
        >>> print(found.notes[0])
        No result yet of acdc/ua_mt/default/seed=0.
    """
    keys, lines = cell_lines(table, cells)
    chosen = [cell for members in lines.values() for cell in members]
    columns = _columns(table, chosen, scores)
    runs = {
        (labels, column): _runs(members, column, columns, scores)
        for labels, members in lines.items()
        for column in columns
    }
    entries = {
        (labels, column): _entry(found, len(_seeds(lines[labels], column.dataset)))
        for (labels, column), found in runs.items()
    }
    within = keys[:-1] if table.within is None else table.within
    blocks: dict[Labels, list[Labels]] = {}
    for labels in lines:
        block = tuple(label for key, label in zip(keys, labels, strict=True) if key in within)
        blocks.setdefault(block, []).append(labels)
    uneven = False
    tests: dict[str, dict[str, None]] = {}  # by dataset, over what they are
    for members in blocks.values():
        for column in columns:
            block_runs = {(labels, column): runs[labels, column] for labels in members}
            uneven |= len({frozenset(cases) for seeds in block_runs.values() for cases in seeds.values()}) > 1
            if over := _mark_best(block_runs, entries, table.pair_by):
                tests.setdefault(column.dataset, {})[over] = None
    return ScoreTable(
        table.title or _title(table),
        keys,
        columns,
        tuple(
            Line(labels, block, tuple(entries[labels, column] for column in columns))
            for block, members in blocks.items()
            for labels in members
        ),
        tuple(
            _notes(table, chosen, scores, entries, tests, alike=[key for key in keys if key in within], uneven=uneven)
        ),
    )


def _columns(table: Table, cells: Sequence[Cell], scores: Mapping[str, Scores]) -> tuple[Column, ...]:
    columns = []
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        for score in table.scores:
            if score not in HIGHER_IS_BETTER:
                columns.append(Column(dataset, score, ""))
                continue
            known = [scores[cell.name][score] for cell in cells if cell.dataset == dataset and cell.name in scores]
            structures = list(dict.fromkeys(structure for one in known for structure in one))
            columns += [Column(dataset, score, structure) for structure in structures]
            if len(structures) != 1:
                columns.append(Column(dataset, score, MEAN))
    return tuple(columns)


def _seeds(cells: Sequence[Cell], dataset: str) -> list[Value]:
    return list(dict.fromkeys(cell.axes.get(SEED) for cell in cells if cell.dataset == dataset))


def _runs(
    cells: Sequence[Cell], column: Column, columns: Sequence[Column], scores: Mapping[str, Scores]
) -> dict[Value, dict[str, float]]:
    """By seed, the value of each case, for those seeds that have it."""
    runs = {}
    for seed in _seeds(cells, column.dataset):
        mine = [cell.name for cell in cells if cell.dataset == column.dataset and cell.axes.get(SEED) == seed]
        merged: dict[str, Mapping[str, float]] = {}
        for name in mine:
            found = scores.get(name, {}).get(column.score, {})
            if twice := [structure for structure in found if structure in merged]:
                raise GridError(f"{name} and another run of its line both have {twice[0]}: check `columns`.")
            merged.update(found)
        cases: dict[str, float] = {}
        if column.structure != MEAN:
            cases = dict(merged.get(column.structure, {}))
        elif all(name in scores for name in mine):  # each may have a structure of its own
            wanted = [other.structure for other in columns if other[:2] == column[:2] and other.structure != MEAN]
            parts = [merged.get(structure, {}) for structure in wanted]
            if parts and all(part.keys() == parts[0].keys() for part in parts):
                cases = {case: statistics.fmean(part[case] for part in parts) for case in parts[0]}
        if cases:
            runs[seed] = cases
    return runs


def _entry(runs: Mapping[Value, Mapping[str, float]], planned: int) -> Entry:
    means = [statistics.fmean(cases.values()) for cases in runs.values()]
    return Entry(
        mean=statistics.fmean(means) if means else None,
        std=statistics.stdev(means) if len(means) > 1 else None,
        runs=len(means),
        planned=planned,
    )


def _mark_best(
    runs: Mapping[Place, Mapping[Value, Mapping[str, float]]], entries: dict[Place, Entry], pair_by: str | None
) -> str:
    """Mark the best of some entries of one column, and test it; says over what the pairs of the test run, if any do."""
    column = next(iter(runs))[1]
    planned = [place for place in runs if entries[place].planned]
    means = {place: entry.mean for place in planned if (entry := entries[place]).is_complete and entry.mean is not None}
    if column.score not in HIGHER_IS_BETTER or len(means) < max(2, len(planned)):
        return ""
    ordered = sorted(means, key=lambda place: means[place], reverse=HIGHER_IS_BETTER[column.score])
    best, second = ordered[:2]
    for place in ordered:
        if means[place] == means[best]:
            entries[place] = replace(entries[place], best=True)
    if min(entries[best].runs, entries[second].runs) < 2 or means[best] == means[second]:
        return ""
    cases, *others = {frozenset(cases) for place in (best, second) for cases in runs[place].values()}
    patients = _patients(cases, pair_by)
    if others or len(set(patients.values())) < 2:
        return ""
    one, other = (_by_patient(runs[place], patients) for place in (best, second))
    sign = 1 if HIGHER_IS_BETTER[column.score] else -1
    p_value = _p_value([sign * (one[patient] - other[patient]) for patient in one])
    entries[best] = replace(entries[best], p_value=p_value)
    return f"{len(one)} {'volumes' if len(one) == len(cases) else 'patients'}"


def _patients(cases: Iterable[str], pair_by: str | None) -> dict[str, str]:
    """Whose each case is."""
    found = {case: re.search(pair_by, case) if pair_by else None for case in cases}
    everyone = {case: match.group() for case, match in found.items() if match}
    return everyone if len(everyone) == len(found) else {case: case for case in found}


def _by_patient(runs: Mapping[Value, Mapping[str, float]], patients: Mapping[str, str]) -> dict[str, float]:
    """The mean over seeds and over the cases of each patient."""
    found: dict[str, list[float]] = {}
    for cases in runs.values():
        for case, value in cases.items():
            found.setdefault(patients[case], []).append(value)
    return {patient: statistics.fmean(values) for patient, values in sorted(found.items())}


def _p_value(differences: Sequence[float]) -> float:
    """Of the t-test that their mean is above 0."""
    mean, spread = statistics.fmean(differences), statistics.stdev(differences)
    if spread == 0:
        return 0.0 if mean > 0 else 1.0
    return float(stats.t.sf(mean / spread * len(differences) ** 0.5, len(differences) - 1))


def _title(table: Table) -> str:
    names = {
        "dsc": "DSC (%)", "hd": "Hausdorff distance (mm)", "hd95": "95 % Hausdorff distance (mm)",
        "training_time": "training time (ms / iteration)", "inference_time": "inference time (ms / slice)",
    }  # fmt: skip
    text = ", ".join(names[score] for score in table.scores)
    return text[0].upper() + text[1:]


def _notes(
    table: Table,
    cells: Sequence[Cell],
    scores: Mapping[str, Scores],
    entries: Mapping[Place, Entry],
    tests: Mapping[str, Iterable[str]],
    *,
    alike: Sequence[str],
    uneven: bool,
) -> list[str]:
    notes = []
    block = f" of its block, the lines alike in {', '.join(map(shown_key, alike))}" if alike else ""
    done = [entry.runs for entry in entries.values() if entry.runs]
    if missing := [cell.name for cell in cells if cell.name not in scores]:
        notes.append(no_result_yet(missing))
    if any(0 < entry.runs < entry.planned for entry in entries.values()):
        notes.append("In square brackets: how many of the planned runs are done; the mean is over these.")
    compared = any(score in HIGHER_IS_BETTER for score in table.scores)
    if compared and any(entry.runs < entry.planned for entry in entries.values()):
        notes.append(f"Where a run{' of a block' if alike else ''} is missing, the best is not marked.")
    if done and max(done) > 1:
        mean = "Mean over the volumes, then mean" if compared else "Mean"
        where = "" if min(done) > 1 else ", where there is more than one"
        notes.append(f"{mean} (standard deviation) over the seeds{where}.")
    if done and min(done) == 1:
        which = "One seed" if max(done) == 1 else "Where there is one seed"
        notes.append(f"{which}: no standard deviation{' and no test' if compared else ''}.")
    if any(entry.best for entry in entries.values()):
        notes.append(f"Bold: the best{block}.")
    if compared and uneven:
        notes.append("Not all of these runs were scored on the same cases: no test between those that were not.")
    if tests:
        several = len({cell.dataset for cell in cells}) > 1
        over = " and ".join(
            f"the {number}{f' of {shown_key(dataset)}' if several else ''}"
            for dataset, numbers in tests.items()
            for number in numbers
        )
        averaged = "its volumes and the seeds" if "patients" in over else "the seeds"
        found = "Underlined: better" if any(entry.is_significant for entry in entries.values()) else "None is better"
        notes.append(
            f"{found} than the second best with p < {SIGNIFICANT:g} by a one-sided paired t-test over "
            f"{over}, each averaged over {averaged} first."
        )
    if "training_time" in table.scores:
        notes.append("Training: the median over the epochs but the first, with loading of the batches.")
    if "inference_time" in table.scores:
        notes.append("Inference: the median over the volumes.")
    return notes
