"""What a MetaImage header says is what ITK reads, and what is wrong with one is said before."""

import sys
import tracemalloc
import zlib
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from monai.data.image_reader import ITKReader
from monai.transforms import LoadImage

from monai_spct.data import VolumeReader, open_volume
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
def test_axes_spacing_and_orientation_are_right(tmp_path, make):
    pytest.importorskip("itk")
    path = make(tmp_path)
    image = LoadImage(reader=VolumeReader())(path)
    assert image.shape == (6, 5, 4)
    np.testing.assert_array_equal(np.asarray(image), VOXELS)
    np.testing.assert_allclose(image.pixdim, (0.5, 0.6, 3.0))
    np.testing.assert_allclose(open_volume(path).affine, image.affine, atol=1e-12)
    reader = ITKReader()
    np.testing.assert_allclose(image.affine, reader.get_data(reader.read(path))[1]["affine"], atol=1e-12)
    if make is swapped_axes:  # the first axis points back, the second to the left, the third down
        expected = [[0, -0.6, 0, -1], [-0.5, 0, 0, -2], [0, 0, -3, 3], [0, 0, 0, 1]]
        np.testing.assert_allclose(image.affine, expected, atol=1e-12)
    elif make is not oblique:
        np.testing.assert_allclose(image.affine, np.diag([-0.5, -0.6, 3, 1]), atol=1e-12)


def is_refused(path: Path, message: str) -> None:
    """By its header, before its voxels are read, and by name."""
    with pytest.raises((ValueError, OSError), match=message) as error:
        open_volume(path)
    assert str(path.parent) in str(error.value)


def resized(size: int):
    def spoil(path: Path) -> None:
        content = path.with_suffix(".raw").read_bytes()
        path.with_suffix(".raw").write_bytes((2 * content)[:size])

    return spoil


def rewritten(**changes: object):
    return lambda path: rewrite(path, **changes)


SPOILED = {
    "no data": (
        lambda path: path.with_suffix(".raw").unlink(),
        r"case\.mhd has its voxels in case\.raw, which does not",
    ),
    "half": (resized(120), r"case\.raw is truncated: it has 120 bytes, and case\.mhd tells of 240\."),
    "more": (resized(241), r"case\.raw is too long, .* it has 241 bytes, and case\.mhd tells of 240\."),
    "smaller voxels": (rewritten(ElementType="MET_UCHAR"), r"case\.raw is too long, .* of 120\."),
    "two sizes": (rewritten(DimSize="6 5"), "DimSize is 6 5"),
    "no size": (rewritten(DimSize=None), "it has no DimSize"),
    "4-D": (rewritten(NDims=4), "it is 4-D; give single volumes"),
    "colors": (rewritten(ElementNumberOfChannels=3), "it has 3 values for each voxel"),
    "unknown type": (rewritten(ElementType="MET_OTHER"), "ElementType is MET_OTHER"),
    "two spacings": (rewritten(ElementSpacing="1 1"), "ElementSpacing must be 3 numbers"),
    "nan": (rewritten(ElementSpacing="1 nan 1"), "ElementSpacing must be 3 numbers"),
    "huge": (rewritten(ElementSpacing="0.5 1e300 3"), "ElementSpacing must be 3 numbers"),
    "nowhere": (rewritten(Offset="0 0 inf"), "Offset must be 3 numbers"),
    "sheared": (rewritten(TransformMatrix="1 0 0 0 1 0.5 0 0 1"), "TransformMatrix must hold three directions"),
    "twice": (lambda path: path.write_text(f"DimSize = 4 5 6\n{path.read_text()}"), "DimSize is there twice"),
    "Latin-1": (lambda path: path.write_bytes(b"Comment = M\xfcller\n" + path.read_bytes()), "not text in UTF-8"),
    "empty": (lambda path: path.write_text(""), "it has no NDims"),
    "no file": (lambda path: path.unlink(), r"case\.mhd does not exist\."),
    "out": (rewritten(ElementDataFile="/etc/hostname"), "/etc/hostname, which is not below the folder of the header"),
    "up": (rewritten(ElementDataFile="../secret.raw"), "which is not below the folder of the header"),
    "down and up": (rewritten(ElementDataFile="x/../../secret.raw"), "which is not below the folder of the header"),
    "a list": (rewritten(ElementDataFile="LIST 2"), "LIST 2; give volumes whose voxels are in one file"),
    "a pattern": (rewritten(ElementDataFile="case.%03d.raw 1 4 1"), "give volumes whose voxels are in one file"),
}


