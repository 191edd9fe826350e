"""A folder of DICOM files is the volume that it is as NIfTI, and what is none is said before anything is predicted."""

import locale
import struct
import sys
from importlib.metadata import version
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from monai.transforms import LoadImage
from nibabel.affines import from_matvec
from scipy.spatial.transform import Rotation

from monai_spct.data import VolumeReader, folder_cases, image_cases, open_volume, save_like

pytest.importorskip("itk")

LOAD = LoadImage(reader=VolumeReader())
VOXELS = np.random.default_rng(0).integers(-900, 900, (9, 12, 5)).astype(np.int16)
TURNED = Rotation.from_euler("xyz", [20, -15, 30], degrees=True).as_matrix()
AFFINES = {
    "as scanners have it": np.diag([-1.2, -1.7, 6, 1]),
    "slices downward": from_matvec(np.diag([1.2, -1.7, -6]), [5, -6, 7]),
    "sagittal": from_matvec(np.array([[0, 0, 6], [-1.2, 0, 0], [0, -1.7, 0.0]]), [5, -6, 7]),
    "oblique": from_matvec(TURNED @ np.diag([-1.2, -1.7, 6]), [-105.25, 46.5, 77]),
}


MR, REPORT = "1.2.840.10008.5.1.4.1.1.4", "1.2.840.10008.5.1.4.1.1.88.11"
TAGS = {  # group and element, and how the value is written
    "SOPClassUID": (0x0008, 0x0016, "UI"),
    "SOPInstanceUID": (0x0008, 0x0018, "UI"),
    "SeriesDescription": (0x0008, 0x103E, "LO"),
    "SliceThickness": (0x0018, 0x0050, "DS"),
    "SeriesInstanceUID": (0x0020, 0x000E, "UI"),
    "ImagePositionPatient": (0x0020, 0x0032, "DS"),
    "ImageOrientationPatient": (0x0020, 0x0037, "DS"),
    "SamplesPerPixel": (0x0028, 0x0002, "US"),
    "PhotometricInterpretation": (0x0028, 0x0004, "CS"),
    "PlanarConfiguration": (0x0028, 0x0006, "US"),
    "NumberOfFrames": (0x0028, 0x0008, "IS"),
    "Rows": (0x0028, 0x0010, "US"),
    "Columns": (0x0028, 0x0011, "US"),
    "PixelSpacing": (0x0028, 0x0030, "DS"),
    "BitsAllocated": (0x0028, 0x0100, "US"),
    "BitsStored": (0x0028, 0x0101, "US"),
    "HighBit": (0x0028, 0x0102, "US"),
    "PixelRepresentation": (0x0028, 0x0103, "US"),
    "RescaleIntercept": (0x0028, 0x1052, "DS"),
    "RescaleSlope": (0x0028, 0x1053, "DS"),
    "PixelData": (0x7FE0, 0x0010, "OW"),
}


def element(group: int, number: int, kind: str, value) -> bytes:
    if kind in ("US", "UL"):
        data = struct.pack("<H" if kind == "US" else "<I", value)
    elif kind == "OW":
        data = value
    else:
        data = "\\".join(map(str, value if isinstance(value, list) else [value])).encode()
        data += (b"\0" if kind == "UI" else b" ") * (len(data) % 2)
    length = struct.pack("<HI", 0, len(data)) if kind == "OW" else struct.pack("<H", len(data))
    return struct.pack("<HH", group, number) + kind.encode() + length + data


def write(path: Path, **tags) -> None:
    """A file in explicit little endian."""
    meta = element(2, 2, "UI", tags["SOPClassUID"]) + element(2, 3, "UI", tags["SOPInstanceUID"])
    meta += element(2, 16, "UI", "1.2.840.10008.1.2.1")
    data = b"".join(element(*TAGS[name], tags[name]) for name in TAGS if tags.get(name) is not None)
    path.write_bytes(bytes(128) + b"DICM" + element(2, 0, "UL", len(meta)) + meta + data)


