"""Scores of many runs as a table: means over seeds, the best of each block, and whether it is so significantly."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from pandas.io.formats.style import Styler
from scipy.stats import ttest_rel

from monai_spct.report.names import shown_key, shown_value
from monai_spct.report.runs import SEED, Run, lines_of
from monai_spct.report.show import Table

__all__ = ["ScoreTable", "no_result_yet", "tabulate"]

MEAN = "mean"
SIGNIFICANT = 0.05
HIGHER_IS_BETTER = {"dsc": True, "hd": False, "hd95": False}  # others are not compared
_COLUMN = ["dataset", "score", "of"]
_NAMED = 6  # runs in a note
_TITLES = {
    "dsc": "DSC (%)",
    "hd": "Hausdorff distance (mm)",
    "hd95": "95 % Hausdorff distance (mm)",
    "training_time": "Training time (ms / iteration)",
    "inference_time": "Inference time (ms / slice)",
}
_MARKS = {
    "markdown": {"best": "**{}**", "significant": "<u>**{}**</u>"},
    "latex": {"best": "textbf:--rwrap", "significant": "underline:--rwrap;textbf:--rwrap"},
    "html": {"best": "font-weight:bold", "significant": "font-weight:bold;text-decoration:underline"},
}


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """A table of scores with its notes.

    Args:
        title: of the table.
        keys: what the lines differ in.
        entries: unrounded, one a row: the line's labels, ``dataset``, ``score``, ``of`` (a structure, ``mean`` over
            these, or nothing for times), ``mean`` and ``std`` over the seeds, ``runs`` that are done and ``planned``
            ones, whether it is the ``best`` of its block, and the ``p_value`` against the second best. The index is the
            number of the line.
        blocks: the block of each line; the best is that of its block.
        notes: sentences on seeds, tests and gaps.

    Example:
        >>> from pathlib import Path
        >>> from monai_spct.report import Run, Table, tabulate
        >>> run = Run(Path("runs/a"), {"dataset": "acdc", "method": "dan", "axes": {"seed": 0}})
        >>> table = tabulate(Table(("dsc",)), [run])
        >>> table.title, table.notes
        ('DSC (%)', ('No result yet of runs/a.', 'Where a run is missing, the best is not marked.'))
    """

    title: str
    keys: Sequence[str]
    entries: pd.DataFrame
    blocks: pd.Series
    notes: Sequence[str]

    def to_markdown(self) -> str:
        """The table and its notes in Markdown."""
        texts, marks = self._texts()
        for column in texts:
            found = zip(texts[column].str.replace("|", r"\|"), marks[column], strict=True)
            texts[column] = [_MARKS["markdown"].get(mark, "{}").format(text) for text, mark in found]
        lines = str(texts.to_markdown(index=False, disable_numparse=True))
        return "\n\n".join([lines, " ".join(self.notes)]).rstrip()

    def to_latex(self) -> str:
        """The table in LaTeX, for the package ``booktabs``, with its notes as a comment."""
        columns = "l" * len(self.keys) + "c" * (len(self._texts()[0].columns) - len(self.keys))
        lines = self._styled("latex").to_latex(hrules=True, column_format=columns).splitlines()
        # what begins so would be an argument of the line break before it
        lines = [f"{{}}{line}" if line.startswith(("[", "*")) else line for line in lines]
        top = lines.index(r"\midrule") + 1
        for line in reversed(self._block_starts()[1:]):
            lines.insert(top + line, r"\midrule")
        return "\n".join([*(f"% {note}" for note in self.notes), *lines]) + "\n"

    def to_html(self, name: str = "table") -> str:
        """The table in HTML, with a ``name`` that no other one on its page has."""
        return str(self._styled("html").to_html(table_uuid=name))

    def to_csv(self) -> str:
        """The entries, for programs."""
        return str(self.entries.to_csv(index=False))

    def _styled(self, language: str) -> Styler:
        texts, marks = self._texts()
        css = marks.map(lambda mark: _MARKS[language].get(mark, ""))
        if language == "html":
            css.iloc[self._block_starts()] += ";border-top:1px solid #8888"
        styled = texts.style.hide(axis="index").apply(lambda _: css, axis=None)
        return styled.format(escape=language).format_index(escape=language, axis="columns")

    def _block_starts(self) -> list[int]:
        """The first line of each block."""
        return list(np.flatnonzero(self.blocks != self.blocks.shift()))

    def _texts(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Labels, said once in a block, and entries as text; and the mark of each."""
        labels = self.entries.groupby(level=0)[list(self.keys)].nth(0).reindex(self.blocks.index)
        words = labels.apply(lambda column: column.map(partial(shown_value, column.name)))
        repeats = (words == words.shift()).cummin(axis=1)  # up to the first label that differs
        repeats &= np.array(self.blocks == self.blocks.shift())[:, None]
        repeats[self.keys[-1]] = False  # which says which line it is
        texts = words.mask(repeats, "").rename(columns=shown_key)
        marks = texts.map(lambda _: "")
        heads = _heads(self.entries[_COLUMN].drop_duplicates())
        for head, (_, part) in zip(heads, self.entries.groupby(_COLUMN, sort=False), strict=True):
            texts[head] = part.apply(_text, axis=1)
            significant = part.p_value < SIGNIFICANT
            marks[head] = part.best.map({True: "best", False: ""}).mask(significant, "significant")
        return texts, marks


