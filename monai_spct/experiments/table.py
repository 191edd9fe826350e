"""The states of many cells as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tqdm import tqdm

from monai_spct.experiments.cell import State

__all__ = ["count_states", "format_states"]


_WIDEST = 100  # characters of a state; an error is in the log as a whole


def format_states(states: Mapping[str, State]) -> str:
    """A table with a line for each cell, and a line that counts them.

    Example:
        >>> from monai_spct.experiments import State, format_states
        >>> print(format_states({"a": State("done", "", 83.2, 0.7512), "b": State("waiting")}))
        | cell | state   | duration | mean DSC |
        |------|---------|----------|----------|
        | a    | done    | 01:23    | 0.751    |
        | b    | waiting |          |          |
        2 cells: 1 done, 1 waiting
    """
    rows = [("cell", "state", "duration", "mean DSC")]
    for name, state in states.items():
        duration = "" if state.seconds is None else tqdm.format_interval(state.seconds)
        text = str(state) if len(str(state)) <= _WIDEST else f"{str(state)[: _WIDEST - 3]}..."
        rows.append((name, text, duration, "" if state.mean_dsc is None else f"{state.mean_dsc:.3f}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |" for row in rows]
    lines.insert(1, f"|{'|'.join('-' * (width + 2) for width in widths)}|")
    return "\n".join([*lines, count_states(state.name for state in states.values())])


def count_states(names: Iterable[str]) -> str:
    """How many cells are in which state.

    Example:
        >>> from monai_spct.experiments.table import count_states
        >>> count_states(["done", "failed", "done"]), count_states(["done"])
        ('3 cells: 2 done, 1 failed', '1 cell: 1 done')
    """
    counts = Counter(names)
    total = sum(counts.values())
    each = ", ".join(f"{number} {name}" for name, number in counts.items())
    return f"{total} cell{'' if total == 1 else 's'}: {each or 'none in this part'}"
