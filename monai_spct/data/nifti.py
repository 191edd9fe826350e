"""NIfTI files in and out, with the voxel sizes that the header means."""

from __future__ import annotations

import contextlib
import gzip
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from monai.data.image_reader import NibabelReader
from monai.utils.misc import ensure_tuple
from monai.utils.type_conversion import convert_to_numpy
from nibabel.arrayproxy import ArrayProxy
from nibabel.spatialimages import HeaderDataError
from numpy.typing import ArrayLike, DTypeLike, NDArray

from monai_spct.data.metaimage import is_metaimage
from monai_spct.data.metaimage import read_header as read_metaimage_header
from monai_spct.files.atomic import replacing

__all__ = ["HeaderSpacingReader", "NiftiHeader", "is_prediction", "read_header", "save_like", "true_affine"]

_PREDICTION = b"prediction of monai_spct"  # `descrip` of a header

# rounding of float32 headers stays far below this; a header that lies is off by much more
_TOLERANCE = 1e-3

_DEFLATE = 1032  # deflate makes nothing smaller than by this
_CHUNK = 1 << 20  # bytes

# the codes of meters and micrometers; all others, "unknown" too, are taken for millimeters
_MILLIMETERS = {1: 1000.0, 3: 0.001}


@dataclass(frozen=True)
class NiftiHeader:
    """What a header says.

    Args:
        shape: voxels along each axis.
        affine: :func:`~monai_spct.data.nifti.true_affine`.
        data_file: the file with the voxels.
        pixdim: voxel sizes as they stand there, in mm.
        affine_spacing: voxel sizes of the affine as it stands there, in mm.
    """

    shape: tuple[int, ...]
    affine: NDArray[np.float64]
    data_file: Path
    pixdim: tuple[float, ...]
    affine_spacing: tuple[float, ...]

    @property
    def disagrees(self) -> bool:
        """Whether the affine has other voxel sizes than ``pixdim``, where that can be a size."""
        sizes = np.abs(self.pixdim)
        known = np.isfinite(sizes) & (sizes > 0)
        return not np.allclose(np.array(self.affine_spacing)[known], sizes[known], rtol=_TOLERANCE, atol=0)


class HeaderSpacingReader(NibabelReader):
    """Reads NIfTI for ``LoadImaged(reader=...)``; voxel sizes come from ``pixdim``, directions from the affine.

    In ACDC as it is distributed, the affine says 1 mm while ``pixdim`` holds the truth. MONAI's own repair of such
    headers replaces the affine by the qform, or, where there is no qform, believes the affine;
    :func:`~monai_spct.data.nifti.true_affine` states the rule here. One file is one frame: time series are refused
    instead of becoming channels, and a single trailing frame is dropped.

    ``LoadImage`` tries its other readers when :meth:`read` fails, and then says nothing of the failure that counts, so
    all that is wrong with a file is raised by :meth:`get_data`.

    Args:
        as_closest_canonical: flip and permute axes to the nearest of R-A-S, as in MONAI's reader.

    Example:
        >>> import tempfile, nibabel as nib, numpy as np
        >>> from monai.transforms import LoadImage
        >>> image = nib.Nifti1Image(np.zeros((4, 4, 3), np.int16), np.diag([-1, -1, 1, 1]))
        >>> image.header.set_zooms((1.25, 1.25, 10))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nib.save(image, f"{folder}/case.nii.gz")
        ...     loaded = LoadImage(reader=HeaderSpacingReader())(f"{folder}/case.nii.gz")
        >>> loaded.pixdim.tolist()
        [1.25, 1.25, 10.0]
        >>> loaded.affine.diagonal().tolist()
        [-1.25, -1.25, 10.0, 1.0]
    """

    def __init__(self, *, as_closest_canonical: bool = False) -> None:
        super().__init__(as_closest_canonical=as_closest_canonical, squeeze_non_spatial_dims=True)

    def read(self, data: Sequence[str | PathLike[str]] | str | PathLike[str], **kwargs: Any) -> Any:
        """Images with their :func:`~monai_spct.data.nifti.true_affine`; voxels are read later.

        Args:
            data: a file, or a list of files that are the channels of one image.
            kwargs: passed to ``nibabel.load``.

        Returns:
            A nibabel image, or a list of them for several files; in the place of a file that cannot be read, the error.
        """
        self.filenames = ensure_tuple(data)
        images: list[nib.Nifti1Pair | Exception] = []
        for name in self.filenames:
            try:
                image = _load(name, **kwargs)
                header: Any = image.header
                if _unit(image) != 1:
                    header = header.copy()
                    header["xyzt_units"] = int(header["xyzt_units"]) & ~7 | 2  # millimeters, as the affine is
                images.append(type(image)(image.dataobj, true_affine(image), header))
            except (OSError, ValueError) as error:
                images.append(error)
            except Exception as error:  # if it were raised, `LoadImage` would try readers that know less
                images.append(ValueError(f"{name} is not a readable NIfTI file: {_reason(error)}."))
        return images if len(images) > 1 else images[0]

    def get_data(self, img: Any) -> tuple[NDArray[Any], dict[str, Any]]:
        """Voxels ``(*S)``, or ``(N, *S)`` for N files, and metadata.

        Args:
            img: what :meth:`read` returned.

        Returns:
            The voxels and the metadata that MONAI expects.

        Raises:
            ValueError: If a file is not a readable NIfTI, or holds more than one frame or values that are no real
                numbers; names file and reason.
            FileNotFoundError: If there is no such file.
        """
        images = []
        for image, name in zip(ensure_tuple(img), self.filenames, strict=True):
            if isinstance(image, Exception):
                raise image
            _one_frame(image, name)
            _real_numbers(image, name)
            _all_there(image, name)
            images.append(type(image)(_voxels(image, name), image.affine, image.header))
        voxels, meta = super().get_data(images)
        return voxels, meta