def tabulate(table: Table, runs: Sequence[Run]) -> ScoreTable:
    """Fill a table.

    An entry is the mean over seeds of the mean over cases. Where all runs of a block are in, its best entry is marked,
    and tested against the second best if both have at least two seeds and were scored on the same cases: a one-sided
    paired t-test over the patients, the values of each averaged over its cases and the seeds first.

    Args:
        table: what it is to show.
        runs: done or not.

    Raises:
        ValueError: when a key is none of the runs', when runs that differ in more than the seed would share a line, or
            when a file cannot be read.

    Example:
        >>> from pathlib import Path
        >>> from monai_spct.report import Run, Table, tabulate
        >>> run = Run(Path("runs/a"), {"dataset": "acdc", "method": "dan", "axes": {"seed": 0}})
        >>> print(tabulate(Table(("dsc",)), [run]).to_csv(), end="")
        method,dataset,score,of,mean,std,runs,planned,best,p_value
        dan,acdc,dsc,mean,,,0,1,False,
    """
    keys, lines = lines_of(table, runs)
    chosen = [run for members in lines.values() for run in members]
    # a method's own settings follow it
    last = keys.index("method") + 1 if "method" in keys[:-1] else -1
    within = keys[:last] if table.within is None else table.within
    if unknown := [key for key in within if key not in keys]:
        raise ValueError(f"`within` must be some of `rows`, {', '.join(keys)}, got {unknown[0]}.")
    block_of = [tuple(label for key, label in zip(keys, labels, strict=True) if key in within) for labels in lines]
    blocks = pd.Series(pd.factorize(pd.Series(block_of, dtype=object))[0]).sort_values(kind="stable")
    entries: list[pd.DataFrame] = []
    tests: dict[str, dict[str, None]] = {}  # by dataset, over what they are
    uneven = False
    for dataset in dict.fromkeys(run.labels["dataset"] for run in chosen):
        seeds_of = [
            {run.labels.get(SEED) for run in of_line if run.labels["dataset"] == dataset} for of_line in lines.values()
        ]
        planned = pd.Series([len(seeds) for seeds in seeds_of])
        for score in table.scores:
            cases = _cases(lines, dataset, score)
            seeds = cases.groupby(level=["line", "seed"]).agg(lambda values: values.mean(skipna=False))
            for of in cases:
                by_line = seeds[of].groupby(level="line")
                found = pd.DataFrame({"mean": by_line.mean(), "std": by_line.std(), "runs": by_line.count()})
                found = found.reindex(blocks.index).assign(planned=planned, best=False, p_value=float("nan"))
                found["runs"] = found["runs"].fillna(0).astype(int)
                for _, members in blocks.groupby(blocks):
                    over, same = _mark_best(found, cases[of], members.index, score, table.pair_by)
                    uneven |= not same
                    if over:
                        tests.setdefault(dataset, {})[over] = None
                entries.append(found.assign(dataset=dataset, score=score, of=of))
    # lines first, so that a line's entries stand together
    whole = pd.concat(entries).sort_index(kind="stable").loc[blocks.index]
    labels = pd.DataFrame(list(lines), columns=keys, dtype=object)
    whole = labels.join(whole[[*_COLUMN, "mean", "std", "runs", "planned", "best", "p_value"]]).loc[blocks.index]
    title = table.title or ", ".join(_TITLES[score] for score in table.scores)
    alike = [key for key in keys if key in within]
    return ScoreTable(title, keys, whole, blocks, tuple(_notes(table, chosen, whole, tests, alike, uneven)))


def no_result_yet(runs: Sequence[Run]) -> list[str]:
    """A note on what is missing, if anything is."""
    names = [run.folder.as_posix() for run in runs if not run.is_done]
    if len(names) > _NAMED:
        return [f"No result yet of {names[0]}, {names[1]}, ..., {names[-1]}: {len(names)} runs."]
    return [f"No result yet of {', '.join(names)}."] if names else []


def _cases(lines: Mapping[Any, Sequence[Run]], dataset: str, score: str) -> pd.DataFrame:
    """By line, seed and case, a column for each structure and for their mean."""
    found = [
        run.scores[run.scores.score == score].assign(line=line, seed=str(run.labels.get(SEED)))
        for line, members in enumerate(lines.values())
        for run in members
        if run.labels["dataset"] == dataset and run.is_done
    ]
    long = pd.concat(found) if found else pd.DataFrame(columns=["line", "seed", "case", "structure", "value"])
    names = list(long.structure.unique())
    cases = long.pivot(index=["line", "seed", "case"], columns="structure", values="value")[names]
    if score not in HIGHER_IS_BETTER:
        return cases.reindex(columns=[""])
    if len(names) != 1:
        cases[MEAN] = cases.mean(axis=1, skipna=False)  # each run may have a structure of its own
    return cases


