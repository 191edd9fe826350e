"""Voxels and geometry of NIfTI files are read right or refused by name, also with headers that lie."""

import gzip
import re
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.transforms import LoadImage

from monai_spct.data import VolumeReader, open_volume
from monai_spct.data.nifti import true_affine

RNG = np.random.default_rng(0)
LPS = np.diag([-1.0, -1, 1, 1])
LOAD = LoadImage(reader=VolumeReader(), ensure_channel_first=True)


def write(path, voxels, *, pixdim=None, sform=None, qform=None, qform_code=0, raw=None):
    """A NIfTI file with each geometry field set on its own; ``raw`` sets what nibabel would refuse to write."""
    header = nib.Nifti1Header()
    header.set_data_shape(voxels.shape)
    header.set_data_dtype(voxels.dtype)
    header.set_xyzt_units("mm", "sec")
    if qform is not None:
        header.set_qform(np.asarray(qform, float), code=qform_code)
    if pixdim is not None:
        header["pixdim"][1:4] = pixdim
    if sform is not None:
        header.set_sform(np.asarray(sform, float), code=1)
    for name, value in {"vox_offset": 352, **(raw or {})}.items():
        header[name] = value
    content = header.binaryblock + bytes(4) + voxels.tobytes(order="F")
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def volume(shape=(16, 16, 3), dtype=np.int16):
    return RNG.integers(0, 4, shape).astype(dtype)


# Geometry


@pytest.mark.parametrize("qform_code", [1, 0])
def test_spacing_of_a_lying_sform_is_pixdim_and_its_signs_stay(tmp_path, qform_code):
    qform = np.diag([-1.25, -1.25, 10, 1])
    path = write(tmp_path / "a.nii.gz", volume(), qform=qform, qform_code=qform_code, sform=LPS)
    image = LOAD(path)
    assert image.affine.diagonal().tolist() == [-1.25, -1.25, 10, 1]
    np.testing.assert_array_equal(image.meta["original_affine"], image.affine)
    assert open_volume(path).disagrees


@pytest.mark.parametrize(("unit", "size"), [("meter", 1e-3), ("mm", 1), ("micron", 1e3), ("unknown", 1)])
@pytest.mark.parametrize("lie", [1, 0.5], ids=["agrees", "lies"])
def test_spacing_is_in_millimeters_whatever_unit_the_header_has(tmp_path, unit, size, lie):
    true = np.diag([-1.25, -1.25, 10, 1])
    true[:3, 3] = 40, -30, 7
    stored = true.copy()
    stored[:3] *= size
    stored[:3, :3] *= lie
    image = nib.Nifti1Image(volume(), stored)
    image.header.set_zooms(np.array([1.25, 1.25, 10]) * size)
    image.header.set_xyzt_units(unit, "sec")
    nib.save(image, tmp_path / "a.nii.gz")
    found = open_volume(tmp_path / "a.nii.gz")
    np.testing.assert_allclose(found.affine, true, rtol=1e-6)
    np.testing.assert_allclose(found.stored_spacing, [1.25, 1.25, 10], rtol=1e-6)
    assert found.disagrees is (lie != 1)


def test_an_affine_that_agrees_with_pixdim_is_untouched(tmp_path):
    sform = np.array([[-1.3671875, 0.001, 0, 91.3], [0, -1.3671875, 0.01, 120.7], [0.002, 0, 8, -40.1], [0, 0, 0, 1]])
    path = write(tmp_path / "a.nii.gz", volume(), sform=sform, pixdim=(1.36719, 1.36719, 8))
    np.testing.assert_array_equal(open_volume(path).affine, nib.load(path).affine)


BROKEN = {"zero": np.diag([0.0, 0, 0, 1]), "nan": np.full((4, 4), np.nan), "flat": np.diag([1.0, 0, 1, 1])}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_unusable_directions_fall_back_to_the_qform_and_then_to_the_axes(tmp_path, broken):
    qform = np.diag([-1.25, -1.25, 10, 1])
    path = write(tmp_path / "a.nii.gz", volume(), qform=qform, qform_code=1, sform=broken)
    assert open_volume(path).affine.diagonal().tolist() == [-1.25, -1.25, 10, 1]
    bare = write(tmp_path / "b.nii.gz", volume(), pixdim=(1.25, 1.25, 10), sform=broken)
    assert open_volume(bare).affine.diagonal().tolist() == [1.25, 1.25, 10, 1]


