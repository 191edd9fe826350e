"""A file is the old one or the whole new one, whatever happens while it is written; a checkpoint comes back whole."""

import os
import re
import signal
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from monai_spct.files import atomic
from monai_spct.files.atomic import read_checkpoint, replacing, save_atomically


def names(folder: Path) -> list[str]:
    return os.listdir(folder)  # noqa: PTH208 - hidden files too


@pytest.fixture
def path(tmp_path) -> Path:
    """A file that there is."""
    path = tmp_path / "note.txt"
    path.write_text("old")
    return path


def test_the_old_file_is_there_until_the_new_one_is_complete(path):
    with replacing(path, "w") as file:
        file.write("new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(path.parent) == ["note.txt"]


def test_text_is_utf_8_and_its_line_ends_are_left_alone(path):
    with replacing(path, "w") as file:
        file.write("±\n1\r\n2\r")
    assert path.read_bytes() == "±\n1\r\n2\r".encode()


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_and_nothing_else(path, error):
    def break_off() -> None:
        with replacing(path, "w") as file:
            file.write("half")
            raise error

    with pytest.raises(error):
        break_off()
    assert path.read_text() == "old"
    assert names(path.parent) == ["note.txt"]


def test_what_cannot_be_replaced_stays_and_nothing_else(tmp_path):
    (tmp_path / "note.txt" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match=r"^[^>]*/note\.txt'$"), replacing(tmp_path / "note.txt") as file:
        file.write(b"new")
    assert names(tmp_path) == ["note.txt"]
    assert names(tmp_path / "note.txt") == ["inside"]


def write(path: Path, size: int) -> None:
    with replacing(path) as file:
        file.write(bytes(size))


@pytest.mark.parametrize(
    "fill",
    [
        lambda path: write(path, 2_000),
        lambda path: write(path, 2_000_000),
        lambda path: save_atomically({"weight": torch.zeros(1_000_000)}, path),  # torch says where it is in its archive
    ],
    ids=["at the end", "in the middle", "in torch.save"],
)
def test_a_full_disk_leaves_the_old_file_and_nothing_else(path, fill):
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))  # writing stops there, as on a full disk
    try:
        with pytest.raises(OSError, match=rf"^\[Errno \d+\] .*'{re.escape(str(path))}'$"):
            fill(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "old"
    assert names(path.parent) == ["note.txt"]


KILLED = """
import os, runpy, signal, sys
replacing = runpy.run_path(sys.argv[1])["replacing"]
with replacing(sys.argv[2], "w") as file:
    file.write("half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no such signal here")
def test_a_process_that_is_killed_leaves_the_old_file(path):
    done = subprocess.run([sys.executable, "-c", KILLED, atomic.__file__, path], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    [part] = [file for file in path.parent.iterdir() if file != path]
    assert part.name.startswith(".")
    assert part.read_text() == "half"
    with replacing(path, "w") as file:  # which is in nobody's way
        file.write("new")
    assert path.read_text() == "new"


@pytest.mark.skipif(os.name != "posix", reason="folders are files on POSIX alone")
def test_the_disk_has_the_file_before_its_name_and_then_the_name(path, monkeypatch):
    synced = []

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        synced.append(("folder" if stat.S_ISDIR(status.st_mode) else f"{status.st_size} bytes", path.read_text()))

    monkeypatch.setattr(os, "fsync", fsync)
    with replacing(path, "w") as file:
        file.write("newer")
    assert synced == [("5 bytes", "old"), ("folder", "newer")]


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002], ids=oct)
def test_others_may_read_a_file_as_the_umask_says(tmp_path, umask):
    before = os.umask(umask)
    try:
        with replacing(tmp_path / "file"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~umask


# Checkpoints


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    """A checkpoint with as many bytes of structure as of tensors."""
    path = tmp_path / "model.pt"
    torch.save({"weight": torch.arange(6.0).reshape(2, 3), "run": {"epoch": 3, "names": ["a", "b"]}}, path)
    return path


def packed(path: Path, *, name: str = "", content: bytes = b"", compression: int = zipfile.ZIP_STORED) -> None:
    """The archive anew, with right checksums, and one file of it replaced."""
    with zipfile.ZipFile(path) as archive:
        files = {part.filename: archive.read(part) for part in archive.infolist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for part, its in files.items():
            archive.writestr(part, content if name and part.endswith(name) else its)


def test_whatever_byte_is_turned_a_checkpoint_is_refused_or_read_as_it_was(checkpoint):
    content = bytearray(checkpoint.read_bytes())
    expected = read_checkpoint(checkpoint)
    refused = []
    for place in range(0, len(content), 7):
        turned = content.copy()
        turned[place] ^= 1 << (place % 8)
        checkpoint.write_bytes(turned)
        try:
            state = read_checkpoint(checkpoint)
        except ValueError as error:
            refused.append(str(error))
        else:
            assert torch.equal(state["weight"], expected["weight"])
            assert state["run"] == expected["run"]
    assert len(refused) > 50
    assert all(str(checkpoint) in message for message in refused)


def test_a_turned_bit_of_a_weight_is_seen(checkpoint):
    content = checkpoint.read_bytes()
    weight = torch.arange(6.0).numpy().tobytes()
    assert content.count(weight) == 1
    checkpoint.write_bytes(content.replace(weight, weight[:-1] + b"\x41"))
    assert torch.load(checkpoint, weights_only=True)["weight"][1, 2] != 5  # which torch lets pass
    with pytest.raises(ValueError, match=r"model\.pt is not a checkpoint, or is damaged: the checksum of .*data/0 is"):
        read_checkpoint(checkpoint)


def test_a_checkpoint_cannot_grow_when_it_is_read(checkpoint):
    packed(checkpoint, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match=r"model\.pt is not a checkpoint, or is damaged: .* is compressed"):
        read_checkpoint(checkpoint)


@pytest.mark.parametrize("content", [3, [torch.ones(1)], torch.ones(1), {1: torch.ones(1)}], ids=repr)
def test_what_is_no_dictionary_by_name_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"model\.pt must hold a dictionary by name, got a (int|list|Tensor|dict)\."):
        read_checkpoint(tmp_path / "model.pt")
