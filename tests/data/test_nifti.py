"""Geometry and labels survive the way from a NIfTI file to a prediction beside it, also with headers that lie."""

import gzip
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.transforms import Compose, EnsureChannelFirstd, LoadImage, LoadImaged

from monai_spct.data.nifti import HeaderSpacingReader, read_header, save_like, true_affine

RNG = np.random.default_rng(0)


def write(path, voxels, *, pixdim=None, sform=None, sform_code=1, qform=None, qform_code=0, raw=None):
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
        header.set_sform(np.asarray(sform, float), code=sform_code)
    for name, value in (raw or {}).items():
        header[name] = value
    header["vox_offset"] = 352
    content = header.binaryblock + bytes(4) + voxels.tobytes(order="F")
    with gzip.open(path, "wb") if str(path).endswith(".gz") else Path(path).open("wb") as file:
        file.write(content)
    return path


def volume(shape=(16, 16, 3), dtype=np.int16):
    return RNG.integers(0, 4, shape).astype(dtype)


def load(path):
    return LoadImage(reader=HeaderSpacingReader())(path)


LPS = np.diag([-1.0, -1, 1, 1])


@pytest.mark.parametrize("qform_code", [1, 0])
def test_p01_spacing_of_a_lying_sform_is_pixdim_and_its_signs_stay(tmp_path, qform_code):
    qform = np.diag([-1.25, -1.25, 10, 1])
    path = write(tmp_path / "a.nii.gz", volume(), qform=qform, qform_code=qform_code, sform=LPS)
    image = load(path)
    assert image.pixdim.tolist() == [1.25, 1.25, 10]
    assert image.affine.diagonal().tolist() == [-1.25, -1.25, 10, 1]
    torch.testing.assert_close(image.meta["original_affine"], image.affine.numpy())

    save_like(image, path, tmp_path / "b.nii.gz")
    saved = nib.load(tmp_path / "b.nii.gz")
    assert saved.header.get_zooms() == (1.25, 1.25, 10)
    assert saved.affine.diagonal().tolist() == [-1.25, -1.25, 10, 1]
    assert (saved.header["sform_code"], saved.header["qform_code"]) == (1, qform_code)
    assert LoadImage()(tmp_path / "b.nii.gz").pixdim.tolist() == [1.25, 1.25, 10]  # any other reader agrees now


@pytest.mark.parametrize(
    ("unit", "size"), [("meter", 1e-3), ("mm", 1), ("micron", 1e3), ("unknown", 1)], ids=lambda value: str(value)
)
@pytest.mark.parametrize("lies", [True, False], ids=["sform of 1 mm", "sform that agrees"])
def test_p01_spacing_is_in_millimeters_whatever_unit_the_header_has(tmp_path, unit, size, lies):
    true = np.diag([-1.25 * size, -1.25 * size, 10 * size, 1])
    true[:3, 3] = 40 * size, -30 * size, 7 * size
    sform = true.copy()
    if lies:
        sform[:3, :3] = np.diag([-size, -size, size])
    image = nib.Nifti1Image(volume(), true)
    image.set_sform(sform, code=1)
    image.header.set_zooms(np.array([1.25, 1.25, 10]) * size)
    image.header.set_xyzt_units(unit, "sec")
    path = tmp_path / "a.nii.gz"
    nib.save(image, path)

    loaded = load(path)
    np.testing.assert_allclose(loaded.pixdim, [1.25, 1.25, 10], rtol=1e-6)
    np.testing.assert_allclose(loaded.affine.numpy()[:3, 3], [40, -30, 7], rtol=1e-6)
    np.testing.assert_allclose(true_affine(HeaderSpacingReader().read(path)), loaded.affine.numpy())  # not once more
    header = read_header(path)
    np.testing.assert_allclose(header.pixdim, [1.25, 1.25, 10], rtol=1e-6)
    np.testing.assert_allclose(header.affine, loaded.affine.numpy())
    assert header.disagrees is lies

    save_like(
        loaded, path, tmp_path / "b.nii.gz"
    )  # in the unit of its source, so that any viewer lays one on the other
    saved = nib.load(tmp_path / "b.nii.gz")
    assert saved.header.get_xyzt_units() == (unit, "sec")
    np.testing.assert_allclose(saved.affine, true, rtol=1e-6)
    np.testing.assert_allclose(saved.header.get_zooms(), np.array([1.25, 1.25, 10]) * size, rtol=1e-6)


