"""What an NRRD header says is what ITK reads, and what is wrong with one is said before."""

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
from monai.transforms import LoadImage

from monai_spct.data import VolumeReader, image_cases, open_volume

VOXELS = np.arange(120, dtype=np.int16).reshape(6, 5, 4)
FIELDS = {
    "type": "short",
    "dimension": "3",
    "space": "left-posterior-superior",
    "sizes": "6 5 4",
    "space directions": "(0.5,0,0) (0,0.6,0) (0,0,3)",
    "kinds": "domain domain domain",
    "endian": "little",
    "encoding": "gzip",
    "space origin": "(1,2,3)",
}


def write(folder: Path, data: bytes | None = None, *, before: str = "", end: str = "\n", **changes: str | None) -> Path:
    """6 x 5 x 4 voxels; a field that is changed to None is left out."""
    fields = {**FIELDS, **{name.replace("_", " "): value for name, value in changes.items()}}
    lines = ["NRRD0004", "# a comment: of some program", "key:=value: any", *before.splitlines()]
    lines += [f"{name}: {value}" for name, value in fields.items() if value is not None]
    if data is None:
        data = VOXELS.astype(">i2" if fields["endian"] == "big" else "<i2").tobytes(order="F")
        data = gzip.compress(data) if fields["encoding"] == "gzip" else data
    path = folder / "case.nrrd"
    path.write_bytes("".join(line + end for line in [*lines, ""]).encode("latin-1") + data)
    return path


LPS = [[-0.5, 0, 0, -1], [0, -0.6, 0, -2], [0, 0, 3, 3], [0, 0, 0, 1]]
SHAPES = {
    "as the challenge has it": ({}, LPS),
    "raw": ({"encoding": "raw"}, LPS),
    "big-endian": ({"endian": "big"}, LPS),
    "Windows lines": ({"end": "\r\n"}, LPS),
    "short name": ({"space": "LPS", "type": "int16", "kinds": None}, LPS),
    "no origin": ({"space_origin": None}, np.diag([-0.5, -0.6, 3, 1])),
    "RAS": ({"space": "right-anterior-superior"}, [[0.5, 0, 0, 1], [0, 0.6, 0, 2], [0, 0, 3, 3], [0, 0, 0, 1]]),
    # the first axis points back, the second to the left, the third down
    "swapped axes": (
        {"space_directions": "(0,0.5,0) (0.6,0,0) (0,0,-3)"},
        [[0, -0.6, 0, -1], [-0.5, 0, 0, -2], [0, 0, -3, 3], [0, 0, 0, 1]],
    ),
    "oblique": (
        {"space_directions": "(0.3,0.4,0) (-0.48,0.36,0) (0,0,3)"},
        [[-0.3, 0.48, 0, -1], [-0.4, -0.36, 0, -2], [0, 0, 3, 3], [0, 0, 0, 1]],
    ),
    "spacings alone": (
        {"space": None, "space_directions": None, "space_origin": None, "spacings": "0.5 0.6 3"},
        np.diag([-0.5, -0.6, 3, 1]),
    ),
    "nothing of space": ({"space": None, "space_directions": None, "space_origin": None}, np.diag([-1, -1, 1, 1])),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "affine"), SHAPES.values(), ids=SHAPES)
def test_axes_spacing_and_orientation_are_right(tmp_path, changes, affine):
    pytest.importorskip("itk")
    path = write(tmp_path, **changes)
    image = LoadImage(reader=VolumeReader())(path)
    np.testing.assert_array_equal(np.asarray(image), VOXELS)
    np.testing.assert_allclose(image.affine, affine, atol=1e-12)
    volume = open_volume(path)
    np.testing.assert_allclose(volume.affine, affine, atol=1e-12)
    np.testing.assert_allclose(volume.stored_spacing, volume.spacing)
    assert not volume.disagrees


@pytest.mark.parametrize("name", ["unsigned char", "uint8", "ushort", "int32", "unsigned int", "float", "double"])
def test_numbers_of_each_type_are_read(tmp_path, name):
    pytest.importorskip("itk")
    dtype = {
        "unsigned char": "u1",
        "uint8": "u1",
        "ushort": "u2",
        "unsigned int": "u4",
        "int32": "i4",
        "float": "f4",
        "double": "f8",
    }[name]
    endian = None if dtype == "u1" else "little"
    path = write(tmp_path, gzip.compress(VOXELS.astype(np.dtype(dtype)).tobytes(order="F")), type=name, endian=endian)
    voxels = open_volume(path).load()
    assert voxels.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(voxels, VOXELS)


