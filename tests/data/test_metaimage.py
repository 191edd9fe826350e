"""What a MetaImage header says is what ITK reads, and what is wrong with one is said before."""

import re
import sys
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from monai.data.image_reader import ITKReader
from monai.transforms import LoadImage

from monai_spct.data import VolumeReader
from monai_spct.data.metaimage import is_metaimage, problem_of, read_header
from monai_spct.data.synthetic import save_metaimage

VOXELS = np.arange(120, dtype=np.int16).reshape(6, 5, 4)


def a_volume(folder: Path, **changes: object) -> Path:
    """6 x 5 x 4 voxels of 0.5 x 0.6 x 3 mm; a line that is changed to None is left out."""
    path = folder / "case.mhd"
    save_metaimage(path, VOXELS, (0.5, 0.6, 3.0))
    rewrite(path, **changes)
    return path


def rewrite(path: Path, **changes: object) -> None:
    fields = dict(line.split(" = ") for line in path.read_text().splitlines())
    last = fields.pop("ElementDataFile")
    fields = {**fields, **changes, "ElementDataFile": changes.get("ElementDataFile", last)}
    path.write_text("".join(f"{name} = {value}\n" for name, value in fields.items() if value is not None))


def compressed(folder: Path, **changes: object) -> Path:
    path = a_volume(folder)
    data = zlib.compress((folder / "case.raw").read_bytes())
    (folder / "case.raw").unlink()
    (folder / "case.zraw").write_bytes(data)
    settings = {"CompressedData": True, "CompressedDataSize": len(data), "ElementDataFile": "case.zraw", **changes}
    rewrite(path, **settings)
    return path


def local(folder: Path) -> Path:
    header = a_volume(folder, ElementDataFile="LOCAL")
    path = header.with_suffix(".mha")
    path.write_bytes(header.read_bytes() + (folder / "case.raw").read_bytes())
    return path


def compressed_local(folder: Path) -> Path:
    header = compressed(folder, ElementDataFile="LOCAL")
    path = header.with_suffix(".mha")
    path.write_bytes(header.read_bytes() + (folder / "case.zraw").read_bytes())
    return path


def oblique(folder: Path) -> Path:
    return a_volume(folder, TransformMatrix="0.6 0.8 0 -0.8 0.6 0 0 0 1", Offset="10 -20 30.5")


def swapped_axes(folder: Path) -> Path:
    return a_volume(folder, TransformMatrix="0 1 0 1 0 0 0 0 -1", Offset="1 2 3")


def big_endian(folder: Path) -> Path:
    path = a_volume(folder, BinaryDataByteOrderMSB=True)
    path.with_suffix(".raw").write_bytes(VOXELS.astype(">i2").tobytes(order="F"))
    return path


def something_before(folder: Path) -> Path:
    path = a_volume(folder, HeaderSize=100)
    path.with_suffix(".raw").write_bytes(bytes(100) + VOXELS.tobytes(order="F"))
    return path


def something_before_of_any_length(folder: Path) -> Path:
    path = something_before(folder)
    rewrite(path, HeaderSize=-1)
    return path


def windows_lines(folder: Path) -> Path:
    path = a_volume(folder)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    return path


@pytest.mark.parametrize(
    "make",
    [
        *(a_volume, compressed, local, compressed_local, oblique, swapped_axes, big_endian),
        *(something_before, something_before_of_any_length, windows_lines),
    ],
    ids=lambda make: make.__name__,
)
def test_p04_axes_spacing_and_orientation_are_right(tmp_path, make):
    pytest.importorskip("itk")
    path = make(tmp_path)
    image = LoadImage(reader=VolumeReader())(path)
    assert image.shape == (6, 5, 4)
    np.testing.assert_array_equal(np.asarray(image), VOXELS)
    np.testing.assert_allclose(image.pixdim, (0.5, 0.6, 3.0))
    header = read_header(path)
    assert header.shape == (6, 5, 4)
    np.testing.assert_allclose(header.affine, image.affine, atol=1e-12)
    reader = ITKReader()
    np.testing.assert_allclose(header.affine, reader.get_data(reader.read(path))[1]["affine"], atol=1e-12)
    if make is swapped_axes:  # the first axis points back, the second to the left, the third down
        expected = [[0, -0.6, 0, -1], [-0.5, 0, 0, -2], [0, 0, -3, 3], [0, 0, 0, 1]]
        np.testing.assert_allclose(header.affine, expected, atol=1e-12)
    elif make is not oblique:
        np.testing.assert_allclose(header.affine, np.diag([-0.5, -0.6, 3, 1]), atol=1e-12)
    assert problem_of(path) is None


def no_data(path: Path) -> None:
    path.with_suffix(".raw").unlink()


