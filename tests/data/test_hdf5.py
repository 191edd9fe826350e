"""Datasets in HDF5 files are volumes as others are, wherever a volume is named, or refused by name."""

import json
import shutil
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from monai.transforms import LoadImage, LoadImaged

from monai_spct.data import (
    Split,
    VolumeDataset,
    VolumeReader,
    check_split,
    open_volume,
    read_datalist,
    save_like,
    seen_ranges,
    write_datalist,
)
from monai_spct.data.copies import copies
from monai_spct.data.fingerprint import file_stamps
from monai_spct.data.hdf5 import save_hdf5

h5py = pytest.importorskip("h5py")

SHAPE = (6, 5, 4)
VOXELS = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
LABEL = (VOXELS > 0).astype(np.uint8)


@pytest.fixture
def file(tmp_path) -> Path:
    save_hdf5(tmp_path / "case.h5", image=VOXELS, label=LABEL)
    return tmp_path / "case.h5"


def split_of(folder: Path, count: int = 3) -> Split:
    """Cases whose images differ, one labeled, the others not."""
    cases = []
    for number in range(count):
        (folder / f"p{number}").mkdir()
        save_hdf5(folder / f"p{number}" / "data.h5", image=VOXELS + number, label=LABEL)
        name = str(folder / f"p{number}" / "data.h5")
        cases.append({"patient": f"p{number}", "case": f"p{number}", "image": f"{name}::image"})
    return Split([cases[0] | {"label": cases[0]["image"].replace("image", "label")}], cases[1:], [], [])


@pytest.mark.parametrize("dtype", ["u1", "i2", ">i2", "f2", ">f4", "f8", "?"])
@pytest.mark.parametrize(
    "how", [{}, {"chunks": (2, 3, 4)}, {"compression": "gzip", "shuffle": True}, {"fletcher32": True}], ids=str
)
def test_voxels_are_those_that_h5py_reads(tmp_path, dtype, how):
    voxels = (10 * VOXELS).astype(dtype) if dtype != "?" else LABEL.astype(bool)
    with h5py.File(tmp_path / "a.hdf5", "w") as content:
        content.create_dataset("group/image", data=voxels, **how)
    volume = open_volume(f"{tmp_path}/a.hdf5::group/image")
    assert volume.shape == SHAPE
    np.testing.assert_array_equal(volume.load(), voxels)
    np.testing.assert_array_equal(LoadImage(reader=VolumeReader())(volume.path), voxels)


def test_without_a_geometry_voxels_have_the_size_1_and_axes_go_as_in_other_files_without_one(file):
    volume = open_volume(f"{file}::image")
    np.testing.assert_array_equal(volume.affine, np.diag([-1, -1, 1, 1]))
    assert not volume.disagrees
    assert volume.data_file == file
    image = LoadImage(reader=VolumeReader())(f"{file}::image")
    np.testing.assert_array_equal(image.affine, volume.affine)


def test_several_datasets_are_the_channels_of_an_image(file):
    image = LoadImage(reader=VolumeReader(), ensure_channel_first=True)([f"{file}::image", f"{file}::label"])
    np.testing.assert_array_equal(image.numpy(), [VOXELS, LABEL])


# Wherever a volume is named


def test_the_check_finds_nothing_in_sound_files(tmp_path):
    split = split_of(tmp_path)
    for voxels in (True, False):
        found = check_split(split, num_classes=2, in_channels=1, voxels=voxels)
        assert found.findings == []
    assert found.summary.splitlines()[2].endswith("8  6 x 5 x 4  1 x 1 x 1")


def test_channels_in_one_file_are_no_copies_and_an_image_in_two_files_is_one(tmp_path):
    split = split_of(tmp_path)
    save_hdf5(tmp_path / "again.h5", other=VOXELS + 1, label=1 - LABEL)
    names = [f"{tmp_path}/p1/data.h5::image", f"{tmp_path}/p1/data.h5::label", f"{tmp_path}/again.h5::other"]
    assert copies([*names, f"{tmp_path}/missing.h5::image", f"{tmp_path}/again.h5::missing"]) == [names[::2]]
    twice = Split(
        split.labeled, split.unlabeled, [], [{**split.labeled[0], "patient": "q", "case": "q", "image": names[2]}]
    )
    for voxels in (True, False):
        [found] = check_split(twice, num_classes=2, voxels=voxels).errors
        assert "no image may be on two sides" in found.message


