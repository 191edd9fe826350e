"""A folder of images and labels, in one of the usual layouts, to a list of cases."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from monai_spct.data.case_names import case_names
from monai_spct.data.images import LABEL_ENDING, LABEL_FOLDERS, SUFFIXES, volume_files

__all__ = ["folder_cases"]

_CHANNEL = re.compile(r"(?P<case>.+)_(?P<channel>\d{4})")
_IMAGE_FOLDERS = tuple(name.replace("labels", "images") for name in LABEL_FOLDERS)
_Key = tuple[Path, str]  # the folder of the images, and the name without what tells labels and channels


def folder_cases(
    folder: str | Path, *, label: str | None = None, channels: Sequence[str] = (), patient: str | None = None
) -> list[dict[str, Any]]:
    """List the images of a folder and the folders below it with their labels.

    These layouts, in NIfTI or MetaImage, are found::

        imagesTr/a.nii.gz         labelsTr/a.nii.gz           also imagesTs, images
        imagesTr/a_0000.nii.gz    labelsTr/a.nii.gz           with imagesTr/a_0001.nii.gz, the second channel
        a.nii.gz                  a_gt.nii.gz                 or _seg, _segmentation, _label, _mask
        patient1/image.nii.gz     patient1/seg.nii.gz         one image and one label in a folder, however called

    An image without a label is listed without one. Hidden files, cines (``*_4d``) and uncertainty maps are passed over.

    Args:
        folder: where the files are.
        label: the end of a label's name, such as ``_roi``, instead of those above.
        channels: ends of the names of an image's files, such as ``["_t1", "_flair"]``, in the order of the channels;
            images with other ends are passed over.
        patient: a regular expression that finds the patient in the path of an image below ``folder``, by its first
            group if it has one. By default, patients are the first folders below the one that all images share, other
            than ``imagesTr`` and the like; without such folders each case is a patient of its own.

    Returns:
        One entry for each image, sorted by ``case``: ``patient``, ``case``, ``image`` (absolute path, or a list of them
        for several channels) and ``label`` (absolute path; left out where there is none).

    Raises:
        FileNotFoundError: if there is no image.
        ValueError: if a label has no image, a file is there in two formats, images have different channels, or
            ``patient`` does not find everyone; all of a kind are named at once.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.data import folder_cases
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("a_0000.nii", "a_0001.nii", "a_seg.nii"):
        ...     (folder / name).touch()
        >>> [case] = folder_cases(folder)
        >>> case["case"], [Path(file).name for file in case["image"]], Path(case["label"]).name
        ('a', ['a_0000.nii', 'a_0001.nii'], 'a_seg.nii')
    """
    root = Path(folder).expanduser().absolute()
    ending = LABEL_ENDING if label is None else re.compile(f"{re.escape(label)}$")
    labels: list[tuple[_Key, Path]] = []
    stems: list[tuple[Path, str, Path]] = []
    for path, stem in volume_files(root):
        place = _image_folder(path.parent.relative_to(root))
        if ending.search(stem) or root / place != path.parent:
            labels.append(((root / place, ending.sub("", stem)), path))
        else:
            stems.append((path.parent, stem, path))
    images = _named_channels(stems, channels) if channels else _numbered_channels(stems)
    if not images:
        raise FileNotFoundError(_nothing_found(root, label, channels))
    of_image = _paired(images, _unique(labels))
    cases = [
        {"image": str(files[0]) if len(files) == 1 else [str(file) for file in files]} for files in images.values()
    ]
    names = case_names([parent / f"{name}.nii" if name else f"{parent}.nii" for parent, name in images], root)
    for case, name, key in zip(cases, names, images, strict=True):
        case["case"] = name
        if key in of_image:
            case["label"] = str(of_image[key])
    _add_patients(cases, [files[0].relative_to(root) for files in images.values()], patient)
    return sorted(cases, key=lambda case: case["case"])


def _image_folder(folder: Path) -> Path:
    """The folder of the images that the labels in a folder belong to."""
    return Path(*(part.replace("labels", "images") if part in LABEL_FOLDERS else part for part in folder.parts))


def _named_channels(stems: Iterable[tuple[Path, str, Path]], channels: Sequence[str]) -> dict[_Key, list[Path]]:
    found: list[dict[_Key, Path]] = []
    for channel in channels:
        ends = [((parent, stem.removesuffix(channel)), path) for parent, stem, path in stems if stem.endswith(channel)]
        found.append(_unique(ends))
    everything = sorted({key for files in found for key in files})
    missing = [
        f"{parent / name}{channel}"
        for parent, name in everything
        for channel, files in zip(channels, found, strict=True)
        if (parent, name) not in files
    ]
    if missing:
        raise ValueError("every image must have all `channels`, missing are:\n" + "\n".join(missing))
    return {key: [files[key] for files in found] for key in everything}


def _numbered_channels(stems: Iterable[tuple[Path, str, Path]]) -> dict[_Key, list[Path]]:
    """Files that end in ``_0000``, ``_0001`` and so on are channels, if these numbers are complete."""
    files = _unique([((parent, stem), path) for parent, stem, path in stems])
    groups: dict[_Key, list[tuple[str, _Key]]] = {}
    for parent, stem in files:
        match = _CHANNEL.fullmatch(stem)
        key = (parent, match["case"]) if match else (parent, stem)
        groups.setdefault(key, []).append((match["channel"] if match else "", (parent, stem)))
    images: dict[_Key, list[Path]] = {}
    for key, members in groups.items():
        if [number for number, _ in members] == [f"{n:04d}" for n in range(len(members))]:
            images[key] = [files[member] for _, member in members]
        else:
            images |= {member: [files[member]] for _, member in members}
    counts = {len(paths) for paths in images.values()}
    if len(counts) > 1:
        shown = [f"{parent / name} ({len(paths)})" for (parent, name), paths in images.items()]
        raise ValueError("all images must have the same number of channels, got:\n" + "\n".join(shown))
    return images


def _unique(files: Sequence[tuple[_Key, Path]]) -> dict[_Key, Path]:
    found: dict[_Key, Path] = {}
    twice = [f"{found[key]} and {path}" for key, path in files if found.setdefault(key, path) != path]
    if twice:
        raise ValueError("files must not be there twice, got:\n" + "\n".join(twice))
    return found


def _paired(images: Mapping[_Key, object], labels: Mapping[_Key, Path]) -> dict[_Key, Path]:
    """The label of each image that has one: of the same name, or alone together in a folder."""
    pairs = {key: path for key, path in labels.items() if key in images}
    orphans = []
    for (parent, name), path in labels.items():
        if (parent, name) in images:
            continue
        here = [key for key in images if key[0] == parent]
        others = [key for key in labels if key[0] == parent]
        if len(here) == len(others) == 1:
            pairs[here[0]] = path
        else:
            orphans.append(path)
    if orphans:
        raise ValueError("every label must have its image, missing for:\n" + "\n".join(map(str, orphans)))
    return pairs


def _add_patients(cases: Sequence[dict[str, Any]], paths: Sequence[Path], pattern: str | None) -> None:
    if pattern is None:
        folders = [[part for part in path.parent.parts if part not in _IMAGE_FOLDERS] for path in paths]
        shared = next(n for n in count() if any(len(parts) <= n or parts[n] != folders[0][n] for parts in folders))
        for case, parts in zip(cases, folders, strict=True):
            case["patient"] = parts[shared] if len(parts) > shared else case["case"]
        return
    try:
        found = [re.search(pattern, path.as_posix()) for path in paths]
    except re.error as error:
        raise ValueError(f"`patient` must be a regular expression, got {pattern!r}: {error}.") from error
    unknown = [path.as_posix() for path, match in zip(paths, found, strict=True) if match is None]
    if unknown:
        raise ValueError(f"`patient` ({pattern!r}) must find every patient, and finds none in:\n" + "\n".join(unknown))
    for case, match in zip(cases, found, strict=True):
        if match is not None:
            case["patient"] = match[1] if match.re.groups else match[0]


def _nothing_found(root: Path, label: str | None, channels: Sequence[str]) -> str:
    if not root.is_dir():
        return f"there is no folder {root}."
    ends = ", ".join(f"*{channel}{suffix}" for channel in channels or [""] for suffix in SUFFIXES)
    labels = "a_gt, a_seg, a_segmentation, a_label, a_mask" if label is None else f"a{label}"
    return (
        f"no image ({ends}) in {root} or below it.\n"
        f"It should hold imagesTr/a.nii.gz and labelsTr/a.nii.gz, or a.nii.gz and its label ({labels}), or a folder "
        "for each patient with an image and a label."
    )
