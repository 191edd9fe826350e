"""Names that lead out of their folder are told from those that do not."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monai_spct.files.paths import can_be_called, is_there, leaves_folder

NAMES = st.lists(st.sampled_from(["..", ".", "a", "b.nii", "", "...", "..a"]), min_size=1, max_size=6).map("/".join)


@settings(deadline=None)
@given(name=NAMES)
def test_a_name_leaves_its_folder_where_a_walk_along_it_does(name):
    depth, lowest = 0, 0
    for part in name.split("/"):
        depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
        lowest = min(depth, lowest)
    assert leaves_folder(name) == (name.startswith("/") or lowest < 0)


@settings(deadline=None)
@given(name=st.one_of(NAMES, st.text(max_size=12)))
def test_a_file_of_a_name_that_it_can_be_called_lies_below_its_folder(tmp_path_factory, name):
    folder = tmp_path_factory.getbasetemp() / "predictions"
    if can_be_called(name):
        target = folder / f"{name}.nii.gz"
        assert folder in Path(os.path.normpath(target)).parents
        assert os.path.normpath(target) == str(target)
        assert not is_there(target)


@pytest.mark.parametrize("name", ["a", "patient 1/é", "..a", "a..b/c", "...", "a.nii"])
def test_usual_and_odd_names_are_fine(name):
    assert can_be_called(name)


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/../b", "/a", "a/", "a//b", "./a", "a\\b", "a\0b", "\ud800"])
def test_names_that_no_file_or_another_file_has_are_not(name):
    assert not can_be_called(name)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "\ud800", "", "nothing"])
def test_there_is_no_file_of_a_name_that_no_file_has(tmp_path, name):
    assert not is_there(tmp_path / name)