@pytest.mark.parametrize(
    ("pixdim", "spacing"),
    [
        ((-1.25, 1.25, -10), [1.25, 1.25, 10]),
        ((0, 0, 0), [2, 3, 4]),
        ((np.nan, 1.25, np.inf), [2, 1.25, 4]),
        ((1, 1, 1), [1, 1, 1]),
    ],
    ids=["negative", "zero", "not finite", "true ones"],
)
def test_odd_pixdim_counts_by_its_size_or_not_at_all(tmp_path, pixdim, spacing):
    raw = {"pixdim": [1, *pixdim, 0, 0, 0, 0]}
    found = open_volume(write(tmp_path / "a.nii.gz", volume(), sform=np.diag([-2.0, 3, -4, 1]), raw=raw))
    assert found.spacing.tolist() == spacing
    assert np.sign(found.affine.diagonal()).tolist() == [-1, 1, -1, 1]
    np.testing.assert_array_equal(found.stored_spacing, pixdim)


@settings(deadline=None, max_examples=50)
@given(
    order=st.permutations(range(3)),
    signs=st.tuples(*[st.sampled_from([-1, 1])] * 3),
    lie=st.floats(0.01, 100),
    pixdim=st.tuples(*[st.floats(0.125, 20, width=32)] * 3),
    shear=st.floats(-0.5, 0.5),
)
def test_only_column_sizes_ever_change(order, signs, lie, pixdim, shear):
    affine = np.eye(4)
    affine[:3, :3] = np.diag(signs)[order] * lie
    affine[:3, 1] += shear * affine[:3, 0]
    affine[:3, 3] = 7, -8, 9
    image = nib.Nifti1Image(np.zeros((2, 3, 4), np.uint8), affine)
    image.header["pixdim"][1:4] = pixdim
    corrected = true_affine(image)
    sizes = np.linalg.norm(corrected[:3, :3], axis=0)
    np.testing.assert_allclose(sizes, np.float32(pixdim), rtol=1e-3)
    directions = image.affine[:3, :3] / np.linalg.norm(image.affine[:3, :3], axis=0)
    np.testing.assert_allclose(corrected[:3, :3] / sizes, directions, atol=1e-6)
    np.testing.assert_array_equal(corrected[:, 3], [7, -8, 9, 1])


# Voxels


@pytest.mark.parametrize("name", ["two.nii", "big.nii", "gzip.nii.gz", "pair.img", "frame.nii"])
def test_voxels_are_those_of_the_file(tmp_path, name):
    voxels = volume((6, 5, 4))
    header = nib.Nifti1Header(endianness=">" if name == "big.nii" else "<")
    kind = {"two.nii": nib.Nifti2Image, "pair.img": nib.Nifti1Pair}.get(name, nib.Nifti1Image)
    stored = voxels[..., None] if name == "frame.nii" else voxels  # a single trailing frame
    nib.save(kind(stored, LPS * (2, 2, 5, 1), None if kind is nib.Nifti2Image else header), tmp_path / name)
    image = LOAD(tmp_path / name)
    np.testing.assert_array_equal(image.numpy(), voxels[None])
    assert image.pixdim.tolist() == [2, 2, 5]


def test_what_follows_the_voxels_of_a_compressed_file_is_passed_over(tmp_path):
    voxels = volume((8, 8, 4))
    path = write(tmp_path / "more.nii.gz", voxels, sform=LPS)
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + bytes(3 << 20)))
    np.testing.assert_array_equal(open_volume(path).load(), voxels)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_a_file_cut_in_its_voxels_is_named(tmp_path, suffix):
    path = write(tmp_path / f"cut{suffix}", volume((40, 40, 9)), sform=LPS)
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(ValueError, match=rf"cut{suffix} is truncated( or damaged)?: "):
        LOAD(path)


