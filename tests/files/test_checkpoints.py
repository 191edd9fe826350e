"""Wherever the saving breaks off, a whole checkpoint is there; what is damaged is not taken for one."""

import os
from pathlib import Path

import pytest
import torch

from monai_spct.files import checkpoint_paths, newest_checkpoint, save_checkpoint


def saved(folder: Path, epochs, *, keep: int = 2) -> None:
    for epoch in epochs:
        save_checkpoint({"epoch": epoch, "weight": torch.full((3,), float(epoch))}, folder, keep=keep)


def epochs_in(folder: Path) -> list[int]:
    return [torch.load(path, weights_only=True)["epoch"] for path in checkpoint_paths(folder)]


@pytest.mark.parametrize(("keep", "expected"), [(1, [5]), (2, [5, 4]), (4, [5, 4, 3, 2]), (9, [5, 4, 3, 2, 1])])
def test_the_last_checkpoints_stay(tmp_path, keep, expected):
    (tmp_path / "last_of_another_kind.pt").touch()
    saved(tmp_path, range(1, 6), keep=keep)
    assert epochs_in(tmp_path) == expected
    assert len(list(tmp_path.iterdir())) == 1 + len(expected)


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_wherever_the_saving_breaks_off_a_whole_checkpoint_is_there(tmp_path, monkeypatch, keep):
    """Each call that changes the folder is the last one, in turn."""
    for step in range(20):
        folder, left = tmp_path / str(step), [step]
        saved(folder, (1, 2, 3), keep=keep)

        def stop_at(function, left=left):
            def call(*args, **kwargs):
                left[0] -= 1
                if left[0] < 0:
                    raise KeyError("the machine is gone")
                return function(*args, **kwargs)

            return call

        with monkeypatch.context() as patched:
            for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (torch, "save")):
                patched.setattr(owner, name, stop_at(getattr(owner, name)))
            try:
                saved(folder, [4], keep=keep)
            except KeyError:
                left = None
        if left is not None:  # there are fewer calls
            break
        assert newest_checkpoint(folder)[1]["epoch"] in (3, 4)
        saved(folder, (5, 6), keep=keep)
        assert epochs_in(folder) == [6, 5, 4, 3][:keep] or keep == 3
    assert 3 < step < 19


def flipped(data: bytes) -> bytes:
    """One bit of the weight is another."""
    place = data.index(torch.full((3,), 2.0).numpy().tobytes())
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGES = {
    "empty": lambda data: b"",  # noqa: ARG005
    "first half": lambda data: data[: len(data) // 2],
    "all but the last byte": lambda data: data[:-1],
    "second half": lambda data: data[len(data) // 2 :],
    "zeros": lambda data: bytes(len(data)),
    "zeros at the end": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "one bit": flipped,
    "text": lambda data: b"something else\n",  # noqa: ARG005
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_passed_over(tmp_path, caplog, damage):
    saved(tmp_path, (1, 2))
    path = tmp_path / "last.pt"
    path.write_bytes(damage(path.read_bytes()))
    found, state = newest_checkpoint(tmp_path)
    assert (found.name, state["epoch"]) == ("last_1.pt", 1)
    assert f"{path} is not a checkpoint, or is damaged: " in caplog.text
    found.unlink()
    with pytest.raises(ValueError, match=r"no checkpoint is whole: .*last\.pt is not a checkpoint, or is damaged"):
        newest_checkpoint(tmp_path)


def test_a_lost_last_checkpoint_is_no_loss_of_the_one_before(tmp_path):
    saved(tmp_path, (1, 2))
    (tmp_path / "last.pt").unlink()
    assert newest_checkpoint(tmp_path)[1]["epoch"] == 1