RAW = VOXELS.tobytes(order="F")
SPOILED = {
    "half": ({"encoding": "raw", "data": RAW[:120]}, r"case\.nrrd is truncated: it has \d+ bytes"),
    "more": ({"encoding": "raw", "data": RAW + b"x"}, r"case\.nrrd is too long"),
    "two sizes": ({"sizes": "6 5"}, "`sizes` is 6 5"),
    "no size": ({"sizes": None}, "it has no `sizes`"),
    "4-D": ({"dimension": "4"}, "it is 4-D; give single volumes"),
    "64 bits": ({"type": "int64"}, "`type` is int64, which ITK does not offer to Python"),
    "text": ({"encoding": "ascii"}, "`encoding` is ascii; give raw or gzip"),
    "elsewhere": ({"data_file": "/etc/hostname"}, "`datafile` is there; give files whose voxels follow the header"),
    "skipped": ({"byte_skip": "-1"}, "`byteskip` is there"),
    "no order": ({"endian": None}, "it has no `endian`"),
    "other space": ({"space": "scanner-xyz"}, "`space` is scanner-xyz; give left-posterior-superior"),
    "no directions": ({"space_directions": None}, "it has no `spacedirections`"),
    "no space": ({"space": None}, "it has no `space`"),
    "two directions": ({"space_directions": "(1,0,0) (0,1,0)"}, r"3 vectors \(x,y,z\) must be there"),
    "colors": ({"space_directions": "none (1,0,0) (0,1,0) (0,0,1)"}, r"3 vectors \(x,y,z\) must be there"),
    "sheared": ({"space_directions": "(1,0,0) (1,1,0) (0,0,1)"}, "three directions at right angles"),
    "flat": ({"space_directions": "(1,0,0) (0,0,0) (0,0,1)"}, "voxel sizes and origin must be numbers of mm"),
    "nan": ({"space_directions": "(1,0,0) (0,nan,0) (0,0,1)"}, "voxel sizes and origin must be numbers of mm"),
    "nowhere": ({"space_origin": "(0,0,inf)"}, "voxel sizes and origin must be numbers of mm"),
    "twice": ({"before": "dimension: 3"}, "`dimension: 3` is there twice"),
    "no field": ({"before": "dimension"}, "`dimension` is no field"),
    "Latin-1": ({"before": "# M\xfcller"}, "it is not text in UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), SPOILED.values(), ids=SPOILED)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path, changes, message):
    path = write(tmp_path, **changes)
    with pytest.raises(ValueError, match=message) as error:
        open_volume(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "does not begin with NRRD"),
        (b"NRRD0004\ntype: short\n", "no empty line ends it"),
        (None, "does not exist"),
    ],
    ids=["empty", "no end", "missing"],
)
def test_what_is_no_such_file_is_named(tmp_path, content, message):
    path = tmp_path / "case.nrrd"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=rf"case\.nrrd .*{message}"):
        open_volume(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gzip.compress(RAW)[:-4], "is truncated: its checksum is missing"),
        (gzip.compress(RAW)[:-8] + bytes(8), "is damaged"),
        (gzip.compress(RAW[:120]), "holds 120 bytes of voxels when unpacked, and its header tells of 240"),
        (RAW, "is damaged"),
    ],
    ids=["cut", "checksum", "half", "not packed"],
)
def test_compressed_voxels_that_itk_would_make_up_are_refused(tmp_path, data, message):
    volume = open_volume(write(tmp_path, data))  # they are not looked at here
    with pytest.raises(ValueError, match=rf"case\.nrrd {message}"):
        volume.load()


def test_what_itk_reads_otherwise_is_refused(tmp_path):
    pytest.importorskip("itk")
    path = write(tmp_path, space=None, space_directions=None, space_origin=None, axis_mins="4 5 6", spacings="1 1 1")
    with pytest.raises(ValueError, match=r"case\.nrrd has a header that ITK does not understand"):
        open_volume(path).load()


def test_images_are_found_in_folders(tmp_path):
    write(tmp_path)
    assert [case["case"] for case in image_cases(tmp_path)] == ["case"]


def test_without_itk_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "itk", None)
    with pytest.raises(ImportError, match=r'case\.nrrd is read by ITK, .* pip install "monai-spct\[itk\]"'):
        open_volume(write(tmp_path)).load()
