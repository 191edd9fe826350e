"""Cases of a Medical Segmentation Decathlon task, as it is downloaded."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from monai_spct.data.case_names import case_name
from monai_spct.data.folder import try_phantom
from monai_spct.files.paths import is_there, leaves_folder

__all__ = ["decathlon_cases"]


def decathlon_cases(folder: str | Path, *, with_test_images: bool = False) -> list[dict[str, str]]:
    """List the cases of a task of the Medical Segmentation Decathlon, such as ``Task09_Spleen``.

    ``dataset.json`` says what there is; other files are ignored::

        dataset.json                  {"training": [{"image": "./imagesTr/a.nii.gz", "label": "./labelsTr/a.nii.gz"}],
                                       "test": ["./imagesTs/b.nii.gz"]}
        imagesTr/a.nii.gz
        labelsTr/a.nii.gz             for the spleen: 0 background, 1 spleen
        imagesTs/b.nii.gz             has no label

    Args:
        folder: where ``dataset.json`` is.
        with_test_images: also list the images under ``test``, which have no ``label``. The paper leaves them out.

    Returns:
        One entry per image, sorted by ``case``, all values strings: ``patient`` and ``case`` (both the file's name
        without its suffix), ``image`` and ``label`` (absolute paths).

    Raises:
        FileNotFoundError: if ``dataset.json``, or files that it names, are missing; names all.
        ValueError: if ``dataset.json`` cannot be read, leads out of its folder, names an image twice, or lists nothing.

    Source:
        Simpson et al., *A large annotated medical image dataset for the development and evaluation of segmentation
        algorithms*, 2019, https://arxiv.org/abs/1902.09063.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from monai_spct.data import decathlon_cases, write_spleen_phantom
        >>> with TemporaryDirectory() as parent:
        ...     cases = decathlon_cases(write_spleen_phantom(f"{parent}/spleen", patients=2))
        >>> cases[0]["case"], Path(cases[0]["label"]).parent.name
        ('spleen_1', 'labelsTr')
    """
    root = Path(folder).expanduser().absolute()
    listing = root / "dataset.json"
    if not listing.is_file():
        why = f"{listing} does not exist" if root.is_dir() else "there is no such folder"
        raise FileNotFoundError(
            f"no data set of the Medical Segmentation Decathlon in {root} ({why}).\n"
            "It should hold dataset.json, imagesTr and labelsTr.\n"
            "The spleen is Task09_Spleen of http://medicaldecathlon.com (CC BY-SA 4.0).\n"
            f"{try_phantom('spleen')}"
        )
    entries = _entries(listing, with_test_images)
    if not entries:
        raise ValueError(f"{listing} lists no cases under `training`.")
    cases, outside, missing = [], [], []
    for entry in entries:
        case = {}
        for key, name in entry.items():
            path = Path(os.path.normpath(root / name))
            if leaves_folder(name):
                outside.append(name)
            elif not is_there(path):
                missing.append(str(path))
            case[key] = str(path)
        name = case_name(case["image"])
        cases.append({"patient": name, "case": name, **case})
    if outside:
        raise ValueError(f"{listing} names files outside of its folder: {', '.join(outside)}.")
    if missing:
        raise FileNotFoundError(f"{listing} names files that do not exist:\n" + "\n".join(missing))
    if twice := [name for name, count in Counter(case["case"] for case in cases).items() if count > 1]:
        raise ValueError(f"{listing} must list each image once, got twice: {', '.join(twice)}.")
    return sorted(cases, key=lambda case: case["case"])


def _entries(listing: Path, with_test_images: bool) -> list[dict[str, str]]:
    """What ``dataset.json`` lists, as ``image`` and ``label``."""
    try:
        content: Any = json.loads(listing.read_text(encoding="utf-8"))
        entries = [{"image": str(entry["image"]), "label": str(entry["label"])} for entry in content["training"]]
        unlabeled = content.get("test", []) if with_test_images else []
        return entries + [{"image": str(item["image"] if isinstance(item, dict) else item)} for item in unlabeled]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{listing} must list `training` as image and label of each case: {type(error).__name__}: {error}."
        ) from error
