import os
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from monai.data import CacheDataset, Dataset, PersistentDataset
from monai.transforms import Compose, EnsureTyped, RandCropByPosNegLabeld, RandGaussianNoised
from torch.utils.data import ConcatDataset, Subset

from monai_spct.data import PairedLoader, SeededBatches, VolumeDataset

NOISE = [RandGaussianNoised("image", prob=1.0)]


def dataset(size: int, *, augment=None, keys=("image", "label")) -> VolumeDataset:
    """Slice ``i`` has the value ``i`` everywhere, in image and label."""

    def load(case):
        volume = torch.arange(float(size)).expand(1, 4, 4, size)
        return {**case, "image": volume, "label": volume}

    return VolumeDataset([{}] if size else [], load, augment, keys=keys)


def loader(labeled=5, unlabeled=7, *, augment=None, **settings) -> PairedLoader:
    settings = {"labeled_batch_size": 2, "unlabeled_batch_size": 3, "epoch_length": 4, **settings}
    return PairedLoader(
        dataset(labeled, augment=augment), dataset(unlabeled, augment=augment, keys=["image"]), **settings
    )


def flat(batches) -> bytes:
    """All bytes of an epoch."""
    return b"".join(batch[key].numpy().tobytes() for batch in batches for key in sorted(batch))


def indices(batches, key: str) -> list[int]:
    """Which slices an epoch without augmentation shows, in their order."""
    return [int(image[0, 0, 0]) for batch in batches for image in batch[key]]


def test_a_batch_has_labeled_and_unlabeled_images():
    batches = list(loader())
    assert len(batches) == len(loader()) == 4
    for batch in batches:
        shapes = {key: tuple(value.shape) for key, value in batch.items()}
        assert shapes == {"image": (2, 1, 4, 4), "label": (2, 1, 4, 4), "unlabeled": (3, 1, 4, 4)}
        assert torch.equal(batch["image"], batch["label"].float())  # they stay together


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 40], ids=lambda size: f"{size} items")
def test_small_datasets_recycle_evenly(size):
    batches = list(SeededBatches(size, batch_size=4, num_batches=5, seed=0))
    assert [len(batch) for batch in batches] == [4] * 5
    counts = Counter(index for batch in batches for index, _ in batch)
    assert sum(counts.values()) == 20
    assert set(counts) <= set(range(size))
    assert max(counts.values()) - min(counts.get(index, 0) for index in range(size)) <= 1


@pytest.mark.parametrize("unlabeled", [None, dataset(0)], ids=["none", "empty"])
def test_without_unlabeled_data_batches_are_supervised(unlabeled):
    batches = list(PairedLoader(dataset(3), unlabeled, labeled_batch_size=2, epoch_length=2))
    assert [sorted(batch) for batch in batches] == [["image", "label"]] * 2


def test_the_same_seed_gives_the_same_batches():
    first = flat(loader(augment=NOISE, seed=3))
    assert flat(loader(augment=NOISE, seed=3)) == first
    assert flat(loader(augment=NOISE, seed=4)) != first


def test_workers_make_the_same_bytes():
    alone, helped = loader(augment=NOISE), loader(augment=NOISE, num_workers=2)
    for epoch in (1, 2):
        alone.set_epoch(epoch)
        helped.set_epoch(epoch)
        assert flat(alone) == flat(helped)


@pytest.mark.parametrize("num_workers", [0, 2], ids=lambda n: f"{n} workers")
def test_augmentation_differs_between_items_and_epochs(num_workers):
    one_slice = PairedLoader(
        dataset(1, augment=NOISE), labeled_batch_size=4, epoch_length=3, num_workers=num_workers, seed=0
    )
    images = []
    for epoch in (1, 2):
        one_slice.set_epoch(epoch)
        images += [image.numpy().tobytes() for batch in one_slice for image in batch["image"]]
    assert len(set(images)) == len(images) == 24


