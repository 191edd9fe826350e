"""How two runs differ, in words."""

import pytest

from monai_spct.workflow.comparison import differences


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ({}, {}, []),
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": [1, 2]}, {"a": [1, 3, 4]}, ["`a#1` was 2, is 3", "`a#2` was not there, is 4"]),
        ({"a": {"b": None}}, {"a": {}}, ["`a#b` was null, is not there", "`a` was not there, is {}"]),
        ({"a": "x"}, {"a": {"b": "x"}}, ['`a` was "x", is not there', '`a#b` was not there, is "x"']),
    ],
)
def test_differences_in_words(before, after, lines):
    assert differences(before, after) == lines
