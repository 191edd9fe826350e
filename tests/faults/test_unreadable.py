"""A file that was there when the training began cannot be read any more: the error names it, or it is not needed."""

import contextlib
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from ignite.engine import Events

from monai_spct.data.slice_cache import StoredSlices
from tests.faults.runs import failure, in_a_process, last_epoch, part, parts_of_files, spoil_cache, training

VALIDATED = {"num_validation": 1, "val_interval": 1}


def without_permission(path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("this user may read everything")
    path.chmod(0)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


FAULTS = {
    "cut short": lambda path: os.truncate(path, 500),
    "a folder in its place": a_folder,
}
MORE_FAULTS = {
    "deleted": Path.unlink,
    "emptied": lambda path: os.truncate(path, 0),
    "garbage": lambda path: path.write_bytes(b"garbage " * 100),
    "without permission": without_permission,
}


@pytest.mark.parametrize(
    "fault",
    [
        *(pytest.param(fault, id=name) for name, fault in FAULTS.items()),
        *(pytest.param(fault, id=name, marks=pytest.mark.every_fault) for name, fault in MORE_FAULTS.items()),
    ],
)
def test_a_validation_that_cannot_read_names_the_file(own_data, tmp_path, fault):
    """Images for validation are read by each validation."""
    output = tmp_path / "output"
    run = training(own_data, output, **VALIDATED)
    path = Path(part(run, "split").validation[1]["image"])
    part(run, "train#trainer").add_event_handler(Events.ITERATION_COMPLETED(once=3), lambda: fault(path))
    assert str(path) in failure(run.run)
    assert last_epoch(output) == 1
    assert parts_of_files(output) == []


def test_a_training_that_missed_a_label_goes_on_when_it_is_there_again(own_data, tmp_path):
    output = tmp_path / "output"
    run = training(own_data, output, **VALIDATED)
    path = Path(part(run, "split").validation[1]["label"])
    kept = path.with_suffix(".kept")
    part(run, "train#trainer").add_event_handler(Events.ITERATION_COMPLETED(once=3), lambda: path.rename(kept))
    assert failure(run.run) == f"{path} does not exist."
    assert last_epoch(output) == 1
    kept.rename(path)
    training(own_data, output, **VALIDATED, resume=True).run()
    assert last_epoch(output) == 3


@pytest.mark.parametrize("cache_dir", [None, "cache"], ids=["memory", "cache"])
def test_images_that_are_trained_on_are_not_needed_once_they_are_loaded(own_data, tmp_path, cache_dir):
    output = tmp_path / "output"
    run = training(own_data, output, cache_dir=cache_dir and str(tmp_path / cache_dir))
    part(run, "train#trainer").add_event_handler(Events.ITERATION_STARTED(once=1), lambda: shutil.rmtree(own_data))
    run.run()
    assert last_epoch(output) == 3


# Slices in the cache


@pytest.fixture
def stored(tmp_path) -> StoredSlices:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(3 * 20 * 20, dtype=np.float32).reshape(3, 1, 20, 20))
    return StoredSlices(path)


DAMAGE = {
    "emptied": (lambda content: b"", 0),  # noqa: ARG005
    "cut short in the magic": (lambda content: content[:5], 0),
    "cut short in the header": (lambda content: content[:100], 0),
    "cut short in a slice": (lambda content: content[:-1], 2),
    "cut short before a slice": (lambda content: content[: -2 * 1600 - 1], 1),
    "garbage": (lambda content: b"garbage " * (len(content) // 8), 0),
}


@pytest.mark.parametrize(("damage", "position"), DAMAGE.values(), ids=DAMAGE)
def test_a_slice_of_a_damaged_file_is_refused_by_its_name(stored, damage, position):
    stored.path.write_bytes(damage(stored.path.read_bytes()))
    message = f"^{re.escape(str(stored.path))} was damaged after its slices had been prepared: .+\\.$"
    with pytest.raises(ValueError, match=message):
        stored[position]
    if position == 0:  # then the header says nothing
        with pytest.raises(ValueError, match=message):
            StoredSlices(stored.path)


def test_slices_before_the_damage_are_what_they_were(stored):
    before = stored[0].clone()
    os.truncate(stored.path, stored.path.stat().st_size - 1)
    assert torch.equal(stored[0], before)


def test_a_deleted_file_is_missed_by_its_name(stored):
    stored.path.unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(str(stored.path))):
        stored[0]


def test_slices_can_be_counted_from_the_end_and_no_further(stored):
    assert torch.equal(stored[-1], stored[2])
    with pytest.raises(IndexError):
        stored[3]
    assert len(list(stored)) == 3


MISSING = r"\[Errno 2\] No such file or directory: '{cache}/\w+\.npy'"
DAMAGED = r"{cache}/\w+\.npy was damaged after its slices had been prepared: "


@pytest.mark.parametrize(
    ("fault", "message"), [(shutil.rmtree, MISSING), (spoil_cache, DAMAGED)], ids=["deleted", "damaged"]
)
def test_a_training_without_its_cache_names_the_file_and_can_go_on(data, tmp_path, fault, message):
    output, cache = tmp_path / "output", tmp_path / "cache"
    run = training(data, output, cache_dir=str(cache))
    part(run, "train#trainer").add_event_handler(Events.EPOCH_COMPLETED(once=1), lambda: fault(cache))
    assert re.match(message.format(cache=cache), failure(run.run))
    assert last_epoch(output) == 1
    assert parts_of_files(tmp_path) == []

    again = training(data, output, cache_dir=str(cache), resume=True)
    with pytest.warns(UserWarning, match=r"\.npy is damaged") if fault is spoil_cache else contextlib.nullcontext():
        again.run()
    assert last_epoch(output) == 3


def test_a_worker_without_its_cache_names_the_file(data, tmp_path):
    output, cache = tmp_path / "output", tmp_path / "cache"
    done = in_a_process("cache", data, output, cache_dir=str(cache), num_workers=2)
    assert done.returncode == 1
    assert re.search("ValueError: " + DAMAGED.format(cache=cache), done.stderr)
    assert last_epoch(output) in (1, 2)  # workers are ahead
    assert parts_of_files(tmp_path) == []
