"""Checks of each case after loading."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from monai.transforms import MapTransform
from torch import Tensor

from monai_spct.data import rules
from monai_spct.functional.checks import at_least

__all__ = ["CheckCased"]


class CheckCased(MapTransform):
    """Check a loaded image and its label, and give both the image's geometry.

    - The number of channels, the label's shape and its values (whole numbers from 0 to ``num_classes - 1``) must be
      right.
    - A label whose affine differs gets the image's, with a warning, or reorienting and resampling would misalign the
      two. If its own affine puts it on the image's voxels with axes flipped or swapped, it is turned first.
    - Voxels of the image that are not finite become the smallest finite value, with a warning. Channels that are
      constant, or nearly so, are warned of, and so are images far outside of what was ``seen``.

    Args:
        num_classes: number of classes, background included.
        in_channels: number of channels of an image, ``C_in``; not checked by default.
        seen: ranges of the images that networks were trained on, of :func:`~monai_spct.data.seen_ranges`; images with
            a spacing or values far outside are warned of. Not checked by default.
        image_key: key of the image, ``(C_in, *S)``.
        label_key: key of the label, ``(1, *S)``, which may be missing.

    Raises:
        ValueError: when called with a case that breaks a rule; names the case.

    Example:
        >>> import torch
        >>> from monai_spct.transforms import CheckCased
        >>> case = {"image": torch.rand(1, 8, 8, 3), "label": torch.full((1, 8, 8, 3), 4), "case": "patient007_frame01"}
        >>> CheckCased(num_classes=4)(case)
        Traceback (most recent call last):
        ...
        ValueError: the label of patient007_frame01 must hold whole numbers from 0 to 3 (`num_classes` is 4), got [4].
    """

    def __init__(
        self,
        *,
        num_classes: int,
        in_channels: int | None = None,
        seen: Mapping[str, Any] | None = None,
        image_key: str = "image",
        label_key: str = "label",
    ) -> None:
        super().__init__((image_key, label_key), allow_missing_keys=True)
        self.num_classes = at_least("num_classes", num_classes, 2)
        self.in_channels = None if in_channels is None else at_least("in_channels", in_channels, 1)
        self.seen = seen
        self.image_key, self.label_key = image_key, label_key

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """The case, checked."""
        case = dict(data)
        image = case[self.image_key]
        name = str(case.get("case") or getattr(image, "meta", {}).get("filename_or_obj") or "this case")
        rules.refuse(rules.channel_count(name, len(image), self.in_channels))
        image = case[self.image_key] = _finite(image, name)
        if self.seen and hasattr(image, "pixdim"):
            low, high = torch.aminmax(_plain(image))
            its = {"spacing": image.pixdim.tolist(), "values": (float(low), float(high))}
            if problem := rules.unlike(name, its, self.seen):
                warnings.warn(problem, stacklevel=2)
        if self.label_key in case:
            case[self.label_key] = self._checked_label(case[self.label_key], image, name)
        return case

    def _checked_label(self, label: Any, image: Any, name: str) -> Any:
        shape = tuple(label.shape[1:])
        rules.refuse(rules.shapes(name, tuple(image.shape[1:]), shape))
        values = _plain(label)
        classes = (values >= 0) & (values < self.num_classes) & (values == torch.trunc(values))
        rules.refuse(rules.label_values(name, np.unique(values[~classes].cpu().numpy()).tolist(), self.num_classes))
        located = hasattr(image, "affine") and hasattr(label, "affine")
        if located and (problem := rules.affines(name, image.affine, label.affine, shape)):
            warnings.warn(problem, stacklevel=2)
            turn = rules.turn(image.affine, label.affine, shape)
            label = label.clone()
            if turn is not None:
                order, flips = turn
                label.copy_(values.permute(0, *(axis + 1 for axis in order)).flip([axis + 1 for axis in flips]))
            label.affine = image.affine.clone()
        return label


def _finite(image: Tensor, name: str) -> Tensor:
    if not image.numel():
        raise ValueError(f"the image of {name} must have voxels, got the shape {tuple(image.shape)}.")
    low, high = torch.aminmax(_plain(image))
    if not (torch.isfinite(low) and torch.isfinite(high)):  # as both are, or are not, when a voxel is not
        finite = torch.isfinite(image)
        smallest = float(image[finite].min()) if finite.any() else 0.0
        warnings.warn(str(rules.not_finite(name, int((~finite).sum()), smallest)), stacklevel=3)
        image = torch.where(finite, image, smallest)
    for number, channel in enumerate(_plain(image)):
        low = channel.min()
        which = name if len(image) == 1 else f"{name}, channel {number},"
        if problem := rules.contrast(which, float(low), int((channel == low).sum()) / channel.numel()):
            warnings.warn(problem, stacklevel=3)
    return image


def _plain(value: Any) -> Tensor:
    tensor: Tensor = value.as_tensor() if hasattr(value, "as_tensor") else torch.as_tensor(value)
    return tensor
