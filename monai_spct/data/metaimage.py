"""MetaImage files (``.mhd`` with ``.raw``, ``.mha``), with checks of their headers.

ITK reads the voxels. It takes defaults for lines that it does not understand and follows any name of a data file, so
the header is parsed here.
"""

from __future__ import annotations

from math import prod
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from monai_spct.data.by_itk import LARGEST, SMALLEST, volume_by_itk
from monai_spct.data.volume import Volume
from monai_spct.files.paths import is_there, leaves_folder

__all__ = ["is_metaimage", "open_metaimage"]

_BYTES = {
    **dict.fromkeys(("MET_CHAR", "MET_UCHAR"), 1),
    **dict.fromkeys(("MET_SHORT", "MET_USHORT"), 2),
    **dict.fromkeys(("MET_INT", "MET_UINT", "MET_LONG", "MET_ULONG", "MET_FLOAT"), 4),
    **dict.fromkeys(("MET_LONG_LONG", "MET_ULONG_LONG", "MET_DOUBLE"), 8),
}
_LONGEST = 16384  # bytes; a header has some twenty lines


def is_metaimage(path: str | PathLike[str]) -> bool:
    """Whether a file is named like a MetaImage header."""
    return Path(path).suffix.lower() in (".mhd", ".mha")


def open_metaimage(path: str | PathLike[str]) -> Volume:
    """A volume; see :func:`~monai_spct.data.open_volume`.

    Source:
        https://itk.org/Wiki/ITK/MetaIO/Documentation
    """
    path = Path(path)
    try:
        fields, end = _fields(path)
        shape, spacing, affine = _grid(fields)
        size = prod(shape) * _bytes_of_a_voxel(fields)
        data_file, start = _place(path, fields, end)
        compressed = fields.get("CompressedData", "False").lower() == "true"
        packed = max(0, int(fields.get("CompressedDataSize", 0))) if compressed else None  # 0: not told
    except KeyError as error:
        raise ValueError(f"{path} is not a readable MetaImage header: it has no {error.args[0]}.") from error
    except ValueError as error:
        raise ValueError(f"{path} is not a readable MetaImage header: {str(error).rstrip('.')}.") from error
    if not is_there(data_file):
        raise ValueError(f"{path} has its voxels in {data_file.name}, which does not exist beside it.")
    return volume_by_itk(path, shape, affine, spacing, data_file=data_file, start=start, size=size, packed=packed)


def _fields(path: Path) -> tuple[dict[str, str], int]:
    """The lines of a header by name, and where it ends in the file: the name of the data file is the last line."""
    with path.open("rb") as file:
        text = file.read(_LONGEST)
    fields: dict[str, str] = {}
    end = 0
    for line in text.splitlines(keepends=True):
        end += len(line)
        try:
            name, separator, value = (part.strip() for part in line.decode("utf-8").partition("="))
        except UnicodeDecodeError:  # on which ITK's fields break
            raise ValueError("it is not text in UTF-8") from None
        if not separator:
            break
        if name in fields:
            raise ValueError(f"{name} is there twice")
        fields[name] = value
        if name == "ElementDataFile":
            break
    return fields, end


def _grid(fields: dict[str, str]) -> tuple[tuple[int, ...], NDArray[np.float64], NDArray[np.float64]]:
    """Shape, voxel sizes and affine."""
    if (dimensions := int(fields["NDims"])) != 3:
        raise ValueError(f"it is {dimensions}-D; give single volumes")
    shape = tuple(int(number) for number in fields["DimSize"].split())
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"DimSize is {fields['DimSize']}")
    spacing = _numbers(fields, ("ElementSpacing", "ElementSize"), (1, 1, 1))
    if np.abs(spacing).min() < SMALLEST:
        raise ValueError(f"ElementSpacing is {' '.join(f'{size:g}' for size in spacing)}")
    # a row of the file is the direction of an axis
    matrix = _numbers(fields, ("TransformMatrix", "Rotation", "Orientation"), (1, 0, 0, 0, 1, 0, 0, 0, 1))
    directions = matrix.reshape(3, 3).T
    if not np.allclose(directions.T @ directions, np.eye(3), atol=1e-2):
        raise ValueError("TransformMatrix must hold three directions of length 1 at right angles")
    affine = np.eye(4)
    affine[:3, :3] = directions * spacing
    affine[:3, 3] = _numbers(fields, ("Offset", "Position", "Origin"), (0, 0, 0))
    affine[:2] *= -1  # left and back, as DICOM has it, to right and front
    return shape, spacing, affine


def _numbers(fields: dict[str, str], names: tuple[str, ...], default: tuple[float, ...]) -> NDArray[np.float64]:
    """The numbers under the first of the names that is there."""
    given = next((fields[name].split() for name in names if name in fields), default)
    numbers = np.asarray(given, dtype=np.float64)
    if numbers.shape != (len(default),) or not (np.abs(numbers) <= LARGEST).all():  # nan fails, too
        raise ValueError(f"{names[0]} must be {len(default)} numbers")
    return numbers


def _bytes_of_a_voxel(fields: dict[str, str]) -> int:
    if fields["ElementType"] not in _BYTES:
        raise ValueError(f"ElementType is {fields['ElementType']}")
    if (values := int(fields.get("ElementNumberOfChannels", 1))) != 1:
        raise ValueError(f"it has {values} values for each voxel; give channels as files of their own")
    return _BYTES[fields["ElementType"]]


def _place(path: Path, fields: dict[str, str], end: int) -> tuple[Path, int]:
    """The file with the voxels, and the bytes in front of them; below 0 they are at its end, whatever is before."""
    name = fields["ElementDataFile"]
    if name.upper().startswith("LIST") or "%" in name:
        raise ValueError(f"ElementDataFile is {name}; give volumes whose voxels are in one file")
    if leaves_folder(name):
        raise ValueError(f"ElementDataFile is {name}, which is not below the folder of the header")
    return (path, end) if name.upper() == "LOCAL" else (path.parent / name, int(fields.get("HeaderSize", 0)))
