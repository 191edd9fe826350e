"""Rules for images, labels and lists of cases; each returns a message, or ``None``.

``name`` is that of the case or file, for the message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

__all__ = [
    "SIDE",
    "affines",
    "channel_count",
    "channel_grids",
    "contrast",
    "depth",
    "label_values",
    "not_finite",
    "one_side",
    "other_pixdim",
    "refuse",
    "shapes",
    "slice_axes",
    "slice_axis",
    "spacing",
    "turn",
    "unlike",
    "unseen_classes",
    "voxel_sizes",
]

_SAME_VOXEL = 0.1  # voxels; headers are rounded
_FAR = 10  # times the median of a spacing: centimeters for millimeters, or a field in the wrong place
_THICK = 1.5  # times the voxel size along the other axes
_UNLIKE = {"spacing": 1.5, "values": 20}  # times what was seen
_FLAT = 0.99  # share of voxels; scaling by percentiles leaves nothing of such an image

SIDE = {"labeled": "training", "unlabeled": "training", "validation": "validation", "test": "test"}


def refuse(problem: str | None) -> None:
    """Raise a problem, if there is one."""
    if problem:
        raise ValueError(problem)


def channel_count(name: str, channels: int, in_channels: int | None) -> str | None:
    """An image has ``in_channels`` channels, if that is given."""
    if in_channels in (None, channels):
        return None
    return f"the image of {name} must have `in_channels` = {in_channels} channels, got {channels}."


def channel_grids(channels: Sequence[tuple[object, tuple[int, ...], ArrayLike]]) -> str | None:
    """Channels of one image, given as file, shape and affine, share a grid, up to rounding."""
    first, shape, affine = channels[0]
    for name, its_shape, its_affine in channels[1:]:
        if its_shape != shape:
            return f"channels of one image must have the same shape, got {shape} in {first} and {its_shape} in {name}."
        if not _close(its_affine, affine):
            return (
                f"channels of one image must have the same affine, got {_rows(affine)} in {first} and "
                f"{_rows(its_affine)} in {name}."
            )
    return None


def shapes(name: str, image: tuple[int, ...], label: tuple[int, ...]) -> str | None:
    """Image and label have the same shape ``S``."""
    if image == label:
        return None
    return f"image and label of {name} must have the same shape, got {image} and {label}."


def affines(name: str, image: ArrayLike, label: ArrayLike, shape: tuple[int, ...]) -> str | None:
    """Image and label of shape ``S`` have the same affine; a difference is mended when they are loaded."""
    if _close(image, label):
        return None
    if turn(image, label, shape) not in (None, ([0, 1, 2], [])):
        return (
            f"image and label of {name} cover the same voxels, but their axes have other directions; the label is "
            "turned to its image."
        )
    return f"image and label of {name} have the same shape but different affines; the image's geometry serves both."


def turn(image: ArrayLike, label: ArrayLike, shape: tuple[int, ...]) -> tuple[list[int], list[int]] | None:
    """How to turn a label whose affine puts its voxels on those of its image, with axes flipped or swapped.

    Args:
        image: affine ``(4, 4)`` of the image.
        label: affine ``(4, 4)`` of the label.
        shape: ``S`` of both.

    Returns:
        The axes of the label in the order of the image's, and which of them to flip then; ``None`` where their voxels
        are not the same.

    Example:
        >>> flipped = np.diag([-1.0, 1, 1, 1])
        >>> flipped[0, 3] = 3  # the first voxel of four is the last one
        >>> turn(np.eye(4), flipped, (4, 4, 3))
        ([0, 1, 2], [0])
    """
    if len(shape) != 3:
        return None
    try:
        voxels = np.linalg.inv(np.asarray(label, dtype=float)) @ np.asarray(image, dtype=float)
    except np.linalg.LinAlgError:
        return None
    order = np.abs(voxels[:3, :3]).argmax(0)
    flips = [axis for axis in range(3) if voxels[order[axis], axis] < 0]
    exact = np.zeros((4, 4))
    exact[order, range(3)] = np.where(np.isin(range(3), flips), -1, 1)
    exact[order[flips], 3] = np.array(shape)[flips] - 1
    exact[3, 3] = 1
    if sorted(order) != [0, 1, 2] or [shape[axis] for axis in order] != list(shape):
        return None
    # where the first and the last voxel along each axis are in the label
    corners = np.array([[x, y, z, 1] for x in (0, shape[0] - 1) for y in (0, shape[1] - 1) for z in (0, shape[2] - 1)])
    off = np.abs((voxels - exact) @ corners.T).max()
    return (order.tolist(), flips) if off < _SAME_VOXEL else None


def label_values(name: str, wrong: Sequence[float], num_classes: int) -> str | None:
    """No value of a label is ``wrong``, that is, no class."""
    if not len(wrong):
        return None
    return (
        f"the label of {name} must hold whole numbers from 0 to {num_classes - 1} (`num_classes` is {num_classes}), "
        f"got {list(wrong[:5])}."
    )


def unseen_classes(seen: Iterable[int], num_classes: int) -> str | None:
    """Each class, background included, occurs in the labels of a training."""
    never = sorted(set(range(num_classes)) - set(seen))
    if not never:
        return None
    which = f"class {never[0]}" if len(never) == 1 else f"classes {', '.join(map(str, never))}"
    return f"no labeled case has {which} (`num_classes` is {num_classes}): it cannot be learned."


def not_finite(name: str, count: int, smallest: float) -> str | None:
    """Number of voxels of an image that are not finite, and the smallest finite value, which they become."""
    return f"the image of {name} has {count} voxels that are not finite; they become {smallest:g}." if count else None


def contrast(name: str, smallest: float, share: float) -> str | None:
    """Smallest value of an image, and the share of its voxels that have it."""
    if share == 1:
        return f"the image of {name} is constant: there is nothing to learn from it."
    if share >= _FLAT:
        return f"the image of {name} is {smallest:g} in {share:.2%} of its voxels: percentiles of it are no scale."
    return None


def voxel_sizes(file: str, stored: ArrayLike, read: ArrayLike) -> str | None:
    """The voxel sizes stored in a file are positive; ``read`` is what they are read as, in mm."""
    if np.isfinite(stored).all() and np.min(stored) > 0:
        return None
    return f"the voxel sizes of {file} must be above 0, got {_mm(stored)}; it is read with {_mm(read)}."


def other_pixdim(files: int, first: str, pixdim: ArrayLike, affine: ArrayLike) -> str:
    """Number of files in which the two have different voxel sizes, and those of the first, in mm."""
    return (
        f"{files} {'file has' if files == 1 else 'files have'} other voxel sizes in `pixdim` than in the affine; "
        f"`pixdim` counts. The first is {first}: {_mm(pixdim)} and {_mm(affine)}."
    )


def spacing(name: str, its: ArrayLike, median: ArrayLike) -> str | None:
    """Spacing of an image, and the median of all, in mm."""
    ratio = np.asarray(its) / np.asarray(median)
    if (ratio <= _FAR).all() and (ratio >= 1 / _FAR).all():
        return None
    return f"the spacing of {name}, {_mm(its)}, is more than {_FAR} times off the median of all images, {_mm(median)}."


def depth(name: str, shape: tuple[int, ...]) -> str | None:
    """An image has more than one slice, as networks with three spatial axes need."""
    if shape[-1] > 1:
        return None
    return f"the image of {name} must have several slices for `spatial_dims` = 3, got the shape {shape}."


def slice_axis(shape: Sequence[float], sizes: ArrayLike) -> int | None:
    """The axis that slices lie along: that of the thick voxels.

    Where voxels are alike along all axes, it is one with less than half as many of them as the others, if any.
    """
    (_, second), (thick, largest) = sorted(enumerate(np.asarray(sizes).tolist()), key=lambda item: item[1])[1:]
    if largest >= _THICK * second:
        return thick
    (thinnest, fewest), (_, more), _ = sorted(enumerate(shape), key=lambda item: item[1])
    return thinnest if 2 * fewest < more else None


def slice_axes(volumes: Mapping[str, tuple[tuple[int, ...], ArrayLike]]) -> str | None:
    """Shape and spacing of each image: slices are cut along the last axis, see :func:`slice_axis`."""
    others = [
        f"{name} ({' x '.join(map(str, shape))} voxels of {_mm(sizes)})"
        for name, (shape, sizes) in volumes.items()
        if slice_axis(shape, sizes) not in (None, 2)
    ]
    if not others:
        return None
    return (
        f"slices lie along the last axis, and those of {len(others)} of {len(volumes)} images seem to lie along "
        f"another one, unless `resampling` turns them: {', '.join(others)}."
    )


def unlike(name: str, its: Mapping[str, ArrayLike], seen: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> str | None:
    """Spacing, in mm, and range of values of an image, and the smallest and largest of those trained on."""
    low, high = map(np.asarray, seen["spacing"])
    sizes = np.asarray(its["spacing"])
    if (sizes < low / _UNLIKE["spacing"]).any() or (sizes > high * _UNLIKE["spacing"]).any():
        return (
            f"the voxels of {name} are {_mm(sizes)}, those that the networks have seen {_mm(low)} to {_mm(high)}: "
            "treat the prediction with caution."
        )
    (least, most), (lowest, highest) = np.asarray(its["values"], float), np.asarray(seen["values"], float)
    ratio = (most - least) / max(highest - lowest, 1e-12)
    if least < lowest - (highest - lowest) / 2 or not 1 / _UNLIKE["values"] <= ratio <= _UNLIKE["values"]:
        return (
            f"the values of {name} lie between {least:.4g} and {most:.4g}, those that the networks have seen between "
            f"{lowest:.4g} and {highest:.4g}: treat the prediction with caution."
        )
    return None


def one_side(patients: Iterable[tuple[str, str]]) -> list[str]:
    """Patients, and the list that each case of theirs is in: one side of training, validation and test."""
    lists: dict[str, dict[str, None]] = {}
    for patient, name in patients:
        lists.setdefault(patient, {})[name] = None
    return [
        f"patient {patient} must be on one side, got {' and '.join(f'`{name}`' for name in names)}."
        for patient, names in lists.items()
        if len({SIDE[name] for name in names}) > 1
    ]


def _close(one: ArrayLike, other: ArrayLike) -> bool:
    return bool(np.allclose(one, other, atol=1e-3))


def _rows(affine: ArrayLike) -> list[list[float]]:
    rows: list[list[float]] = np.round(np.asarray(affine, dtype=float)[:3], 3).tolist()
    return rows


def _mm(sizes: ArrayLike) -> str:
    return " x ".join(f"{size:.4g}" for size in np.asarray(sizes).tolist()) + " mm"