def write_series(
    folder: Path, changes=None, *, affine=AFFINES["oblique"], series: str = "1.2.3", prefix: str = "", **tags
) -> list[Path]:
    """Slices whose names are in another order than they; the paths are in the order of the slices.

    ``changes`` says by the number of a slice what of it to change, ``tags`` what of all of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lps = np.diag([-1, -1, 1, 1]) @ affine
    spacing = np.linalg.norm(lps[:3, :3], axis=0)
    paths = [folder / f"{prefix}{name}" for name in ("IM7", "IM12", "1.2.840.3", "b.dcm", "IM2")]
    for index, path in enumerate(paths):
        own = {
            "SOPClassUID": MR,
            "SOPInstanceUID": f"{series}.{index + 1}",
            "SliceThickness": 1,
            "SeriesInstanceUID": series,
            "ImagePositionPatient": [f"{x:.8g}" for x in (lps @ [0, 0, index, 1])[:3]],
            "ImageOrientationPatient": [f"{x:.9g}" for x in (lps[:3, :2] / spacing[:2]).T.ravel()],
            "SamplesPerPixel": 1,
            "PhotometricInterpretation": "MONOCHROME2",
            "Rows": VOXELS.shape[1],
            "Columns": VOXELS.shape[0],
            "PixelSpacing": [f"{spacing[1]:.9g}", f"{spacing[0]:.9g}"],
            "BitsAllocated": 16,
            "BitsStored": 16,
            "HighBit": 15,
            "PixelRepresentation": 1,
            "PixelData": VOXELS[..., index].T.tobytes(),
        }
        write(path, **own | tags | (changes or {}).get(index, {}))
    return paths


@pytest.mark.parametrize("affine", AFFINES.values(), ids=AFFINES)
def test_a_series_is_the_volume_that_it_is_as_nifti_and_so_is_its_prediction(tmp_path, affine):
    write_series(tmp_path / "p1", affine=affine)
    (tmp_path / "p1" / "notes.txt").write_text("no slice")
    nib.save(nib.Nifti1Image(VOXELS, affine), tmp_path / "p2.nii.gz")
    (series, file) = image_cases(tmp_path)
    assert series == {"case": "p1", "image": str(tmp_path / "p1")}
    found, expected = LOAD(series["image"]), LOAD(file["image"])
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(found.affine, expected.affine, atol=1e-5)
    save_like(VOXELS > 0, series["image"], tmp_path / "pred.nii.gz")
    prediction = nib.load(tmp_path / "pred.nii.gz")
    np.testing.assert_array_equal(prediction.dataobj, VOXELS > 0)
    np.testing.assert_allclose(prediction.affine, affine, atol=1e-5)
    np.testing.assert_allclose(prediction.header.get_zooms(), [1.2, 1.7, 6], rtol=1e-5)


def test_each_slice_has_its_own_scale(tmp_path):
    slopes = [1, 1, 0.25, 2, 1]
    write_series(tmp_path / "a", {i: {"RescaleSlope": slope, "RescaleIntercept": -3} for i, slope in enumerate(slopes)})
    np.testing.assert_array_equal(LOAD(tmp_path / "a"), VOXELS * slopes - 3)


def test_compressed_slices_are_read(tmp_path):
    itk = pytest.importorskip("itk")
    before = locale.setlocale(locale.LC_ALL)
    for path in write_series(tmp_path / "a"):
        size = path.stat().st_size
        image, writer = itk.imread(path, itk.SS), itk.GDCMImageIO.New(KeepOriginalUID=True)
        (path.parent / f"{path.name}.dcm").unlink(missing_ok=True)
        itk.imwrite(image, path, compression=True, imageio=writer)
        assert path.stat().st_size != size
    locale.setlocale(locale.LC_ALL, before)  # which the writer changes, but no reader
    np.testing.assert_array_equal(LOAD(tmp_path / "a"), VOXELS)


def test_folders_of_series_are_cases_at_any_depth_and_beside_files(tmp_path):
    for name in ("p1/heart", "p2/heart", "p3"):
        write_series(tmp_path / name)
    (tmp_path / "p3" / "DICOMDIR").write_bytes(bytes(128) + b"DICM")
    nib.save(nib.Nifti1Image(VOXELS, np.eye(4)), tmp_path / "p4.nii.gz")
    assert [case["case"] for case in image_cases(tmp_path)] == ["p1/heart", "p2/heart", "p3", "p4"]
    for one in (tmp_path / "p3", tmp_path / "p3" / "IM7"):  # also a folder or a file alone
        assert image_cases(one) == [{"case": "p3", "image": str(tmp_path / "p3")}]
    nib.save(nib.Nifti1Image(VOXELS, np.eye(4)), tmp_path / "p3.nii.gz")
    with pytest.raises(ValueError, match=r"must not be there twice, got:\n.*p3 and .*p3\.nii\.gz"):
        image_cases(tmp_path)


def test_for_training_there_is_a_hint(tmp_path):
    write_series(tmp_path / "p1")
    with pytest.raises(FileNotFoundError, match="DICOM is read for prediction alone"):
        folder_cases(tmp_path)


def two_series(folder):
    write_series(folder)
    write_series(folder, series="1.2.4", prefix="x", SeriesDescription="T1 localizer")


def without(*numbers):
    def spoil(folder):
        paths = write_series(folder)
        for number in numbers:
            paths[number].unlink()

    return spoil


def changed(number, **tags):
    return lambda folder: write_series(folder, {number: tags})


def sheared(folder):
    write_series(
        folder,
        {index: {"ImagePositionPatient": [0, index, 6 * index]} for index in range(5)},
        affine=np.diag([-1.2, -1.7, 6, 1]),
    )


COLORS = {"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB", "PlanarConfiguration": 0, "BitsAllocated": 8}
COLORS |= {"BitsStored": 8, "HighBit": 7, "PixelRepresentation": 0, "PixelData": bytes(9 * 12 * 3)}
NO_IMAGE = {"SOPClassUID": REPORT, "Rows": None, "Columns": None, "PixelData": None}
TWICE = {"NumberOfFrames": 2, "PixelData": bytes(9 * 12 * 2 * 2)}
SPOILED = {
    "two series": (two_series, r"one DICOM series: there are 2, .*T1 localizer \(5 files, as x1\.2\.840\.3\)"),
    "a report": (changed(2, **NO_IMAGE), r"1\.2\.840\.3 is damaged, or no image"),
    "frames": (changed(0, **TWICE), "IM7 has 2 frames in one file"),
    "color": (changed(0, **COLORS), "IM7 is in color"),
    "no place": (
        changed(0, ImagePositionPatient=None, PixelSpacing=None),
        "IM7 has no position and no voxel size",
    ),
    "another shape": (changed(0, Rows=9, Columns=12), r"1\.2\.840\.3 and IM7 differ in the number of their voxels"),
    "another spacing": (changed(0, PixelSpacing=[1, 1]), "differ in"),
    "one missing": (without(1), r"6 mm apart, and IM7 and 1\.2\.840\.3 12 mm: one is missing"),
    "two times": (changed(1, ImagePositionPatient=[105.25, -46.5, 77]), "IM12 and IM7 are at one place"),
    "one alone": (without(1, 2, 3, 4), "IM7 alone"),
    "sheared": (sheared, "IM2 is 2.4 voxels off from behind the others"),
}


@pytest.mark.parametrize(("spoil", "message"), SPOILED.values(), ids=SPOILED)
def test_a_folder_that_is_no_volume_is_named_with_the_reason(tmp_path, spoil, message):
    for name in ("a", "b"):
        spoil(tmp_path / name)
    with pytest.raises(ValueError, match=message) as error:
        image_cases(tmp_path)
    assert all(str(tmp_path / name) in str(error.value) for name in ("a", "b"))


@pytest.mark.skipif(version("itk-io") < "5.4.7", reason="before, ITK does not notice a file that was cut off")
def test_a_file_that_was_cut_off_is_named(tmp_path):
    path = write_series(tmp_path / "a")[1]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="IM12 is damaged, or no image"):
        image_cases(tmp_path)


def test_a_folder_without_slices_is_no_volume(tmp_path):
    with pytest.raises(ValueError, match="is a folder without DICOM files"):
        open_volume(tmp_path)


def test_without_itk_the_message_says_what_to_install(tmp_path, monkeypatch):
    write_series(tmp_path / "p1")
    monkeypatch.setitem(sys.modules, "itk", None)
    with pytest.raises(ImportError, match=r'p1 is read by ITK, .* pip install "monai-spct\[itk\]"'):
        image_cases(tmp_path)