def read_header(path: str | PathLike[str]) -> NiftiHeader:
    """Read the header of a volume; its voxels are not looked at, but there must be room for them in the file.

    Args:
        path: a ``.nii`` or ``.nii.gz`` file, or one of a pair.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not the header of a volume of real numbers, or the file is too short; names the file and
            the reason.

    Example:
        >>> import tempfile
        >>> from monai_spct.data.nifti import read_header
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nib.save(nib.Nifti1Image(np.zeros((4, 4, 3), np.int16), np.diag([-2, -2, 5, 1])), f"{folder}/case.nii")
        ...     header = read_header(f"{folder}/case.nii")
        >>> header.shape, header.pixdim, header.disagrees
        ((4, 4, 3), (2.0, 2.0, 5.0), False)
    """
    image = _load(path)
    _one_frame(image, path)
    if len(image.shape) < 3:
        raise ValueError(f"{path} must be a volume with three axes, got the shape {image.shape}.")
    _real_numbers(image, path)
    _all_there(image, path)
    return NiftiHeader(
        shape=image.shape[:3],
        affine=true_affine(image),
        data_file=_data_file(image),
        pixdim=tuple((_unit(image) * np.array(_unmended(image)["pixdim"][1:4], dtype=np.float64)).tolist()),
        affine_spacing=tuple((_unit(image) * np.linalg.norm(np.asarray(image.affine)[:3, :3], axis=0)).tolist()),
    )


def true_affine(image: nib.Nifti1Pair) -> NDArray[np.float64]:
    """The affine of a NIfTI image: directions and origin from its affine, voxel sizes from ``pixdim``.

    An affine that agrees with ``pixdim`` is returned as it is. Otherwise its columns are scaled to ``pixdim``; their
    directions, and so their signs, stay. Where the affine has no directions (a column of zeros, or NaN), those of the
    qform are used, if it is coded, and else the axes themselves. A negative ``pixdim`` counts by its size; where it is
    zero or not finite, the affine's own size stays. Headers in meters or micrometers are converted.

    Args:
        image: a NIfTI image as ``nibabel.load`` returns it.

    Returns:
        The affine ``(4, 4)``, voxel indices to millimeters.

    Example:
        >>> image = nib.Nifti1Image(np.zeros((4, 4, 3), np.int16), np.diag([-1, -1, 1, 1]))
        >>> image.header.set_zooms((1.25, 1.25, 10))
        >>> true_affine(image).diagonal().tolist()
        [-1.25, -1.25, 10.0, 1.0]
    """
    affine = _affine_in_its_unit(image)
    affine[:3] *= _unit(image)
    return affine


