"""The phantoms of prostate and spleen look like their data sets, and stay as they are; see also `test_phantom`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from monai.transforms import LoadImage

from monai_spct.data import (
    VolumeReader,
    acdc_cases,
    decathlon_cases,
    promise12_cases,
    write_acdc_phantom,
    write_promise12_phantom,
    write_spleen_phantom,
)
from monai_spct.data.metaimage import read_header

WRITERS = {"prostate": (write_promise12_phantom, promise12_cases), "spleen": (write_spleen_phantom, decathlon_cases)}
LITTLE: dict[str, dict[str, Any]] = {
    "prostate": {"size": (40, 44), "spacing": (2.3, 2.6), "slices": (6, 7)},
    "spleen": {"size": (48, 52), "spacing": (6.7, 7.0), "slices": (6, 7)},
}
EACH = pytest.mark.parametrize("name", WRITERS)


def voxels(path: str) -> np.ndarray:
    """Axes to the left and back, without ITK."""
    if path.endswith(".mhd"):
        header = read_header(path)
        dtype = np.uint8 if "MET_UCHAR" in Path(path).read_text() else np.dtype("<i2")
        assert header.data_file is not None
        return np.fromfile(header.data_file, dtype).reshape(header.shape, order="F")
    image = LoadImage(reader=VolumeReader())(path)
    turned = [axis for axis in (0, 1) if image.affine[axis, axis] > 0]
    return np.flip(np.asarray(image), turned)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    """Image and label of each patient, by the name of the phantom."""
    found = {}
    for name, (write, cases) in WRITERS.items():
        folder = write(tmp_path_factory.mktemp(name) / "data", patients=6)
        found[name] = [(voxels(case["image"]), voxels(case["label"])) for case in cases(folder)]
    return found


@EACH
def test_each_patient_has_an_image_and_its_truth(volumes, name):
    assert len(volumes[name]) == 6
    for image, label in volumes[name]:
        assert image.shape == label.shape
        assert set(np.unique(label)) == {0, 1}
        shown = label.any((0, 1))
        assert 0.3 < shown.mean() < 1  # some slices show nothing of it
        assert not label[[0, -1]].any()
        assert not label[:, [0, -1]].any()


@EACH
def test_no_threshold_finds_the_structure(volumes, name):
    best = []
    for image, label in volumes[name]:
        found = []
        for low in range(0, 98, 7):
            for high in range(low + 3, 101, 7):
                first, last = np.percentile(image, (low, high))
                mask = (image >= first) & (image <= last)
                found.append(2 * (mask & (label == 1)).sum() / (mask.sum() + label.sum()))
        best.append(max(found))
    assert np.mean(best) < 0.6


def test_the_prostate_lies_before_the_rectum_and_has_a_brighter_zone_behind(volumes):
    for image, label in volumes["prostate"]:
        x, y, z = np.nonzero(label)
        middle = z == int(np.median(z))
        column = image[int(np.median(x)), :, int(np.median(z))].astype(float)
        behind = column[y[middle].max() + 3 :]
        assert behind.min() < 0.7 * image[label == 1].mean()  # a wall, or gas
        front, back = (image[label == 1][part].mean() for part in (y < np.median(y), y > np.median(y)))
        assert back > front


def test_the_spleen_lies_on_the_left_in_the_back_in_hounsfield_units(volumes):
    for image, label in volumes["spleen"]:
        x, y, _ = np.nonzero(label)
        assert x.mean() > 0.55 * label.shape[0]
        assert y.mean() > 0.45 * label.shape[1]
        assert 70 < np.median(image[label == 1]) < 150
        assert image.min() < -950
        assert image.max() > 250  # bone
        liver = image[: label.shape[0] // 2][(image[: label.shape[0] // 2] > 70) & (image[: label.shape[0] // 2] < 150)]
        assert liver.size > 2 * label.sum()  # what looks alike


@EACH
def test_the_same_seed_gives_the_same_files_and_another_one_others(tmp_path, name):
    write, _ = WRITERS[name]
    first, again, other = (
        content(write(tmp_path / folder, patients=2, seed=seed, **LITTLE[name]))
        for folder, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    assert first == again
    assert all(first[file] != other[file] for file in first if "label" not in file and file.endswith(("gz", "raw")))


@EACH
def test_more_patients_leave_the_first_ones_as_they_are(tmp_path, name):
    write, _ = WRITERS[name]
    few, more = (content(write(tmp_path / str(n), patients=n, **LITTLE[name])) for n in (1, 2))
    for files in (few, more):
        del files["phantom.json"]
        files.pop("dataset.json", None)
    assert few.items() < more.items()


@EACH
def test_a_phantom_is_reused_and_one_of_another_kind_is_refused(tmp_path, name):
    write, _ = WRITERS[name]
    folder = write(tmp_path / "a", patients=1, **LITTLE[name])
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert write(tmp_path / "a", patients=1, **LITTLE[name]) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    with pytest.raises(FileExistsError, match=r"other settings \(patients is 1, not 2\)"):
        write(folder, patients=2, **LITTLE[name])
    for _, (another, _) in WRITERS.items():
        if another is not write:
            with pytest.raises(FileExistsError, match="is no phantom"):
                another(folder, patients=1)


@EACH
def test_a_field_that_is_too_small_is_refused(tmp_path, name):
    write, _ = WRITERS[name]
    with pytest.raises(ValueError, match=r"`size\[0\] \* spacing\[0\]` must be at least (90|320) mm"):
        write(tmp_path / "a", size=(16, 16))
    assert list(tmp_path.iterdir()) == []


# what was drawn at the time of writing; a change of them asks for another `_VERSION`
DRAWN: dict[str, list[list[int]]] = {
    "acdc": [
        [
            16, 13, 27, 25, 20, 10, 22, 270, 260, 12, 21, 20, 183, 96, 97, 15, 15, 121, 58, 80, 13, 15, 13, 14,
            201,
        ],
        [8393, 149, 646, 52],
    ],
    "prostate": [
        [
            535, 558, 627, 286, 205, 517, 591, 489, 340, 773, 262, 547, 616, 389, 583, 584, 328, 357, 690, 443,
            204, 195, 578, 772, 179,
        ],
        [9876, 456, 0, 0],
    ],
    "spleen": [
        [
            -976, -992, -1005, -982, -990, -995, -990, -1019, 109, 98, -998, -997, -1007, -220, 100, 76, -177,
            -1002, -990, -268, 39, -54, -176, -986, -993, -992, 247, 63, -1024, -975, -1000, -1007, -1022, -985,
            -1024, -984,
        ],
        [18581, 347, 0, 0],
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", ["acdc", *WRITERS])
def test_voxels_stay_as_they_were(tmp_path, name):
    """Within what other processors round otherwise."""
    if name == "acdc":
        folder = write_acdc_phantom(tmp_path / "a", patients=1, size=(40, 44), spacing=(3.2, 3.5), slices=(4, 5))
        case = acdc_cases(folder)[1]
    else:
        write, cases = WRITERS[name]
        [case] = cases(write(tmp_path / "a", patients=1, **LITTLE[name]))
    image, label = voxels(case["image"]).astype(int), voxels(case["label"]).astype(int)
    plane = image.shape[2] // 2
    assert DRAWN[name][0] == pytest.approx(image[4::9, 4::9, plane].ravel().tolist(), abs=1)
    assert DRAWN[name][1] == pytest.approx([(label == value).sum() for value in range(4)], abs=2)
