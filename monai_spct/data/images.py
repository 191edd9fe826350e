"""A folder of images without labels to a datalist, for inference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from monai_spct.data.case_names import case_names

__all__ = ["LABEL_ENDING", "LABEL_FOLDERS", "SUFFIXES", "image_cases", "volume_files"]

SUFFIXES = (".nii.gz", ".nii", ".mhd", ".mha")
LABEL_ENDING = re.compile(r"(^|_)(gt|seg|segmentation|label|mask)$", re.IGNORECASE)
LABEL_FOLDERS = ("labels", "labelsTr", "labelsTs")
_NO_IMAGES = ("_4d", "_uncertainty")


def image_cases(folder: str | Path, *, exclude: str | Path | None = None) -> list[dict[str, str]]:
    """All NIfTI and MetaImage images in a folder and the folders below it, in the order of their names.

    Labels (``gt``, ``seg``, ``segmentation``, ``label`` and ``mask``, alone or at the end of a name such as ``a_gt``,
    and whatever is in a folder ``labels``, ``labelsTr`` or ``labelsTs``), cines (``*_4d``) and uncertainty maps are
    passed over, and so are hidden files and folders. A case is called like its file, and where two files have one name,
    like its path.

    Args:
        folder: the folder, or one file.
        exclude: a folder below it that is passed over, as that of earlier predictions.

    Returns:
        Dictionaries with ``case`` and ``image``.

    Raises:
        FileNotFoundError: when there is no image.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.data import image_cases
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("b.nii.gz", "a.nii", "a_gt.nii", "._a.nii"):
        ...     (folder / name).touch()
        >>> [case["case"] for case in image_cases(folder)]
        ['a', 'b']
    """
    folder = Path(folder).expanduser().absolute()
    root = folder.parent if folder.is_file() else folder
    excluded = None if exclude is None else Path(exclude).expanduser().absolute()
    found = [
        path
        for path, stem in volume_files(folder)
        if not LABEL_ENDING.search(stem)
        and set(LABEL_FOLDERS).isdisjoint(path.relative_to(root).parts)
        and excluded not in path.parents
    ]
    if not found:
        raise FileNotFoundError(f"no image ({', '.join(f'*{suffix}' for suffix in SUFFIXES)}) in {folder} or below it.")
    return [{"case": name, "image": str(path)} for name, path in zip(case_names(found, root), found, strict=True)]


def volume_files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Images and labels in a folder and the folders below it, by their paths, and their names without suffixes.

    Cines, uncertainty maps and whatever is hidden are passed over.

    Args:
        folder: the folder, or one file.
    """
    root = folder.parent if folder.is_file() else folder
    for path in sorted([folder] if folder.is_file() else folder.rglob("*")):
        suffix = next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), None)
        if suffix is None or any(part.startswith(".") for part in path.relative_to(root).parts):
            continue
        stem = path.name.removesuffix(suffix)
        if not stem.endswith(_NO_IMAGES):
            yield path, stem
