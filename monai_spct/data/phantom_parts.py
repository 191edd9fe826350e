"""What phantoms share: their settings, a folder that is whole or not there, files, and a palette to draw with."""

import json
from collections.abc import Callable
from numbers import Integral
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

__all__ = [
    "generator",
    "inside",
    "over",
    "phantom_settings",
    "save_metaimage",
    "save_nifti",
    "texture",
    "write_phantom",
]

Array = NDArray[np.floating[Any]]

_SETTINGS = "phantom.json"


def phantom_settings(
    maker: str,
    version: int,
    *,
    patients: int,
    seed: int,
    size: tuple[int, int],
    spacing: tuple[float, float],
    slices: tuple[int, int],
    field: float,
    to_hold: str,
) -> dict[str, Any]:
    """The settings of a phantom as JSON has them, checked.

    Args:
        maker: the function that writes it, by its full name.
        version: of the drawing.
        patients: how many.
        seed: of everything drawn.
        size: least and largest number of voxels along an in-plane axis.
        spacing: least and largest in-plane voxel size in mm.
        slices: least and largest number of slices.
        field: mm that each slice must show at least.
        to_hold: what the field holds, for the message.

    Raises:
        ValueError: if a setting is out of its range.
    """
    if not (isinstance(patients, Integral) and 1 <= patients <= 999):
        raise ValueError(f"`patients` must be a whole number from 1 to 999, got {patients!r}.")
    if not (isinstance(seed, Integral) and seed >= 0):
        raise ValueError(f"`seed` must be a whole number of at least 0, got {seed!r}.")
    if not 8 <= size[0] <= size[1]:
        raise ValueError(f"`size` must be two numbers of voxels, at least 8 and rising, got {size!r}.")
    if not 0 < spacing[0] <= spacing[1] < np.inf:
        raise ValueError(f"`spacing` must be two positive lengths in mm, rising, got {spacing!r}.")
    if not size[0] * spacing[0] >= field:
        raise ValueError(
            f"`size[0] * spacing[0]` must be at least {field:g} mm to hold {to_hold}, got {size[0] * spacing[0]:g} mm."
        )
    if not 4 <= slices[0] <= slices[1]:
        raise ValueError(f"`slices` must be two numbers, at least 4 and rising, got {slices!r}.")
    return {
        "made_by": maker,
        "version": version,
        "patients": int(patients),
        "seed": int(seed),
        "size": [int(number) for number in size],
        "spacing": [float(length) for length in spacing],
        "slices": [int(number) for number in slices],
    }


def write_phantom(folder: str | Path, settings: dict[str, Any], write: Callable[[Path], None]) -> Path:
    """Write a folder, or find the one that was written before with the same settings.

    The folder appears at once when it is complete. One that holds anything else is not touched.

    Args:
        folder: where to.
        settings: what the content follows from; ``made_by`` names the function that writes it.
        write: writes everything into a folder that it is given, and that it may have to make.

    Returns:
        ``folder``, absolute.

    Raises:
        FileExistsError: if the folder holds something else, or a phantom of other settings.
    """
    folder = Path(folder).expanduser().absolute()
    target = folder.resolve()  # so that a link stays a link
    if _is_there(target, settings):
        return folder
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as beside:
        partial = Path(beside, target.name)
        partial.mkdir()
        write(partial)
        (partial / _SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        try:
            if target.is_dir():
                target.rmdir()  # fails unless it is still empty
            partial.rename(target)
        except OSError:
            # another process may have been faster, for example another rank of the same training
            if not _is_there(target, settings):
                raise
    return folder


def _is_there(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether this very phantom exists; an error if the place is taken by anything else."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        found = json.loads((folder / _SETTINGS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or found.get("made_by") != settings["made_by"]:
        raise FileExistsError(f"{folder} exists and is no phantom: it is left alone, choose another folder.")
    if found != settings:
        differing = ", ".join(
            f"{name} is {found.get(name)!r}, not {value!r}"
            for name, value in settings.items()
            if found.get(name) != value
        )
        raise FileExistsError(
            f"{folder} holds a phantom of other settings ({differing}): choose another folder, or delete this one."
        )
    return True


def generator(seed: int, number: int) -> np.random.Generator:
    """One for each patient: who follows, and how much was drawn before, changes nothing."""
    return np.random.default_rng([seed, number])


# --- files


def save_nifti(path: Path, array: NDArray[Any], affine: NDArray[np.float64]) -> None:
    """Voxels ``(*S)`` as NIfTI; sform and qform both say ``affine``."""
    image: Any = nib.Nifti1Image(array, affine)  # type: ignore[no-untyped-call]
    image.set_sform(affine, code="scanner")
    image.set_qform(affine, code="scanner")
    image.header.set_xyzt_units("mm", "sec")
    nib.save(image, path)


def save_metaimage(path: Path, array: NDArray[Any], spacing: tuple[float, float, float]) -> None:
    """Voxels ``(*S)``, int16 or uint8, as an ``.mhd`` file and ``.raw`` beside it; axes to the left, back and up."""
    lines = {
        "ObjectType": "Image",
        "NDims": 3,
        "BinaryData": True,
        "BinaryDataByteOrderMSB": False,
        "CompressedData": False,
        "TransformMatrix": "1 0 0 0 1 0 0 0 1",
        "Offset": "0 0 0",
        "CenterOfRotation": "0 0 0",
        "AnatomicalOrientation": "RAI",
        "ElementSpacing": " ".join(map(repr, spacing)),
        "DimSize": " ".join(map(str, array.shape)),
        "ElementType": {"int16": "MET_SHORT", "uint8": "MET_UCHAR"}[array.dtype.name],
        "ElementDataFile": path.with_suffix(".raw").name,  # the last line of a header
    }
    path.with_suffix(".raw").write_bytes(array.astype(array.dtype.newbyteorder("<")).tobytes(order="F"))
    path.write_text("".join(f"{name} = {value}\n" for name, value in lines.items()), encoding="ascii")


# --- the palette


def texture(rng: np.random.Generator, shape: tuple[int, ...], sigma: float, through: float = 0.6) -> Array:
    """Smooth noise of mean 0 and standard deviation 1, ``sigma`` in voxels."""
    noise = gaussian_filter(rng.standard_normal(shape, np.float32), (sigma, sigma, through), mode="wrap", truncate=3)
    return np.asarray((noise - noise.mean()) / noise.std(), np.float32)


def inside(distance: Array, blur: float | Array) -> Array:
    """Partial volume of a voxel ``distance`` mm inside an outline that is ``blur`` mm wide."""
    share: Array = np.clip(0.5 + distance / blur, 0, 1)
    return share


def over(picture: Array, share: Array, value: float | Array) -> Array:
    """``value`` laid over the picture where ``share`` is 1."""
    return picture + share * (value - picture)