@pytest.mark.parametrize(("spoil", "message"), SPOILED.values(), ids=SPOILED)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path, spoil, message):
    (tmp_path / "secret.raw").write_bytes(VOXELS.tobytes(order="F"))
    (tmp_path / "data").mkdir()
    path = a_volume(tmp_path / "data")
    spoil(path)
    is_refused(path, message)


def test_an_mha_that_ends_early_is_noticed(tmp_path):
    path = local(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    is_refused(path, "is truncated")


def test_a_line_that_itk_stumbles_over_does_not_change_the_others(tmp_path):
    pytest.importorskip("itk")
    path = a_volume(tmp_path, CenterOfRotation="=", AnatomicalOrientation=None)
    with pytest.raises(ValueError, match=r"case\.mhd has a header that ITK does not understand"):
        open_volume(path).load()


def damaged(data: bytes) -> bytes:
    return data[:20] + b"xxxx" + data[24:]


PACKED = {
    "half of the voxels": (zlib.compress(VOXELS.tobytes()[:120]), "holds 120 bytes of voxels when unpacked"),
    "twice the voxels": (zlib.compress(2 * VOXELS.tobytes()), "holds 480 bytes of voxels .* header tells of 240"),
    "cut off": (zlib.compress(VOXELS.tobytes())[:-40], r"holds \d+ bytes of voxels .* header tells of 240"),
    "no checksum": (zlib.compress(VOXELS.tobytes())[:-4], "is truncated: its checksum is missing"),
    "damaged": (damaged(zlib.compress(VOXELS.tobytes())), "is damaged: "),
    "a text": (b"no compressed voxels", "is damaged: "),
}


@pytest.mark.parametrize(("data", "message"), PACKED.values(), ids=PACKED)
@pytest.mark.parametrize("told", [True, False], ids=["size told", "size not told"])
def test_compressed_voxels_that_itk_would_make_up_are_refused(tmp_path, data, message, told):
    path = compressed(tmp_path)
    path.with_suffix(".zraw").write_bytes(data)
    rewrite(path, CompressedDataSize=len(data) if told else None)
    volume = open_volume(path)  # they are not looked at here
    with pytest.raises(ValueError, match=rf"case\.zraw {message}"):
        volume.load()


def test_compressed_voxels_are_measured_by_their_compressed_size(tmp_path):
    path = compressed(tmp_path)
    data = path.with_suffix(".zraw")
    data.write_bytes(data.read_bytes()[:-5])
    is_refused(path, "is truncated")


def test_compressed_voxels_take_no_more_memory_than_the_header_tells(tmp_path):
    path = compressed(tmp_path)
    data = zlib.compress(bytes(1 << 28))
    path.with_suffix(".zraw").write_bytes(data)
    rewrite(path, CompressedDataSize=len(data))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="bytes of voxels when unpacked, and its header tells of 240"):
            open_volume(path).load()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 23


def test_metaimages_are_channels_too_also_beside_nifti(tmp_path):
    pytest.importorskip("itk")
    path = a_volume(tmp_path)
    nib.save(nib.Nifti1Image(VOXELS, np.diag([-0.5, -0.6, 3, 1])), tmp_path / "b.nii")
    image = LoadImage(reader=VolumeReader(), ensure_channel_first=True)([path, tmp_path / "b.nii"])
    np.testing.assert_array_equal(image.numpy(), [VOXELS, VOXELS])


def test_without_itk_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "itk", None)
    with pytest.raises(ImportError, match=r'case\.mhd is read by ITK, .* pip install "monai-spct\[itk\]"'):
        LoadImage(reader=VolumeReader())(a_volume(tmp_path))