def half_of_the_data(path: Path) -> None:
    path.with_suffix(".raw").write_bytes(path.with_suffix(".raw").read_bytes()[:120])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_data, r"case\.mhd has its voxels in case\.raw, which does not exist"),
        (half_of_the_data, r"case\.raw is truncated: it has 120 bytes, and case\.mhd tells of 240\."),
        (lambda path: rewrite(path, DimSize="6 5 5"), r"case\.raw is truncated: it has 240 bytes, .* of 300\."),
        (lambda path: rewrite(path, DimSize="6 5 3"), r"case\.raw is too long, .* it has 240 bytes, .* of 180\."),
        (
            lambda path: rewrite(path, ElementType="MET_UCHAR"),
            r"case\.raw is too long, .* it has 240 bytes, .* of 120\.",
        ),
        (lambda path: rewrite(path, ElementType="MET_FLOAT"), r"case\.raw is truncated: it has 240 bytes, .* of 480\."),
        (lambda path: rewrite(path, DimSize="6 5"), "DimSize is 6 5"),
        (lambda path: rewrite(path, DimSize="6 5 0"), "DimSize is 6 5 0"),
        (lambda path: rewrite(path, DimSize=None), "it has no 'DimSize'|it has no DimSize"),
        (lambda path: rewrite(path, NDims=4), "it is 4-D; give single volumes"),
        (lambda path: rewrite(path, NDims="three"), "invalid literal for int"),
        (lambda path: rewrite(path, ElementType="MET_OTHER"), "ElementType is MET_OTHER"),
        (lambda path: rewrite(path, ElementSpacing="1 1"), "ElementSpacing must be 3 numbers"),
        (lambda path: rewrite(path, ElementSpacing="1 nan 1"), "ElementSpacing must be 3 numbers"),
        (lambda path: path.write_bytes(b"\x00\xff" * 50), "it is not text in UTF-8"),
        (lambda path: path.write_text(""), "it has no NDims"),
        (lambda path: path.unlink(), "does not exist"),
    ],
    ids=[
        *("no data", "half of the data", "header that lies", "fewer slices", "smaller voxels", "larger voxels"),
        *("two sizes", "a size of 0", "no size", "4-D", "a word"),
        *("unknown type", "two spacings", "nan", "binary", "empty", "no file"),
    ],
)
def test_p04_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path, spoil, message):
    path = a_volume(tmp_path)
    spoil(path)
    problem = problem_of(path)
    assert problem is not None
    assert str(tmp_path) in problem
    assert re.search(message, problem), problem
    with pytest.raises(ValueError, match=message):
        LoadImage(reader=VolumeReader())(path)


def test_compressed_voxels_are_measured_by_their_compressed_size(tmp_path):
    path = compressed(tmp_path)
    assert problem_of(path) is None
    data = path.with_suffix(".zraw")
    data.write_bytes(data.read_bytes()[:-5])
    assert "is truncated" in str(problem_of(path))


def packed(voxels: bytes) -> bytes:
    return zlib.compress(voxels)


def damaged(voxels: bytes) -> bytes:
    data = zlib.compress(voxels)
    return data[:20] + b"xxxx" + data[24:]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (packed(VOXELS.tobytes()[:120]), "holds 120 bytes of voxels when unpacked, and its header tells of 240"),
        (packed(2 * VOXELS.tobytes()), "holds 480 bytes of voxels when unpacked, and its header tells of 240"),
        (packed(VOXELS.tobytes())[:-40], r"holds \d+ bytes of voxels when unpacked, and its header tells of 240"),
        (damaged(VOXELS.tobytes()), "is damaged: "),
        (b"no compressed voxels", "is damaged: "),
    ],
    ids=["half of the voxels", "twice the voxels", "cut off", "damaged", "a text"],
)
@pytest.mark.parametrize("told", [True, False], ids=["size told", "size not told"])
def test_p04_compressed_voxels_that_itk_would_make_up_are_refused(tmp_path, data, message, told):
    path = compressed(tmp_path)
    path.with_suffix(".zraw").write_bytes(data)
    rewrite(path, CompressedDataSize=len(data) if told else None)
    message = rf"case\.zraw {message}"
    assert re.search(message, str(problem_of(path, unpack=True)))
    assert problem_of(path) is None  # they are not looked at unless one asks
    with pytest.raises(ValueError, match=message):
        LoadImage(reader=VolumeReader())(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/etc/hostname", "which is not below the folder of the header"),
        ("../secret.raw", "which is not below the folder of the header"),
        ("x/../../secret.raw", "which is not below the folder of the header"),
        ("LIST", "give volumes whose voxels are in one file"),
        ("LIST 2", "give volumes whose voxels are in one file"),
        ("case.%03d.raw 1 4 1", "give volumes whose voxels are in one file"),
    ],
)
def test_voxels_out_of_the_folder_or_in_several_files_are_refused(tmp_path, name, message):
    (tmp_path / "data").mkdir()
    (tmp_path / "secret.raw").write_bytes(VOXELS.tobytes(order="F"))
    path = a_volume(tmp_path / "data", ElementDataFile=name)
    for read in (read_header, LoadImage(reader=VolumeReader())):
        with pytest.raises(ValueError, match=message) as error:
            read(path)
        assert f"{path} is not a readable MetaImage header: ElementDataFile is {name}" in str(error.value)


