import json
import os
from pathlib import Path

import numpy as np
import pytest

from monai_spct.data import atrium_cases, open_volume, split_cases, write_atrium_phantom
from monai_spct.data.hdf5 import save_hdf5
from monai_spct.workflow import bundles_folder
from tests.data.test_nrrd import write

h5py = pytest.importorskip("h5py")


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_atrium_phantom(tmp_path / "atrium", patients=3, size=(24, 24), spacing=(3.6, 4.0), slices=(8, 8))


def challenge(folder: Path, *names: str) -> Path:
    """The challenge's own files."""
    for name in names:
        (folder / name).mkdir(parents=True)
        for file in ("lgemri", "laendo"):
            write(folder / name).rename(folder / name / f"{file}.nrrd")
    return folder


def test_cases_of_the_copy_are_listed_with_absolute_paths(folder, monkeypatch):
    (folder / "2018LA_Seg_Training Set").mkdir()
    for path in list(folder.glob("ATRIUM*")):
        path.rename(folder / "2018LA_Seg_Training Set" / path.name)
    monkeypatch.chdir(folder.parent)
    cases = atrium_cases("atrium")
    assert [case["patient"] for case in cases] == ["ATRIUM001", "ATRIUM002", "ATRIUM003"]
    file = folder / "2018LA_Seg_Training Set" / "ATRIUM002" / "mri_norm2.h5"
    assert cases[1] == {
        "patient": "ATRIUM002",
        "case": "ATRIUM002",
        "image": f"{file}::image",
        "label": f"{file}::label",
    }


def test_cases_of_the_challenge_are_listed_and_may_lack_a_label(tmp_path):
    challenge(tmp_path, "Training Set/B", "Training Set/A")
    (tmp_path / "Training Set" / "B" / "laendo.nrrd").unlink()
    (tmp_path / "Training Set" / "A" / "lawall.nrrd").touch()
    one, other = atrium_cases(tmp_path)
    assert one == {
        "patient": "A",
        "case": "A",
        "image": str(tmp_path / "Training Set" / "A" / "lgemri.nrrd"),
        "label": str(tmp_path / "Training Set" / "A" / "laendo.nrrd"),
    }
    assert other == {"patient": "B", "case": "B", "image": str(tmp_path / "Training Set" / "B" / "lgemri.nrrd")}


@pytest.mark.parametrize(
    ("make", "why"),
    [(lambda _: None, "there is no such folder"), (lambda path: path.mkdir(), "it holds none")],
    ids=["missing", "empty"],
)
def test_a_folder_without_cases_is_explained(tmp_path, make, why):
    make(tmp_path / "data")
    with pytest.raises(FileNotFoundError, match=why) as error:
        atrium_cases(tmp_path / "data")
    for part in (
        str(tmp_path / "data"),
        "mri_norm2.h5",
        "laendo.nrrd",
        "cardiacatlas.org",
        "atrium/configs/phantom.json",
    ):
        assert part in str(error.value)


def test_both_forms_in_one_folder_are_named(folder):
    challenge(folder, "B")
    with pytest.raises(ValueError, match=r"are there, .*B/laendo\.nrrd and .*ATRIUM001/mri_norm2\.h5: name the folder"):
        atrium_cases(folder)


def test_all_that_is_wrong_with_the_copy_is_said_at_once(folder):
    files = [folder / f"ATRIUM00{n}" / "mri_norm2.h5" for n in (1, 2, 3)]
    voxels = np.zeros((3, 3, 3), np.uint8)
    save_hdf5(files[0], label=voxels)
    files[1].write_bytes(files[1].read_bytes()[:1000])
    save_hdf5(files[2], scan=voxels)
    with pytest.raises(ValueError, match=r"\w") as error:
        atrium_cases(folder)
    lines = str(error.value).splitlines()
    assert len(lines) == 3
    for part in (
        f"label without its image: {files[0]}::label.",
        f"{files[1]} cannot be read: ",
        f"{files[2]} must have the datasets image and label, got scan.",
    ):
        assert any(line.startswith(part) for line in lines), (part, lines)


def test_a_case_that_is_there_twice_is_named(tmp_path):
    challenge(tmp_path, "A", "again/A", "B")
    (tmp_path / "B" / "lgemri.nrrd").unlink()
    with pytest.raises(ValueError, match=r"\w") as error:
        atrium_cases(tmp_path)
    for part in ("A is there twice: ", f"label without its image: {tmp_path / 'B' / 'laendo.nrrd'}."):
        assert part in str(error.value)


# Real data


@pytest.fixture(scope="module")
def real() -> Path:
    folder = Path(os.environ.get("SPCT_DATA_DIR", "/nowhere"), "atrium")
    if not folder.is_dir():
        pytest.skip("SPCT_DATA_DIR does not name the data")
    return folder


@pytest.mark.real_data
def test_the_copy_has_100_labeled_cases_of_which_voxels_are_those_that_h5py_reads(real):
    cases = atrium_cases(real)
    assert len(cases) == 100
    for case in cases[::20]:
        file = Path(case["image"].removesuffix("::image"))
        assert file.parent.name == case["case"]
        with h5py.File(file) as content:
            for key in ("image", "label"):
                volume = open_volume(case[key])
                assert volume.shape == content[key].shape
                np.testing.assert_array_equal(volume.load(), content[key][()])


@pytest.mark.real_data
@pytest.mark.parametrize("labeled", [8, 16])
def test_the_published_split_is_that_of_the_lists(real, labeled):
    config = json.loads((bundles_folder() / "atrium" / "configs" / "published_split.json").read_text())
    test, train = ((real / f"{name}.list").read_text().split() for name in ("test", "train"))
    assert config["patient_order"] == test + train
    split = split_cases(
        atrium_cases(real), order=config["patient_order"], num_test=config["num_test"], labeled_patients=labeled
    )
    sides = ([case["patient"] for case in cases] for cases in (split.test, split.labeled, split.unlabeled))
    assert [*sides] == [sorted(test), sorted(train[:labeled]), sorted(train[labeled:])]
    assert config["labeled_patients"] == 8
