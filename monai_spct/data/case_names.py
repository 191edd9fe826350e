"""Case names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["case_name", "case_names", "given_names"]


def case_name(file: str | os.PathLike[str]) -> str:
    """The name of an image file without folder and suffix.

    Example:
        >>> case_name("training/patient001/patient001_frame01.nii.gz")
        'patient001_frame01'
    """
    return re.sub(r"(\.[^.]*)?(\.gz)?$", "", Path(file).name, count=1, flags=re.IGNORECASE)


def case_names(files: Sequence[str | os.PathLike[str]], root: str | os.PathLike[str] | None = None) -> list[str]:
    """Case names: those of the image files, or their paths where two files have one name.

    Args:
        files: the image file of each case, all different.
        root: a folder above all of them, where paths begin; by default the lowest one.

    Example:
        >>> case_names(["data/a.nii.gz", "data/b.nii.gz"])
        ['a', 'b']
        >>> case_names(["data/patient1/image.nii.gz", "data/patient2/image.nii.gz"])
        ['patient1/image', 'patient2/image']
    """
    names = [case_name(file) for file in files]
    if len(set(names)) == len(names):
        return names
    # cases in folders of their own
    shared = os.path.commonpath([Path(file).parent for file in files]) if root is None else root
    # of which `pathlib` would say that //a.nii does not lie in /
    return [
        Path(os.path.relpath(file, shared)).with_name(name).as_posix() for file, name in zip(files, names, strict=True)
    ]


def given_names(batch: object, count: int) -> list[str | None]:
    """The entry ``case`` of each item of a decollated batch, or ``None``.

    Args:
        batch: ``engine.state.batch`` of a MONAI evaluator.
        count: number of its items.

    Example:
        >>> given_names([{"case": "patient001_frame01"}, {}], 2)
        ['patient001_frame01', None]
    """
    items = batch if isinstance(batch, list) and len(batch) == count else [None] * count
    entries = [item.get("case") if isinstance(item, Mapping) else None for item in items]
    return [str(entry) if entry else None for entry in entries]
