"""The images of a folder are those that a person would predict on, in an order that no directory decides."""

from pathlib import Path

import pytest

from monai_spct.data import acdc_cases, image_cases, write_acdc_phantom


def touched(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def names(folder: Path) -> list[str]:
    return [case["case"] for case in image_cases(folder)]


def test_images_come_in_the_order_of_their_names(tmp_path):
    touched(tmp_path, "c.nii", "a.nii.gz", "b.nii", "d.nii.gz")
    assert names(tmp_path) == ["a", "b", "c", "d"]


def test_folders_below_are_searched_too(tmp_path):
    touched(tmp_path, "two/x/b.nii.gz", "one/a.nii.gz", "c.nii")
    assert names(tmp_path) == ["c", "a", "b"]  # by their paths


@pytest.mark.parametrize(
    "name",
    [
        "a_gt.nii.gz",
        "a_4d.nii.gz",
        "a_seg.nii",
        "a_uncertainty.nii.gz",
        "._a.nii.gz",
        ".a.nii",
        "a.raw",
        "a.nii.bak",
        "a_segmentation.mhd",
        "a_mask.nii",
        "a_Label.nii",
        "patient1/seg.nii.gz",
        "labelsTr/b.nii.gz",
        "labels/b.nii.gz",
    ],
)
def test_labels_cines_maps_and_hidden_files_are_passed_over(tmp_path, name):
    touched(tmp_path, "image.nii.gz", name)
    assert names(tmp_path) == ["image"]


def test_metaimages_are_images_too_and_their_voxels_are_not(tmp_path):
    touched(tmp_path, "Case01.mhd", "Case01.raw", "Case01_segmentation.mhd", "Case02.mha")
    assert names(tmp_path) == ["Case01", "Case02"]


@pytest.mark.parametrize("name", ["4d_a.nii.gz", "gt_a.nii", "segment.nii.gz", "agt.nii", "a.b.nii.gz", "a_gt_b.nii"])
def test_only_the_end_of_a_name_tells_that_it_is_no_image(tmp_path, name):
    touched(tmp_path, name)
    assert names(tmp_path) == [name.removesuffix(".gz").removesuffix(".nii")]


def test_entries_are_strings_and_paths_absolute(tmp_path, monkeypatch):
    touched(tmp_path, "data/patient001/a.nii.gz")
    monkeypatch.chdir(tmp_path)
    assert image_cases("data") == [{"case": "a", "image": str(tmp_path / "data" / "patient001" / "a.nii.gz")}]


@pytest.mark.parametrize("name", ["a.nii.gz", "a.nii"])
def test_one_file_will_do(tmp_path, name):
    touched(tmp_path, "a.nii.gz", "a.nii", "b.nii.gz")
    assert image_cases(str(tmp_path / name)) == [{"case": "a", "image": str(tmp_path / name)}]


@pytest.mark.parametrize("content", [(), ("a_gt.nii.gz", "readme.txt")], ids=["empty", "no image"])
def test_without_an_image_the_message_names_the_whole_path(tmp_path, monkeypatch, content):
    touched(tmp_path / "images", *content)
    (tmp_path / "images").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no image \(\*\.nii\.gz, \*\.nii, \*\.mhd, \*\.mha\)") as error:
        image_cases("images")
    assert str(tmp_path / "images") in str(error.value)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        image_cases(tmp_path / "nowhere")


def test_of_an_acdc_folder_the_images_are_the_annotated_frames(tmp_path):
    folder = write_acdc_phantom(tmp_path / "acdc", patients=2, size=(40, 42), spacing=(3.2, 3.4), slices=(4, 4))
    assert [case["image"] for case in image_cases(folder)] == [case["image"] for case in acdc_cases(folder)]
