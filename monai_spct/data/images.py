"""A folder of images without labels to a datalist, for inference."""

from __future__ import annotations

from pathlib import Path

__all__ = ["image_cases"]

_SUFFIXES = (".nii.gz", ".nii", ".mhd", ".mha")
_NO_IMAGES = ("_gt", "_4d", "_seg", "_segmentation", "_uncertainty")
_NO_IMAGES_IN = {"labelsTr", "labelsTs"}


def image_cases(folder: str | Path, *, exclude: str | Path | None = None) -> list[dict[str, str]]:
    """All NIfTI and MetaImage images in a folder and the folders below it, in the order of their names.

    Labels (``*_gt``, ``*_seg``, ``*_segmentation``, and whatever is in a folder ``labelsTr`` or ``labelsTs``), cines
    (``*_4d``) and uncertainty maps are passed over, and so are hidden files and folders. A case is called like its
    file, and where two files have one name, like its path.

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
    found = {}
    for path in sorted([folder] if folder.is_file() else folder.rglob("*")):
        suffix = next((suffix for suffix in _SUFFIXES if path.name.endswith(suffix)), None)
        if suffix is None:
            continue
        stem, parts = path.name.removesuffix(suffix), path.relative_to(root).parts
        hidden = any(part.startswith(".") for part in parts)
        ours = excluded is not None and excluded in path.parents
        label = stem.endswith(_NO_IMAGES) or not _NO_IMAGES_IN.isdisjoint(parts)
        if not (label or hidden or ours):
            found[path] = stem
    if not found:
        raise FileNotFoundError(
            f"no image ({', '.join(f'*{suffix}' for suffix in _SUFFIXES)}) in {folder} or below it."
        )
    if len(set(found.values())) < len(found):
        found = {path: path.relative_to(root).with_name(stem).as_posix() for path, stem in found.items()}
    return [{"case": case, "image": str(path)} for path, case in found.items()]
