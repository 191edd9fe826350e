"""How to train on a data set: settings of a bundle, each with its reason."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from monai_spct.data import rules
from monai_spct.plan.survey import Survey

__all__ = ["Choice", "Machine", "choose", "held_out"]

_Row = NDArray[np.float64]  # a number for each axis, of one image or of all

_THICK = 3.0  # times the spacing within slices
_FEW_SLICES = 16
_LARGEST_SLICE = 256  # voxels
_ACROSS = 4  # patches, from one side of an image to the other
_SAME_SPACING = 0.05
_AIR = -200  # HU; in CT there is always some
_STEP = 16  # voxels; the residual U-Net halves its input four times
_WORLD = {letter: axis for axis, pair in enumerate(("LR", "PA", "IS")) for letter in pair}
_CROP = {False: 128, True: 192}  # voxels along a side, without and with a GPU
_PATCH = {False: 64 * 64 * 48, True: 112 * 112 * 80}  # voxels, likewise
_BYTES = 1000  # of memory for each voxel of a batch


@dataclass(frozen=True)
class Choice:
    """A setting of a bundle.

    Args:
        key: of the config.
        value: as JSON has it.
        why: the reason.

    Example:
        >>> from monai_spct.plan import Choice
        >>> Choice("crop_size", 128, "what a CPU trains in reasonable time").value
        128
    """

    key: str
    value: Any
    why: str


@dataclass(frozen=True)
class Machine:
    """What a training may use.

    Args:
        cuda: whether there is a GPU.
        memory: bytes, of the GPU if there is one.
        main_memory: bytes, where images are kept.

    Example:
        >>> from monai_spct.plan import Machine
        >>> Machine.here().memory > 0
        True
    """

    cuda: bool
    memory: int
    main_memory: int

    @classmethod
    def here(cls) -> Machine:
        """The machine that this runs on."""
        main = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        cuda = torch.cuda.is_available()
        return cls(cuda, torch.cuda.get_device_properties(0).total_memory if cuda else main, main)


def held_out(patients: int) -> tuple[int, int]:
    """Number of patients to test on and to validate on, of those with labels.

    With fewer than ten, each label is worth more in the training.

    Example:
        >>> held_out(9), held_out(20)
        ((0, 0), (4, 2))
    """
    return (patients // 5, patients // 10) if patients >= 10 else (0, 0)


def choose(found: Survey, machine: Machine, *, structures: Sequence[str] | None = None) -> list[Choice]:
    """Choose how to train on a data set.

    What is not chosen is as in ``bundles/methods/best.json`` and ``bundles/augmentations/strong.json``.

    Args:
        found: what the data are like.
        machine: that will train.
        structures: names, in the order of ``found.values``, which are the names by default.

    Returns:
        Settings of ``train.json``.

    Raises:
        ValueError: if there is not one name for each structure.

    Example:
        >>> import tempfile
        >>> from monai_spct.data import acdc_cases, write_acdc_phantom
        >>> from monai_spct.plan import Machine, choose, survey
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found = survey(acdc_cases(write_acdc_phantom(f"{folder}/acdc", patients=2)))
        >>> chosen = {choice.key: choice.value for choice in choose(found, Machine.here())}
        >>> chosen["spatial_dims"], chosen["structures"]
        (2, {'1': '1', '2': '2', '3': '3'})
    """
    names = [str(value) for value in found.values] if structures is None else list(structures)
    if len(names) != len(found.values):
        held = ", ".join(map(str, found.values))
        raise ValueError(f"there must be one name for each value of the labels ({held}), got {', '.join(names)}.")
    numbers = list(range(1, len(names) + 1))
    shares = ", ".join(
        f"{name} {found.shares.get(value, 0):.2%}" for name, value in zip(names, found.values, strict=True)
    )
    choices = [
        Choice("structures", dict(zip(map(str, numbers), names, strict=True)), f"share of a volume: {shares}"),
        Choice("in_channels", len(found.intensities), "files of an image"),
    ]
    if found.values != numbers:
        choices.append(Choice("label_values", found.values, "what the labels hold; becomes 1, 2, 3 and so on"))
    if (found.intensities[:, 0] < _AIR).all():
        choices.append(_window(found.of_structures[:, 0].min(), found.of_structures[:, 1].max()))
    return [
        *choices,
        *_on_a_grid(found, machine),
        Choice(
            "structure_share",
            0.33,
            "a third of the labeled crops show a structure; structures are drawn alike, however small",
        ),
        _pieces("largest_component", found.in_one_piece, "each structure is"),
        _pieces("structures_touch", found.touching, "all structures together are"),
    ]


def _window(low: float, high: float) -> Choice:
    limits = {"a_min": round(2 * low - high), "a_max": round(2 * high - low), "b_min": 0.0, "b_max": 1.0}
    scaling = {"_target_": "ScaleIntensityRanged", "keys": "image", **limits, "clip": True}
    why = f"CT: structures have {low:.0f} to {high:.0f} HU, and as much to either side tells them from what is around"
    return Choice("intensity", [scaling], why)


def _pieces(key: str, one: bool, what: str) -> Choice:
    return Choice(key, one, f"{what} {'' if one else 'not always '}in one piece")


def _on_a_grid(found: Survey, machine: Machine) -> list[Choice]:
    """Slices or volumes, on which grid, how much of it at once, and for how long."""
    codes, spacings, shape = _axes(found)
    spacing = np.median(spacings, axis=0)
    volumes = bool(spacing[2] <= _THICK * spacing[:2].mean() and shape[2] >= _FEW_SLICES)
    sizes = f"median voxel {_mm(spacing)}, {shape[2]:.0f} slices"
    if volumes:
        why = f"voxels are about as thick as wide: {sizes}"
        crop = _patch(spacing, shape, min(_PATCH[machine.cuda], machine.memory // (8 * _BYTES)))
        coarser = max(1.0, float((shape / crop).max()) / _ACROSS)
        pixdim = coarser * spacing
        crop_size: Any = crop.tolist()
        batch, epochs = 2, 60 if machine.cuda else 30
    else:
        why = f"slices are thick, or few: {sizes}"
        width = float((spacing * shape)[:2].max())  # mm
        coarser = max(1.0, width / spacing[:2].mean() / _LARGEST_SLICE)
        pixdim = np.array([coarser * spacing[:2].mean()] * 2 + [-1.0])
        crop_size = min(_CROP[machine.cuda], math.ceil(width / pixdim[0] / _STEP) * _STEP)
        batch, epochs = 8, 60
    resampling, whys = [], []
    common: dict[str, Any] = {"keys": "@resampled", "allow_missing_keys": True}
    if set(found.codes) != {tuple(codes)}:
        resampling.append({"_target_": "Orientationd", **common, "axcodes": codes, "labels": None})
        whys.append(f"axes of all images are put in one order, {codes}, with the slices along the last")
    resized = pixdim > 0
    if (np.abs(spacings[:, resized] / pixdim[resized] - 1) > _SAME_SPACING).any():
        mode, to = "$['bilinear', 'nearest'][:len(@resampled)]", [round(float(size), 3) for size in pixdim]
        resampling.append({"_target_": "monai_spct.transforms.KeysSpacingd", **common, "mode": mode, "pixdim": to})
        times = "" if coarser == 1 else f"{coarser:.2g} times "
        whys.append(f"all images are put on {times}the median voxel; -1 leaves an axis as it is")
    choices = [Choice("spatial_dims", 3 if volumes else 2, why)]
    if resampling:
        choices.append(Choice("resampling", resampling, "; ".join(whys)))
    device = "GPU" if machine.cuda else "CPU"
    after = np.where(resized, pixdim, spacing)
    kept = 4 * len(found.cases) * len(found.intensities) * float(np.prod(shape * spacing / after))  # bytes
    if kept > machine.main_memory / 3:
        why = f"all images, about {kept / 2**30:.0f} GiB, stay on the disk instead of in memory"
        choices.append(Choice("cache_dir", "$@bundle_root + '/cache'", why))
    return [
        *choices,
        Choice("crop_size", crop_size, f"what a {device} trains in reasonable time"),
        Choice("labeled_batch_size", batch, "as the few-label results have it"),
        Choice("unlabeled_batch_size", batch, "likewise"),
        Choice("epoch_length", 100, "iterations"),
        Choice("max_epochs", epochs, "about an hour on one CPU core; with more time, more is better"),
    ]


def _axes(found: Survey) -> tuple[str, _Row, _Row]:
    """An order of axes with that of the slices last; the spacings of all images and their median shape in it."""
    world = np.array([[_WORLD[letter] for letter in codes] for codes in found.codes])
    shape: _Row = np.median(np.take_along_axis(found.shapes, world.argsort(1), axis=1), axis=0)
    spacings: _Row = np.take_along_axis(found.spacings, world.argsort(1), axis=1)
    [(usual, _)] = Counter(found.codes).most_common(1)
    letters = {_WORLD[letter]: letter for letter in usual}
    last = rules.slice_axis(shape.tolist(), np.median(spacings, axis=0))
    last = list(letters)[2] if last is None else last
    order = [axis for axis in letters if axis != last] + [last]
    return "".join(letters[axis] for axis in order), spacings[:, order], shape[order]


def _patch(spacing: _Row, shape: _Row, voxels: int) -> NDArray[np.int64]:
    """A patch of at most about this many voxels, as wide as long and about as high, where the image is."""
    widest, highest = math.ceil(shape[:2].max() / _STEP), math.ceil(shape[2] / _STEP)
    thickness, steps = spacing[2] / spacing[:2].mean(), voxels / _STEP**3
    high = min(highest, max(2, int((steps / thickness**2) ** (1 / 3))))
    wide = min(widest, max(2, int((steps / high) ** 0.5)))
    high = min(highest, max(high, int(steps / wide**2)))
    return _STEP * np.array([wide, wide, high])


def _mm(sizes: _Row) -> str:
    return " x ".join(f"{size:.3g}" for size in sizes) + " mm"
