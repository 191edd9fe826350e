"""What networks have seen: the ranges of spacing and values of the images that they were trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from monai.utils import ensure_tuple

from monai_spct.data.volumes import open_volume

__all__ = ["seen_ranges"]


def seen_ranges(cases: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Smallest and largest voxel size along each axis, in mm, and smallest and largest value.

    Spacings are read from the headers of all images, values from the voxels of the labeled ones alone, which are few.

    Args:
        cases: with ``image``, and ``label`` where there is one.

    Returns:
        ``spacing``, two lists of three sizes, and ``values``, two numbers; nothing without a labeled case.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from monai_spct.data import acdc_cases, seen_ranges, write_acdc_phantom
        >>> with TemporaryDirectory() as folder:
        ...     cases = acdc_cases(write_acdc_phantom(f"{folder}/acdc", patients=2))
        ...     ranges = seen_ranges(cases)
        >>> sorted(ranges), len(ranges["spacing"][0])
        (['spacing', 'values'], 3)
    """
    labeled = [file for case in cases if "label" in case for file in ensure_tuple(case["image"])]
    if not labeled:
        return {}
    spacings = np.stack([open_volume(file).spacing for case in cases for file in ensure_tuple(case["image"])])
    finite = [voxels[np.isfinite(voxels)] for voxels in (open_volume(file).load() for file in labeled)]
    values = np.concatenate([[voxels.min(), voxels.max()] for voxels in finite if voxels.size])
    return {
        "spacing": [np.round(spacings.min(0), 4).tolist(), np.round(spacings.max(0), 4).tolist()],
        "values": [float(values.min()), float(values.max())],
    }
