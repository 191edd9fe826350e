"""Cases of the left atrium data of the 2018 challenge."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monai_spct.data.folder import files_below, image_cases, try_phantom
from monai_spct.data.hdf5 import dataset_names, is_hdf5
from monai_spct.data.volumes import open_volume

__all__ = ["atrium_cases", "atrium_images"]

_FILES = {"mri_norm2.h5": "", "lgemri.nrrd": "image", "laendo.nrrd": "label"}


def atrium_cases(folder: str | Path) -> list[dict[str, str]]:
    """List the cases of the left atrium data of the 2018 challenge.

    The folder, or folders below it, hold the challenge's own files, or the copy on which methods for few labels are
    compared. That one is cropped around the atrium and has no voxel sizes::

        <ID>/mri_norm2.h5       datasets image and label: 0 background, 1 left atrium

        <ID>/lgemri.nrrd        image
        <ID>/laendo.nrrd        label: 0 background, 255 left atrium

    Other files are ignored. Labels are not changed here: a training on the challenge's own files maps 255 to 1 where it
    loads them, by MONAI's ``MapLabelValued``.

    Args:
        folder: where the data is.

    Returns:
        One entry per case, sorted by ``case``, all values strings: ``patient`` and ``case`` (both the ID), ``image``
        and ``label`` (absolute paths, in HDF5 with the name of the dataset; no ``label`` where there is none).

    Raises:
        FileNotFoundError: if the folder is missing or holds no cases.
        ImportError: if the copy is there, and h5py is not.
        ValueError: if a label lacks its image, a case is there twice or in both forms, or a header cannot be read;
            names all.

    Source:
        Xiong et al., *A global benchmark of algorithms for segmenting the left atrium from late gadolinium-enhanced
        cardiac magnetic resonance imaging*, Medical Image Analysis 2021.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from monai_spct.data import atrium_cases, write_atrium_phantom
        >>> with TemporaryDirectory() as parent:
        ...     cases = atrium_cases(write_atrium_phantom(f"{parent}/atrium", patients=2, slices=(8, 8)))
        >>> cases[0]["case"], Path(cases[0]["label"]).name
        ('ATRIUM001', 'mri_norm2.h5::label')
    """
    root = Path(folder).expanduser().absolute()
    files = [path for path in files_below(root) if path.name in _FILES] if root.is_dir() else []
    if not files:
        raise FileNotFoundError(
            f"no left atrium data in {root} ({'it holds none' if root.is_dir() else 'there is no such folder'}).\n"
            "It should hold, in a folder for each patient, mri_norm2.h5 with the datasets image and label, or "
            "lgemri.nrrd and laendo.nrrd.\n"
            "The data come from https://www.cardiacatlas.org/atriaseg2018-challenge/ (its terms apply).\n"
            f"{try_phantom('atrium')}"
        )
    of_copy = {is_hdf5(path): path for path in reversed(files)}
    if len(of_copy) > 1:
        raise ValueError(
            f"the challenge's own files and a copy of them are there, {of_copy[False]} and {of_copy[True]}: name the "
            "folder of one."
        )
    cases: dict[str, dict[str, str]] = {}
    problems = []
    for path in files:
        name = path.parent.name
        case = cases.setdefault(name, {"patient": name, "case": name})
        try:
            for key, volume in _volumes(path).items():
                if key in case:
                    problems.append(f"{name} is there twice: {case[key]} and {volume}; name the folder of one.")
                case[key] = volume
                open_volume(volume)
        except ValueError as error:
            problems.append(str(error))
    problems += [
        f"label without its image: {case['label']}."
        for case in cases.values()
        if "image" not in case and "label" in case
    ]
    if problems:
        raise ValueError("\n".join(problems))
    return [cases[name] for name in sorted(cases)]


def _volumes(path: Path) -> dict[str, str]:
    """Image and label of a file."""
    if not is_hdf5(path):
        return {_FILES[path.name]: str(path)}
    there = dataset_names(path)
    volumes: dict[str, str] = {key: f"{path}::{key}" for key in ("image", "label") if key in there}
    if not volumes:
        raise ValueError(f"{path} must have the datasets image and label, got {', '.join(there) or 'none'}.")
    return volumes


def atrium_images(folder: str | Path, *, channels: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """List images of the left atrium for inference: of the copy in HDF5, or of any folder.

    Args:
        folder: with ``mri_norm2.h5`` files in it or below it, as for :func:`atrium_cases`, or with images as for
            :func:`~monai_spct.data.image_cases`.
        channels: as for :func:`~monai_spct.data.image_cases`.

    Returns:
        Dictionaries with ``case`` and ``image``.

    Raises:
        FileNotFoundError, ImportError, ValueError: as the two.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from monai_spct.data import atrium_images, write_atrium_phantom
        >>> with TemporaryDirectory() as parent:
        ...     images = atrium_images(write_atrium_phantom(f"{parent}/atrium", patients=2, slices=(8, 8)))
        >>> [(case["case"], Path(case["image"]).name) for case in images]
        [('ATRIUM001', 'mri_norm2.h5::image'), ('ATRIUM002', 'mri_norm2.h5::image')]
    """
    root = Path(folder).expanduser().absolute()
    if root.is_dir() and any(is_hdf5(path) for path in files_below(root) if path.name in _FILES):
        return [{"case": case["case"], "image": case["image"]} for case in atrium_cases(root)]
    return image_cases(root, channels=channels)
