"""Ctrl-C, and once more out of impatience: the training ends at once, and what is on the disk is whole."""

import pytest

from tests.faults.runs import in_a_process, last_epoch, parts_of_files, training


@pytest.mark.parametrize(
    ("fault", "num_workers"),
    [
        pytest.param("interrupted", 0, marks=pytest.mark.every_fault),
        ("interrupted", 2),
        ("interrupted while saving", 0),
    ],
)
def test_who_interrupts_twice_loses_no_more_than_the_epoch(data, tmp_path, fault, num_workers):
    done = in_a_process(fault, data, tmp_path, num_workers=num_workers)
    assert done.returncode != 0
    assert last_epoch(tmp_path) in (1, 2)
    for left in parts_of_files(tmp_path):  # the second interruption may come before the first one has tidied up
        assert left.name.startswith(".")
    training(data, tmp_path, resume=True).run()
    assert last_epoch(tmp_path) == 3
