"""Images find their labels, channels and patients in the usual layouts, and nothing else is taken for an image."""

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from monai.transforms import LoadImage

from monai_spct.data import (
    VolumeReader,
    acdc_cases,
    decathlon_cases,
    folder_cases,
    image_cases,
    promise12_cases,
    save_like,
    write_acdc_phantom,
    write_promise12_phantom,
    write_spleen_phantom,
)

READERS = [folder_cases, image_cases]
LITTLE = {"patients": 2, "size": (48, 48), "spacing": (6.7, 6.7), "slices": (4, 4)}


def touched(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def names(folder: Path, **options) -> list[str]:
    return [case["case"] for case in image_cases(folder, **options)]


def found(folder: Path, **options) -> list[tuple]:
    """Case, patient, image and label, paths below the folder."""

    def short(value):
        return None if value is None else Path(value).relative_to(folder).as_posix()

    return [
        (
            case["case"],
            case["patient"],
            [short(file) for file in case["image"]] if isinstance(case["image"], list) else short(case["image"]),
            short(case.get("label")),
        )
        for case in folder_cases(folder, **options)
    ]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            ["imagesTr/a.nii.gz", "labelsTr/a.nii.gz", "imagesTs/b.nii.gz", "labelsTr/._a.nii.gz"],
            [("a", "a", "imagesTr/a.nii.gz", "labelsTr/a.nii.gz"), ("b", "b", "imagesTs/b.nii.gz", None)],
        ),
        (["images/a.mha", "labels/a_seg.nii.gz"], [("a", "a", "images/a.mha", "labels/a_seg.nii.gz")]),
        (
            ["imagesTr/a_0000.nii", "imagesTr/a_0001.nii", "labelsTr/a.nii"],
            [("a", "a", ["imagesTr/a_0000.nii", "imagesTr/a_0001.nii"], "labelsTr/a.nii")],
        ),
        (["imagesTr/a_0000.nii", "labelsTr/a.nii"], [("a", "a", "imagesTr/a_0000.nii", "labelsTr/a.nii")]),
        (
            ["scan_2019.nii", "scan_2020.nii", "scan_2019_gt.nii"],  # years
            [
                ("scan_2019", "scan_2019", "scan_2019.nii", "scan_2019_gt.nii"),
                ("scan_2020", "scan_2020", "scan_2020.nii", None),
            ],
        ),
        (
            ["a.nii", "a_gt.nii", "b.nii", "b_Label.nii", "c.nii", "c_mask.nii.gz", "d.nii", "d_4d.nii"],
            [
                ("a", "a", "a.nii", "a_gt.nii"),
                ("b", "b", "b.nii", "b_Label.nii"),
                ("c", "c", "c.nii", "c_mask.nii.gz"),
                ("d", "d", "d.nii", None),
            ],
        ),
        (
            ["a.nii.gz", "a-label.nii.gz", "b.nii", "b.seg.nii", "c.NII.GZ", "c-Mask.NII"],
            [
                ("a", "a", "a.nii.gz", "a-label.nii.gz"),
                ("b", "b", "b.nii", "b.seg.nii"),
                ("c", "c", "c.NII.GZ", "c-Mask.NII"),
            ],
        ),
        (
            ["p1/image.nii", "p1/seg.nii", "p2/x.nii", "p2/y_label.nii", "p3 /image.nii"],
            [
                ("p1/image", "p1", "p1/image.nii", "p1/seg.nii"),
                ("p2/x", "p2", "p2/x.nii", "p2/y_label.nii"),
                ("p3 /image", "p3", "p3 /image.nii", None),
            ],
        ),
        (
            ["train/sub-1/ses-1/a.nii", "train/sub-1/ses-2/b.nii", "train/sub-2/ses-1/c.nii"],
            [
                ("a", "sub-1", "train/sub-1/ses-1/a.nii", None),
                ("b", "sub-1", "train/sub-1/ses-2/b.nii", None),
                ("c", "sub-2", "train/sub-2/ses-1/c.nii", None),
            ],
        ),
        (["train/a.nii", "train/b.nii"], [("a", "a", "train/a.nii", None), ("b", "b", "train/b.nii", None)]),
    ],
    ids=["decathlon", "metaimage", "channels", "one channel", "years", "side by side", "other marks", "folders",
         "visits", "flat"],
)  # fmt: skip
def test_a_layout_is_understood_and_inference_finds_the_same_images(tmp_path, files, expected):
    touched(tmp_path, *files)
    assert found(tmp_path) == expected
    to_predict = sorted(image_cases(tmp_path), key=lambda case: case["case"])
    assert to_predict == [{key: case[key] for key in ("case", "image")} for case in folder_cases(tmp_path)]


