"""Reading volumes of the formats that the data sets come in."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

from monai.data.image_reader import ImageReader, ITKReader
from monai.utils.misc import ensure_tuple
from monai.utils.module import OptionalImportError
from numpy.typing import NDArray

from monai_spct.data.metaimage import is_metaimage, problem_of
from monai_spct.data.nifti import HeaderSpacingReader

__all__ = ["VolumeReader"]


class VolumeReader(ImageReader):
    """Reads NIfTI by :class:`~monai_spct.data.HeaderSpacingReader` and MetaImage by MONAI's ``ITKReader``.

    ITK, which is not installed along with this package, is needed for MetaImage alone. It fills what is missing of a
    truncated ``.raw`` with anything, so header and size are compared before.

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

    def __init__(self) -> None:
        super().__init__()
        self._reader: ImageReader = HeaderSpacingReader()  # the one of the last file

    def __reduce__(self) -> tuple[type[VolumeReader], tuple[()]]:
        return type(self), ()  # without what was read last, so that it counts as the same reader before and after

    def verify_suffix(self, filename: Sequence[str | PathLike[str]] | str | PathLike[str]) -> bool:
        """Whether the files are named like MetaImage or NIfTI."""
        names = ensure_tuple(filename)
        return all(map(is_metaimage, names)) or bool(HeaderSpacingReader().verify_suffix(names))

    def read(self, data: Sequence[str | PathLike[str]] | str | PathLike[str], **kwargs: Any) -> Any:
        """The image, or a list of them for several files; in the place of one that cannot be read, the error.

        Args:
            data: a file, or a list of files that are the channels of one image, all of one format.
            kwargs: passed to ``nibabel.load`` or ``itk.imread``.
        """
        names = ensure_tuple(data)
        if not is_metaimage(names[0]):
            self._reader = HeaderSpacingReader()
            return self._reader.read(data, **kwargs)
        if problems := [problem for name in names if (problem := problem_of(name))]:
            return ValueError(" ".join(problems))
        try:
            self._reader = ITKReader()
            return self._reader.read(data, **kwargs)
        except OptionalImportError:
            return ImportError(f'{names[0]} is read by ITK, which is not installed: pip install "monai-spct[itk]"')
        except RuntimeError as error:
            return ValueError(f"{names[0]} is damaged: {error}")

    def get_data(self, img: Any) -> tuple[NDArray[Any], dict[str, Any]]:
        """Voxels ``(*S)``, or ``(N, *S)`` for N files, and metadata.

        Args:
            img: what :meth:`read` returned.

        Raises:
            ImportError: If a MetaImage is to be read without ITK.
            ValueError: If a file is damaged, truncated or more than a volume; names file and reason.
            FileNotFoundError: If there is no such file.
        """
        if isinstance(img, Exception):
            raise img
        voxels, meta = self._reader.get_data(img)
        return voxels, meta
