"""Datasets of volumes and of their slices."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from typing import Any

import ignite.distributed as idist
import numpy as np
import torch
from monai.data import get_track_meta, set_track_meta
from monai.transforms import Compose, Randomizable
from monai.utils import convert_to_tensor
from torch import Tensor
from torch.utils.data import Dataset
from tqdm import tqdm

from monai_spct.data import rules
from monai_spct.data.slice_cache import SliceCache, StoredSlices
from monai_spct.functional.checks import in_unit_interval

__all__ = ["VolumeDataset"]

logger = logging.getLogger(__name__)
_Transform = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class VolumeDataset(Dataset[Any]):
    """Volumes, or the 2-D slices of volumes, as plain tensors; each is loaded once, when the dataset is made.

    They stay in memory, or with a ``cache_dir`` on the disk, where the next run finds them; see
    :class:`~monai_spct.data.slice_cache.SliceCache`. They are the same either way. Slices are cut along the last axis.

    Index it by ``(index, seed)``, as :class:`~monai_spct.data.PairedLoader` does, or by ``index`` alone for an item
    without augmentation. The random transforms draw only from that seed, so that an item is the same whichever worker
    makes it.

    Args:
        cases: the datalist, dictionaries of file names.
        transform: loads and prepares a volume: to ``(C, H, W, D)`` for each key, with no randomness.
        augment: random transforms of an item, from and to ``(C, *S)`` for each key. They may make a list of several
            items, as MONAI's ``RandCropByPosNegLabeld`` does.
        spatial_dims: 2 for slices ``(C, H, W)``, 3 for volumes.
        keys: what to keep of a case. Images are kept as float32, labels as uint8.
        progress: name of the cases in the progress bar and the log, for example ``"labeled"``; neither when it is
            ``None``, and on other ranks than 0.
        cache_dir: a folder for prepared volumes, made if need be, which runs may share; memory when it is ``None`` or
            empty.
        num_classes: number of classes, background included; those that no label has are warned of. Not checked by
            default.
        structure_share: with a seed, the probability of an item that shows a structure instead of the one at ``index``.
            Structures are drawn alike, however rare they are, and then one of the items that show it.

    Raises:
        ValueError: if a case lacks one of the keys, no case has a slice, or there is a ``cache_dir`` and the transform
            cannot be pickled.
        OSError: if ``cache_dir`` cannot be written to.

    Example:
        >>> import torch
        >>> from monai.transforms import RandSpatialCropd
        >>> from monai_spct.data import VolumeDataset
        >>> def load(case):
        ...     return {"image": torch.rand(1, 32, 24, 9), "label": torch.zeros(1, 32, 24, 9)}
        >>> slices = VolumeDataset([{"case": "a"}, {"case": "b"}], load)
        >>> len(slices), slices[0]["image"].shape, slices[17]["label"].dtype
        (18, torch.Size([1, 32, 24]), torch.uint8)
        >>> crop = RandSpatialCropd(["image", "label"], (16, 16, 8))
        >>> volumes = VolumeDataset([{"case": "a"}, {"case": "b"}], load, crop, spatial_dims=3)
        >>> len(volumes), volumes[0]["image"].shape, volumes[1, 42]["label"].shape
        (2, torch.Size([1, 32, 24, 9]), torch.Size([1, 16, 16, 8]))
    """

    takes_seeds = True

    def __init__(
        self,
        cases: Sequence[Mapping[str, Any]],
        transform: _Transform,
        augment: Callable[[dict[str, Any]], Any] | Sequence[Callable[..., Any]] | None = None,
        *,
        spatial_dims: int = 2,
        keys: Sequence[str] = ("image", "label"),
        progress: str | None = None,
        cache_dir: str | PathLike[str] | None = None,
        num_classes: int | None = None,
        structure_share: float = 0.0,
    ) -> None:
        self.spatial_dims = spatial_dims
        self.structure_share = in_unit_interval("structure_share", structure_share)
        self.keys = tuple(keys)
        self.augment = augment if augment is None or isinstance(augment, Compose) else Compose(augment)
        self.R = np.random.RandomState()
        cache = SliceCache(cache_dir, transform, spatial_dims=spatial_dims) if cache_dir else None
        hidden = progress is None or not cases or idist.get_rank() > 0
        # closed also where a case cannot be loaded, or what is said of it ends up in the line of the bar
        with tqdm(cases, desc=f"loading {progress} volumes", disable=hidden, mininterval=1.0) as bar:
            self.volumes: list[Mapping[str, Tensor | StoredSlices]] = [
                cache.volume(case, self.keys, partial(self._prepared, case, transform))
                if cache
                else self._prepared(case, transform)
                for case in bar
            ]
        self.places = [(v, s) for v, volume in enumerate(self.volumes) for s in range(len(volume[self.keys[0]]))]
        if cases and not self.places:
            raise ValueError(f"none of the {len(cases)} cases has a slice.")
        showing: dict[int, list[int]] = {}  # the items of each class
        if num_classes is not None or structure_share:
            for index, (volume, position) in enumerate(self.places):
                for value in torch.unique(self.volumes[volume]["label"][position]).tolist():
                    showing.setdefault(value, []).append(index)
        if cases and num_classes is not None and (problem := rules.unseen_classes(showing, num_classes)):
            warnings.warn(problem, stacklevel=2)
        self._showing = [items for value, items in sorted(showing.items()) if value > 0]
        if not hidden:
            slices = f"{len(self.places)} slices of " if spatial_dims == 2 else ""
            logger.info(f"{progress}: {slices}{len(cases)} volumes")
        if cache is not None and cases:
            logger.info(
                f"cache: {cache.found} of {cache.asked} {progress or ''} volumes from {cache.folder}, which now holds "
                f"{cache.size() / 1e9:.2f} GB".replace("  ", " ")
            )

    def _prepared(self, case: Mapping[str, Any], transform: _Transform) -> dict[str, Tensor]:
        volume = transform(dict(case))
        if missing := [key for key in self.keys if key not in volume]:
            raise ValueError(f"{case.get('case', dict(case))} must have {missing[0]!r}: it is one of `keys`.")
        items = {key: torch.as_tensor(np.asarray(volume[key])) for key in self.keys}
        if self.spatial_dims == 2:  # along the first axis, so that a slice is one contiguous block of memory
            items = {key: value.movedim(-1, 0) for key, value in items.items()}
        else:
            items = {key: value.unsqueeze(0) for key, value in items.items()}
        return {
            key: value.to(torch.uint8 if key == "label" else torch.float32).contiguous() for key, value in items.items()
        }

    def __len__(self) -> int:
        """The number of items."""
        return len(self.places)

    def __getitem__(self, draw: int | tuple[int, int]) -> Any:
        """One item, ``(C, *S)`` for each key; with its augmentation if ``draw`` has a seed."""
        index, seed = draw if isinstance(draw, tuple) else (draw, None)
        if seed is not None:
            self.R.seed(seed)
            # no draw without a choice
            if self.structure_share and self._showing and self.R.uniform() < self.structure_share:
                items = self._showing[self.R.randint(len(self._showing))]
                index = items[self.R.randint(len(items))]
        volume, position = self.places[index]
        item: Any = {key: value[position] for key, value in self.volumes[volume].items()}
        if self.augment is not None and seed is not None:
            _draw_from(self.augment, self.R)
            with _untracked():
                # copies, since some transforms write into their argument, which is a view of the volume
                item = self.augment({key: value.clone() for key, value in item.items()})
        return [_plain(one) for one in item] if isinstance(item, list) else _plain(item)


def _draw_from(transform: Any, state: np.random.RandomState) -> None:
    """Let a transform, and all that it is composed of, draw from one generator.

    A generator for each, as MONAI's ``Compose`` seeds them, takes longer to make than some transforms take.
    """
    if isinstance(transform, Compose):
        transform.R = state
        for each in transform.transforms:
            _draw_from(each, state)
    elif isinstance(transform, Randomizable):
        transform.set_random_state(state=state)


@contextmanager
def _untracked() -> Iterator[None]:
    """Without MONAI's record of what was done to an image, which takes as long as the transforms of a slice do."""
    tracked = get_track_meta()
    set_track_meta(False)
    try:
        yield
    finally:
        set_track_meta(tracked)


def _plain(item: Mapping[str, Any]) -> dict[str, Tensor]:
    return {key: convert_to_tensor(value, track_meta=False) for key, value in item.items()}