@pytest.mark.parametrize("lie", [1.0, 0.5], ids=["agrees", "lies"])
def test_p01_a_sheared_sform_stays_sheared(tmp_path, lie):
    sform = np.array([[-1.25, 0.3, 0, 40], [0, -1.2, 0.5, -30], [0, 0, 10, 7], [0, 0, 0, 1]])
    sizes = np.linalg.norm(sform[:3, :3], axis=0)
    stored = sform.copy()
    stored[:3, :3] *= lie
    path = write(tmp_path / "a.nii.gz", volume(), sform=stored, pixdim=sizes)
    image = load(path)
    np.testing.assert_allclose(image.affine.numpy(), sform, rtol=1e-6)
    save_like(image, path, tmp_path / "b.nii.gz")
    np.testing.assert_allclose(nib.load(tmp_path / "b.nii.gz").affine, sform, rtol=1e-6)
    assert nib.load(tmp_path / "b.nii.gz").header.get_zooms() == pytest.approx(tuple(sizes))


def test_directions_of_an_oblique_sform_stay_when_it_is_scaled(tmp_path):
    turn = np.linalg.qr(RNG.normal(size=(3, 3)))[0]
    sform = np.eye(4)
    sform[:3, :3], sform[:3, 3] = turn, (7, -8, 9)
    path = write(tmp_path / "a.nii", volume(), sform=sform, pixdim=(1.5, 1.25, 8))
    affine = load(path).affine.numpy()
    np.testing.assert_allclose(affine[:3, :3], turn * (1.5, 1.25, 8), rtol=1e-5)
    assert affine[:3, 3].tolist() == [7, -8, 9]


def test_an_affine_that_agrees_with_pixdim_is_untouched(tmp_path):
    sform = np.array([[-1.3671875, 0.001, 0, 91.3], [0, -1.3671875, 0.01, 120.7], [0.002, 0, 8, -40.1], [0, 0, 0, 1]])
    path = write(tmp_path / "a.nii.gz", volume(), sform=sform, pixdim=(1.36719, 1.36719, 8))
    np.testing.assert_array_equal(load(path).affine.numpy(), nib.load(path).affine)


@pytest.mark.parametrize(
    "broken", [np.diag([0.0, 0, 0, 1]), np.full((4, 4), np.nan), np.diag([1.0, 0, 1, 1])], ids=["zero", "nan", "flat"]
)
def test_unusable_directions_fall_back_to_the_qform_and_then_to_the_axes(tmp_path, broken):
    qform = np.diag([-1.25, -1.25, 10, 1])
    path = write(tmp_path / "a.nii.gz", volume(), qform=qform, qform_code=1, sform=broken)
    assert load(path).affine.diagonal().tolist() == [-1.25, -1.25, 10, 1]
    bare = write(tmp_path / "b.nii.gz", volume(), pixdim=(1.25, 1.25, 10), sform=broken)
    assert load(bare).affine.diagonal().tolist() == [1.25, 1.25, 10, 1]
    for source in (path, bare):
        save_like(volume(), source, tmp_path / "c.nii.gz")
        np.testing.assert_allclose(nib.load(tmp_path / "c.nii.gz").affine, load(source).affine.numpy())