def _affine_in_its_unit(image: nib.Nifti1Pair) -> NDArray[np.float64]:
    pixdim = _stored_pixdim(image)
    header: Any = image.header
    known = np.isfinite(pixdim) & (pixdim > 0) & (np.arange(3) < len(image.shape))

    affine = np.array(image.affine, dtype=np.float64)
    if not _has_directions(affine) and header["qform_code"] > 0:
        with contextlib.suppress(ValueError, HeaderDataError):  # no rotation has these quaternions
            affine = np.array(header.get_qform(), dtype=np.float64)
    if not _has_directions(affine):
        affine[:3, :3] = np.eye(3)
    affine[:3, 3] = np.where(np.isfinite(affine[:3, 3]), affine[:3, 3], 0)
    affine[3] = 0, 0, 0, 1

    sizes = np.linalg.norm(affine[:3, :3], axis=0)
    wanted = np.where(known, pixdim, sizes)
    if not np.allclose(sizes, wanted, rtol=_TOLERANCE, atol=0):
        affine[:3, :3] *= wanted / sizes
    return affine


def save_like(
    data: ArrayLike,
    source: str | PathLike[str],
    target: str | PathLike[str],
    *,
    dtype: DTypeLike = np.uint8,
    prediction: bool = False,
) -> None:
    """Write ``data`` as a NIfTI file on the grid of ``source``: masks by default, maps with ``dtype=numpy.float32``.

    Shape, voxel sizes, affine, its codes and its units are those of ``source``, which may also be MetaImage. Where the
    affine and the voxel sizes of ``source`` disagree, :func:`~monai_spct.data.nifti.true_affine` is written, so that
    both say the same in the new file. Values are stored unscaled. The file appears complete or not at all: it is
    written beside ``target`` and then moved.

    Args:
        data: ``(*S)``, an array or a tensor on the voxels of ``source``.
        source: the image that gives the grid.
        target: the new file, ``.nii`` or ``.nii.gz``; its folder is made if need be.
        dtype: how voxels are stored. Integers must hold every value of ``data`` exactly.
        prediction: whether to say in the header that this is one, so that nobody takes it for an image.

    Raises:
        ValueError: If shapes differ, if ``dtype`` cannot hold the values, if ``target`` is ``source`` or is not named
            like a NIfTI file, or if ``source`` is damaged or holds more than one frame.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     source, target = f"{folder}/case.nii.gz", f"{folder}/predictions/case.nii.gz"
        ...     nib.save(nib.Nifti1Image(np.zeros((4, 4, 3), np.int16), np.diag([-2, -2, 5, 1])), source)
        ...     save_like(np.ones((4, 4, 3)), source, target)
        ...     mask = nib.load(target)
        ...     mask.get_data_dtype(), mask.header.get_zooms(), int(mask.get_fdata().sum())
        (dtype('uint8'), (np.float32(2.0), np.float32(2.0), np.float32(5.0)), 48)
    """
    source, target = Path(source), Path(target)
    suffix = next((end for end in (".nii.gz", ".nii") if target.name.endswith(end)), None)
    if suffix is None:
        raise ValueError(f"`target` must end in .nii or .nii.gz, got {str(target)!r}.")
    if target.resolve() == source.resolve():
        raise ValueError(f"`target` must not be `source`, got {str(target)!r} for both.")

    grid: nib.Nifti1Pair = _grid_of_metaimage(source) if is_metaimage(source) else _load(source)
    _one_frame(grid, source)
    voxels = np.asarray(convert_to_numpy(data))
    if voxels.shape != grid.shape[:3]:
        raise ValueError(f"`data` must have the shape of {source}, got {voxels.shape} and {grid.shape[:3]}.")
    stored = _stored_as(voxels, np.dtype(dtype))

    version: Any = nib.Nifti2Image if isinstance(grid.header, nib.Nifti2Header) else nib.Nifti1Image
    header = _same_grid_header(grid, version.header_class)
    header.set_data_dtype(stored.dtype)
    header.set_data_shape(stored.shape)
    header.set_slope_inter(1, 0)
    if prediction:
        header["descrip"] = _PREDICTION
    finite = stored[np.isfinite(stored)]
    header["cal_min"], header["cal_max"] = (finite.min(), finite.max()) if finite.size else (0, 0)

    image = version(stored, header.get_best_affine(), header)
    with replacing(target) as file:
        if suffix == ".nii":
            image.to_stream(file)
        else:  # as nibabel compresses: the same bytes whatever the name and the time
            with gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as compressed:
                image.to_stream(compressed)


