"""A table of scores as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

from monai_spct.experiments.report.names import shown_key, shown_score, shown_value
from monai_spct.experiments.report.tables import MEAN, Column, Entry, ScoreTable

__all__ = ["Texts", "as_csv", "as_latex", "as_markdown", "texts"]

_NONE = "\N{EN DASH}"
_DIGITS = {"training_time": 0, "inference_time": 1}


@dataclass(frozen=True)
class Texts:
    """A table in words: what all formats share.

    Args:
        heads: of the labels.
        columns: heads of the entries.
        blocks: lines of each block; a line has its labels, empty where they are those of the line above, and its
            entries: a text, whether it is the best, and whether it is so significantly.

    Example:
        >>> from monai_spct.experiments.report import Texts
        >>> Texts(["method"], ["LV"], [[(["DAN"], [("75.00", True, False)])]]).blocks[0][0][0]
        ['DAN']
    """

    heads: list[str]
    columns: list[str]
    blocks: list[list[tuple[list[str], list[tuple[str, bool, bool]]]]]


def texts(table: ScoreTable) -> Texts:
    """The words of a table. An entry of which no run is done is a dash.

    Example:
        >>> from monai_spct.experiments import Cell, Table
        >>> from monai_spct.experiments.report import tabulate, texts
        >>> cells = [Cell("acdc", "dan", axes={"seed": seed}) for seed in (0, 1, 2)]
        >>> scores = {cell.name: {"hd": {"LV": {"case1": 8.0 + n}}} for n, cell in enumerate(cells[:2])}
        >>> found = texts(tabulate(Table(("hd",)), cells, scores))
        >>> found.heads, found.columns, found.blocks
        (['method'], ['LV'], [[(['DAN'], [('8.50 (0.71) [2 of 3 runs]', False, False)])]])
    """
    blocks: list[list[tuple[list[str], list[tuple[str, bool, bool]]]]] = []
    block: tuple[object, ...] | None = None
    above: list[str] = []
    for line in table.lines:
        labels = [shown_value(key, label) for key, label in zip(table.keys, line.labels, strict=True)]
        if not blocks or line.block != block:
            blocks.append([])
            block, above = line.block, []
        pairs = list(zip(labels[:-1], above[:-1], strict=False))  # the last one says which line it is
        same = next((n for n, (label, other) in enumerate(pairs) if label != other), len(pairs))
        shown = ["" if n < same else label for n, label in enumerate(labels)]
        entries = [
            (_text(entry, column), entry.best, entry.is_significant)
            for entry, column in zip(line.entries, table.columns, strict=True)
        ]
        blocks[-1].append((shown, entries))
        above = labels
    return Texts([shown_key(key) for key in table.keys], _heads(table.columns), blocks)


def as_markdown(table: ScoreTable) -> str:
    """The table and its notes in Markdown.

    Example:
        >>> from monai_spct.experiments import Cell, Table
        >>> from monai_spct.experiments.report import as_markdown, tabulate
        >>> cells = [Cell("acdc", method) for method in ("dan", "ua_mt")]
        >>> scores = {cell.name: {"dsc": {"LV": {"case1": 0.8 + n / 10}}} for n, cell in enumerate(cells)}
        >>> print(as_markdown(tabulate(Table(("dsc",)), cells, scores)))
        | method | LV |
        |---|---|
        | DAN | 80.00 |
        | UA-MT | **90.00** |
        <BLANKLINE>
        One seed: no standard deviation and no test. Bold: the best.
    """
    words = texts(table)
    lines = [_row([*words.heads, *words.columns]), f"|{'---|' * (len(words.heads) + len(words.columns))}"]
    for block in words.blocks:
        for labels, entries in block:
            marked = []
            for text, best, significant in entries:
                bold = f"**{text}**" if best else text
                marked.append(f"<u>{bold}</u>" if significant else bold)
            lines.append(_row([*labels, *marked]))
    return "\n".join([*lines, "", " ".join(table.notes)]).rstrip()


def as_latex(table: ScoreTable) -> str:
    r"""The table in LaTeX, for the package ``booktabs``, with its notes as a comment.

    Example:
        >>> from monai_spct.experiments import Cell, Table
        >>> from monai_spct.experiments.report import as_latex, tabulate
        >>> cells = [Cell("acdc", method) for method in ("dan", "ua_mt")]
        >>> scores = {cell.name: {"dsc": {"LV": {"case1": 0.8 + n / 10}}} for n, cell in enumerate(cells)}
        >>> print(as_latex(tabulate(Table(("dsc",)), cells, scores)))
        % One seed: no standard deviation and no test.
        % Bold: the best.
        \begin{tabular}{lc}
        \toprule
        method & LV \\
        \midrule
        DAN & 80.00 \\
        UA-MT & \textbf{90.00} \\
        \bottomrule
        \end{tabular}
    """
    words = texts(table)
    comments = [f"% {note}" for note in table.notes]
    lines = [*comments, rf"\begin{{tabular}}{{{'l' * len(words.heads)}{'c' * len(words.columns)}}}", r"\toprule"]
    lines.append(_latex_row([_escaped(word) for word in (*words.heads, *words.columns)]))
    for block in words.blocks:
        lines.append(r"\midrule")
        for labels, entries in block:
            marked = []
            for text, best, significant in entries:
                bold = rf"\textbf{{{_escaped(text)}}}" if best else _escaped(text)
                marked.append(rf"\underline{{{bold}}}" if significant else bold)
            lines.append(_latex_row([*map(_escaped, labels), *marked]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def as_csv(table: ScoreTable) -> str:
    """The numbers of the table, unrounded, one entry a line, for programs: a score of a structure, or of their mean.

    Example:
        >>> from monai_spct.experiments import Cell, Table
        >>> from monai_spct.experiments.report import as_csv, tabulate
        >>> cell = Cell("acdc", "dan")
        >>> print(as_csv(tabulate(Table(("dsc",)), [cell], {cell.name: {"dsc": {"LV": {"case1": 0.75}}}})), end="")
        methods,dataset,score,of,mean,std,runs,planned,best,p_value
        dan,acdc,dsc,LV,0.75,,1,1,False,
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    entry_keys = ("mean", "std", "runs", "planned", "best", "p_value")
    writer.writerow([*table.keys, "dataset", "score", "of", *entry_keys])
    for line in table.lines:
        for column, entry in zip(table.columns, line.entries, strict=True):
            values = [getattr(entry, key) for key in entry_keys]
            writer.writerow([*line.labels, *column, *("" if value is None else value for value in values)])
    return file.getvalue()


