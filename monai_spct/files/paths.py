"""File names that other files give."""

from __future__ import annotations

import os
from pathlib import Path, PurePath, PurePosixPath

__all__ = ["can_be_called", "is_there", "leaves_folder"]


def leaves_folder(name: str) -> bool:
    """Whether a name leads out of its folder: it is absolute, or goes up by ``..`` further than down.

    Links are not followed: where they lead is up to whoever made them.

    Example:
        >>> from monai_spct.files import leaves_folder
        >>> [leaves_folder(name) for name in ("case.raw", "a/../case.raw", "a/../../case.raw", "/etc/passwd")]
        [False, False, True, True]
    """
    path = PurePath(os.path.normpath(name))
    return bool(path.anchor) or path.parts[:1] == ("..",)


def is_there(path: str | os.PathLike[str]) -> bool:
    r"""Whether there is such a file; there is none of a name that no file can have.

    Example:
        >>> from monai_spct.files import is_there
        >>> is_there("x" * 1000), is_there("a\0b")
        (False, False)
    """
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # too long, or with characters that no file system has
        return False


def can_be_called(name: str) -> bool:
    """Whether files in a folder, or in folders below it, can have this name, with slashes whatever the system.

    Example:
        >>> from monai_spct.files import can_be_called
        >>> [can_be_called(name) for name in ("patient001", "site1/patient001", "../patient001", "/patient001", "a/")]
        [True, True, False, False, False]
    """
    path = PurePosixPath(name)
    if not path.parts or str(path) != name or ".." in path.parts or "\\" in name or path.is_absolute():
        return False
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        return False
