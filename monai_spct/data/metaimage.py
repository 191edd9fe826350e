"""MetaImage files (``.mhd`` with ``.raw``, ``.mha``): what their text headers say, and whether it is true."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from math import prod
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from monai_spct.files.paths import is_there, leaves_folder

__all__ = ["MetaImageHeader", "is_metaimage", "problem_of", "read_header"]

_BYTES = {
    **dict.fromkeys(("MET_CHAR", "MET_UCHAR"), 1),
    **dict.fromkeys(("MET_SHORT", "MET_USHORT"), 2),
    **dict.fromkeys(("MET_INT", "MET_UINT", "MET_LONG", "MET_ULONG", "MET_FLOAT"), 4),
    **dict.fromkeys(("MET_LONG_LONG", "MET_ULONG_LONG", "MET_DOUBLE"), 8),
}
_SMALLEST, _LARGEST = 1e-9, 1e9  # mm; beyond, no header can hold the geometry in single precision
_LONGEST = 16384  # bytes; a header has some twenty lines
_PART = 1 << 20  # bytes to unpack at a time


@dataclass(frozen=True)
class MetaImageHeader:
    """What a header says.

    Args:
        shape: voxels along each axis.
        affine: ``(4, 4)``, voxel indices to millimeters, with axes to the right, to the front and up as in NIfTI. The
            file itself has the first two the other way around.
        data_file: the file with the voxels.
        size: bytes that it holds at least; of compressed voxels that is a lower bound.
        spacing: voxel sizes as they stand there, in mm.
        before: bytes in front of the voxels in that file; none where they are at its end, whatever is before them.
        voxels: bytes of all voxels.
        compressed: whether they are compressed there.
        packed: bytes that they take there then, if the header tells.
    """

    shape: tuple[int, ...]
    affine: NDArray[np.float64]
    data_file: Path
    size: int | None
    spacing: tuple[float, ...]
    before: int | None = 0
    voxels: int = 0
    compressed: bool = False
    packed: int = 0


def is_metaimage(path: str | PathLike[str]) -> bool:
    """Whether a file is named like a MetaImage header.

    Example:
        >>> from monai_spct.data.metaimage import is_metaimage
        >>> is_metaimage("Case00.mhd"), is_metaimage("Case00.raw")
        (True, False)
    """
    return Path(path).suffix.lower() in (".mhd", ".mha")


def read_header(path: str | PathLike[str]) -> MetaImageHeader:
    r"""Read the header of a volume; its voxels are not looked at.

    Args:
        path: an ``.mhd`` or ``.mha`` file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not the header of a volume, or its voxels are in several files or out of its folder; names
            the file and the reason.

    Source:
        https://itk.org/Wiki/ITK/MetaIO/Documentation

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.data.metaimage import read_header
        >>> path = Path(tempfile.mkdtemp()) / "case.mhd"
        >>> lines = "NDims = 3", "DimSize = 6 5 4", "ElementSpacing = 0.5 0.6 3", "ElementType = MET_SHORT"
        >>> _ = path.write_text("\n".join([*lines, "ElementDataFile = case.raw"]))
        >>> header = read_header(path)
        >>> header.shape, header.size, header.affine.diagonal().tolist()
        ((6, 5, 4), 240, [-0.5, -0.6, 3.0, 1.0])
    """
    path = Path(path)
    try:
        fields, end = _fields(path)
        return _header(path, fields, end)
    except KeyError as error:
        raise ValueError(f"{path} is not a readable MetaImage header: it has no {error.args[0]}.") from error
    except ValueError as error:
        raise ValueError(f"{path} is not a readable MetaImage header: {str(error).rstrip('.')}.") from error


def problem_of(path: str | PathLike[str], *, unpack: bool = False) -> str | None:
    """Why a MetaImage cannot be read, in words that name the file; nothing if header and size of the data are right.

    Args:
        path: an ``.mhd`` or ``.mha`` file.
        unpack: whether to look at compressed voxels too, which takes as long as reading them.

    Example:
        >>> from monai_spct.data.metaimage import problem_of
        >>> problem_of("nowhere/Case00.mhd")
        'nowhere/Case00.mhd does not exist.'
    """
    try:
        header = read_header(path)
    except FileNotFoundError:
        return f"{path} does not exist."
    except (OSError, ValueError) as error:
        return str(error)
    if not is_there(header.data_file):
        return f"{path} has its voxels in {header.data_file.name}, which does not exist beside it."
    there = header.data_file.stat().st_size
    told = f"it has {there} bytes, and {Path(path).name} tells of {header.size}."
    if header.size is not None and there < header.size:
        return f"{header.data_file} is truncated: {told}"
    if header.compressed:
        return _problem_of_packed(header) if unpack else None
    if header.before is not None and header.size is not None and there > header.size:
        return f"{header.data_file} is too long, so that its voxels are others than the header says: {told}"
    return None


def _problem_of_packed(header: MetaImageHeader) -> str | None:
    """ITK fills with anything what it cannot unpack, and does not look at the checksum at the end."""
    stream, unpacked = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS), 0  # of zlib or gzip
    try:
        with header.data_file.open("rb") as file:
            file.seek(header.before or 0)
            left = header.packed or header.data_file.stat().st_size
            while not stream.eof and unpacked <= header.voxels:
                part = stream.unconsumed_tail
                if not part:
                    part = file.read(min(left, _PART))
                    left -= len(part)
                if not part:
                    break
                unpacked += len(stream.decompress(part, _PART))
    except zlib.error as error:
        return f"{header.data_file} is damaged: {error}."
    if unpacked == header.voxels:
        return None if stream.eof else f"{header.data_file} is truncated: its checksum is missing."
    told = f"and its header tells of {header.voxels}."
    return f"{header.data_file} holds {unpacked} bytes of voxels when unpacked, {told}"


def _fields(path: Path) -> tuple[dict[str, str], int]:
    """The lines of a header by name, and where it ends in the file: the name of the data file is the last line."""
    with path.open("rb") as file:
        text = file.read(_LONGEST)
    fields, end = {}, 0
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


def _header(path: Path, fields: dict[str, str], end: int) -> MetaImageHeader:
    dimensions = int(fields["NDims"])
    if dimensions != 3:
        raise ValueError(f"it is {dimensions}-D; give single volumes")
    shape = tuple(int(number) for number in fields["DimSize"].split())
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"DimSize is {fields['DimSize']}")
    spacing = _numbers(fields, ("ElementSpacing", "ElementSize"), (1, 1, 1))
    if np.abs(spacing).min() < _SMALLEST:
        raise ValueError(f"ElementSpacing is {' '.join(f'{size:g}' for size in spacing)}")
    # a row of the file is the direction of an axis
    directions = (
        _numbers(fields, ("TransformMatrix", "Rotation", "Orientation"), (1, 0, 0, 0, 1, 0, 0, 0, 1)).reshape(3, 3).T
    )
    if not np.allclose(directions.T @ directions, np.eye(3), atol=1e-2):
        raise ValueError("TransformMatrix must hold three directions of length 1 at right angles")
    affine = np.eye(4)
    affine[:3, :3] = directions * spacing
    affine[:3, 3] = _numbers(fields, ("Offset", "Position", "Origin"), (0, 0, 0))
    affine[:2] *= -1  # left and back, as DICOM has it, to right and front
    if fields["ElementType"] not in _BYTES:
        raise ValueError(f"ElementType is {fields['ElementType']}")
    if (values := int(fields.get("ElementNumberOfChannels", 1))) != 1:
        raise ValueError(f"it has {values} values for each voxel; give channels as files of their own")
    voxel = _BYTES[fields["ElementType"]]
    compressed = fields.get("CompressedData", "False").lower() == "true"
    stored = prod(shape) * voxel
    packed = max(0, int(fields.get("CompressedDataSize", 0)))
    if compressed:  # deflate makes nothing smaller than a 1032nd
        stored = max(packed, stored // 1032)
    skipped = int(fields.get("HeaderSize", 0))
    name = fields["ElementDataFile"]
    local = name.upper() == "LOCAL"
    if name.upper().startswith("LIST") or "%" in name:
        raise ValueError(f"ElementDataFile is {name}; give volumes whose voxels are in one file")
    if leaves_folder(name):
        raise ValueError(f"ElementDataFile is {name}, which is not below the folder of the header")
    before = end if local else skipped
    return MetaImageHeader(
        shape=shape,
        affine=affine,
        data_file=path if local else path.parent / name,
        size=max(0, before) + stored if stored else None,
        spacing=tuple(spacing.tolist()),
        before=None if before < 0 else before,
        voxels=prod(shape) * voxel,
        compressed=compressed,
        packed=packed,
    )


def _numbers(fields: dict[str, str], names: tuple[str, ...], default: tuple[float, ...]) -> NDArray[np.float64]:
    """The numbers under the first of the names that is there."""
    given = next((fields[name].split() for name in names if name in fields), default)
    numbers = np.asarray(given, dtype=np.float64)
    if numbers.shape != (len(default),) or not (np.abs(numbers) <= _LARGEST).all():  # nan fails, too
        raise ValueError(f"{names[0]} must be {len(default)} numbers")
    return numbers
