"""Images find their labels, channels and patients in the usual layouts."""

from pathlib import Path

import pytest

from monai_spct.data import acdc_cases, decathlon_cases, folder_cases, write_acdc_phantom, write_spleen_phantom


def touched(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


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
    ("names", "expected"),
    [
        (
            ["imagesTr/a.nii.gz", "labelsTr/a.nii.gz", "imagesTs/b.nii.gz", "labelsTr/._a.nii.gz"],
            [("a", "a", "imagesTr/a.nii.gz", "labelsTr/a.nii.gz"), ("b", "b", "imagesTs/b.nii.gz", None)],
        ),
        (
            ["images/a.mha", "labels/a_seg.nii.gz"],
            [("a", "a", "images/a.mha", "labels/a_seg.nii.gz")],
        ),
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
            ["p1/image.nii", "p1/seg.nii", "p2/x.nii", "p2/y_label.nii", "p3/image.nii"],
            [
                ("p1/image", "p1", "p1/image.nii", "p1/seg.nii"),
                ("p2/x", "p2", "p2/x.nii", "p2/y_label.nii"),
                ("p3/image", "p3", "p3/image.nii", None),
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
    ids=["decathlon", "metaimage", "channels", "one channel", "years", "side by side", "folders", "visits", "flat"],
)
def test_a_layout_is_understood(tmp_path, names, expected):
    assert found(touched(tmp_path, *names)) == expected


def test_a_folder_may_lie_in_one_that_is_called_like_labels(tmp_path):
    folder = touched(tmp_path / "labels" / "data", "a.nii", "a_gt.nii")
    assert found(folder) == [("a", "a", "a.nii", "a_gt.nii")]


def test_channels_may_have_names_and_labels_another_end(tmp_path):
    touched(tmp_path, *(f"b{n}/b{n}_{end}.nii" for n in (1, 2) for end in ("t1", "t2", "flair")), "b1/b1_roi.nii")
    assert found(tmp_path, channels=["_flair", "_t1"], label="_roi") == [
        ("b1", "b1", ["b1/b1_flair.nii", "b1/b1_t1.nii"], "b1/b1_roi.nii"),
        ("b2", "b2", ["b2/b2_flair.nii", "b2/b2_t1.nii"], None),
    ]


def test_files_that_are_called_like_channels_alone_are_cases_of_their_folder(tmp_path):
    touched(tmp_path, "p1/t1.nii", "p1/t2.nii", "p1/seg.nii")
    assert found(tmp_path, channels=["t1", "t2"]) == [("p1", "p1", ["p1/t1.nii", "p1/t2.nii"], "p1/seg.nii")]


@pytest.mark.parametrize("pattern", [r"p\d+", r"(p\d+)_v\d"])
def test_a_pattern_finds_patients(tmp_path, pattern):
    touched(tmp_path, "p1_v1.nii", "p1_v2.nii", "p2_v1.nii")
    assert [case["patient"] for case in folder_cases(tmp_path, patient=pattern)] == ["p1", "p1", "p2"]


@pytest.mark.parametrize(
    ("names", "options", "message"),
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
def test_what_cannot_be_made_out_is_all_named(tmp_path, names, options, message):
    with pytest.raises(ValueError, match=message):
        folder_cases(touched(tmp_path, *names), **options)


def test_an_empty_folder_and_a_missing_one_are_told_apart(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no image \(\*\.nii\.gz.*\) in .*empty.*\nIt should hold imagesTr"):
        folder_cases(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        folder_cases(tmp_path / "nowhere")


def test_acdc_and_the_decathlon_are_found_as_their_own_readers_find_them(tmp_path):
    little = {"patients": 2, "size": (48, 48), "spacing": (6.7, 6.7), "slices": (4, 4)}
    for folder, cases in (
        (write_acdc_phantom(tmp_path / "acdc", **little), acdc_cases),
        (write_spleen_phantom(tmp_path / "spleen", **little), decathlon_cases),
    ):
        keys = ("case", "patient", "image", "label")
        assert folder_cases(folder) == [{key: case[key] for key in keys} for case in cases(folder)]