def _mark_best(found: pd.DataFrame, cases: pd.Series, lines: pd.Index, score: str, pair_by: str) -> tuple[str, bool]:
    """Mark the best of the lines of a block, and test it.

    Returns:
        Over what the pairs of the test run, if there is one, and whether all were scored on the same cases.
    """
    part = found.loc[lines]
    part = part[part.planned > 0]
    table = cases[cases.index.get_level_values("line").isin(part.index)].dropna().unstack("case")
    same = not table.isna().any(axis=None)
    if score not in HIGHER_IS_BETTER or len(part) < 2 or (part.runs < part.planned).any():
        return "", same
    higher = HIGHER_IS_BETTER[score]
    best, second = part["mean"].sort_values(ascending=not higher, kind="stable").index[:2]
    found.loc[part.index[part["mean"] == part["mean"][best]], "best"] = True
    pair = table.loc[[best, second]]
    if part.runs[[best, second]].min() < 2 or part["mean"][best] == part["mean"][second]:
        return "", same
    pair = pair.dropna(axis=1, how="all")
    patients = [match.group() for case in pair.columns if (match := re.search(pair_by, case))]
    whose = patients if len(patients) == len(pair.columns) else list(pair.columns)
    values = pair.groupby(level="line").mean().T.groupby(whose).mean()
    if pair.isna().any(axis=None) or len(values) < 2:
        return "", same
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # differences that are all alike: p is 0
        test = ttest_rel(values[best], values[second], alternative="greater" if higher else "less")
    found.loc[best, "p_value"] = float(test.pvalue)
    return f"{len(values)} {'volumes' if len(values) == len(whose) else 'patients'}", same


def _text(entry: pd.Series) -> str:
    if pd.isna(entry["mean"]):
        return "\N{EN DASH}" if entry.planned else ""
    scale = 100 if entry.score == "dsc" else 1
    digits = {"training_time": 0, "inference_time": 1}.get(entry.score, 2)
    text = f"{scale * entry['mean']:.{digits}f}"
    if not pd.isna(entry["std"]):
        text += f" ({scale * entry['std']:.{digits}f})"
    return text if entry.runs == entry.planned else f"{text} [{entry.runs} of {entry.planned} runs]"


def _heads(columns: pd.DataFrame) -> list[str]:
    """What tells columns apart: the dataset if there are several, the score likewise, the structure."""
    heads = []
    for column in columns.itertuples(index=False):
        parts = [shown_key(column.dataset)] if columns.dataset.nunique() > 1 else []
        if columns.score.nunique() > 1 or not column.of:
            parts.append(shown_key(column.score))
        alone = ((columns.dataset == column.dataset) & (columns.score == column.score)).sum() == 1
        if column.of and not (alone and parts):
            parts.append("Mean" if column.of == MEAN else column.of)
        heads.append(" ".join(parts))
    return heads


def _notes(
    table: Table,
    runs: Sequence[Run],
    entries: pd.DataFrame,
    tests: Mapping[str, Mapping[str, None]],
    alike: Sequence[str],
    uneven: bool,
) -> list[str]:
    notes = no_result_yet(runs)
    block = f" of its block, the lines alike in {', '.join(map(shown_key, alike))}" if alike else ""
    done = entries.runs[entries.runs > 0]
    compared = any(score in HIGHER_IS_BETTER for score in table.scores)
    if ((entries.runs > 0) & (entries.runs < entries.planned)).any():
        notes.append("In square brackets: how many of the planned runs are done; the mean is over these.")
    if compared and (entries.runs < entries.planned).any():
        notes.append(f"Where a run{' of a block' if alike else ''} is missing, the best is not marked.")
    if len(done) and done.max() > 1:
        mean = "Mean over the volumes, then mean" if compared else "Mean"
        where = "" if done.min() > 1 else ", where there is more than one"
        notes.append(f"{mean} (standard deviation) over the seeds{where}.")
    if len(done) and done.min() == 1:
        which = "One seed" if done.max() == 1 else "Where there is one seed"
        notes.append(f"{which}: no standard deviation{' and no test' if compared else ''}.")
    if entries.best.any():
        notes.append(f"Bold: the best{block}.")
    if compared and uneven:
        notes.append("Not all of these runs were scored on the same cases: no test between those that were not.")
    if tests:
        of = {dataset: f" of {shown_key(dataset)}" if entries.dataset.nunique() > 1 else "" for dataset in tests}
        over = " and ".join(f"the {number}{of[dataset]}" for dataset in tests for number in tests[dataset])
        averaged = "its volumes and the seeds" if "patients" in over else "the seeds"
        found = "Underlined: better" if (entries.p_value < SIGNIFICANT).any() else "None is better"
        notes.append(
            f"{found} than the second best with p < {SIGNIFICANT:g} by a one-sided paired t-test over {over}, each "
            f"averaged over {averaged} first."
        )
    if "training_time" in table.scores:
        notes.append("Training: the median over the epochs but the first, with loading of the batches.")
    if "inference_time" in table.scores:
        notes.append("Inference: the median over the volumes.")
    return notes