def test_voxels_in_a_folder_below_are_read(tmp_path):
    pytest.importorskip("itk")
    path = a_volume(tmp_path, ElementDataFile="below/case.raw")
    (tmp_path / "below").mkdir()
    (tmp_path / "case.raw").rename(tmp_path / "below" / "case.raw")
    np.testing.assert_array_equal(np.asarray(LoadImage(reader=VolumeReader())(path)), VOXELS)


def test_a_line_that_itk_stumbles_over_does_not_change_the_others(tmp_path):
    pytest.importorskip("itk")
    path = a_volume(tmp_path, CenterOfRotation="=", AnatomicalOrientation=None)
    assert problem_of(path) is None
    with pytest.raises(ValueError, match=r"case\.mhd has a header that ITK does not understand"):
        LoadImage(reader=VolumeReader())(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"TransformMatrix": "1 0 0 0 1 0.5 0 0 1"}, "TransformMatrix must hold three directions of length 1"),
        ({"TransformMatrix": "1 0 0 0 0 0 0 0 1"}, "TransformMatrix must hold three directions of length 1"),
        ({"ElementSpacing": "0.5 1e-300 3"}, "ElementSpacing is 0.5 1e-300 3"),
        ({"ElementSpacing": "0.5 1e300 3"}, "ElementSpacing must be 3 numbers"),
        ({"Offset": "0 0 inf"}, "Offset must be 3 numbers"),
    ],
    ids=["sheared", "flat", "tiny", "huge", "nowhere"],
)
def test_a_geometry_that_no_scanner_has_is_refused(tmp_path, changes, message):
    assert message in str(problem_of(a_volume(tmp_path, **changes)))


def test_a_field_that_is_there_twice_is_refused(tmp_path):
    path = a_volume(tmp_path)
    path.write_text(f"DimSize = 4 5 6\n{path.read_text()}")
    assert "DimSize is there twice" in str(problem_of(path))


def test_text_that_itk_cannot_hold_is_refused(tmp_path):
    path = a_volume(tmp_path)
    path.write_bytes(b"Comment = M\xfcller\n" + path.read_bytes())
    assert "it is not text in UTF-8" in str(problem_of(path))


@pytest.mark.parametrize("told", [True, False], ids=["size told", "size not told"])
def test_compressed_voxels_without_their_checksum_are_refused(tmp_path, told):
    path = compressed(tmp_path)
    data = path.with_suffix(".zraw").read_bytes()
    path.with_suffix(".zraw").write_bytes(data[:-4])
    rewrite(path, CompressedDataSize=len(data) - 4 if told else None)
    assert "its checksum is missing" in str(problem_of(path, unpack=True))


def test_compressed_voxels_take_no_more_memory_than_the_header_tells(tmp_path):
    path = compressed(tmp_path)
    data = zlib.compress(bytes(1 << 28))
    path.with_suffix(".zraw").write_bytes(data)
    rewrite(path, CompressedDataSize=len(data))
    tracemalloc.start()
    try:
        problem = problem_of(path, unpack=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "bytes of voxels when unpacked, and its header tells of 240" in str(problem)
    assert peak < 1 << 23


def test_a_zraw_whose_header_does_not_tell_its_size_is_left_to_itk(tmp_path):
    path = compressed(tmp_path)
    rewrite(path, CompressedDataSize=None)
    assert read_header(path).size is None
    assert problem_of(path) is None


def test_an_mha_that_ends_early_is_noticed(tmp_path):
    path = local(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    assert "is truncated" in str(problem_of(path))


def test_without_itk_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "itk", None)
    with pytest.raises(ImportError, match=r'case\.mhd is read by ITK, .* pip install "monai-spct\[itk\]"'):
        LoadImage(reader=VolumeReader())(a_volume(tmp_path))


@pytest.mark.parametrize("name", ["a.mhd", "A.MHA"])
def test_a_metaimage_is_known_by_its_name(name):
    assert is_metaimage(name)
    assert VolumeReader().verify_suffix(name)
    assert not is_metaimage("a.nii.gz")