@pytest.mark.parametrize(
    ("pixdim", "spacing"),
    [
        ((-1.25, 1.25, -10), (1.25, 1.25, 10)),
        ((0, 0, 0), (2, 3, 4)),
        ((np.nan, 1.25, np.inf), (2, 1.25, 4)),
        ((1, 1, 1), (1, 1, 1)),
    ],
    ids=["negative", "zero", "not-finite", "true-ones"],
)
def test_p01_odd_pixdim_counts_by_its_size_or_not_at_all(tmp_path, pixdim, spacing):
    path = write(
        tmp_path / "a.nii.gz", volume(), sform=np.diag([-2.0, 3, -4, 1]), raw={"pixdim": [1, *pixdim, 0, 0, 0, 0]}
    )
    image = load(path)
    assert tuple(image.pixdim.tolist()) == spacing
    assert torch.sign(image.affine.diagonal()).tolist() == [-1, 1, -1, 1]
    save_like(image, path, tmp_path / "b.nii.gz")
    assert nib.load(tmp_path / "b.nii.gz").header.get_zooms() == spacing
    np.testing.assert_array_equal(nib.load(tmp_path / "b.nii.gz").affine, image.affine.numpy())


def test_p01_headers_without_any_form_keep_their_spacing(tmp_path):
    path = write(tmp_path / "a.nii.gz", volume(), pixdim=(1.25, 1.25, 10))
    assert load(path).pixdim.tolist() == [1.25, 1.25, 10]
    save_like(volume(), path, tmp_path / "b.nii.gz")
    np.testing.assert_array_equal(nib.load(tmp_path / "b.nii.gz").affine, nib.load(path).affine)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_p02_an_identity_model_round_trips_exactly(tmp_path, suffix):
    labels = volume((37, 29, 5), np.uint8)
    affine = np.array([[-1.25, 0, 0, 92.5], [0, -1.25, 0, 71.25], [0, 0, 10, -30], [0, 0, 0, 1]])
    source = write(tmp_path / f"case{suffix}", labels, qform=affine, qform_code=1, sform=affine, sform_code=2)
    loaded = Compose([LoadImaged("label", reader=HeaderSpacingReader()), EnsureChannelFirstd("label")])(
        {"label": source}
    )
    target = tmp_path / "predictions" / "deep" / f"case{suffix}"
    save_like(loaded["label"][0].long(), source, target)

    before, after = nib.load(source), nib.load(target)
    np.testing.assert_array_equal(np.asanyarray(after.dataobj), labels)
    np.testing.assert_array_equal(after.affine, before.affine)
    assert after.get_data_dtype() == np.uint8
    for field in ("dim", "pixdim", "xyzt_units", "qform_code", "sform_code", "quatern_d", "qoffset_x", "srow_x"):
        np.testing.assert_array_equal(after.header[field], before.header[field], err_msg=field)
    assert after.dataobj.slope == 1
    assert after.dataobj.inter == 0
    assert (after.header["cal_min"], after.header["cal_max"]) == (0, 3)
    assert [path.name for path in target.parent.iterdir()] == [target.name]  # no temporary file stays


def test_the_scaling_and_the_texts_of_the_source_do_not_leak_into_the_mask(tmp_path):
    source = tmp_path / "case.nii.gz"
    image = nib.Nifti1Image(volume(), np.diag([2.0, 2, 5, 1]))
    image.header.set_slope_inter(0.5, 100)
    image.header["descrip"] = b"Jane Doe"
    image.header.extensions.append(nib.nifti1.Nifti1Extension("comment", b"Jane Doe"))
    nib.save(image, source)
    labels = volume()
    save_like(labels, source, tmp_path / "mask.nii.gz")
    np.testing.assert_array_equal(np.asanyarray(nib.load(tmp_path / "mask.nii.gz").dataobj), labels)
    assert b"Jane" not in gzip.decompress((tmp_path / "mask.nii.gz").read_bytes())


def test_a_float_map_is_stored_as_it_is(tmp_path):
    source = write(tmp_path / "case.nii.gz", volume(), sform=LPS, pixdim=(1, 1, 1))
    entropy = RNG.random((16, 16, 3), dtype=np.float32)
    save_like(torch.from_numpy(entropy), source, tmp_path / "map.nii.gz", dtype=np.float32)
    saved = nib.load(tmp_path / "map.nii.gz")
    assert saved.get_data_dtype() == np.float32
    np.testing.assert_array_equal(np.asanyarray(saved.dataobj), entropy)
    assert saved.header["cal_max"] == entropy.max()