def test_channels_may_have_names_and_labels_another_end(tmp_path):
    touched(tmp_path, *(f"b{n}/b{n}_{end}.nii" for n in (1, 2) for end in ("t1", "t2", "flair")), "b1/b1_roi.nii")
    assert found(tmp_path, channels=["_flair", "_t1"], label="_roi") == [
        ("b1", "b1", ["b1/b1_flair.nii", "b1/b1_t1.nii"], "b1/b1_roi.nii"),
        ("b2", "b2", ["b2/b2_flair.nii", "b2/b2_t1.nii"], None),
    ]
    files = [str(tmp_path / "b1" / f"b1_{end}.nii") for end in ("flair", "t1")]
    assert image_cases(tmp_path, channels=["_flair", "_t1"])[0] == {"case": "b1", "image": files}


@pytest.mark.parametrize("pattern", [r"p\d+", r"(p\d+)_v\d"])
def test_a_pattern_finds_patients(tmp_path, pattern):
    touched(tmp_path, "p1_v1.nii", "p1_v2.nii", "p2_v1.nii")
    assert [case["patient"] for case in folder_cases(tmp_path, patient=pattern)] == ["p1", "p1", "p2"]


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        (["a.nii", "b_gt.nii", "c_gt.nii"], {}, r"every label must have its image, missing for:\n.*b_gt\.nii\n.*c_gt"),
        (["a.nii", "a.nii.gz"], {}, r"must not be there twice, got:\n.*a\.nii and .*a\.nii\.gz"),
        (["a_0000.nii", "a_0001.nii", "b_0000.nii"], {}, r"same number of channels, got:\n.*a \(2\)\n.*b \(1\)"),
        (["a_t1.nii", "a_t2.nii", "b_t1.nii"], {"channels": ["_t1", "_t2"]}, r"all `channels`, missing are:\n.*b_t2"),
        (["a.nii", "p1.nii"], {"patient": r"p\d"}, r"`patient` \('p\\\\d'\) must find every patient.*\na\.nii$"),
        (["a.nii"], {"patient": "("}, r"`patient` must be a regular expression, got '\('"),
    ],
    ids=["orphans", "formats", "numbers", "named", "patients", "pattern"],
)  # fmt: skip
def test_what_cannot_be_made_out_is_all_named(tmp_path, files, options, message):
    with pytest.raises(ValueError, match=message):
        folder_cases(touched(tmp_path, *files), **options)


