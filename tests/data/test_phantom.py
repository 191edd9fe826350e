import json
import math
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from scipy import ndimage

from monai_spct.data.acdc import acdc_cases
from monai_spct.data.phantom import write_acdc_phantom

SMALL: dict[str, Any] = {"patients": 2, "size": (40, 44), "spacing": (3.2, 3.5), "slices": (4, 5)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_acdc_phantom(tmp_path_factory.mktemp("phantom") / "acdc", patients=10)


@pytest.fixture(scope="module")
def hearts(folder):
    """(group, end-diastolic label, end-systolic label, mm3 of a voxel) of each patient."""
    found: dict[str, dict[str, Any]] = {}
    for case in acdc_cases(folder):
        found.setdefault(case["patient"], {})[case["phase"]] = nib.load(case["label"])
    return [
        (
            info(folder, patient)["Group"],
            np.asarray(phases["ED"].dataobj),
            np.asarray(phases["ES"].dataobj),
            float(np.prod(phases["ED"].header.get_zooms())),
        )
        for patient, phases in found.items()
    ]


def info(folder: Path, patient: str) -> dict[str, str]:
    text = (folder / "training" / patient / "Info.cfg").read_text(encoding="utf-8")
    return dict(line.split(": ") for line in text.splitlines())


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- the layout


def test_the_layout_is_that_of_acdc(folder):
    cases = acdc_cases(folder)
    assert len(cases) == 20
    for patient in {case["patient"] for case in cases}:
        cfg = info(folder, patient)
        assert list(cfg) == ["ED", "ES", "Group", "Height", "NbFrame", "Weight"]
        frames = [f"{patient}_frame{int(cfg[phase]):02d}{end}.nii.gz" for phase in ("ED", "ES") for end in ("", "_gt")]
        names = {path.name for path in (folder / "training" / patient).iterdir()}
        assert names == {"Info.cfg", f"{patient}_4d.nii.gz", *frames}
        assert cfg["ED"] != cfg["ES"]
    assert {case["phase"] for case in cases} == {"ED", "ES"}
    assert all(Path(case["label"]).is_file() for case in cases)


def test_the_five_diagnoses_take_turns(hearts):
    groups = [group for group, *_ in hearts]
    assert len(set(groups[:5])) == 5
    assert groups[:5] == groups[5:]


def test_end_systole_is_not_always_the_same_frame(folder):
    assert len({case["frame"] for case in acdc_cases(folder) if case["phase"] == "ES"}) > 2


def test_frames_are_what_the_cine_holds(folder):
    for case in acdc_cases(folder):
        cine = nib.load(Path(case["image"]).with_name(f"{case['patient']}_4d.nii.gz"))
        image = nib.load(case["image"])
        assert cine.shape == (*image.shape, int(info(folder, case["patient"])["NbFrame"]))
        assert np.array_equal(np.asarray(cine.dataobj)[..., int(case["frame"]) - 1], np.asarray(image.dataobj))


def test_types_and_labels_are_those_of_acdc(folder):
    for case in acdc_cases(folder):
        image, label = nib.load(case["image"]), nib.load(case["label"])
        assert image.get_data_dtype() == np.int16
        assert label.get_data_dtype() == np.uint8
        assert set(np.unique(label.dataobj)) == {0, 1, 2, 3}
        assert np.asarray(image.dataobj).min() >= 0
        assert np.asarray(image.dataobj).max() > 150


def test_headers_tell_one_true_spacing(folder):
    for case in acdc_cases(folder):
        image, label = nib.load(case["image"]), nib.load(case["label"])
        x, y, z = image.header.get_zooms()
        assert 1.37 <= x <= 1.8
        assert (x, z) == (y, 10)
        for header in (image.header, label.header):
            sform, sform_code = header.get_sform(coded=True)
            qform, qform_code = header.get_qform(coded=True)
            assert sform_code == qform_code == 1
            np.testing.assert_allclose(sform, np.diag([-x, -y, z, 1]), atol=1e-5)
            np.testing.assert_allclose(qform, sform, atol=1e-5)
        assert np.array_equal(image.affine, label.affine)
        assert image.shape == label.shape


def test_patients_differ_in_shape_and_spacing(folder):
    images = [nib.load(case["image"]) for case in acdc_cases(folder) if case["phase"] == "ED"]
    assert all(96 <= n <= 128 for image in images for n in image.shape[:2])
    assert all(6 <= image.shape[2] <= 10 for image in images)
    assert len({image.shape for image in images}) > 5
    assert len({image.header.get_zooms()[0] for image in images}) == len(images)


# --- the anatomy


def test_muscle_keeps_the_left_ventricle_from_everything_else(hearts):
    for _, *labels, _ in hearts:
        for label in labels:
            ventricle = label == 3
            plus = ndimage.generate_binary_structure(2, 1)[:, :, None]
            around = ndimage.binary_dilation(ventricle, plus) & ~ventricle
            assert set(label[around]) == {2}


def test_each_structure_is_one_piece_in_its_slice(hearts):
    for _, *labels, _ in hearts:
        for label in labels:
            for structure in (2, 3):
                for plane in np.moveaxis(label == structure, 2, 0):
                    assert ndimage.label(plane, np.ones((3, 3)))[1] <= 1


def test_the_right_ventricle_lies_against_the_septum(hearts):
    for _, *labels, _ in hearts:
        for label in labels:
            for plane in np.moveaxis(label, 2, 0):
                if (plane == 1).sum() > 20:
                    assert (ndimage.binary_dilation(plane == 1) & (plane == 2)).sum() >= 4
                    assert not (ndimage.binary_dilation(plane == 1) & (plane == 3)).any()


def test_the_heart_never_touches_the_border(hearts):
    for _, *labels, _ in hearts:
        for label in labels:
            assert not label[[0, -1]].any()
            assert not label[:, [0, -1]].any()


def test_the_heart_tapers_and_the_right_ventricle_ends_first(hearts):
    last = []
    for _, diastole, _, _ in hearts:
        area = (diastole > 0).sum((0, 1))
        assert area[1] > area[-2]
        last.append([np.flatnonzero((diastole == structure).any((0, 1)))[-1] for structure in (1, 2)])
    assert all(right <= muscle for right, muscle in last)
    assert np.mean([right < muscle for right, muscle in last]) > 0.5


def test_some_slices_show_no_ventricle(hearts):
    empty = [(~label.any((0, 1))).sum() for _, *labels, _ in hearts for label in labels]
    assert 0 < np.mean(np.array(empty) > 0) < 1


def test_ventricles_contract(hearts):
    for _, diastole, systole, _ in hearts:
        for structure in (1, 3):
            assert (systole == structure).sum() < 0.95 * (diastole == structure).sum()


def test_muscle_keeps_its_volume_and_thickens(hearts):
    for _, diastole, systole, _ in hearts:
        volumes = [(label == 2).sum() for label in (diastole, systole)]
        assert 0.75 < volumes[1] / volumes[0] < 1.25
        middle = diastole.shape[2] // 2
        assert (systole[..., middle] == 2).sum() > 0.95 * (diastole[..., middle] == 2).sum()


def test_diagnoses_look_like_themselves(hearts):
    def ejected(group):
        return np.mean([1 - (es == 3).sum() / (ed == 3).sum() for name, ed, es, _ in hearts if name == group])

    def milliliters(group, structure):
        return np.mean([(ed == structure).sum() * mm3 / 1000 for name, ed, _, mm3 in hearts if name == group])

    assert ejected("DCM") < 0.5 < ejected("HCM")
    assert milliliters("DCM", 3) > milliliters("NOR", 3) > milliliters("HCM", 3) > 20
    assert milliliters("HCM", 2) > milliliters("NOR", 2)
    assert milliliters("DCM", 3) < 400


# --- the picture


def test_blood_is_brighter_than_muscle_and_some_of_the_cavity_is_dark(folder):
    for case in acdc_cases(folder):
        image, label = (np.asarray(nib.load(case[name]).dataobj, dtype=float) for name in ("image", "label"))
        right, muscle, left = (image[label == structure] for structure in (1, 2, 3))
        assert left.mean() > 1.2 * muscle.mean()
        assert right.mean() > 1.2 * muscle.mean()
        if case["phase"] == "ED":
            assert (left < muscle.mean() + 0.3 * (left.mean() - muscle.mean())).mean() > 0.01  # papillary muscles


def test_no_threshold_finds_the_left_ventricle(folder):
    best = []
    for case in acdc_cases(folder):
        image, truth = np.asarray(nib.load(case["image"]).dataobj), np.asarray(nib.load(case["label"]).dataobj) == 3
        masks = [image > np.percentile(image, percent) for percent in range(40, 100, 2)]
        best.append(max(2 * (mask & truth).sum() / (mask.sum() + truth.sum()) for mask in masks))
    assert np.mean(best) < 0.6
    assert max(best) < 0.85


# --- the same again


def test_the_same_seed_gives_the_same_files(tmp_path):
    first = content(write_acdc_phantom(tmp_path / "a", seed=3, **SMALL))
    np.random.seed(0)  # noqa: NPY002
    assert content(write_acdc_phantom(tmp_path / "b", seed=3, **SMALL)) == first
    # neither a time nor a name: bytes 3 to 7 of a gzip file
    assert all(data[3:8] == bytes(5) for name, data in first.items() if name.endswith(".gz"))


def test_seeds_differ(tmp_path):
    first, second = (content(write_acdc_phantom(tmp_path / str(seed), seed=seed, **SMALL)) for seed in (0, 1))
    images = [{data for name, data in files.items() if name.endswith(".nii.gz")} for files in (first, second)]
    assert images[0].isdisjoint(images[1])


def test_more_patients_leave_the_first_ones_as_they_are(tmp_path):
    few = content(write_acdc_phantom(tmp_path / "few", **SMALL) / "training")
    more = content(write_acdc_phantom(tmp_path / "more", **{**SMALL, "patients": 3}) / "training")
    assert few.items() < more.items()


def test_settings_are_obeyed(tmp_path):
    folder = write_acdc_phantom(tmp_path / "a", patients=3, size=(40, 40), spacing=(3.3, 3.3), slices=(5, 5))
    images = [nib.load(case["image"]) for case in acdc_cases(folder)]
    assert len(images) == 6
    assert {image.shape for image in images} == {(40, 40, 5)}
    assert all(image.header.get_zooms() == pytest.approx((3.3, 3.3, 10)) for image in images)


# --- the folder


def test_a_phantom_is_reused(tmp_path):
    folder = write_acdc_phantom(tmp_path / "a", **SMALL)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    # lists, as a JSON config has them
    again = write_acdc_phantom(tmp_path / "a", **{**SMALL, "size": [40, 44]})
    assert again == folder == tmp_path / "a"
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_phantom_of_other_settings_is_refused_and_kept(tmp_path):
    folder = write_acdc_phantom(tmp_path / "a", **SMALL)
    before = content(folder)
    with pytest.raises(FileExistsError, match=r"other settings \(patients is 2, not 3\)"):
        write_acdc_phantom(folder, **{**SMALL, "patients": 3})
    assert content(folder) == before


@pytest.mark.parametrize(
    "files",
    [
        {"thesis.txt": "x"},
        {"training/patient001/patient001_frame01.nii.gz": "real"},
        {"phantom.json": "{"},
        {"phantom.json": "[]"},
        {"phantom.json": json.dumps({"made_by": "me"})},
    ],
    ids=["text", "acdc", "broken-settings", "list", "another-maker"],
)
def test_a_foreign_folder_is_refused_and_kept(tmp_path, files):
    for name, text in files.items():
        path = tmp_path / "a" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    before = content(tmp_path)
    with pytest.raises(FileExistsError, match="is no phantom: it is left alone"):
        write_acdc_phantom(tmp_path / "a", **SMALL)
    assert content(tmp_path) == before


def test_a_file_in_the_place_is_refused_and_kept(tmp_path):
    (tmp_path / "a").write_text("x", encoding="utf-8")
    with pytest.raises(FileExistsError, match="is no phantom"):
        write_acdc_phantom(tmp_path / "a", **SMALL)
    assert (tmp_path / "a").read_text(encoding="utf-8") == "x"


def test_an_empty_folder_is_filled_and_parents_are_made(tmp_path):
    (tmp_path / "empty").mkdir()
    assert len(acdc_cases(write_acdc_phantom(tmp_path / "empty", **SMALL))) == 4
    assert len(acdc_cases(write_acdc_phantom(tmp_path / "x" / "y" / "z", **SMALL))) == 4


def test_the_folder_is_as_open_as_any_other(tmp_path):
    (tmp_path / "plain").mkdir()
    folder = write_acdc_phantom(tmp_path / "a", **SMALL)
    assert folder.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_nothing_is_left_beside_it(tmp_path):
    write_acdc_phantom(tmp_path / "a", **SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_two_at_once_make_one_phantom(tmp_path):
    with ThreadPoolExecutor(3) as pool:
        folders = list(pool.map(lambda _: write_acdc_phantom(tmp_path / "a", **SMALL), range(3)))
    assert folders == [tmp_path / "a"] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert content(tmp_path / "a") == content(write_acdc_phantom(tmp_path / "b", **SMALL))


def test_an_interrupted_phantom_leaves_nothing(tmp_path, monkeypatch):
    saved = []

    def interrupt(image, path):
        saved.append(path)
        if len(saved) == 4:
            raise KeyboardInterrupt
        nib_save(image, path)

    nib_save = nib.save
    monkeypatch.setattr(nib, "save", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_acdc_phantom(tmp_path / "a", **SMALL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system cannot kill a process that way")
def test_a_killed_phantom_is_never_taken_for_data(tmp_path):
    code = (
        "import sys; from monai_spct.data.phantom import write_acdc_phantom; "
        "write_acdc_phantom(sys.argv[1], patients=999, size=(40, 44), spacing=(3.2, 3.5), slices=(4, 5))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "a")], env=environment)
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".a.*/a/training/patient003")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    assert not (tmp_path / "a").exists()
    with pytest.raises(FileNotFoundError):
        acdc_cases(tmp_path / "a")
    assert len(acdc_cases(write_acdc_phantom(tmp_path / "a", **SMALL))) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patients": 0}, r"`patients` must be a whole number from 1 to 999, got 0\."),
        ({"patients": 1000}, r"`patients` must be a whole number from 1 to 999, got 1000\."),
        ({"patients": 2.5}, r"`patients` must be a whole number from 1 to 999, got 2\.5\."),
        ({"seed": -1}, r"`seed` must be a whole number of at least 0, got -1\."),
        ({"seed": None}, r"`seed` must be a whole number of at least 0, got None\."),
        ({"size": (128, 96)}, r"`size` must be two numbers .* rising, got \(128, 96\)\."),
        ({"size": (4, 6), "spacing": (40.0, 40.0)}, r"`size` must be two numbers of voxels, at least 8"),
        ({"size": (64, 96)}, r"`size\[0\] \* spacing\[0\]` must be at least 125 mm to hold a heart, got 87\.68 mm\."),
        ({"spacing": (0.0, 1.0)}, r"`spacing` must be two positive lengths in mm, rising, got \(0\.0, 1\.0\)\."),
        ({"spacing": (1.5, math.inf)}, r"`spacing` must be two positive lengths"),
        ({"spacing": (math.nan, 1.5)}, r"`spacing` must be two positive lengths"),
        ({"slices": (3, 5)}, r"`slices` must be two numbers, at least 4 and rising, got \(3, 5\)\."),
        ({"slices": (6, 5)}, r"`slices` must be two numbers, at least 4 and rising, got \(6, 5\)\."),
    ],
    ids=lambda value: "-".join(f"{k}-{v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_a_setting_out_of_range_is_named_with_its_rule_and_value(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        write_acdc_phantom(tmp_path / "a", **settings)
    assert list(tmp_path.iterdir()) == []
