"""Copies of an image are found whatever they are called and however they are packed."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from monai_spct.data.copies import copies
from monai_spct.data.synthetic import save_metaimage


def found(folder: Path) -> list[list[str]]:
    groups = copies(str(path) for path in sorted(folder.iterdir()) if path.suffix != ".raw")
    return [[Path(file).name for file in group] for group in groups]


def test_content_counts_and_neither_name_nor_compression(tmp_path):
    for name, content in {"a": b"one", "b": b"two", "c": b"two", "d": b"longer"}.items():
        (tmp_path / f"{name}.nii").write_bytes(content)
    for level, name in enumerate(("e", "f"), start=1):
        (tmp_path / f"{name}.nii.gz").write_bytes(gzip.compress(b"two", level, mtime=level))
    assert found(tmp_path) == [["b.nii", "c.nii", "e.nii.gz", "f.nii.gz"]]


def test_of_a_metaimage_the_voxels_count(tmp_path):
    for number, name in enumerate("abc"):
        save_metaimage(tmp_path / f"{name}.mhd", np.full((3, 3, 2), number // 2, np.uint8), (1.0, 1.0, 1.0 + number))
    assert found(tmp_path) == [["a.mhd", "b.mhd"]]


@pytest.mark.parametrize(
    "content",
    [b"", gzip.compress(b""), b"\x1f\x8b", gzip.compress(b"voxels")[:12] + gzip.compress(b"voxels")[-8:]],
    ids=["empty", "packed nothing", "cut short", "without its middle"],
)
def test_what_cannot_be_read_is_no_copy(tmp_path, content):
    for name in ("a.nii.gz", "b.nii.gz"):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "c.mhd").write_text("no header")
    assert found(tmp_path) == []
    assert copies([str(tmp_path / "missing.nii"), str(tmp_path / "missing.nii")]) == []