def test_nifti2_and_big_endian_sources_work(tmp_path):
    labels = volume()
    nib.save(nib.Nifti2Image(labels, np.diag([2.0, 2, 5, 1])), tmp_path / "two.nii")
    swapped = nib.Nifti1Image(labels, np.diag([2.0, 2, 5, 1]), nib.Nifti1Header(endianness=">"))
    nib.save(swapped, tmp_path / "big.nii")
    for name in ("two", "big"):
        image = load(tmp_path / f"{name}.nii")
        save_like(image, tmp_path / f"{name}.nii", tmp_path / "mask.nii.gz")
        np.testing.assert_array_equal(np.asanyarray(nib.load(tmp_path / "mask.nii.gz").dataobj), labels)
        assert nib.load(tmp_path / "mask.nii.gz").header.get_zooms() == (2, 2, 5)


@pytest.mark.parametrize("frames", [2, 30])
def test_p06_time_series_are_refused_by_name(tmp_path, frames):
    """Also through LoadImage, whose other readers would take them."""
    path = write(tmp_path / "patient001_4d.nii.gz", volume((6, 5, 4, frames)), sform=LPS, pixdim=(1, 1, 1))
    expected = rf"patient001_4d.nii.gz is 4-D \({frames} frames\); give single frames"
    with pytest.raises(ValueError, match=expected):
        load(path)
    with pytest.raises(ValueError, match=expected):
        save_like(volume((6, 5, 4)), path, tmp_path / "mask.nii.gz")


def test_a_single_trailing_frame_is_dropped(tmp_path):
    voxels = volume((6, 5, 4, 1))
    path = write(tmp_path / "a.nii.gz", voxels, sform=LPS, pixdim=(1.25, 1.25, 10))
    image = LoadImage(reader=HeaderSpacingReader(), ensure_channel_first=True)(path)
    np.testing.assert_array_equal(image.numpy(), voxels[None, ..., 0])
    assert image.pixdim.tolist() == [1.25, 1.25, 10]
    save_like(image[0], path, tmp_path / "b.nii.gz")
    assert nib.load(tmp_path / "b.nii.gz").shape == (6, 5, 4)


def test_a_slice_of_two_axes_is_read(tmp_path):
    path = write(tmp_path / "a.nii.gz", volume((6, 5)), sform=LPS, pixdim=(1.25, 1.5, 0))
    image = load(path)
    assert image.shape == (6, 5)
    assert image.affine.diagonal().tolist()[:2] == [-1.25, -1.5]


def test_several_files_are_channels_of_one_image(tmp_path):
    paths = [write(tmp_path / f"{n}.nii.gz", volume(), sform=LPS, pixdim=(1.25, 1.25, 10)) for n in range(2)]
    image = LoadImage(reader=HeaderSpacingReader())(paths)
    assert image.shape == (2, 16, 16, 3)
    assert image.pixdim.tolist() == [1.25, 1.25, 10]


def test_closest_canonical_flips_the_corrected_affine(tmp_path):
    voxels = volume()
    path = write(tmp_path / "a.nii.gz", voxels, sform=LPS, pixdim=(1.25, 1.25, 10))
    image = LoadImage(reader=HeaderSpacingReader(as_closest_canonical=True))(path)
    assert image.affine.diagonal().tolist() == [1.25, 1.25, 10, 1]
    np.testing.assert_array_equal(image.numpy(), voxels[::-1, ::-1])


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_a_file_cut_in_its_voxels_is_named(tmp_path, suffix):
    path = write(tmp_path / f"cut{suffix}", volume((40, 40, 9)), sform=LPS, pixdim=(1, 1, 1))
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(ValueError, match=rf"cut{suffix} is truncated( or damaged)?: "):
        load(path)


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b\x08", b"not an image at all"], ids=["empty", "cut", "text"])
def test_what_is_no_nifti_is_named(tmp_path, content):
    path = tmp_path / "bad.nii.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"bad.nii.gz is not a readable NIfTI file: \w+"):
        load(path)
    with pytest.raises(ValueError, match=r"bad.nii.gz is not a readable NIfTI file"):
        save_like(volume(), path, tmp_path / "mask.nii.gz")


