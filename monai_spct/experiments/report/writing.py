"""A report on a folder of results: tables, figures, and a page with all of them."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from tqdm import tqdm

from monai_spct.experiments.lines import SEED
from monai_spct.experiments.refusals import GridError
from monai_spct.experiments.report.drawing import draw
from monai_spct.experiments.report.formats import Texts, as_csv, as_latex, as_markdown, texts
from monai_spct.experiments.report.scores import Scores, cell_scores, inference_device
from monai_spct.experiments.report.tables import tabulate
from monai_spct.experiments.results import FinishedCell, PlannedStudy, finished_cells, planned_studies
from monai_spct.experiments.study import Study, Table
from monai_spct.files.atomic import replacing
from monai_spct.workflow.spelling import did_you_mean

__all__ = ["write_report"]


@dataclass
class _Part:
    """A table or a figure, as the page shows it."""

    title: str
    notes: Sequence[str]
    table: Texts | None = None
    image: str = ""  # PNG in base64


@dataclass
class _Section:
    """A study, as the page shows it."""

    name: str
    title: str
    runs: str
    provenance: Sequence[str]
    parts: list[_Part] = field(default_factory=list)


def write_report(
    folder: str | Path, *, to: str | Path | None = None, data: Mapping[str, str | Path] | None = None
) -> Path:
    """Write the tables and figures of all studies that were started in a folder.

    For each study there is ``<study>.md`` with all its tables, and for its n-th table or figure ``<study>_<n>.csv``,
    ``<study>_<n>.tex`` or ``<study>_<n>.png``. ``report.html`` shows everything in one file that needs no other. Such
    files of an earlier state of a study are replaced or deleted.

    Args:
        folder: the folder of a grid.
        to: where the report goes; ``report`` in ``folder`` by default.
        data: by dataset, the folder that holds it, for figures of predictions; by default the one that cells were run
            with.

    Returns:
        The page.

    Raises:
        GridError: when the folder has no results, has two of one cell, or holds something that cannot be read.

    Example:
        >>> from monai_spct.experiments.report import write_report
        >>> write_report("nowhere")
        Traceback (most recent call last):
        ...
        monai_spct.experiments.refusals.GridError: there are no results of a grid in nowhere.
    """
    root = Path(folder)
    target = root / "report" if to is None else Path(to)
    finished: dict[str, FinishedCell] = {}
    for one in finished_cells(root):
        if (other := finished.setdefault(one.cell.name, one)) is not one:
            raise GridError(f"{other.folder} and {one.folder} hold the same cell: report on one of the two grids.")
    studies = planned_studies(root)
    if not studies and finished:  # grids that were run from Python
        studies = [PlannedStudy("results", "", Study(()).show, [one.cell for one in finished.values()])]
    if not studies:
        raise GridError(f"there are no results of a grid in {root}.")
    datasets = {cell.dataset for study in studies for cell in study.cells}
    for dataset in data or {}:
        if dataset not in datasets:
            raise GridError(f"`{dataset}` in `data` is no dataset of these cells.{did_you_mean(dataset, datasets)}")
    scores = {name: cell_scores(one) for name, one in finished.items()}
    sections = [_section(study, finished, scores, target, data) for study in studies]
    page = Environment(
        loader=PackageLoader("monai_spct.experiments.report", "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    ).get_template("page.html").render(sections=sections)  # fmt: skip
    _write(target / "report.html", page)
    return target / "report.html"


def _section(
    study: PlannedStudy,
    finished: Mapping[str, FinishedCell],
    scores: Mapping[str, Scores],
    target: Path,
    data: Mapping[str, str | Path] | None,
) -> _Section:
    done = [finished[cell.name] for cell in study.cells if cell.name in finished]
    title = study.title or study.name
    runs = f"{len(done)} of {len(study.cells)} runs are done." if study.cells else ""
    section = _Section(study.name, title, runs, _provenance(done))
    markdown = [f"# {title}", *([runs] if runs else []), *section.provenance]
    written = set()
    for number, item in enumerate(tqdm(study.show, desc=f"report on {study.name}", leave=False), 1):
        stem = f"{study.name}_{number}"
        if isinstance(item, Table):
            table = tabulate(item, study.cells, scores)
            _write(target / f"{stem}.csv", as_csv(table))
            _write(target / f"{stem}.tex", as_latex(table) + "\n")
            written |= {f"{stem}.csv", f"{stem}.tex"}
            markdown += [f"## {table.title}", as_markdown(table)]
            section.parts.append(_Part(table.title, table.notes, texts(table)))
            continue
        picture, notes = draw(item, study.cells, finished, data)
        heading = item.title or item.kind.replace("_", " ").capitalize()
        part = _Part(heading, notes if picture else [*notes, "There is nothing to draw yet."])
        if picture is not None:
            buffer = io.BytesIO()
            picture.savefig(buffer, format="png")
            with replacing(target / f"{stem}.png") as file:
                file.write(buffer.getvalue())
            written.add(f"{stem}.png")
            part.image = base64.b64encode(buffer.getvalue()).decode()
            markdown += [f"## {heading}", f"![{heading}]({quote(stem)}.png)", *notes]
        else:
            markdown += [f"## {heading}", *part.notes]
        section.parts.append(part)
    _write(target / f"{study.name}.md", "\n\n".join(markdown) + "\n")
    for path in target.iterdir():  # of another state of the study
        if re.fullmatch(rf"{re.escape(study.name)}_\d+\.(csv|tex|png)", path.name) and path.name not in written:
            path.unlink()
    return section


def _provenance(done: Sequence[FinishedCell]) -> list[str]:
    """What the runs were made by and with, where they agree and where they do not."""
    if not done:
        return []
    said = []
    for key, words in (("commit", "commit"), ("monai_spct", "monai_spct"), ("torch", "torch"), ("monai", "MONAI")):
        values = sorted({str(one.record.get(key)) for one in done} - {"None"})
        if values:
            said.append(f"{words} {', '.join(values)}")
    seeds = list(dict.fromkeys(str(one.axes[SEED]) for one in done if SEED in one.axes))
    if seeds:
        said.insert(0, f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}")
    lines = [f"Made with {'; '.join(said)}."] if said else []
    settings = [dict(one.settings) for one in done]
    shared = {key: value for key, value in settings[0].items() if all(one.get(key) == value for one in settings)}
    if shared:
        lines.append(f"Settings of all runs: {', '.join(f'{key} = {value}' for key, value in shared.items())}.")
    if devices := sorted({device for one in done if (device := inference_device(one))}):
        lines.append(f"Evaluated on: {'; '.join(devices)}.")
    return lines


def _write(path: Path, text: str) -> None:
    with replacing(path, "w") as file:
        file.write(text)
