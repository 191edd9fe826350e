"""The slices of volumes, prepared once and kept in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from monai.data import get_track_meta, set_track_meta
from monai.transforms import Compose
from torch import Tensor
from torch.utils.data import Dataset
from tqdm import tqdm

__all__ = ["SliceDataset"]


class SliceDataset(Dataset[dict[str, Any]]):
    """The 2-D slices of 3-D volumes as plain tensors: each volume is loaded once, when the dataset is made.

    An item is asked for by ``(index, seed)``, see :class:`~monai_spct.data.PairedLoader`, or by ``index`` alone. The
    random transforms draw from that seed and nothing else, so that an item is the same whichever worker makes it.

    Args:
        cases: the datalist, dictionaries of file names.
        transform: loads and prepares a volume: to ``(C, H, W, D)`` for each key, with no randomness.
        augment: random transforms of a slice, from and to ``(C, H, W)`` for each key.
        keys: what to keep of a case. Images are kept as float32, labels as uint8.
        progress: what the progress bar calls the cases, for example ``"labeled"``; no bar when it is ``None``.

    Raises:
        ValueError: when a case lacks one of the keys, or there are cases, but none has a slice.

    Example:
        >>> import torch
        >>> from monai_spct.data import SliceDataset
        >>> def load(case):
        ...     return {"image": torch.rand(1, 32, 24, 9), "label": torch.zeros(1, 32, 24, 9)}
        >>> slices = SliceDataset([{"case": "a"}, {"case": "b"}], transform=load)
        >>> len(slices), slices[0]["image"].shape, slices[17]["label"].dtype
        (18, torch.Size([1, 32, 24]), torch.uint8)
    """

    def __init__(
        self,
        cases: Sequence[Mapping[str, Any]],
        transform: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        augment: Callable[[dict[str, Any]], Mapping[str, Any]] | Sequence[Callable[..., Any]] | None = None,
        *,
        keys: Sequence[str] = ("image", "label"),
        progress: str | None = None,
    ) -> None:
        self.keys = tuple(keys)
        self.augment = augment if augment is None or isinstance(augment, Compose) else Compose(augment)
        hidden = progress is None or not cases
        # closed also where a case cannot be loaded, or what is said of it ends up in the line of the bar
        with tqdm(cases, desc=f"loading {progress} volumes", disable=hidden, mininterval=1.0) as bar:
            self.volumes = [self._prepared(transform(dict(case)), case) for case in bar]
        self.slices = [(v, s) for v, volume in enumerate(self.volumes) for s in range(len(volume[self.keys[0]]))]
        if cases and not self.slices:
            raise ValueError(f"none of the {len(cases)} cases has a slice.")

    def _prepared(self, volume: Mapping[str, Any], case: Mapping[str, Any]) -> dict[str, Tensor]:
        """Slices first, ``(D, C, H, W)``, so that a slice is one contiguous block of memory."""
        missing = [key for key in self.keys if key not in volume]
        if missing:
            raise ValueError(f"{case.get('case', dict(case))} must have {missing[0]!r}: it is one of `keys`.")
        dtypes = {"label": torch.uint8}
        return {
            key: torch.as_tensor(np.asarray(volume[key])).movedim(-1, 0).to(dtypes.get(key, torch.float32)).contiguous()
            for key in self.keys
        }

    def __len__(self) -> int:
        """The number of slices."""
        return len(self.slices)

    def __getitem__(self, draw: int | tuple[int, int]) -> dict[str, Tensor]:
        """One slice, ``(C, H, W)`` for each key; with its augmentation if ``draw`` has a seed."""
        index, seed = draw if isinstance(draw, tuple) else (draw, None)
        volume, position = self.slices[index]
        item: Mapping[str, Any] = {key: value[position] for key, value in self.volumes[volume].items()}
        if self.augment is not None and seed is not None:
            self.augment.set_random_state(seed=seed)
            with _untracked():
                # copies, since some transforms write into their argument, which is a view of the volume
                item = self.augment({key: value.clone() for key, value in item.items()})
        return {key: _plain(value) for key, value in item.items()}


@contextmanager
def _untracked() -> Iterator[None]:
    """Without MONAI's record of what was done to an image, which takes as long as the transforms of a slice do."""
    tracked = get_track_meta()
    set_track_meta(False)
    try:
        yield
    finally:
        set_track_meta(tracked)


def _plain(value: Any) -> Tensor:
    tensor: Tensor = value.as_tensor() if hasattr(value, "as_tensor") else torch.as_tensor(value)
    return tensor