def test_other_formats_and_missing_files_are_told_apart(tmp_path):
    nib.save(nib.MGHImage(volume((4, 4, 4), np.int32), np.eye(4)), tmp_path / "a.mgz")
    with pytest.raises(ValueError, match=r"a.mgz is not a readable NIfTI file: it is a MGHImage"):
        load(tmp_path / "a.mgz")
    with pytest.raises(FileNotFoundError, match=r"gone.nii.gz"):
        load(tmp_path / "gone.nii.gz")


@pytest.mark.parametrize(
    ("data", "dtype", "message"),
    [
        (
            np.zeros((16, 16, 4)),
            np.uint8,
            r"`data` must have the shape of .*case.nii.gz, got \(16, 16, 4\) and \(16, 16, 3\)",
        ),
        (np.full((16, 16, 3), 0.5), np.uint8, r"whole numbers that uint8 can hold, got values from 0.5 to 0.5"),
        (np.full((16, 16, 3), 256), np.uint8, r"got values from 256 to 256"),
        (np.full((16, 16, 3), -1), np.uint8, r"got values from -1 to -1"),
        (np.full((16, 16, 3), np.nan), np.uint8, r"got values from nan to nan"),
    ],
    ids=["shape", "fraction", "large", "negative", "nan"],
)
def test_nothing_is_written_when_values_do_not_fit(tmp_path, data, dtype, message):
    source = write(tmp_path / "case.nii.gz", volume(), sform=LPS, pixdim=(1, 1, 1))
    with pytest.raises(ValueError, match=message):
        save_like(data, source, tmp_path / "mask.nii.gz", dtype=dtype)
    assert [path.name for path in tmp_path.iterdir()] == ["case.nii.gz"]


@pytest.mark.parametrize("target", ["case.nii.gz", "mask.mha"], ids=["itself", "suffix"])
def test_targets_that_make_no_sense_are_refused(tmp_path, target):
    source = write(tmp_path / "case.nii.gz", volume(), sform=LPS, pixdim=(1, 1, 1))
    content = source.read_bytes()
    with pytest.raises(ValueError, match="`target` must"):
        save_like(volume(), source, tmp_path / target)
    assert source.read_bytes() == content


def test_boolean_masks_are_written(tmp_path):
    source = write(tmp_path / "case.nii.gz", volume(), sform=LPS, pixdim=(1, 1, 1))
    save_like(volume() > 1, source, tmp_path / "mask.nii.gz")
    assert set(np.unique(nib.load(tmp_path / "mask.nii.gz").dataobj)) == {0, 1}


@settings(deadline=None, max_examples=50)
@given(
    order=st.permutations(range(3)),
    signs=st.tuples(*[st.sampled_from([-1, 1])] * 3),
    lie=st.floats(0.01, 100),
    pixdim=st.tuples(*[st.floats(0.125, 20, width=32)] * 3),
)
def test_only_column_sizes_ever_change(order, signs, lie, pixdim):
    affine = np.eye(4)
    affine[:3, :3] = np.diag(signs)[order] * lie
    image = nib.Nifti1Image(np.zeros((2, 3, 4), np.uint8), affine)
    image.header["pixdim"][1:4] = pixdim
    corrected = true_affine(image)
    np.testing.assert_array_equal(np.sign(corrected), np.sign(affine))
    np.testing.assert_allclose(np.linalg.norm(corrected[:3, :3], axis=0), np.float32(pixdim), rtol=1e-3)
