"""Predictions lie on the grid of their images, whatever the header says, and hold nothing else of it."""

import gzip

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.transforms import LoadImage

from monai_spct.data import open_volume, save_like
from monai_spct.data.synthetic import save_metaimage
from tests.data.test_volumes import LOAD, LPS, RNG, volume, write

GRIDS = {
    "agrees": {"sform": LPS * (1.25, 1.25, 10, 1), "pixdim": (1.25, 1.25, 10)},
    "sform that lies": {"sform": LPS, "pixdim": (1.25, 1.25, 10)},
    "qform": {"qform": LPS * (1.25, 1.25, 10, 1), "qform_code": 1},
    "sform that lies beside a qform": {"qform": LPS * (1.25, 1.25, 10, 1), "qform_code": 1, "sform": LPS},
    "qform with another pixdim": {"qform": LPS, "qform_code": 1, "pixdim": (1.25, 1.25, 10)},
    "no form": {"pixdim": (1.25, 1.25, 10)},
    "no directions": {"sform": np.diag([0.0, 0, 0, 1]), "pixdim": (1.25, 1.25, 10)},
    "shear": {"sform": [[-1.25, 0.3, 0, 40], [0, -1.2, 0.5, -30], [0, 0, 10, 7], [0, 0, 0, 1]], "pixdim": (1, 1, 5)},
    "zero": {"sform": LPS, "raw": {"pixdim": [1] + [0] * 7}},
    "meters": {"sform": LPS, "pixdim": (0.00125, 0.00125, 0.01), "raw": {"xyzt_units": 1}},
}


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_any_reader_finds_the_true_spacing_in_a_prediction(tmp_path, grid):
    source, target = write(tmp_path / "a.nii.gz", volume(), **grid), tmp_path / "b.nii.gz"
    save_like(volume(), source, target)
    saved, expected = nib.load(target), open_volume(source).affine
    unit = 1000 if grid.get("raw") == {"xyzt_units": 1} else 1  # which stays, so that viewers lay one on the other
    np.testing.assert_allclose(saved.affine[:3] * unit, expected[:3], rtol=1e-5)
    spacing = np.linalg.norm(expected[:3, :3], axis=0)
    np.testing.assert_allclose(np.array(saved.header.get_zooms()) * unit, spacing, rtol=1e-5)
    np.testing.assert_allclose(open_volume(target).affine, expected, rtol=1e-5)
    assert not open_volume(target).disagrees
    np.testing.assert_allclose(LoadImage()(target).pixdim * unit, spacing, rtol=1e-5)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
@pytest.mark.parametrize("kind", [nib.Nifti1Image, nib.Nifti2Image], ids=["1", "2"])
def test_an_identity_model_round_trips_exactly(tmp_path, suffix, kind):
    labels = volume((37, 29, 5), np.uint8)
    affine = np.array([[-1.25, 0, 0, 92.5], [0, -1.25, 0, 71.25], [0, 0, 10, -30], [0, 0, 0, 1]])
    image = kind(labels, affine)
    image.set_qform(affine, code=1)
    image.set_sform(affine, code=2)
    source, target = tmp_path / f"case{suffix}", tmp_path / "predictions" / "deep" / f"case{suffix}"
    nib.save(image, source)
    save_like(LOAD(source)[0].long(), source, target)
    before, after = nib.load(source), nib.load(target)
    np.testing.assert_array_equal(np.asanyarray(after.dataobj), labels)
    np.testing.assert_array_equal(after.affine, before.affine)
    assert after.get_data_dtype() == np.uint8
    for field in ("dim", "pixdim", "xyzt_units", "qform_code", "sform_code", "quatern_d", "qoffset_x", "srow_x"):
        np.testing.assert_array_equal(after.header[field], before.header[field], err_msg=field)
    assert (after.dataobj.slope, after.dataobj.inter) == (1, 0)
    assert (after.header["cal_min"], after.header["cal_max"]) == (0, 3)
    assert [path.name for path in target.parent.iterdir()] == [target.name]  # no temporary file stays


def test_the_scaling_and_the_texts_of_the_source_do_not_leak_into_the_mask(tmp_path):
    image = nib.Nifti1Image(volume(), np.diag([2.0, 2, 5, 1]))
    image.header.set_slope_inter(0.5, 100)
    image.header["descrip"] = image.header["aux_file"] = b"Jane Doe"
    image.header.extensions.append(nib.nifti1.Nifti1Extension("comment", b"Jane Doe"))
    nib.save(image, tmp_path / "case.nii.gz")
    labels = volume()
    save_like(labels, tmp_path / "case.nii.gz", tmp_path / "mask.nii.gz")
    np.testing.assert_array_equal(np.asanyarray(nib.load(tmp_path / "mask.nii.gz").dataobj), labels)
    assert b"Jane" not in gzip.decompress((tmp_path / "mask.nii.gz").read_bytes())


def test_the_grid_of_a_metaimage_is_that_of_its_prediction(tmp_path):
    save_metaimage(tmp_path / "case.mhd", volume(), (0.5, 0.6, 3.0))
    save_like(volume() > 1, tmp_path / "case.mhd", tmp_path / "mask.nii")
    saved = nib.load(tmp_path / "mask.nii")
    np.testing.assert_allclose(saved.affine, open_volume(tmp_path / "case.mhd").affine, rtol=1e-6)
    np.testing.assert_allclose(saved.get_qform(), saved.affine, rtol=1e-6)
    assert saved.header.get_xyzt_units()[0] == "mm"
    assert set(np.unique(saved.dataobj)) == {0, 1}


def test_a_float_map_is_stored_as_it_is(tmp_path):
    source = write(tmp_path / "case.nii.gz", volume(), sform=LPS, pixdim=(1, 1, 1))
    entropy = RNG.random((16, 16, 3), dtype=np.float32)
    save_like(torch.from_numpy(entropy), source, tmp_path / "map.nii.gz", dtype=np.float32)
    saved = nib.load(tmp_path / "map.nii.gz")
    assert saved.get_data_dtype() == np.float32
    np.testing.assert_array_equal(np.asanyarray(saved.dataobj), entropy)


@pytest.mark.parametrize(
    ("data", "target", "message"),
    [
        (
            np.zeros((16, 16, 4)),
            "b.nii",
            r"`data` must have the shape of .*a.nii.gz, got \(16, 16, 4\) and \(16, 16, 3",
        ),
        (np.full((16, 16, 3), 0.5), "b.nii", r"whole numbers that uint8 can hold, got values from 0.5 to 0.5"),
        (np.full((16, 16, 3), 256), "b.nii", r"got values from 256 to 256"),
        (np.full((16, 16, 3), -1), "b.nii", r"got values from -1 to -1"),
        (np.full((16, 16, 3), np.nan), "b.nii", r"got values from nan to nan"),
        (np.zeros((16, 16, 3)), "a.nii.gz", "`target` must not be `source`"),
        (np.zeros((16, 16, 3)), "b.mha", r"`target` must end in \.nii or \.nii\.gz"),
    ],
    ids=["shape", "fraction", "large", "negative", "nan", "itself", "suffix"],
)
def test_nothing_is_written_when_values_or_names_do_not_fit(tmp_path, data, target, message):
    source = write(tmp_path / "a.nii.gz", volume(), sform=LPS, pixdim=(1, 1, 1))
    content = source.read_bytes()
    with pytest.raises(ValueError, match=message):
        save_like(data, source, tmp_path / target)
    assert [path.name for path in tmp_path.iterdir()] == ["a.nii.gz"]
    assert source.read_bytes() == content
