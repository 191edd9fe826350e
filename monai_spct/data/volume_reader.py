"""Reading volumes of the formats that the data sets come in."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
from monai.data.image_reader import ImageReader, ITKReader
from monai.utils.enums import MetaKeys
from monai.utils.misc import ensure_tuple
from monai.utils.module import OptionalImportError
from numpy.typing import NDArray

from monai_spct.data import rules
from monai_spct.data.metaimage import is_metaimage, problem_of, read_header
from monai_spct.data.nifti import HeaderSpacingReader

__all__ = ["VolumeReader"]

_Name = str | PathLike[str]


class VolumeReader(ImageReader):
    """Reads NIfTI by :class:`~monai_spct.data.HeaderSpacingReader` and MetaImage by MONAI's ``ITKReader``.

    ITK, which is not installed along with this package, is needed for MetaImage alone. It fills what is missing of a
    truncated or damaged file with anything, so header and data are compared before.

    Several files are the channels of one image. They must lie on one grid; differences that rounding explains are none.

    ``LoadImage`` tries its other readers when :meth:`read` fails, and then says nothing of the failure that counts, so
    all that is wrong with a file is raised by :meth:`get_data`.

    Example:
        >>> import tempfile, nibabel as nib, numpy as np
        >>> from monai.transforms import LoadImage
        >>> from monai_spct.data import VolumeReader
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nib.save(nib.Nifti1Image(np.zeros((4, 4, 3), np.int16), np.diag([-2, -2, 5, 1])), f"{folder}/case.nii")
        ...     LoadImage(reader=VolumeReader())(f"{folder}/case.nii").pixdim.tolist()
        [2.0, 2.0, 5.0]
    """

    def verify_suffix(self, filename: Sequence[_Name] | _Name) -> bool:
        """Whether the files are named like MetaImage or NIfTI."""
        return all(is_metaimage(name) or HeaderSpacingReader().verify_suffix(name) for name in ensure_tuple(filename))

    def read(self, data: Sequence[_Name] | _Name, **kwargs: Any) -> Any:
        """What :meth:`get_data` takes: each file's name, reader and image, or, if it cannot be read, the error.

        Args:
            data: a file, or a list of files that are the channels of one image.
            kwargs: passed to ``nibabel.load`` or ``itk.imread``.
        """
        return [(name, *_opened(name, **kwargs)) for name in ensure_tuple(data)]

    def get_data(self, img: Any) -> tuple[NDArray[Any], dict[str, Any]]:
        """Voxels ``(*S)``, or ``(N, *S)`` for N files, and metadata, which are those of the first.

        Args:
            img: what :meth:`read` returned.

        Raises:
            ImportError: If a MetaImage is to be read without ITK.
            ValueError: If a file is damaged, truncated or more than a volume, or channels have different shapes or
                affines; names file and reason.
            FileNotFoundError: If there is no such file.
        """
        channels = []
        for name, reader, image in img:
            if isinstance(image, Exception):
                raise image
            voxels, meta = reader.get_data(image)
            if is_metaimage(name):
                _refuse_other_geometry(name, voxels.shape, meta[MetaKeys.AFFINE])
            if voxels.ndim != 3:
                raise ValueError(f"{name} must be a volume with three axes, got the shape {voxels.shape}.")
            channels.append((name, voxels, meta))
        problem = rules.channel_grids([(name, others.shape, its[MetaKeys.AFFINE]) for name, others, its in channels])
        if problem:
            raise ValueError(problem)
        _, voxels, meta = channels[0]
        if len(channels) > 1:
            meta[MetaKeys.ORIGINAL_CHANNEL_DIM] = 0
            voxels = np.stack([others for _, others, _ in channels])
        return voxels, meta


def _opened(name: _Name, **kwargs: Any) -> tuple[ImageReader | None, Any]:
    """A reader, and what it read or why it could not."""
    if not is_metaimage(name):
        reader = HeaderSpacingReader()
        return reader, reader.read(name, **kwargs)
    if problem := problem_of(name, unpack=True):
        return None, ValueError(problem)
    try:
        itk_reader = ITKReader()
        return itk_reader, itk_reader.read(name, **kwargs)
    except OptionalImportError:
        return None, ImportError(f'{name} is read by ITK, which is not installed: pip install "monai-spct[itk]"')
    except RuntimeError as error:
        return None, ValueError(f"{name} is damaged: {error}")


def _refuse_other_geometry(name: _Name, shape: tuple[int, ...], affine: NDArray[Any]) -> None:
    """Of a header with a line that it does not understand, ITK says nothing and takes defaults for others."""
    header = read_header(name)
    if shape != header.shape or not np.allclose(affine, header.affine, atol=1e-3):
        raise ValueError(
            f"{name} has a header that ITK does not understand: it reads the shape {shape} and the affine "
            f"{np.asarray(affine).tolist()} instead of {header.shape} and {header.affine.tolist()}."
        )
