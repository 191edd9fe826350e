"""Random crops, of which a share shows a structure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from monai.config import KeysCollection
from monai.transforms import Pad, RandSpatialCropd, SpatialCrop
from monai.utils import ensure_tuple, ensure_tuple_rep, fall_back_tuple

from monai_spct.functional.checks import in_unit_interval

__all__ = ["RandStructureCropd", "patch_size"]


class RandStructureCropd(RandSpatialCropd):
    """Crop at random; where there is a label, a share of the crops around a voxel of one of its structures.

    Structures are drawn alike, however small they are, and then one of their voxels. The crop stays within the image
    and a margin around it, so that the voxel is its center unless it is near a border. Images without a label, and
    labels without a structure, are cropped anywhere.

    Args:
        keys: of image and label, ``(C, *S)``.
        roi_size: of the crops, one number or one for each axis; along axes where an image is smaller, all of it.
        structure_share: probability of a crop around a structure.
        margin: zeros that such a crop may have beyond the image, one number or one for each axis. With a transform
            behind it that loses the outer part of the crops, about as wide as that part.
        label_key: of the label, ``(1, *S)``, which may be missing.
        allow_missing_keys: as in MONAI.

    Raises:
        ValueError: when ``structure_share`` is no share.

    Example:
        >>> import torch
        >>> from monai_spct.transforms import RandStructureCropd
        >>> label = torch.zeros(1, 40, 40, 20)
        >>> label[:, 31, 9, 15] = 2
        >>> crop = RandStructureCropd(["image", "label"], (8, 8, 8), structure_share=1.0)
        >>> crop({"image": torch.rand(1, 40, 40, 20), "label": label})["label"].max()
        metatensor(2.)
    """

    def __init__(
        self,
        keys: KeysCollection,
        roi_size: Sequence[int] | int,
        *,
        structure_share: float = 0.0,
        margin: Sequence[int] | int = 0,
        label_key: str = "label",
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, roi_size, random_size=False, allow_missing_keys=allow_missing_keys)
        self.roi_size = roi_size
        self.structure_share = in_unit_interval("structure_share", structure_share)
        self.margin = margin
        self.label_key = label_key

    def __call__(self, data: Mapping[Hashable, Any], lazy: bool | None = None) -> dict[Hashable, Any]:
        """The case, cropped."""
        rng, label = self.cropper.R, data.get(self.label_key)  # type: ignore[attr-defined]
        # no draw without a choice, so that other transforms draw as they do behind MONAI's own crop
        if label is not None and self.structure_share and rng.uniform() < self.structure_share:
            label = torch.as_tensor(label)[0]
            classes = [value for value in range(1, int(label.max()) + 1) if (label == value).any()]
            if classes:
                voxels = torch.nonzero(label == classes[rng.randint(len(classes))])
                center = voxels[rng.randint(len(voxels))].tolist()
                shape, margin = np.array(label.shape), np.array(ensure_tuple_rep(self.margin, label.ndim))
                size = np.minimum(fall_back_tuple(self.roi_size, label.shape), shape)
                start = np.clip(np.array(center) - size // 2, -margin, shape + margin - size)
                end = start + size
                crop = SpatialCrop(roi_start=start.tolist(), roi_end=end.tolist())
                beyond = np.maximum(np.stack([-start, end - shape], 1), 0)
                pad: Any = Pad([(0, 0), *map(tuple, beyond.tolist())])  # type: ignore[arg-type]
                return {**data, **{key: pad(crop(data[key])) for key in self.key_iterator(dict(data))}}
        cropped: dict[Hashable, Any] = super().__call__(data, lazy)
        return cropped


def patch_size(crop_size: int | Sequence[int], spatial_dims: int) -> tuple[int, ...]:
    """The size of crops along each axis.

    Args:
        crop_size: for all axes, or one for each.
        spatial_dims: number of axes.

    Raises:
        ValueError: when there is another number of sizes than of axes.

    Example:
        >>> from monai_spct.transforms import patch_size
        >>> patch_size(192, 2), patch_size([56, 56, 40], 3)
        ((192, 192), (56, 56, 40))
    """
    sizes: tuple[int, ...] = ensure_tuple(crop_size)
    if len(sizes) not in (1, spatial_dims):
        raise ValueError(
            f"`crop_size` must be one number, or one for each of the {spatial_dims} axes of `spatial_dims`, got "
            f"{crop_size!r}."
        )
    return sizes * (spatial_dims // len(sizes))
