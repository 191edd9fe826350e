"""A page of tables, pictures and commands, which needs neither a server nor a network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from monai_spct.files.atomic import replacing

__all__ = ["Part", "write_html"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a page, with its heading. All text is escaped, but for ``html`` and for ``markupsafe.Markup`` in cells.

    Args:
        title: the heading.
        html: what comes first, as it is.
        tables: of numbers; rows of cells, of which the first are the heads and those of each row its name.
        commands: what each is, the command, and a note in small letters.
        details: lines, and what unfolds below them.
        pictures: their addresses, relative to the page, and what stands below them.
        notes: sentences in small letters, at the end.

    Example:
        >>> from monai_spct.files import Part
        >>> Part(title="Scores", tables=[[["case", "LV"], ["patient001", "0.90"]]]).notes
        ()
    """

    title: str
    html: str = ""
    tables: Sequence[Sequence[Sequence[str]]] = ()
    commands: Sequence[tuple[str, str, str]] = ()
    details: Sequence[tuple[str, str]] = ()
    pictures: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()


def write_html(path: str | os.PathLike[str], *, title: str, about: Sequence[str], parts: Sequence[Part]) -> None:
    """Write a page, the old one or the whole new one.

    Args:
        path: the file.
        title: of the page.
        about: sentences below it.
        parts: in their order.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.files import Part, write_html
        >>> path = Path(tempfile.mkdtemp()) / "index.html"
        >>> write_html(path, title="Run <1>", about=["Trained for 2 epochs."], parts=[Part(title="Scores")])
        >>> "<h1>Run &lt;1&gt;</h1>" in path.read_text()
        True
    """
    loader = PackageLoader("monai_spct.files", ".")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.get_template("page.html").render(title=title, about=about, parts=parts)
    with replacing(Path(path), "w") as file:
        file.write(page)