def test_an_epoch_does_not_depend_on_those_before_it():
    straight = loader(augment=NOISE)
    straight.set_epoch(3)
    expected = flat(straight)
    wandering = loader(augment=NOISE)
    for epoch in (1, 2, 5):
        wandering.set_epoch(epoch)
        assert flat(wandering) != expected
    next(iter(wandering))  # and one that was left in its middle
    wandering.set_epoch(3)
    assert flat(wandering) == expected
    assert flat(wandering) == expected


@pytest.mark.parametrize("num_workers", [0, 2], ids=lambda n: f"{n} workers")
def test_an_epoch_may_start_in_its_middle(num_workers):
    batches = loader(augment=NOISE, num_workers=num_workers)
    batches.set_epoch(2)
    whole = list(batches)
    batches.set_epoch(1)  # whichever comes first
    batches.start_at(3)
    batches.set_epoch(2)
    assert flat(batches) == flat(whole[3:])
    assert flat(batches) == flat(whole)


def test_batches_that_are_left_out_are_not_loaded():
    asked = []

    class Watched(VolumeDataset):
        def __getitem__(self, item):
            asked.append(item)
            return super().__getitem__(item)

    volume = {"image": torch.zeros(1, 4, 4, 5), "label": torch.zeros(1, 4, 4, 5)}
    batches = PairedLoader(Watched([volume], dict), labeled_batch_size=2, epoch_length=4)
    batches.start_at(3)
    assert len(list(batches)) == 1
    assert len(asked) == 2


@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="signals here do not say who sent them")
def test_a_worker_heeds_its_parent_alone():
    batches = loader(num_workers=1, epoch_length=2)
    one = iter(batches)
    next(one)
    workers = [worker for part in batches.loaders for worker in part._iterator._workers]
    for worker in workers:
        subprocess.run(["kill", "-TERM", str(worker.pid)], check=True)  # by another process, as a batch system is
    next(one)
    list(batches)
    time.sleep(0.2)
    assert all(worker.is_alive() for worker in workers)
    for worker in workers:
        os.kill(worker.pid, signal.SIGTERM)
        worker.join(10)
        assert worker.exitcode == 0
    for part in batches.loaders:
        part._iterator = None


