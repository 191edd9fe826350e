"""A report on a folder of runs: tables, figures, and a page with all of them."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from monai_spct.files import Part, replacing, write_html
from monai_spct.functional.spelling import did_you_mean
from monai_spct.report.figures import draw
from monai_spct.report.runs import SEED, Run, find_runs
from monai_spct.report.show import Figure, Show, Table, read_show
from monai_spct.report.tables import tabulate

__all__ = ["write_report"]


def write_report(
    *folders: str | Path,
    show: Show | None = None,
    to: str | Path | None = None,
    data: Mapping[str, str | Path] | None = None,
) -> Path:
    """Tables and figures of all runs in one or several folders, as files.

    ``report.html`` is one self-contained page, ``report.md`` the same in Markdown. The n-th table is also
    ``<n>_dsc.csv`` and ``<n>_dsc.tex``, the n-th figure ``<n>_curves.png``; those of an earlier report are deleted.

    Args:
        folders: any folders; each folder in them with a ``cell.json`` is a run.
        show: what is shown. By default what ``report.yaml`` in the first folder says, or else DSC and Hausdorff
            distances, curves, and predictions where there are weights.
        to: folder of the report; ``report`` in the first folder by default.
        data: folders of datasets, for figures of predictions; by default those of the runs.

    Returns:
        The path of ``report.html``.

    Raises:
        ValueError: when there are no runs, or something cannot be read or does not fit into one table.

    Example:
        >>> from monai_spct.report import write_report
        >>> write_report("nowhere")
        Traceback (most recent call last):
        ...
        ValueError: there are no runs in nowhere: no folder below it has a cell.json.
    """
    root, runs = Path(folders[0]), find_runs(*folders)
    if show is None:
        show = read_show(root / "report.yaml") if (root / "report.yaml").is_file() else _usual(runs)
    if not runs and any(not isinstance(item, Figure) or item.kind != "alpha_jsd" for item in show.items):
        raise ValueError(f"there are no runs in {', '.join(map(str, folders))}: no folder below it has a cell.json.")
    datasets = {run.labels["dataset"] for run in runs}
    for dataset in data or {}:
        if dataset not in datasets:
            raise ValueError(f"`{dataset}` in `data` is no dataset of these runs.{did_you_mean(dataset, datasets)}")
    target = root / "report" if to is None else Path(to)
    items = enumerate(tqdm(show.items, desc="report", leave=False), 1)
    parts = [_part(number, item, runs, target, data) for number, item in items]
    about = _about(runs)
    shown = [Part(title=part["title"], html=part["html"], notes=part["notes"]) for part in parts]
    write_html(target / "report.html", title=show.title, about=about, parts=shown)
    text = [f"# {show.title}", *about]
    for part in parts:
        text += [f"## {part['title']}", part["markdown"]]
    _write(target / "report.md", ("\n\n".join(text) + "\n").encode())
    written = {name for part in parts for name in part["files"]}
    for path in target.iterdir():  # of another report
        if re.fullmatch(r"\d+_\w+\.(csv|tex|png)", path.name) and path.name not in written:
            path.unlink()
    return target / "report.html"


def _usual(runs: Sequence[Run]) -> Show:
    weights = any((run.folder / "models" / "model.pt").is_file() for run in runs)
    predictions = [Figure("comparison", title="Predictions")] if weights else []
    return Show((Table(("dsc",)), Table(("hd",)), Figure("curves", title="Training"), *predictions))


def _part(
    number: int, item: Table | Figure, runs: Sequence[Run], target: Path, data: Mapping[str, str | Path] | None
) -> dict[str, Any]:
    """A table or a figure as files, and as the page shows it."""
    if isinstance(item, Table):
        table = tabulate(item, runs)
        stem = f"{number}_{'_'.join(item.scores)}"
        files = {f"{stem}.csv": table.to_csv(), f"{stem}.tex": table.to_latex()}
        for name, text in files.items():
            _write(target / name, text.encode())
        markdown, html = table.to_markdown(), table.to_html(f"table_{number}")
        return {"title": table.title, "notes": table.notes, "files": files, "markdown": markdown, "html": html}
    title = item.title or item.kind.replace("_", " ").capitalize()
    picture, notes = draw(item, runs, data)
    if picture is None:
        return {"title": title, "notes": notes, "files": (), "markdown": "\n\n".join(notes), "html": ""}
    name, buffer = f"{number}_{item.kind}.png", io.BytesIO()
    picture.savefig(buffer, format="png")
    _write(target / name, buffer.getvalue())
    html = f'<img alt="" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'
    markdown = "\n\n".join([f"![{title}]({name})", *notes])
    return {"title": title, "notes": notes, "files": (name,), "markdown": markdown, "html": html}


def _about(runs: Sequence[Run]) -> list[str]:
    """How many runs are done, the versions and devices they used, and the settings they share."""
    done = [run for run in runs if run.is_done]
    if not done:
        return []
    about = [f"{len(done)} of {len(runs)} runs are done."]
    seeds = sorted({run.labels[SEED] for run in done if SEED in run.labels})
    said = [f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"] if seeds else []
    for key, word in {"commit": "commit", "monai_spct": "monai_spct", "torch": "torch", "monai": "MONAI"}.items():
        if values := sorted({str(run.record[key]) for run in done if run.record.get(key)}):
            said.append(f"{word} {', '.join(values)}")
    if said:
        about.append(f"Made with {'; '.join(said)}.")
    first = runs[0].labels.items()
    same = [f"{key} = {one}" for key, one in first if key != SEED and all(run.labels.get(key) == one for run in runs)]
    if same:
        about.append(f"Same in all runs: {', '.join(same)}.")
    if devices := sorted({run.inference["device"] for run in done if run.inference}):
        about.append(f"Evaluated on: {'; '.join(devices)}.")
    return about


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)
