"""What images, labels and lists of cases must satisfy, in the same words before and during loading."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

__all__ = [
    "SIDE",
    "affines",
    "channel_count",
    "channel_grids",
    "constant",
    "label_values",
    "not_finite",
    "one_side",
    "shapes",
    "turn",
]

_SAME_VOXEL = 0.1  # voxels; headers are rounded

SIDE = {"labeled": "training", "unlabeled": "training", "validation": "validation", "test": "test"}


def channel_count(name: str, channels: int, in_channels: int | None) -> str | None:
    """What is wrong with the number of channels of an image; nothing if it is right, or not to be looked at.

    Args:
        name: of the case.
        channels: of its image.
        in_channels: how many there must be.

    Example:
        >>> from monai_spct.data.rules import channel_count
        >>> channel_count("a", 2, 1)
        'the image of a must have `in_channels` = 1 channels, got 2.'
    """
    if in_channels in (None, channels):
        return None
    return f"the image of {name} must have `in_channels` = {in_channels} channels, got {channels}."


def channel_grids(channels: Sequence[tuple[object, tuple[int, ...], ArrayLike]]) -> str | None:
    """How the channels of one image lie on different grids; nothing if they share one, but for rounding.

    Args:
        channels: file, shape and affine of each.

    Example:
        >>> import numpy as np
        >>> from monai_spct.data.rules import channel_grids
        >>> channel_grids([("t1.nii", (4, 4, 3), np.eye(4)), ("t2.nii", (4, 5, 3), np.eye(4))])
        'channels of one image must have the same shape, got (4, 4, 3) in t1.nii and (4, 5, 3) in t2.nii.'
    """
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
    """How image and label differ in shape; nothing if they do not.

    Args:
        name: of the case.
        image: ``S``.
        label: ``S``.

    Example:
        >>> from monai_spct.data.rules import shapes
        >>> shapes("a", (4, 4, 3), (4, 4, 2))
        'image and label of a must have the same shape, got (4, 4, 3) and (4, 4, 2).'
    """
    if image == label:
        return None
    return f"image and label of {name} must have the same shape, got {image} and {label}."


def affines(name: str, image: ArrayLike, label: ArrayLike, shape: tuple[int, ...]) -> str | None:
    """That image and label have different affines, which is mended when they are loaded; nothing if they agree.

    Args:
        name: of the case.
        image: ``(4, 4)``.
        label: ``(4, 4)``.
        shape: ``S`` of both.

    Example:
        >>> import numpy as np
        >>> from monai_spct.data.rules import affines
        >>> affines("a", np.eye(4), np.eye(4), (4, 4, 3)) is None
        True
    """
    if _close(image, label):
        return None
    if turn(image, label, shape) is not None:
        return (
            f"image and label of {name} cover the same voxels, but their axes have other directions; the label is "
            "turned to its image."
        )
    return f"image and label of {name} have the same shape but different affines; the image's geometry serves both."


def turn(image: ArrayLike, label: ArrayLike, shape: tuple[int, ...]) -> tuple[list[int], list[int]] | None:
    """How to turn a label whose affine puts its voxels on those of its image, with axes that are flipped or swapped.

    Two affines that differ and yet share every voxel are both true: one of the files was saved with other axes.

    Args:
        image: ``(4, 4)``.
        label: ``(4, 4)``.
        shape: ``S`` of both.

    Returns:
        The axes of the label in the order of the image's, and which of them to flip then; nothing where the voxels of
        the two are not the same.

    Example:
        >>> import numpy as np
        >>> from monai_spct.data.rules import turn
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
    # where the first and the last voxel along each axis are in the label
    corners = np.stack([np.zeros(3), np.array(shape) - 1], 1)
    order = np.abs(voxels[:3, :3]).argmax(0)
    flips = [axis for axis in range(3) if voxels[order[axis], axis] < 0]
    exact = np.zeros((4, 4))
    exact[order, range(3)] = np.where(np.isin(range(3), flips), -1, 1)
    exact[order[flips], 3] = np.array(shape)[flips] - 1
    exact[3, 3] = 1
    if sorted(order) != [0, 1, 2] or [shape[axis] for axis in order] != list(shape):
        return None
    grid = np.stack([*(axis.ravel() for axis in np.meshgrid(*corners, indexing="ij")), np.ones(8)])
    off = np.abs((voxels - exact) @ grid).max()
    return (order.tolist(), flips) if off < _SAME_VOXEL else None


def label_values(name: str, values: Iterable[float], num_classes: int) -> str | None:
    """Which values of a label are no classes; nothing if all are.

    Args:
        name: of the case.
        values: the different values of its label.
        num_classes: number of classes, background included.

    Example:
        >>> from monai_spct.data.rules import label_values
        >>> label_values("a", [0, 1, 4], num_classes=4)
        'the label of a must hold whole numbers from 0 to 3 (`num_classes` is 4), got [4].'
    """
    wrong = [value for value in values if not (float(value).is_integer() and 0 <= value < num_classes)]
    if not wrong:
        return None
    return (
        f"the label of {name} must hold whole numbers from 0 to {num_classes - 1} (`num_classes` is {num_classes}), "
        f"got {wrong[:5]}."
    )


def not_finite(name: str, count: int, smallest: float) -> str | None:
    """That voxels of an image are not finite, which is mended when it is loaded; nothing if there are none.

    Args:
        name: of the case.
        count: of these voxels.
        smallest: finite value of the image.

    Example:
        >>> from monai_spct.data.rules import not_finite
        >>> not_finite("a", 3, -1024)
        'the image of a has 3 voxels that are not finite; they become -1024.'
    """
    if not count:
        return None
    return f"the image of {name} has {count} voxels that are not finite; they become {smallest:g}."


def constant(name: str, low: float, high: float) -> str | None:
    """That an image has one value alone; nothing if it has several.

    Args:
        name: of the case.
        low: smallest value.
        high: largest value.

    Example:
        >>> from monai_spct.data.rules import constant
        >>> constant("a", 0.0, 0.0)
        'the image of a is constant: there is nothing to learn from it.'
    """
    return f"the image of {name} is constant: there is nothing to learn from it." if low == high else None


def one_side(patients: Iterable[tuple[str, str]]) -> list[str]:
    """Patients who are on more than one side of training, validation and test.

    Args:
        patients: of each case the patient, and the list that it is in.

    Example:
        >>> from monai_spct.data.rules import one_side
        >>> one_side([("p1", "labeled"), ("p1", "unlabeled"), ("p2", "labeled"), ("p2", "test")])
        ['patient p2 must be on one side, got `labeled` and `test`.']
    """
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