def test_a_turned_bit_of_a_compressed_file_is_seen(tmp_path):
    path = write(tmp_path / "turned.nii.gz", volume((64, 64, 99)), sform=LPS)
    content = bytearray(gzip.compress(gzip.decompress(path.read_bytes()), 0))  # stored: any bit is a voxel's
    content[-20] ^= 1
    path.write_bytes(content)
    assert nib.load(path).get_fdata().shape == (64, 64, 99)  # which nibabel lets pass
    with pytest.raises(ValueError, match=r"turned\.nii\.gz is truncated or damaged: CRC check failed"):
        LOAD(path)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vox_offset": 0}, "must have its voxels behind its header, got them at byte 0"),
        ({"vox_offset": 100}, "is not a readable NIfTI file: vox offset 100 too low|behind its header, .* byte 100"),
        ({"vox_offset": np.inf}, "is not a readable NIfTI file: cannot convert float infinity"),
        ({"dim": [3, 32767, 32767, 32767, 1, 1, 1, 1]}, "is truncated: it has"),
        ({"dim": [3, 8, -8, 4, 1, 1, 1, 1]}, "must have voxels, got the shape"),
        ({"dim": [3, 8, 0, 4, 1, 1, 1, 1]}, "must have voxels, got the shape"),
        ({"dim": [2, 8, 8, 1, 1, 1, 1, 1]}, r"must be a volume with three axes, got the shape \(8, 8\)"),
        ({"dim": [4, 4, 4, 2, 2, 1, 1, 1]}, r"is 4-D \(2 frames\); give single frames"),
        ({"datatype": 32, "bitpix": 64}, "must hold real numbers, got complex numbers"),
        ({"datatype": 128, "bitpix": 24}, "must hold real numbers, got colors"),
    ],
    ids=["in the header", "too low", "nowhere", "huge", "negative", "none", "a plane", "frames", "complex", "colors"],
)
def test_a_header_of_anything_but_a_volume_is_refused(tmp_path, suffix, fields, message):
    """Also through LoadImage, whose other readers would take some of them."""
    path = write(tmp_path / f"bad{suffix}", volume((8, 8, 4)), sform=LPS, raw=fields)
    for read in (LOAD, open_volume):
        with pytest.raises(ValueError, match=message) as error:
            read(path)
        assert str(path) in str(error.value)


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b\x08", b"not an image at all"], ids=["empty", "cut", "text"])
def test_what_is_no_nifti_is_named(tmp_path, content):
    path = tmp_path / "bad.nii.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"bad.nii.gz is not a readable NIfTI file: \w+"):
        LOAD(path)


def test_other_formats_and_missing_files_are_told_apart(tmp_path):
    nib.save(nib.MGHImage(volume((4, 4, 4), np.int32), np.eye(4)), tmp_path / "a.mgz")
    with pytest.raises(ValueError, match=r"a.mgz is not a readable NIfTI file: it is a MGHImage"):
        LOAD(tmp_path / "a.mgz")
    with pytest.raises(FileNotFoundError, match=r"gone.nii.gz does not exist\."):
        LOAD(tmp_path / "gone.nii.gz")


# Channels


def save(path: Path, shape=(6, 5, 4), affine=LPS, value=0):
    nib.save(nib.Nifti1Image(np.full(shape, value, np.int16), affine), path)
    return str(path)


def test_channels_come_in_the_order_of_their_files_on_the_grid_of_the_first(tmp_path):
    # rounding, as of two programs
    files = [save(tmp_path / "t2.nii", value=2), save(tmp_path / "t1.nii.gz", affine=LPS + 1e-5, value=1)]
    image = LOAD(files)
    assert image.shape == (2, 6, 5, 4)
    assert [int(channel.max()) for channel in image] == [2, 1]
    np.testing.assert_allclose(image.affine, LPS)
    assert image.meta["filename_or_obj"] == files[0]


def test_channels_on_different_grids_are_refused_by_name(tmp_path):
    first, cut = save(tmp_path / "a.nii"), save(tmp_path / "b.nii", shape=(6, 5, 3))
    with pytest.raises(ValueError, match=re.escape(f"shape, got (6, 5, 4) in {first} and (6, 5, 3) in {cut}.")):
        LOAD([first, cut])
    other = save(tmp_path / "c.nii", affine=LPS * (1, 1, 5, 1))
    with pytest.raises(ValueError, match=r"channels of one image must have the same affine, got .* in .*c\.nii\.$"):
        LOAD([first, other])
