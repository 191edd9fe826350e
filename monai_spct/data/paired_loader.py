"""Batches of labeled and unlabeled images, a pure function of seed and epoch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from monai.transforms import Randomizable
from monai.utils import convert_to_tensor
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from monai_spct.functional.checks import at_least

__all__ = ["PairedLoader", "SeededBatches"]


class SeededBatches(Sampler[list[tuple[int, int]]]):
    """Batches of ``(index, seed)``: shuffled passes over a dataset, one after the other, cut into equal batches.

    The draws depend only on the seed, the stream and the epoch.

    Args:
        num_items: size of the dataset, at least 1.
        batch_size: items in a batch.
        num_batches: batches in an epoch.
        seed: of the whole run.
        stream: tells samplers with one seed apart.

    Example:
        >>> from monai_spct.data import SeededBatches
        >>> batches = list(SeededBatches(3, batch_size=2, num_batches=3, seed=0))
        >>> [sorted(index for batch in batches for index, _ in batch)]
        [[0, 0, 1, 1, 2, 2]]
    """

    def __init__(self, num_items: int, *, batch_size: int, num_batches: int, seed: int, stream: int = 0) -> None:
        self.num_items = at_least("num_items", num_items, 1)
        self.batch_size = at_least("batch_size", batch_size, 1)
        self.num_batches = at_least("num_batches", num_batches, 1)
        self.seed = at_least("seed", seed, 0)
        self.stream = stream
        self.epoch = 1
        self.start = 0

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self.num_batches

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        """The batches of ``epoch``, from number ``start`` on."""
        rng = np.random.default_rng((self.seed, self.stream, self.epoch))
        wanted = self.batch_size * self.num_batches
        passes = -(-wanted // self.num_items)
        indices = np.concatenate([rng.permutation(self.num_items) for _ in range(passes)])[:wanted]
        seeds = rng.integers(2**32, size=wanted)
        draws = list(zip(indices.tolist(), seeds.tolist(), strict=True))
        for start in range(self.start * self.batch_size, wanted, self.batch_size):
            yield draws[start : start + self.batch_size]


class PairedLoader:
    """Batches ``{"image", "label", "unlabeled"}`` of two datasets; without unlabeled data, ``{"image", "label"}``.

    Both datasets recycle, so that an epoch has the same length however few the labels are. Batches depend only on the
    seed, the rank and the epoch, not on the number of workers or on what ran before: datasets of MONAI, such as
    ``CacheDataset``, have the state of their random ``transform`` set before each item, also within torch's ``Subset``
    and ``ConcatDataset``; those with the attribute ``takes_seeds``, such as :class:`~monai_spct.data.VolumeDataset`,
    are indexed by ``(index, seed)``.

    Args:
        labeled: dataset whose items have ``image`` and ``label``, or are lists of such, which all go into the batch.
        unlabeled: dataset whose items have ``image``; ``None`` or empty for a supervised run.
        labeled_batch_size: labeled items in a batch.
        unlabeled_batch_size: unlabeled items in a batch.
        epoch_length: batches in an epoch.
        seed: of the shuffling and of the random transforms.
        num_workers: processes that make the items of each dataset.
        pin_memory: whether to put batches into page-locked memory, for a GPU.
        rank: the number of this process, from 0, where several train together: each draws batches of its own.

    Raises:
        ValueError: if there is no labeled item, or a setting is out of its range; in an iteration, if images of a batch
            differ in size, or a dataset that takes seeds is within another one.

    Example:
        >>> import torch
        >>> from monai_spct.data import PairedLoader, VolumeDataset
        >>> def load(case):
        ...     return {"image": torch.rand(1, 16, 16, 3), "label": torch.zeros(1, 16, 16, 3)}
        >>> loader = PairedLoader(VolumeDataset([{}], load), VolumeDataset([{}], load, keys=["image"]))
        >>> {key: tuple(value.shape) for key, value in next(iter(loader)).items()}
        {'image': (4, 1, 16, 16), 'label': (4, 1, 16, 16), 'unlabeled': (6, 1, 16, 16)}
    """

    def __init__(
        self,
        labeled: Dataset[Any],
        unlabeled: Dataset[Any] | None = None,
        *,
        labeled_batch_size: int = 4,
        unlabeled_batch_size: int = 6,
        epoch_length: int = 200,
        seed: int = 0,
        num_workers: int = 0,
        pin_memory: bool = False,
        rank: int = 0,
    ) -> None:
        self.num_iterations = at_least("epoch_length", epoch_length, 1)
        at_least("rank", rank, 0)
        if not len(labeled):  # type: ignore[arg-type]
            raise ValueError("`labeled` must hold at least one image with a label, got none.")
        datasets = [labeled] if unlabeled is None or not len(unlabeled) else [labeled, unlabeled]  # type: ignore[arg-type]
        sizes = (
            at_least("labeled_batch_size", labeled_batch_size, 1),
            at_least("unlabeled_batch_size", unlabeled_batch_size, 1),
        )
        self.samplers = [
            SeededBatches(
                len(dataset),  # type: ignore[arg-type]
                batch_size=size,
                num_batches=self.num_iterations,
                seed=seed,
                stream=2 * rank + stream,
            )
            for stream, (dataset, size) in enumerate(zip(datasets, sizes, strict=False))
        ]
        self.loaders = [
            DataLoader(
                _Drawn(dataset, keys),
                batch_sampler=sampler,
                collate_fn=_batch,
                num_workers=at_least("num_workers", num_workers, 0),
                persistent_workers=num_workers > 0,
                pin_memory=pin_memory,
                worker_init_fn=_heed_the_parent_alone,
                # its own, since a loader without one draws from the global generator, and so shifts all that follows
                generator=torch.Generator().manual_seed(seed),
            )
            for dataset, sampler, keys in zip(datasets, self.samplers, (("image", "label"), ("image",)), strict=False)
        ]
        self._start = 0

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self.num_iterations

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 1, of the next iteration."""
        for sampler in self.samplers:
            sampler.epoch = epoch

    def start_at(self, batch: int) -> None:
        """Skip batches at the start of the next iteration, without loading them.

        Args:
            batch: the first batch to give, from 0.
        """
        self._start = at_least("batch", batch, 0)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """The batches of one epoch."""
        for sampler in self.samplers:
            sampler.start = self._start
        self._start = 0
        for labeled, *unlabeled in zip(*self.loaders, strict=True):
            yield {**labeled, **({"unlabeled": unlabeled[0]["image"]} if unlabeled else {})}


