"""Volumes in files of all formats."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from monai.data.image_reader import ImageReader
from monai.utils.enums import MetaKeys, SpaceKeys
from monai.utils.misc import ensure_tuple
from numpy.typing import NDArray

from monai_spct.data import rules
from monai_spct.data.dicom import open_series
from monai_spct.data.hdf5 import is_hdf5, open_hdf5
from monai_spct.data.metaimage import is_metaimage, open_metaimage
from monai_spct.data.nifti import open_nifti
from monai_spct.data.nrrd import is_nrrd, open_nrrd
from monai_spct.data.volume import Volume

__all__ = ["VolumeReader", "open_volume"]

_Name = str | PathLike[str]
_OPENERS = ((is_metaimage, open_metaimage), (is_nrrd, open_nrrd), (is_hdf5, open_hdf5))


def open_volume(path: _Name) -> Volume:
    """Open a NIfTI, MetaImage, NRRD or HDF5 file, or a folder of DICOM files, without reading voxels.

    Args:
        path: the file, or the folder of a DICOM series; for HDF5 with the name of a dataset, as in ``case.h5::image``.
            That has no geometry: its voxels count as 1 mm wide.

    Raises:
        FileNotFoundError: If there is no such file.
        ImportError: If HDF5 is given and h5py not installed, or DICOM and ITK.
        ValueError: If it is no volume of real numbers, or its voxels are not all there; names the file and the reason.

    Example:
        >>> import tempfile, nibabel as nib
        >>> from monai_spct.data import open_volume
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nib.save(nib.Nifti1Image(np.zeros((4, 4, 3), np.int16), np.diag([-2, -2, 5, 1])), f"{folder}/case.nii")
        ...     volume = open_volume(f"{folder}/case.nii")
        ...     volume.shape, volume.spacing.tolist(), volume.load().max()
        ((4, 4, 3), [2.0, 2.0, 5.0], np.int16(0))
    """
    try:
        if Path(path).is_dir():
            return open_series(path)
        return next((opened for named, opened in _OPENERS if named(path)), open_nifti)(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error.filename or path} does not exist.") from error


class VolumeReader(ImageReader):
    """Reads volumes of all formats for ``LoadImaged(reader=...)``; see :func:`~monai_spct.data.open_volume`.

    In ACDC as it is distributed, the affine says 1 mm while ``pixdim`` holds the truth; MONAI's own repair believes the
    qform or, without one, the affine. :func:`~monai_spct.data.nifti.true_affine` states the rule here. Time series are
    refused; a single trailing frame is dropped. Several files are the channels of one image and must share a grid, up
    to rounding. MetaImage, NRRD and DICOM need ITK, HDF5 needs h5py, which are optional dependencies.

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
        """Whether the files are named as those of these formats are."""
        return all(
            str(name).lower().endswith((".nii", ".nii.gz")) or any(named(name) for named, _ in _OPENERS)
            for name in ensure_tuple(filename)
        )

    def read(self, data: Sequence[_Name] | _Name, **_: Any) -> tuple[_Name, ...]:
        """Only keep the names: if this failed, ``LoadImage`` would try other readers.

        Args:
            data: a file, or a list of files that are the channels of one image.
        """
        names: tuple[_Name, ...] = ensure_tuple(data)
        return names

    def get_data(self, img: Any) -> tuple[NDArray[Any], dict[str, Any]]:
        """Voxels ``(*S)``, or ``(N, *S)`` for N files, and the metadata of the first.

        Args:
            img: what :meth:`read` returned.

        Raises:
            FileNotFoundError: If there is no such file.
            ImportError: If ITK or h5py is needed and not installed.
            ValueError: If a file is damaged or no volume, or channels differ in shape or affine; names file and reason.
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
