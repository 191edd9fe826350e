"""Resampling to voxel sizes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from monai.transforms import Spacingd

__all__ = ["KeysSpacingd"]


class KeysSpacingd(Spacingd):
    """MONAI's ``Spacingd``, which sees its own keys alone.

    For images from NIfTI, MONAI's takes every other entry whose name begins like a key, such as ``image_path`` of MONAI
    Label, for its metadata, and fails where it is none.

    Args:
        args: those of MONAI's ``Spacingd``.
        kwargs: likewise.

    Example:
        >>> import torch
        >>> from monai.data import MetaTensor
        >>> from monai_spct.transforms import KeysSpacingd
        >>> image = MetaTensor(torch.rand(1, 8, 8, 4), meta={"filename_or_obj": "a.nii"})
        >>> case = KeysSpacingd("image", pixdim=(2, 2, 1))({"image": image, "image_path": "a.nii"})
        >>> case["image"].shape, case["image_path"]
        (torch.Size([1, 4, 4, 4]), 'a.nii')
    """

    def __call__(self, data: Mapping[Hashable, Any], *args: Any, **kwargs: Any) -> dict[Hashable, Any]:
        """The case, with its images resampled."""
        images = {key: data[key] for key in self.keys if key in data}
        return {**data, **super().__call__(images, *args, **kwargs)}