def _text(entry: Entry, column: Column) -> str:
    if entry.mean is None:
        return _NONE if entry.planned else ""
    scale = 100 if column.score == "dsc" else 1
    digits = _DIGITS.get(column.score, 2)
    text = f"{scale * entry.mean:.{digits}f}"
    if entry.std is not None:
        text += f" ({scale * entry.std:.{digits}f})"
    return text if entry.is_complete else f"{text} [{entry.runs} of {entry.planned} runs]"


def _heads(columns: tuple[Column, ...]) -> list[str]:
    """What tells columns apart: the dataset if there are several, the score likewise, the structure."""
    datasets, scores = ({column[n] for column in columns} for n in (0, 1))
    heads = []
    for column in columns:
        parts = [shown_key(column.dataset)] if len(datasets) > 1 else []
        if len(scores) > 1 or not column.structure:
            parts.append(shown_score(column.score))
        alone = sum(other[:2] == column[:2] for other in columns) == 1
        if column.structure and not (alone and parts):
            parts.append("Mean" if column.structure == MEAN else column.structure)
        heads.append(" ".join(parts))
    return heads


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _latex_row(cells: list[str]) -> str:
    row = " & ".join(cells)
    # what begins so would be an argument of the line break before it
    return ("{}" if row.startswith(("[", "*")) else "") + row + r" \\"


def _escaped(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", _NONE: "--"}
    special.update({"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"})
    return "".join(special.get(sign) or (f"\\{sign}" if sign in "&%$#_{}" else sign) for sign in text)
