"""NRRD files (``.nrrd``), with checks of their headers; ITK reads the voxels."""

from __future__ import annotations

import re
from math import prod
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from monai_spct.data.by_itk import LARGEST, SMALLEST, volume_by_itk
from monai_spct.data.volume import Volume

__all__ = ["is_nrrd", "open_nrrd"]

_BYTES = {  # of the types that ITK offers to Python
    **dict.fromkeys(("uchar", "unsigned char", "uint8", "uint8_t"), 1),
    **dict.fromkeys(("short", "int16", "int16_t", "ushort", "unsigned short", "uint16", "uint16_t"), 2),
    **dict.fromkeys(("int", "int32", "int32_t", "uint", "unsigned int", "uint32", "uint32_t", "float"), 4),
    "double": 8,
}
_TO_RAS = {
    **dict.fromkeys(("lps", "left-posterior-superior"), (-1, -1, 1)),
    **dict.fromkeys(("ras", "right-anterior-superior"), (1, 1, 1)),
}
_LONGEST = 1 << 20  # bytes; programs store tables of their own in a header
_VECTOR = re.compile(r"\(([^()]*)\)")


def is_nrrd(path: str | PathLike[str]) -> bool:
    """Whether a file is named like an NRRD file."""
    return Path(path).suffix.lower() == ".nrrd"


def open_nrrd(path: str | PathLike[str]) -> Volume:
    """A volume; see :func:`~monai_spct.data.open_volume`.

    Source:
        https://teem.sourceforge.net/nrrd/format.html
    """
    path = Path(path)
    try:
        fields, start = _fields(path)
        shape, spacing, affine = _grid(fields)
        size = prod(shape) * _bytes_of_a_voxel(fields)
        packed = None if fields["encoding"].lower() == "raw" else 0
    except KeyError as error:
        raise ValueError(f"{path} is not a readable NRRD header: it has no `{error.args[0]}`.") from error
    except ValueError as error:
        raise ValueError(f"{path} is not a readable NRRD header: {str(error).rstrip('.')}.") from error
    return volume_by_itk(path, shape, affine, spacing, data_file=path, start=start, size=size, packed=packed)


def _fields(path: Path) -> tuple[dict[str, str], int]:
    """The lines ``name: value`` of a header, which ends at the first empty line, and where the voxels begin."""
    with path.open("rb") as file:
        lines = file.read(_LONGEST).split(b"\n")
    if not re.fullmatch(rb"NRRD000\d\r?", lines[0]):
        raise ValueError("it does not begin with NRRD")
    ends = next((number for number, line in enumerate(lines[:-1]) if line in (b"", b"\r")), None)
    if ends is None:
        raise ValueError("no empty line ends it")
    fields: dict[str, str] = {}
    for line in lines[1:ends]:
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError:  # on which ITK's fields break
            raise ValueError("it is not text in UTF-8") from None
        name, separator, value = text.partition(": ")
        if text.startswith("#") or ":=" in name:  # a comment, or an entry of some program
            continue
        if not separator or (name := name.lower().replace(" ", "")) in fields:
            raise ValueError(f"`{text}` is {'there twice' if separator else 'no field'}")
        fields[name] = value.strip()
    return fields, sum(len(line) + 1 for line in lines[: ends + 1])


def _grid(fields: dict[str, str]) -> tuple[tuple[int, ...], NDArray[np.float64], NDArray[np.float64]]:
    """Shape, voxel sizes and affine."""
    if (dimensions := int(fields["dimension"])) != 3:
        raise ValueError(f"it is {dimensions}-D; give single volumes")
    shape = tuple(int(number) for number in fields["sizes"].split())
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"`sizes` is {fields['sizes']}")
    if "space" in fields or "spacedirections" in fields:
        if (space := fields["space"].lower()) not in _TO_RAS:
            raise ValueError(f"`space` is {space}; give left-posterior-superior or right-anterior-superior")
        directions = _vectors(fields["spacedirections"], 3).T
        origin = _vectors(fields.get("spaceorigin", "(0,0,0)"), 1)[0]
    else:  # axes go to the left, back and up, as ITK has it
        space, directions, origin = (
            "lps",
            np.diag(np.array(fields.get("spacings", "1 1 1").split(), float)),
            np.zeros(3),
        )
    spacing = np.linalg.norm(directions, axis=0)
    if not (SMALLEST <= spacing.min() <= spacing.max() <= LARGEST and np.abs(origin).max() <= LARGEST):  # or nan
        raise ValueError("voxel sizes and origin must be numbers of mm")
    if directions.shape != (3, 3) or not np.allclose(
        (directions.T @ directions) / np.outer(spacing, spacing), np.eye(3), atol=1e-2
    ):
        raise ValueError("there must be three directions at right angles")
    affine = np.eye(4)
    affine[:3] = np.array(_TO_RAS[space])[:, None] * np.column_stack([directions, origin])
    return shape, spacing, affine


def _vectors(text: str, count: int) -> NDArray[np.float64]:
    """Vectors ``(x,y,z)``, one in each row."""
    vectors = [vector.split(",") for vector in _VECTOR.findall(text)]
    if [len(vector) for vector in vectors] != count * [3] or _VECTOR.sub("", text).strip():
        raise ValueError(f"{count} {'vector' if count == 1 else 'vectors'} (x,y,z) must be there, got {text}")
    return np.array(vectors, dtype=np.float64)


def _bytes_of_a_voxel(fields: dict[str, str]) -> int:
    kind, encoding = fields["type"].lower(), fields["encoding"].lower()
    if kind not in _BYTES:
        raise ValueError(f"`type` is {kind}, which ITK does not offer to Python")
    if encoding not in ("raw", "gzip", "gz"):
        raise ValueError(f"`encoding` is {encoding}; give raw or gzip")
    if others := {"datafile", "lineskip", "byteskip"} & fields.keys():
        raise ValueError(f"`{others.pop()}` is there; give files whose voxels follow the header")
    if _BYTES[kind] > 1 and (order := fields["endian"].lower()) not in ("little", "big"):
        raise ValueError(f"`endian` is {order}")
    return _BYTES[kind]
