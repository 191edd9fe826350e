"""Several files are the channels of one image, if they lie on one grid."""

import re

import nibabel as nib
import numpy as np
import pytest
from monai.transforms import LoadImage

from monai_spct.data import VolumeReader

AFFINE = np.diag([-1.2, -1.5, 4.0, 1.0])
LOAD = LoadImage(reader=VolumeReader(), ensure_channel_first=True)


def write(path, shape=(6, 5, 4), affine=AFFINE, value=0):
    nib.save(nib.Nifti1Image(np.full(shape, value, np.int16), affine), path)
    return str(path)


def write_metaimage(path, shape=(6, 5, 4), value=0):
    size = " ".join(map(str, shape))
    lines = ["NDims = 3", f"DimSize = {size}", "ElementSpacing = 1.2 1.5 4", "ElementType = MET_SHORT"]
    path.write_text("\n".join([*lines, f"ElementDataFile = {path.stem}.raw\n"]))
    path.with_suffix(".raw").write_bytes(np.full(shape, value, np.int16).tobytes())
    return str(path)


def test_channels_come_in_the_order_of_their_files_on_the_grid_of_the_first(tmp_path):
    # rounding, as of two programs
    files = [write(tmp_path / "t2.nii", value=2), write(tmp_path / "t1.nii.gz", affine=AFFINE + 1e-5, value=1)]
    image = LOAD(files)
    assert image.shape == (2, 6, 5, 4)
    assert [int(channel.max()) for channel in image] == [2, 1]
    np.testing.assert_allclose(image.affine, AFFINE)
    assert image.meta["filename_or_obj"] == files[0]


def test_metaimages_are_channels_too_also_beside_nifti(tmp_path):
    pytest.importorskip("itk")
    files = [write_metaimage(tmp_path / "a.mhd", value=3), write_metaimage(tmp_path / "b.mhd", value=4)]
    files.append(write(tmp_path / "c.nii", value=5))
    image = LOAD(files)
    assert [int(channel.min()) for channel in image] == [3, 4, 5]
    np.testing.assert_allclose(image.affine, AFFINE)


@pytest.mark.parametrize("name", ["b.nii", "b.mhd"])
def test_channels_of_different_shapes_are_refused_by_name(tmp_path, name):
    if name.endswith("mhd"):
        pytest.importorskip("itk")
    make = write if name.endswith("nii") else write_metaimage
    files = [write(tmp_path / "a.nii"), make(tmp_path / name, shape=(6, 5, 3))]
    message = f"same shape, got (6, 5, 4) in {files[0]} and (6, 5, 3) in {files[1]}."
    with pytest.raises(ValueError, match=re.escape(message)):
        LOAD(files)


def test_channels_with_different_affines_are_refused_by_name(tmp_path):
    other = np.diag([-1.2, -1.5, 5.0, 1.0])
    files = [write(tmp_path / "a.nii"), write(tmp_path / "b.nii", affine=other)]
    with pytest.raises(ValueError, match="channels of one image must have the same affine") as error:
        LOAD(files)
    assert f"in {files[0]} and" in str(error.value)
    assert str(error.value).endswith(f"[0.0, 0.0, 5.0, 0.0]] in {files[1]}.")


def test_a_plane_is_no_volume(tmp_path):
    """Its rows would be taken for slices."""
    with pytest.raises(ValueError, match=r"a\.nii must be a volume with three axes, got the shape \(6, 5\)"):
        LOAD(write(tmp_path / "a.nii", shape=(6, 5)))
    assert LOAD(write(tmp_path / "b.nii", shape=(6, 5, 1))).shape == (1, 6, 5, 1)


def test_the_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.nii"):
        LOAD([write(tmp_path / "a.nii"), str(tmp_path / "nowhere.nii")])