def is_prediction(path: str | PathLike[str]) -> bool:
    """Whether a file says that it is a prediction, as those of :class:`~monai_spct.handlers.SavePredictions` do.

    Args:
        path: of any file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     image, mask = f"{folder}/a.nii.gz", f"{folder}/b.nii.gz"
        ...     nib.save(nib.Nifti1Image(np.zeros((4, 4, 3), np.int16), np.eye(4)), image)
        ...     save_like(np.ones((4, 4, 3)), image, mask, prediction=True)
        ...     is_prediction(image), is_prediction(mask)
        (False, True)
    """
    try:
        with gzip.open(path) if str(path).lower().endswith(".gz") else Path(path).open("rb") as file:
            return _PREDICTION in file.read(540)  # the longest header, of NIfTI-2
    except (OSError, EOFError, zlib.error):  # whoever loads it says what is wrong
        return False


def _load(path: str | PathLike[str], **kwargs: Any) -> nib.Nifti1Pair:
    try:
        image = nib.load(path, **kwargs)
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever a damaged header makes of nibabel, it is a fault of the file
        raise ValueError(f"{path} is not a readable NIfTI file: {_reason(error)}.") from error
    if not isinstance(image, nib.Nifti1Pair):
        raise ValueError(f"{path} is not a readable NIfTI file: it is a {type(image).__name__}.")
    return image


def _grid_of_metaimage(path: Path) -> Any:
    header = read_metaimage_header(path)
    version: Any = nib.Nifti1Image
    grid = version(np.broadcast_to(np.uint8(0), header.shape), header.affine)  # takes no memory
    for place in (grid.set_sform, grid.set_qform):
        place(header.affine, code="scanner")
    grid.header.set_xyzt_units("mm")
    return grid


def _one_frame(image: nib.Nifti1Pair, path: str | PathLike[str]) -> None:
    frames = int(np.prod(image.shape[3:]))
    if frames != 1:
        raise ValueError(
            f"{path} is {len(image.shape)}-D ({frames} frames); give single frames, and channels as files of their own."
        )


def _real_numbers(image: nib.Nifti1Pair, path: str | PathLike[str]) -> None:
    header: Any = image.header
    dtype = header.get_data_dtype()
    if dtype.kind not in "iufb":
        kind = "complex numbers" if dtype.kind == "c" else "colors or other records"
        raise ValueError(f"{path} must hold real numbers, got {kind} ({dtype}).")


def _all_there(image: nib.Nifti1Pair, path: str | PathLike[str]) -> None:
    """Refuse a header whose voxels are none, or not in the file; what nibabel makes of these may be any voxels."""
    header: Any = image.header
    if not 1 <= (axes := int(header["dim"][0])) <= 7:
        raise ValueError(f"{path} must have from 1 to 7 axes, got {axes}.")
    if min(image.shape) < 1:
        raise ValueError(f"{path} must have voxels, got the shape {image.shape}.")
    data: Any = image.dataobj
    start = int(data.offset)
    if start < (header.single_vox_offset if header.is_single else 0):
        raise ValueError(f"{path} must have its voxels behind its header, got them at byte {start}.")
    data_file = _data_file(image)
    size = start + math.prod(image.shape) * data.dtype.itemsize
    there = data_file.stat().st_size
    most = {".gz": there * _DEFLATE, ".bz2": size, ".zst": size}.get(data_file.suffix.lower(), there)
    if most < size:
        raise ValueError(f"{data_file} is truncated: it has {there} bytes, and its header tells of {size} of voxels.")