class _Drawn(Dataset[list[dict[str, Tensor]]]):
    """Items of a dataset, indexed by ``(index, seed)``, as lists of plain tensors for some keys."""

    def __init__(self, dataset: Dataset[Any], keys: Sequence[str]) -> None:
        self.dataset, self.keys = dataset, keys

    def __getitem__(self, draw: tuple[int, int]) -> list[dict[str, Tensor]]:
        index, seed = draw
        if getattr(self.dataset, "takes_seeds", False):
            found = self.dataset[index, seed]
        else:
            _seed(self.dataset, seed)
            found = self.dataset[index]
        items: Sequence[Mapping[str, Any]] = found if isinstance(found, list) else [found]
        return [{key: convert_to_tensor(item[key], track_meta=False) for key in self.keys} for item in items]


def _seed(dataset: Any, seed: int) -> None:
    """Set the state of the random transforms of a dataset and of those that it is made of."""
    if getattr(dataset, "takes_seeds", False):
        name = type(dataset).__name__
        raise ValueError(
            f"a `{name}` within another dataset gets no seeds: make one `{name}` of the cases that you want."
        )
    if isinstance(transform := getattr(dataset, "transform", None), Randomizable):
        transform.set_random_state(seed=seed)
    for inner in [getattr(dataset, "dataset", None), *getattr(dataset, "datasets", ())]:
        if isinstance(inner, Dataset):
            _seed(inner, seed)


def _batch(drawn: Sequence[Sequence[Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    items = [item for several in drawn for item in several]
    sizes = {tuple(value.shape) for item in items for value in item.values()}
    if len({size[1:] for size in sizes}) > 1:
        raise ValueError(f"images of a batch must have one size, got {sorted(sizes)}: crop them.")
    return {key: torch.stack([item[key] for item in items]) for key in items[0]}


def _heed_the_parent_alone(worker: int) -> None:  # noqa: ARG001 - a loader passes the number
    """Let SIGTERM end this worker only if its parent sends it.

    A batch system sends it to all processes of a job at once; a worker that ended then would end the training before
    its state is saved.
    """
    parent = multiprocessing.parent_process()  # not `os.getppid()`, which may be a fork server
    if parent is None or not hasattr(signal, "sigwaitinfo"):  # macOS, Windows
        return

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent.pid:
            pass
        os._exit(0)

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=wait, daemon=True).start()
