"""A folder of images without labels to a datalist, for inference."""

from __future__ import annotations

from pathlib import Path

__all__ = ["image_cases"]

_NO_IMAGES = ("_gt", "_4d", "_seg", "_uncertainty")


def image_cases(folder: str | Path) -> list[dict[str, str]]:
    """All NIfTI images in a folder and the folders below it, in the order of their names.

    Labels and cines of ACDC (``*_gt``, ``*_4d``), ``*_seg`` and uncertainty maps are passed over, and so are hidden
    files.

    Args:
        folder: the folder, or one NIfTI file.

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
    folder = Path(folder)
    found = [folder] if folder.is_file() else sorted(folder.rglob("*.nii")) + sorted(folder.rglob("*.nii.gz"))
    cases = []
    for path in sorted(found):
        name = path.name.removesuffix(".gz").removesuffix(".nii")
        if not name.startswith(".") and not name.endswith(_NO_IMAGES):
            cases.append({"case": name, "image": str(path.absolute())})
    if not cases:
        raise FileNotFoundError(f"no NIfTI image (*.nii, *.nii.gz) in {folder.absolute()} or below it.")
    return cases
