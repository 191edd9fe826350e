"""A volume on the disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

__all__ = ["SPACING_TOLERANCE", "Volume"]

# rounding of float32 headers stays far below this; a header that lies is off by much more
SPACING_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Volume:
    """A file whose header is sound, and whose voxels are there but not read yet.

    Args:
        path: the file.
        shape: voxels along each axis.
        affine: ``(4, 4)``, voxel indices to millimeters, with axes to the right, to the front and up.
        stored_spacing: voxel sizes as they stand in the file, in mm, which may be no sizes.
        affine_spacing: voxel sizes of the affine as it stands in the file, in mm.
        data_file: the file with the voxels.
        load: reads them, ``(*S)``; a ``ValueError`` names the file if they are damaged.
        nifti: the image as nibabel opens it, if the file is a NIfTI.
    """

    path: str
    shape: tuple[int, ...]
    affine: NDArray[np.float64]
    stored_spacing: NDArray[np.float64]
    affine_spacing: NDArray[np.float64]
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
        return not np.allclose(self.affine_spacing[known], sizes[known], rtol=SPACING_TOLERANCE, atol=0)
