"""Volumes of the formats that data sets come in: one function looks at a file, and what it returns loads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from monai.data.image_reader import ImageReader
from monai.utils.enums import MetaKeys, SpaceKeys
from monai.utils.misc import ensure_tuple
from numpy.typing import NDArray

from monai_spct.data import metaimage, nifti, rules

__all__ = ["Volume", "VolumeReader", "open_volume"]

_Name = str | PathLike[str]


@dataclass(frozen=True)
class Volume:
    """A file whose header is sound, and whose voxels are there but not read yet.

    Args:
        path: the file.
        shape: voxels along each axis.
        affine: ``(4, 4)``, voxel indices to millimeters.
        stored_spacing: voxel sizes as they stand in the file, in mm, which may be no sizes.
        affine_spacing: voxel sizes of the affine as it stands in the file, in mm.
        data_file: the file with the voxels.
        load: reads them, ``(*S)``; a ``ValueError`` names the file if they are damaged.
        nifti: the image as nibabel opens it, if the file is a NIfTI.
    """

    path: str
    shape: tuple[int, ...]
    affine: NDArray[np.float64]
    stored_spacing: tuple[float, ...]
    affine_spacing: tuple[float, ...]
    data_file: Path
    load: Callable[[], NDArray[Any]]
    nifti: nib.Nifti1Pair | None = None

    @property
    def spacing(self) -> NDArray[np.float64]:
        """Voxel sizes in mm."""
        sizes: NDArray[np.float64] = np.linalg.norm(self.affine[:3, :3], axis=0)
        return sizes

    @property
    def disagrees(self) -> bool:
        """Whether the affine has other voxel sizes than the field for them, where that holds sizes."""
        sizes = np.abs(self.stored_spacing)
        known = np.isfinite(sizes) & (sizes > 0)
        found = np.array(self.affine_spacing)[known]
        return not np.allclose(found, sizes[known], rtol=nifti.SPACING_TOLERANCE, atol=0)


def open_volume(path: _Name) -> Volume:
    """Look at a NIfTI or MetaImage file without reading its voxels.

    Args:
        path: the file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no volume of real numbers, or its voxels are not all there; names the file and the reason.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nib.save(nib.Nifti1Image(np.zeros((4, 4, 3), np.int16), np.diag([-2, -2, 5, 1])), f"{folder}/case.nii")
        ...     volume = open_volume(f"{folder}/case.nii")
        ...     volume.shape, volume.spacing.tolist(), volume.load().max()
        ((4, 4, 3), [2.0, 2.0, 5.0], np.int16(0))
    """
    try:
        if metaimage.is_metaimage(path):
            header = metaimage.read_header(path)
            spacing, load = header.spacing, partial(metaimage.read_voxels, path, header)
            sizes = tuple(np.abs(spacing).tolist())
            return Volume(str(path), header.shape, header.affine, spacing, sizes, header.data_file, load)
        image = nifti.open_nifti(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error.filename or path} does not exist.") from error
    data: Any = image.dataobj
    columns = np.linalg.norm(np.asarray(image.affine, dtype=np.float64)[:3, :3], axis=0)
    return Volume(
        path=str(path),
        shape=image.shape[:3],
        affine=nifti.true_affine(image),
        stored_spacing=tuple((nifti.millimeters(image) * nifti.stored_pixdim(image)).tolist()),
        affine_spacing=tuple((nifti.millimeters(image) * columns).tolist()),
        data_file=Path(data.file_like),
        load=partial(nifti.read_voxels, image),
        nifti=image,
    )


class VolumeReader(ImageReader):
    """Reads NIfTI and MetaImage for ``LoadImaged(reader=...)``.

    In ACDC as it is distributed, the affine says 1 mm while ``pixdim`` holds the truth. MONAI's own repair of such
    headers replaces the affine by the qform, or, where there is no qform, believes the affine;
    :func:`~monai_spct.data.nifti.true_affine` states the rule here. One file is one frame: time series are refused
    instead of becoming channels, and a single trailing frame is dropped.

    MetaImage is read by ITK, which is not installed along with this package. Several files are the channels of one
    image; they must lie on one grid, up to rounding.

    Example:
        >>> import tempfile, nibabel as nib, numpy as np
        >>> from monai.transforms import LoadImage
        >>> from monai_spct.data import VolumeReader
        >>> image = nib.Nifti1Image(np.zeros((4, 4, 3), np.int16), np.diag([-1, -1, 1, 1]))
        >>> image.header.set_zooms((1.25, 1.25, 10))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nib.save(image, f"{folder}/case.nii.gz")
        ...     LoadImage(reader=VolumeReader())(f"{folder}/case.nii.gz").affine.diagonal().tolist()
        [-1.25, -1.25, 10.0, 1.0]
    """

    def verify_suffix(self, filename: Sequence[_Name] | _Name) -> bool:
        """Whether the files are named like MetaImage or NIfTI."""
        names = [str(name).lower() for name in ensure_tuple(filename)]
        return all(name.endswith((".nii", ".nii.gz", ".mhd", ".mha")) for name in names)

    def read(self, data: Sequence[_Name] | _Name, **_: Any) -> tuple[_Name, ...]:
        """The names alone: if this failed, ``LoadImage`` would try readers that know less.

        Args:
            data: a file, or a list of files that are the channels of one image.
        """
        names: tuple[_Name, ...] = ensure_tuple(data)
        return names

    def get_data(self, img: Any) -> tuple[NDArray[Any], dict[str, Any]]:
        """Voxels ``(*S)``, or ``(N, *S)`` for N files, and metadata, which are those of the first.

        Args:
            img: what :meth:`read` returned.

        Raises:
            FileNotFoundError: If there is no such file.
            ImportError: If a MetaImage is to be read without ITK.
            ValueError: If a file is damaged, truncated or more than a volume, or channels have different shapes or
                affines; names file and reason.
        """
        channels = [open_volume(name) for name in img]
        rules.refuse(rules.channel_grids([(channel.path, channel.shape, channel.affine) for channel in channels]))
        voxels = [channel.load() for channel in channels]
        several = len(voxels) > 1
        return np.stack(voxels) if several else voxels[0], {
            MetaKeys.AFFINE: channels[0].affine,
            MetaKeys.ORIGINAL_AFFINE: channels[0].affine.copy(),
            MetaKeys.SPACE: SpaceKeys.RAS,
            MetaKeys.SPATIAL_SHAPE: np.array(channels[0].shape),
            MetaKeys.ORIGINAL_CHANNEL_DIM: 0 if several else float("nan"),
        }