def test_a_datalist_names_datasets_by_paths_that_can_be_moved(tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    split = split_of(folder)
    write_datalist(split, folder / "my.json")
    assert json.loads((folder / "my.json").read_text())["unlabeled"][0]["image"] == "p1/data.h5::image"
    folder.rename(tmp_path / "there")
    read = read_datalist(tmp_path / "there" / "my.json")
    assert [case["image"] for case in read.unlabeled] == [f"{tmp_path}/there/p{n}/data.h5::image" for n in (1, 2)]
    np.testing.assert_array_equal(open_volume(read.labeled[0]["label"]).load(), LABEL)
    (tmp_path / "there" / "p1" / "data.h5").unlink()
    with pytest.raises(FileNotFoundError, match=r"p1/data\.h5::image \(`image` in `unlabeled`\)"):
        read_datalist(tmp_path / "there" / "my.json")


def test_case_names_leave_out_the_dataset(tmp_path):
    save_hdf5(tmp_path / "a.h5", image=VOXELS)
    (tmp_path / "my.json").write_text('{"unlabeled": [{"image": "a.h5::image"}]}')
    assert read_datalist(tmp_path / "my.json").unlabeled[0]["case"] == "a"


def test_prepared_slices_are_made_again_when_the_file_changes(tmp_path, file):
    case = {"case": "a", "image": f"{file}::image", "label": f"{file}::label"}
    assert [name for name, _, _ in file_stamps(case)] == [str(file)]
    load = LoadImaged(["image", "label"], reader=VolumeReader(), ensure_channel_first=True)
    settings = {"transform": load, "cache_dir": tmp_path / "cache"}
    np.testing.assert_array_equal(VolumeDataset([case], **settings)[1]["image"][0], VOXELS[..., 1])
    save_hdf5(file, image=VOXELS + 1, label=LABEL)
    np.testing.assert_array_equal(VolumeDataset([case], **settings)[1]["image"][0], (VOXELS + 1)[..., 1])


def test_what_networks_have_seen_and_predictions_on_the_grid(tmp_path):
    split = split_of(tmp_path)
    seen = seen_ranges([*split.labeled, *split.unlabeled])
    assert seen == {"spacing": [[1, 1, 1], [1, 1, 1]], "values": [float(VOXELS.min()), float(VOXELS.max())]}
    save_like(LABEL, split.labeled[0]["image"], tmp_path / "mask.nii.gz")
    mask = nib.load(tmp_path / "mask.nii.gz")
    np.testing.assert_array_equal(mask.get_fdata(), LABEL)
    np.testing.assert_array_equal(mask.affine, np.diag([-1, -1, 1, 1]))


# Faults


def remade(**datasets):
    return lambda file: save_hdf5(file, **datasets)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def never_written(file: Path) -> None:
    with h5py.File(file, "w") as content:
        content.create_dataset("image", SHAPE, "f4", chunks=(2, 5, 4))[:2] = VOXELS[:2]


def huge(file: Path) -> None:
    with h5py.File(file, "w") as content:
        content.create_dataset("image", (1 << 20,) * 3, "f8")


def elsewhere(how: str):
    def spoil(file: Path) -> None:
        other = file.with_name("other.h5")
        shutil.copy(file, other)
        other.with_suffix(".raw").write_bytes(VOXELS.tobytes())
        with h5py.File(file, "w") as content:
            if how == "link":
                content["image"] = h5py.ExternalLink(other, "image")
            elif how == "raw":
                content.create_dataset(
                    "image", SHAPE, "f4", external=[(str(other.with_suffix(".raw")), 0, VOXELS.nbytes)]
                )
            else:
                layout = h5py.VirtualLayout(SHAPE, "f4")
                layout[:] = h5py.VirtualSource(other, "image", SHAPE)
                content.create_virtual_dataset("image", layout)

    return spoil


SPOILED = {
    "no file": (Path.unlink, "does not exist"),
    "no HDF5": (lambda file: file.write_bytes(b"text"), "cannot be read"),
    "empty": (lambda file: file.write_bytes(b""), "cannot be read"),
    "cut": (cut, "cannot be read: .*truncated"),
    "no dataset": (remade(mask=LABEL, scan=VOXELS), r"one of its datasets \(mask, scan\) must follow ::, got 'image'"),
    "2-D": (remade(image=VOXELS[0]), r"numbers along three axes, got .*shape \(5, 4\)"),
    "4-D": (remade(image=VOXELS[None]), r"numbers along three axes, got .*shape \(1, 6, 5, 4\)"),
    "no voxels": (remade(image=VOXELS[:0]), r"numbers along three axes, got .*shape \(0, 5, 4\)"),
    "complex": (remade(image=VOXELS.astype(complex)), "numbers along three axes"),
    "text": (remade(image=np.full(SHAPE, b"x")), "numbers along three axes"),
    "a group": (lambda file: h5py.File(file, "w").create_group("image"), "numbers along three axes, got .*group"),
    "not all": (never_written, "not all of its voxels are there: 480 bytes are told of, and 160 stored"),
    "huge": (huge, "not all of its voxels are there"),
    "link": (elsewhere("link"), "its voxels are in another file"),
    "raw": (elsewhere("raw"), "its voxels are in another file"),
    "virtual": (elsewhere("virtual"), "its voxels are in another file"),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "message"), SPOILED.values(), ids=SPOILED)
def test_what_cannot_be_read_is_named_with_the_reason_before_voxels_are_read(file, spoil, message):
    spoil(file)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
        open_volume(f"{file}::image")
    assert str(error.value).startswith(f"{file}::image")


def test_a_file_without_the_name_of_a_dataset_is_told_its_datasets(file):
    with pytest.raises(ValueError, match=r"case\.h5 cannot be read: .* \(image, label\) must follow ::, got ''"):
        open_volume(file)


def test_damaged_voxels_are_noticed_when_they_are_read(file):
    with h5py.File(file) as content:
        start = content["image"].id.get_chunk_info(0).byte_offset
    data = bytearray(file.read_bytes())
    data[start + 40] ^= 1
    file.write_bytes(data)
    volume = open_volume(f"{file}::image")  # they are not looked at here
    with pytest.raises(ValueError, match=r"case\.h5::image cannot be read"):
        volume.load()
    np.testing.assert_array_equal(open_volume(f"{file}::label").load(), LABEL)


def test_without_h5py_the_message_says_what_to_install(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r'case\.h5::image takes h5py, .* pip install "monai-spct\[hdf5\]"'):
        open_volume(f"{file}::image")