PROGRAM = """
import multiprocessing
import torch
from monai_spct.data import PairedLoader, VolumeDataset

def load(case):
    return {"image": torch.rand(1, 4, 4, 5), "label": torch.zeros(1, 4, 4, 5)}

if __name__ == "__main__":
    multiprocessing.set_start_method("forkserver")
    slices = VolumeDataset([{}], load)
    loader = PairedLoader(slices, labeled_batch_size=2, epoch_length=2, num_workers=1)
    print(len(list(loader)), flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="signals here do not say who sent them")
def test_a_program_whose_workers_come_from_a_fork_server_ends(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", tmp_path / "program.py"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=240,
    )
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_batches_of_an_epoch_and_of_epochs_differ_in_their_order():
    batches = loader(50, 50, labeled_batch_size=10, unlabeled_batch_size=10, epoch_length=5)
    orders = []
    for epoch in (1, 2):
        batches.set_epoch(epoch)
        orders.append(indices(batches, "image"))
    assert orders[0] != orders[1]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert sorted(orders[0]) not in orders


def test_labeled_and_unlabeled_images_are_drawn_apart():
    batches = list(loader(50, 50, labeled_batch_size=10, unlabeled_batch_size=10, epoch_length=5))
    assert indices(batches, "image") != indices(batches, "unlabeled")
    noisy = list(loader(1, 1, augment=NOISE, labeled_batch_size=3, unlabeled_batch_size=3))
    for batch in noisy:
        assert not torch.equal(batch["image"], batch["unlabeled"])


def test_no_labeled_slice_is_refused():
    with pytest.raises(ValueError, match="`labeled` must hold at least one image with a label, got none"):
        PairedLoader(dataset(0), dataset(3))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("labeled_batch_size", 0),
        ("unlabeled_batch_size", 0),
        ("unlabeled_batch_size", 2.5),
        ("epoch_length", 0),
        ("num_workers", -1),
        ("seed", -1),
        ("rank", -1),
    ],
    ids=lambda value: str(value),
)
def test_a_setting_out_of_its_range_is_refused(setting, value):
    with pytest.raises(ValueError, match=f"`{setting}` must be a whole number of at least"):
        loader(**{setting: value})


def test_each_process_draws_batches_of_its_own():
    epochs = {rank: indices(list(loader(40, 50, epoch_length=8, rank=rank)), "image") for rank in range(3)}
    assert len({tuple(epoch) for epoch in epochs.values()}) == 3
    assert epochs[0] == indices(list(loader(40, 50, epoch_length=8)), "image")  # as one process alone
    noisy = [list(loader(1, 1, augment=NOISE, rank=rank)) for rank in (0, 1)]
    values = [set(torch.cat([batch[key].flatten() for batch in batches]).tolist()) for batches in noisy
              for key in ("image", "unlabeled")]  # fmt: skip
    assert not set.intersection(*values)


# Datasets of MONAI


def monais(kind, folder, *, key: str = "label", samples: int = 2):
    """Random crops of two volumes."""
    cases = [
        {"image": torch.rand(1, 12, 12, 6), "label": (torch.rand(1, 12, 12, 6) > 0.7).float(), "n": n} for n in "ab"
    ]
    crops = RandCropByPosNegLabeld(["image", "label"], key, (4, 4, 4), num_samples=samples)
    transform = Compose([EnsureTyped(["image", "label"]), crops, RandGaussianNoised("image", prob=0.5)])
    return kind(cases, transform, **({"cache_dir": folder} if kind is PersistentDataset else {}))


@pytest.mark.parametrize("kind", [Dataset, partial(CacheDataset, progress=False), PersistentDataset])
@pytest.mark.parametrize("workers", [0, 1])
def test_any_dataset_of_dictionaries_gives_the_same_batches_for_a_seed(kind, workers, tmp_path):
    torch.manual_seed(0)
    data = monais(kind, tmp_path)
    settings = {"labeled_batch_size": 2, "unlabeled_batch_size": 3, "epoch_length": 3}
    batches = list(PairedLoader(data, data, num_workers=workers, **settings))
    shapes = {key: tuple(value.shape) for key, value in batches[0].items()}
    # two crops of each
    assert shapes == {"image": (4, 1, 4, 4, 4), "label": (4, 1, 4, 4, 4), "unlabeled": (6, 1, 4, 4, 4)}
    assert all(type(value) is torch.Tensor for value in batches[0].values())
    np.random.seed(5)  # noqa: NPY002 - what else MONAI draws from
    torch.manual_seed(5)
    assert flat(PairedLoader(data, data, **settings)) == flat(batches)
    assert flat(PairedLoader(data, data, **settings, seed=1)) != flat(batches)


@pytest.mark.parametrize("wrapped", [lambda data: Subset(data, [1, 0]), lambda data: ConcatDataset([data, data])])
def test_a_dataset_within_one_of_torch_does_as_well(wrapped, tmp_path):
    torch.manual_seed(0)
    data = wrapped(monais(Dataset, tmp_path))
    settings = {"labeled_batch_size": 2, "epoch_length": 2}
    first = flat(PairedLoader(data, **settings))
    assert flat(PairedLoader(data, **settings)) == first
    assert flat(PairedLoader(data, num_workers=1, **settings)) == first


def test_a_dataset_that_takes_seeds_must_not_be_within_another_one():
    volumes = VolumeDataset([{}], lambda _: {"image": torch.rand(1, 8, 8, 3), "label": torch.zeros(1, 8, 8, 3)})
    with pytest.raises(ValueError, match="a `VolumeDataset` within another dataset gets no seeds: make one"):
        next(iter(PairedLoader(Subset(volumes, [0, 1]), labeled_batch_size=1)))


def test_images_of_different_sizes_are_named():
    data = Dataset([{"image": torch.rand(1, n, 4), "label": torch.rand(1, n, 4)} for n in (4, 6)])
    with pytest.raises(
        ValueError, match=r"images of a batch must have one size, got \[\(1, 4, 4\), \(1, 6, 4\)\]: crop"
    ):
        next(iter(PairedLoader(data, labeled_batch_size=2)))
