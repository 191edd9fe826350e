"""A case has one name, whoever writes it."""

import pytest

from monai_spct.data.case_names import case_names, given_names


def test_names_are_those_of_files_while_these_differ():
    assert case_names(["/d/p1/a.nii.gz", "/d/p2/b.v2.nii"]) == ["a", "b.v2"]


@pytest.mark.parametrize(
    ("root", "names"), [(None, ["p1/image", "p2/image", "p2/x/b"]), ("/", ["d/p1/image", "d/p2/image", "d/p2/x/b"])]
)
def test_otherwise_they_are_paths_below_a_folder(root, names):
    assert case_names(["/d/p1/image.nii.gz", "/d/p2/image.nii.gz", "/d/p2/x/b.nii"], root) == names


def test_two_slashes_at_the_beginning_are_one():
    assert case_names(["//p1/image.nii", "/p2/image.nii"]) == ["p1/image", "p2/image"]


@pytest.mark.parametrize("batch", [None, {"case": ["a", "b"]}, [{"case": "a"}]], ids=["none", "collated", "too short"])
def test_a_batch_of_another_kind_gives_no_names(batch):
    assert given_names(batch, 2) == [None, None]