@pytest.mark.parametrize("cases_of", READERS)
def test_an_empty_folder_and_a_missing_one_are_told_apart(tmp_path, cases_of):
    touched(tmp_path / "empty", "readme.txt")
    with pytest.raises(FileNotFoundError, match=r"no image \(\*\.nii\.gz.*\) in .*empty.*\nIt should hold imagesTr"):
        cases_of(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        cases_of(tmp_path / "nowhere")


# What is an image


@pytest.mark.parametrize(
    "name",
    ["a_gt.nii.gz", "a_4d.nii.gz", "a_seg.nii", "a_uncertainty.nii.gz", "._a.nii.gz", ".a.nii", "a.raw", "a.nii.bak",
     "a_segmentation.mhd", "a-labels.nii", "a_Label.NII", "patient1/seg.nii.gz", "labelsTr/b.nii.gz", "labels/b.nii.gz",
     ".trash/b.nii"],
)  # fmt: skip
def test_labels_cines_maps_and_hidden_files_are_passed_over(tmp_path, name):
    assert names(touched(tmp_path, "image.nii.gz", name)) == ["image"]


@pytest.mark.parametrize("name", ["4d_a.nii.gz", "gt_a.nii", "segment.nii.gz", "agt.nii", "a.b.nii.gz", "a_gt_b.nii"])
def test_only_the_end_of_a_name_tells_that_it_is_no_image(tmp_path, name):
    assert names(touched(tmp_path, name)) == [name.removesuffix(".gz").removesuffix(".nii")]


def test_images_come_in_the_order_of_their_paths_which_are_absolute(tmp_path, monkeypatch):
    touched(tmp_path, "data/two/x/b.nii.gz", "data/one/a.nii", "data/c.mhd", "data/c.raw")
    monkeypatch.chdir(tmp_path)
    files = [str(tmp_path / "data" / name) for name in ("c.mhd", "one/a.nii", "two/x/b.nii.gz")]
    assert [case["image"] for case in image_cases("data")] == files
    assert names(Path("data")) == ["c", "a", "b"]


@pytest.mark.parametrize("name", ["a.nii.gz", "a.nii"])
def test_one_file_will_do(tmp_path, name):
    touched(tmp_path, "a.nii.gz", "a.nii", "b.nii.gz")
    assert image_cases(str(tmp_path / name)) == [{"case": "a", "image": str(tmp_path / name)}]


@pytest.mark.parametrize("cases_of", READERS)
@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
@pytest.mark.parametrize("version", [nib.Nifti1Image, nib.Nifti2Image])
def test_predictions_are_no_images_wherever_they_are(tmp_path, cases_of, suffix, version):
    source = tmp_path / "p1.nii.gz"
    nib.save(version(np.zeros((4, 4, 3), np.int16), np.eye(4)), source)
    save_like(np.ones((4, 4, 3)), source, tmp_path / "study" / "run1" / f"p1{suffix}", prediction=True)
    assert [case["image"] for case in cases_of(tmp_path)] == [str(source)]
    with pytest.raises(FileNotFoundError, match="no image"):
        cases_of(tmp_path / "study")


def test_a_prediction_that_is_called_like_a_label_is_one(tmp_path):
    source = tmp_path / "p1.nii.gz"
    nib.save(nib.Nifti1Image(np.zeros((4, 4, 3), np.int16), np.eye(4)), source)
    save_like(np.ones((4, 4, 3)), source, tmp_path / "p1_seg.nii.gz", prediction=True)
    assert found(tmp_path) == [("p1", "p1", "p1.nii.gz", "p1_seg.nii.gz")]


def test_a_name_in_capitals_is_read_too(tmp_path):
    for name in ("p4.nii.gz", "p5.nii"):
        nib.save(nib.Nifti1Image(np.full((4, 4, 3), 7, np.int16), np.eye(4)), tmp_path / name)
        (tmp_path / name).rename(tmp_path / name.replace("nii", "NII").replace("gz", "GZ"))
    cases = image_cases(tmp_path)
    assert [case["case"] for case in cases] == ["p4", "p5"]
    assert all((LoadImage(reader=VolumeReader())(case["image"]) == 7).all() for case in cases)


# Links, and the layouts of data sets


@pytest.mark.parametrize(
    ("write", "cases_of"),
    [
        (write_acdc_phantom, acdc_cases),
        (write_promise12_phantom, promise12_cases),
        (write_spleen_phantom, decathlon_cases),
        (write_acdc_phantom, folder_cases),
        (write_acdc_phantom, image_cases),
    ],
)
def test_links_to_folders_are_followed_but_not_in_circles(tmp_path, write, cases_of):
    data = write(tmp_path / "elsewhere", **LITTLE)
    expected = [case["case"] for case in cases_of(data)]
    assert expected
    (tmp_path / "data").mkdir()
    for path in data.iterdir():
        (tmp_path / "data" / path.name).symlink_to(path)
    (data / "training" if (data / "training").exists() else data).joinpath("up").symlink_to(data)
    (tmp_path / "data" / "self").symlink_to(tmp_path / "data")
    assert [case["case"] for case in cases_of(tmp_path / "data")] == expected


def test_acdc_and_the_decathlon_are_found_as_their_own_readers_find_them(tmp_path):
    for folder, cases in (
        (write_acdc_phantom(tmp_path / "acdc", **LITTLE), acdc_cases),
        (write_spleen_phantom(tmp_path / "spleen", **LITTLE), decathlon_cases),
    ):
        keys = ("case", "patient", "image", "label")
        assert folder_cases(folder) == [{key: case[key] for key in keys} for case in cases(folder)]
