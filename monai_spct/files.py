"""Files that are whole or not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

__all__ = ["replacing"]


@contextmanager
def replacing(path: str | os.PathLike[str], mode: str = "wb") -> Iterator[IO[Any]]:
    """A file to write, which takes the place of ``path`` when it is complete.

    Whenever the writing is interrupted, by an error, a signal, a full disk or a power cut, ``path`` is either the old
    file or the whole new one. Folders are made if need be.

    Args:
        path: the file.
        mode: ``wb`` for bytes or ``w`` for text in UTF-8, without translation of line ends.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.files import replacing
        >>> path = Path(tempfile.mkdtemp()) / "new" / "note.txt"
        >>> with replacing(path, "w") as file:
        ...     _ = file.write("all of it")
        >>> path.read_text()
        'all of it'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    opened: IO[Any] = tempfile.NamedTemporaryFile(  # noqa: SIM115 - closed below
        mode, dir=path.parent, prefix=f".{path.name}.", delete=False, **text
    )
    with opened as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            Path(file.name).unlink()
            raise
    umask = os.umask(0)
    os.umask(umask)
    Path(file.name).chmod(0o666 & ~umask)  # temporary files are private, results are not
    Path(file.name).replace(path)
