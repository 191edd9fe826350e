"""Folders of images and labels, in one of the usual layouts, as lists of cases."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from monai.utils.misc import ensure_tuple

from monai_spct.data.case_names import case_names
from monai_spct.data.dicom import is_dicom
from monai_spct.data.hdf5 import dataset_names, is_hdf5
from monai_spct.data.predictions import is_prediction
from monai_spct.data.volumes import open_volume

__all__ = ["files_below", "folder_cases", "image_cases", "try_phantom"]

_SUFFIX = re.compile(r"\.(nii(\.gz)?|mhd|mha|nrrd|h5)$", re.IGNORECASE)
_LABEL = re.compile(r"(^|[_.\s-])(gt|seg|segmentation|labels?|masks?)$", re.IGNORECASE)
_LABEL_FOLDERS = ("labels", "labelsTr", "labelsTs")
_IMAGE_FOLDERS = tuple(name.replace("labels", "images") for name in _LABEL_FOLDERS)
_NO_VOLUMES = ("_4d", "_uncertainty")
_CHANNEL = re.compile(r"(?P<case>.+)_(?P<channel>\d{4})")
_Key = tuple[Path, str]  # the folder of the images, and the name without what tells labels and channels


def image_cases(folder: str | Path, *, channels: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """List the images of a folder and the folders below it, for inference.

    Files are told apart as by :func:`folder_cases`. A folder with DICOM files is an image too, and is opened already,
    to say at once what is wrong with any of them. Predictions and uncertainty maps of
    :class:`~monai_spct.handlers.SavePredictions` are ignored.

    Args:
        folder: the folder, or one file.
        channels: ends of the names of an image's files, such as ``["_t1", "_flair"]``, in the order of the channels.

    Returns:
        Dictionaries with ``case`` and ``image``, a file, a list of channels or a folder, in the order of their paths.

    Raises:
        FileNotFoundError: if there is no image.
        ImportError: if there is DICOM, and ITK is not installed.
        ValueError: if an image is there in two formats, or lacks a channel, or the DICOM files of a folder are not the
            slices of one volume; names all of a kind.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("b.nii.gz", "a.nii", "a_gt.nii", "._a.nii"):
        ...     (folder / name).touch()
        >>> [case["case"] for case in image_cases(folder)]
        ['a', 'b']
    """
    root = Path(folder).expanduser().absolute()
    images, _ = _found(root, None, ensure_tuple(channels or ()), series=not channels)
    problems = []
    for files in images.values():
        if files[0].is_dir():
            try:
                open_volume(files[0])
            except ValueError as error:
                problems.append(str(error))
    if problems:
        raise ValueError("\n".join(problems))
    return _cases(images, root.parent if root.is_file() else root)


def folder_cases(
    folder: str | Path, *, label: str | None = None, channels: Sequence[str] = (), patient: str | None = None
) -> list[dict[str, Any]]:
    """List the images of a folder and the folders below it with their labels.

    These layouts, in NIfTI, MetaImage, NRRD or HDF5, are found::

        imagesTr/a.nii.gz         labelsTr/a.nii.gz           also imagesTs, images
        imagesTr/a_0000.nii.gz    labelsTr/a.nii.gz           with imagesTr/a_0001.nii.gz, the second channel
        a.nii.gz                  a_gt.nii.gz                 or seg, segmentation, label, mask; or a-gt, a.gt
        patient1/image.nii.gz     patient1/seg.nii.gz         one image and one label in a folder, however called
        a.h5                                                  with datasets called image and, perhaps, label

    Links are followed. Hidden files, cines (``*_4d``), uncertainty maps and predictions of
    :class:`~monai_spct.handlers.SavePredictions` are ignored.

    Args:
        folder: where the files are.
        label: the end of a label's name, such as ``_roi``, instead of those above.
        channels: ends of the names of an image's files, such as ``["_t1", "_flair"]``, in the order of the channels;
            images with other ends are ignored.
        patient: a regular expression that finds the patient in an image's path below ``folder``, by its first group if
            it has one. By default, patients are the first folders below the one that all images share, other than
            ``imagesTr`` and the like, or else the cases.

    Returns:
        One entry per image, sorted by ``case``: ``patient``, ``case``, ``image`` (absolute path, or a list of channels)
        and ``label`` (absolute path, if there is one).

    Raises:
        FileNotFoundError: if there is no image.
        ValueError: if a label has no image, a file is there in two formats, images have different channels, or
            ``patient`` does not match; names all of a kind.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("a_0000.nii", "a_0001.nii", "a_seg.nii"):
        ...     (folder / name).touch()
        >>> [case] = folder_cases(folder)
        >>> case["case"], [Path(file).name for file in case["image"]], Path(case["label"]).name
        ('a', ['a_0000.nii', 'a_0001.nii'], 'a_seg.nii')
    """
    root = Path(folder).expanduser().absolute()
    images, labels = _found(root, label, ensure_tuple(channels))
    of_image = _paired(images, labels)
    cases = _cases(images, root)
    patients = _patients([files[0].relative_to(root) for files in images.values()], patient)
    for case, key, name in zip(cases, images, patients, strict=True):
        case["patient"] = case["case"] if name is None else name.strip()
        if key in of_image:
            case["label"] = str(of_image[key])
    return sorted(cases, key=lambda case: case["case"])


def files_below(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """List the files in a folder and the folders below it, sorted; follow links, but skip hidden files.

    Args:
        folder: where to begin.
        above: real paths of the folders that it is in, to which no link is followed.
    """
    above |= {folder.resolve()}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_file():
            yield path
        elif path.is_dir() and path.resolve() not in above:
            yield from files_below(path, above)


def try_phantom(bundle: str) -> str:
    """Hint for messages about missing data: how to train a bundle on synthetic data."""
    configs = [f"bundles/{bundle}/configs/{name}.json" for name in ("train", "phantom")]
    return (
        "To try everything on made-up data instead:\n"
        f"  python -m monai.bundle run training --config_file \"['{configs[0]}','{configs[1]}']\""
    )


def _found(
    root: Path, label: str | None, channels: Sequence[str], *, series: bool = False
) -> tuple[dict[_Key, list[Path]], dict[_Key, Path]]:
    """The files of each image and each label; of a DICOM series its folder, if they are wanted."""
    ending = _LABEL if label is None else re.compile(f"{re.escape(label)}$")
    images: dict[_Key, dict[str, Path]] = {}
    labels: dict[_Key, Path] = {}
    twice = []
    for path in [root] if root.is_file() else files_below(root) if root.is_dir() else []:
        stem = _SUFFIX.sub("", path.name)
        if stem == path.name and series and is_dicom(path):
            folder = path.parent
            first = images.setdefault((folder.parent, folder.name), {}).setdefault("", folder)
            if first != folder:
                twice.append(f"{first} and {folder}")
        if stem == path.name or stem.endswith(_NO_VOLUMES):
            continue
        if is_hdf5(path):
            held = set(dataset_names(path))
            images |= {(path.parent, stem): {"": Path(f"{path}::image")}} if "image" in held else {}
            labels |= {(path.parent, stem): Path(f"{path}::label")} if "label" in held else {}
            continue
        parent = path.parent if root.is_file() else root / _image_folder(path.parent.relative_to(root))
        if ending.search(stem) or parent != path.parent:
            first = labels.setdefault((parent, ending.sub("", stem)), path)
        elif is_prediction(path) or (one := _channel(stem, channels)) is None:
            continue
        else:
            first = images.setdefault((parent, one[0]), {}).setdefault(one[1], path)
        if first != path:
            twice.append(f"{first} and {path}")
    if twice:
        raise ValueError("files must not be there twice, got:\n" + "\n".join(twice))
    if not images:
        raise FileNotFoundError(_nothing_found(root, label, channels))
    return (_named_channels(images, channels) if channels else _numbered_channels(images)), labels


def _image_folder(folder: Path) -> Path:
    """The folder of the images that the labels in a folder belong to."""
    return Path(*(part.replace("labels", "images") if part in _LABEL_FOLDERS else part for part in folder.parts))


def _channel(stem: str, channels: Sequence[str]) -> tuple[str, str] | None:
    """The name of an image, and what tells the channel; nothing if it is none of ``channels``."""
    if channels:
        end = max((channel for channel in channels if stem.endswith(channel)), key=len, default=None)
        return None if end is None else (stem.removesuffix(end), end)
    match = _CHANNEL.fullmatch(stem)
    return (match["case"], match["channel"]) if match else (stem, "")


def _named_channels(images: Mapping[_Key, Mapping[str, Path]], channels: Sequence[str]) -> dict[_Key, list[Path]]:
    missing = [
        f"{parent / name}{channel}"
        for (parent, name), files in images.items()
        for channel in channels
        if channel not in files
    ]
    if missing:
        raise ValueError("every image must have all `channels`, missing are:\n" + "\n".join(missing))
    return {key: [files[channel] for channel in channels] for key, files in images.items()}


def _numbered_channels(images: Mapping[_Key, Mapping[str, Path]]) -> dict[_Key, list[Path]]:
    """Files that end in ``_0000``, ``_0001`` and so on are channels, if these numbers are complete."""
    found: dict[_Key, list[Path]] = {}
    for (parent, name), files in images.items():
        if list(files) == [f"{number:04d}" for number in range(len(files))]:
            found[parent, name] = list(files.values())
        else:
            found |= {(parent, f"{name}_{end}" if end else name): [path] for end, path in files.items()}
    if len({len(files) for files in found.values()}) > 1:
        shown = [f"{parent / name} ({len(files)})" for (parent, name), files in found.items()]
        raise ValueError("all images must have the same number of channels, got:\n" + "\n".join(shown))
    return found


def _cases(images: Mapping[_Key, Sequence[Path]], root: Path) -> list[dict[str, Any]]:
    names = case_names([parent / f"{name}.nii" if name else f"{parent}.nii" for parent, name in images], root)
    files = [[str(file) for file in files] for files in images.values()]
    return [
        {"case": name, "image": some[0] if len(some) == 1 else some} for name, some in zip(names, files, strict=True)
    ]


def _paired(images: Mapping[_Key, object], labels: Mapping[_Key, Path]) -> dict[_Key, Path]:
    """The label of each image that has one: of the same name, or alone together in a folder."""
    pairs = {key: path for key, path in labels.items() if key in images}
    orphans = []
    for (parent, name), path in labels.items():
        if (parent, name) in images:
            continue
        here, others = ([key for key in keys if key[0] == parent] for keys in (images, labels))
        if len(here) == len(others) == 1:
            pairs[here[0]] = path
        else:
            orphans.append(str(path))
    if orphans:
        raise ValueError("every label must have its image, missing for:\n" + "\n".join(orphans))
    return pairs


def _patients(paths: Sequence[Path], pattern: str | None) -> list[str | None]:
    """The patient of each path; nothing where each case is one."""
    if pattern is None:
        folders = [[part for part in path.parent.parts if part not in _IMAGE_FOLDERS] for path in paths]
        shared = next(n for n in count() if any(len(parts) <= n or parts[n] != folders[0][n] for parts in folders))
        return [parts[shared] if len(parts) > shared else None for parts in folders]
    try:
        found = [re.search(pattern, path.as_posix()) for path in paths]
    except re.error as error:
        raise ValueError(f"`patient` must be a regular expression, got {pattern!r}: {error}.") from error
    if unknown := [path.as_posix() for path, match in zip(paths, found, strict=True) if match is None]:
        raise ValueError(f"`patient` ({pattern!r}) must find every patient, and finds none in:\n" + "\n".join(unknown))
    return [match[1] if match.re.groups else match[0] for match in found if match is not None]


def _nothing_found(root: Path, label: str | None, channels: Sequence[str]) -> str:
    if not root.exists():
        return f"there is no folder {root}."
    ends = ", ".join(
        f"*{channel}{end}" for channel in channels or [""] for end in (".nii.gz", ".nii", ".mhd", ".mha", ".nrrd")
    )
    labels = "a_gt, a_seg, a_segmentation, a_label, a_mask" if label is None else f"a{label}"
    return (
        f"no image ({ends}) in {root} or below it.\n"
        f"It should hold imagesTr/a.nii.gz and labelsTr/a.nii.gz, or a.nii.gz and its label ({labels}), or a folder "
        "for each patient with an image and a label. DICOM is read for prediction alone: convert it, as by dcm2niix."
    )