def _data_file(image: nib.Nifti1Pair) -> Path:
    data: Any = image.dataobj
    return Path(data.file_like)


def _voxels(image: nib.Nifti1Pair, path: str | PathLike[str]) -> NDArray[Any]:
    data: Any = image.dataobj
    try:
        if _data_file(image).suffix.lower() != ".gz":
            return np.asanyarray(data)
        with gzip.open(_data_file(image)) as file:
            where = (data.shape, data.dtype, data.offset, data.slope, data.inter)
            proxy: Any = ArrayProxy
            voxels: NDArray[Any] = np.asanyarray(proxy(file, where, mmap=False))
            while file.read(_CHUNK):  # to the end, where the checksum is
                pass
            return voxels
    except Exception as error:  # as of headers
        raise ValueError(f"{path} is truncated or damaged: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def _stored_pixdim(image: nib.Nifti1Pair) -> NDArray[np.float64]:
    header: Any = image.header
    if np.any(header["pixdim"][1:4] == 1):
        # when nibabel loads a header it replaces voxel sizes of 0 by 1: look whether this 1 is one of those
        header = _unmended(image)
    return np.abs(np.array(header["pixdim"][1:4], dtype=np.float64))


def _unmended(image: nib.Nifti1Pair) -> Any:
    """The header as it stands in the file, if there is one."""
    header: Any = image.header
    origin = image.file_map.get("header", image.file_map["image"])  # one file, or a pair
    if origin.filename is None:
        return header
    with origin.get_prepare_fileobj("rb") as file:
        return type(header).from_fileobj(file, check=False)


def _unit(image: nib.Nifti1Pair) -> float:
    """Of lengths in the header, in millimeters."""
    header: Any = image.header
    return _MILLIMETERS.get(int(header["xyzt_units"]) & 7, 1.0)


def _has_directions(affine: NDArray[np.float64]) -> bool:
    columns = affine[:3, :3]
    if not np.isfinite(columns).all():
        return False
    sizes = np.linalg.norm(columns, axis=0)
    # float32 headers leave parallel columns a volume of rounding, not of zero
    return bool((sizes > 0).all() and abs(np.linalg.det(columns / np.where(sizes > 0, sizes, 1))) > 1e-6)


def _stored_as(voxels: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if np.issubdtype(dtype, np.integer) and voxels.size:
        low, high = voxels.min(), voxels.max()
        limits = np.iinfo(dtype)
        # NaN fails both comparisons
        if not (low >= limits.min and high <= limits.max) or (voxels != np.trunc(voxels)).any():
            raise ValueError(f"`data` must hold whole numbers that {dtype} can hold, got values from {low} to {high}.")
    return voxels.astype(dtype)


def _same_grid_header(image: nib.Nifti1Pair, header_class: Any) -> Any:
    affine = _affine_in_its_unit(image)  # which stays
    header = header_class.from_header(image.header, check=False)
    header.extensions.clear()  # they belong to the acquisition, and may name the patient
    for text in {"aux_file", "db_name", "intent_name"} & set(header.keys()):
        header[text] = b""
    header["intent_code"] = 0
    header["descrip"] = b"monai_spct"
    sizes = np.linalg.norm(affine[:3, :3], axis=0)
    if not np.allclose(header["pixdim"][1:4], sizes, rtol=_TOLERANCE, atol=0):
        header["pixdim"][1:4] = sizes
    if not np.allclose(header.get_best_affine(), affine, rtol=1e-6, atol=1e-6):
        # a form without a code is not read, and stays as it is
        if header["sform_code"] > 0:
            header.set_sform(affine, code=int(header["sform_code"]))
        elif header["qform_code"] > 0:
            header.set_qform(affine, code=int(header["qform_code"]))
        else:
            header.set_sform(affine, code="aligned")
    return header
