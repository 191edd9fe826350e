"""What the bytes of a file say, read slowly and by the letter of the format."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import nibabel as nib
import numpy as np

NIFTI_TYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4", 1024: "i8", 1280: "u8"}
METAIMAGE_TYPES = {
    "MET_CHAR": "i1", "MET_UCHAR": "u1", "MET_SHORT": "i2", "MET_USHORT": "u2", "MET_INT": "i4", "MET_UINT": "u4",
    "MET_LONG": "i4", "MET_ULONG": "u4", "MET_LONG_LONG": "i8", "MET_ULONG_LONG": "u8", "MET_FLOAT": "f4",
    "MET_DOUBLE": "f8",
}  # fmt: skip


NRRD_TYPES = {"unsigned char": "u1", "uchar": "u1", "short": "i2", "ushort": "u2", "float": "f4", "int": "i4"}


@dataclass(frozen=True)
class Refused:
    """That a file must not be read, and why."""

    reason: str


def voxels(path: Path) -> np.ndarray[Any, Any] | Refused:
    """The voxels of a file of any format ``(X, Y, Z)``."""
    kinds = {".mhd": metaimage_voxels, ".mha": metaimage_voxels, ".nrrd": nrrd_voxels, ".h5::image": hdf5_voxels}
    return kinds.get(path.suffix, nifti_voxels)(path)


def nifti_voxels(path: Path) -> np.ndarray[Any, Any] | Refused:
    """The voxels of a NIfTI file ``(X, Y, Z)``."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            return Refused(f"gzip: {error}")
    for kind, magic in ((nib.Nifti1Header, content[344:348]), (nib.Nifti2Header, content[4:8])):
        size = kind.template_dtype.itemsize
        if magic == kind.single_magic.ljust(4, b"\0") and len(content) >= size:
            for order in "<>":
                header = np.frombuffer(content[:size], kind.template_dtype.newbyteorder(order))[0]
                if 1 <= header["dim"][0] <= 7:
                    return _nifti_voxels(content, header, order)
    return Refused("no NIfTI")


def _nifti_voxels(content: bytes, header: Any, order: str) -> np.ndarray[Any, Any] | Refused:
    count = int(header["dim"][0])
    shape = [int(size) for size in header["dim"][1 : 1 + count]]
    code = int(header["datatype"])
    if not 3 <= count <= 7 or min(shape) < 1 or any(size != 1 for size in shape[3:]) or code not in NIFTI_TYPES:
        return Refused(f"shape {shape}, type {code}")
    dtype = np.dtype(order + NIFTI_TYPES[code])
    offset, slope, shift = (float(header[name]) for name in ("vox_offset", "scl_slope", "scl_inter"))
    if not np.isfinite(offset):
        return Refused(f"vox_offset {offset}")
    end = int(offset) + int(np.prod([float(size) for size in shape])) * dtype.itemsize
    if int(offset) < header.dtype.itemsize or end > len(content):
        return Refused(f"voxels from {offset} to {end} of {len(content)} bytes")
    voxels = np.frombuffer(content[int(offset) : end], dtype).reshape(shape[:3], order="F")
    if slope == 0 or not np.isfinite(slope):
        return voxels
    if not np.isfinite(shift):
        return Refused(f"scl_inter {shift}")
    with np.errstate(all="ignore"):
        return voxels * slope + shift if (slope, shift) != (1, 0) else voxels


def metaimage_voxels(path: Path) -> np.ndarray[Any, Any] | Refused:
    """The voxels of a MetaImage ``(X, Y, Z)``, of headers without anything unusual."""
    content = path.read_bytes()
    fields: dict[str, str] = {}
    end = 0
    for line in content.splitlines(keepends=True):
        end += len(line)
        name, _, value = line.decode("latin-1").partition("=")
        if name.strip() in fields:
            return Refused(f"{name.strip()} twice")
        fields[name.strip()] = value.strip()
        if name.strip() == "ElementDataFile":
            break
    try:
        shape = [int(size) for size in fields["DimSize"].split()]
        order = ">" if fields.get("BinaryDataByteOrderMSB", "False").lower() == "true" else "<"
        dtype = np.dtype(order + METAIMAGE_TYPES[fields["ElementType"]])
        name = fields["ElementDataFile"]
        data = content[end:] if name.upper() == "LOCAL" else (path.parent / name).read_bytes()
        if fields.get("CompressedData", "False").lower() == "true":
            data = zlib.decompress(data[: int(fields.get("CompressedDataSize", len(data)))])
        else:
            data = data[int(fields.get("HeaderSize", 0)) :]
        return np.frombuffer(data[: int(np.prod(shape)) * dtype.itemsize], dtype).reshape(shape, order="F")
    except (KeyError, ValueError, OSError, zlib.error) as error:
        return Refused(f"{type(error).__name__}: {error}")


def nrrd_voxels(path: Path) -> np.ndarray[Any, Any] | Refused:
    """The voxels of an NRRD file ``(X, Y, Z)``, of headers without anything unusual."""
    header, _, data = path.read_bytes().replace(b"\r\n", b"\n", 30).partition(b"\n\n")
    lines = [line.strip().partition(": ") for line in header.decode("latin-1").split("\n")]
    fields = {name.lower().replace(" ", ""): value.strip() for name, _, value in lines}
    try:
        dtype = np.dtype(
            {"little": "<", "big": ">"}[fields.get("endian", "little").lower()] + NRRD_TYPES[fields["type"]]
        )
        shape = [int(size) for size in fields["sizes"].split()]
        data = zlib.decompressobj(wbits=31).decompress(data) if fields["encoding"] == "gzip" else data
        return np.frombuffer(data[: int(np.prod(shape)) * dtype.itemsize], dtype).reshape(shape, order="F")
    except (KeyError, ValueError, OSError, EOFError, zlib.error) as error:
        return Refused(f"{type(error).__name__}: {error}")


def hdf5_voxels(path: Path) -> np.ndarray[Any, Any] | Refused:
    """What h5py makes of a dataset: no slower reader is at hand."""
    try:
        with h5py.File(str(path).removesuffix("::image")) as file:
            found: np.ndarray[Any, Any] = file["image"][()]
            return found
    except Exception as error:  # of which it has many
        return Refused(f"{type(error).__name__}: {error}")
