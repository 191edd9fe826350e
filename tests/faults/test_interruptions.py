"""Ctrl-C, and once more out of impatience: the training ends at once, and what is on the disk is whole."""

import pytest
import torch

from tests.faults.runs import in_a_process, last_epoch, parts_of_files, training

pytestmark = pytest.mark.filterwarnings("ignore:parsing config_file:UserWarning")  # what MONAI says of every config


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("fault", ["interrupted", "interrupted while saving"])
def test_who_interrupts_twice_loses_no_more_than_the_epoch(data, tmp_path, fault, num_workers):
    done = in_a_process(fault, data, tmp_path, num_workers=num_workers)
    assert done.returncode != 0
    assert last_epoch(tmp_path) in (1, 2)
    for left in parts_of_files(tmp_path):  # the second interruption may come before the first one has tidied up
        assert left.name.startswith(".")
    training(data, tmp_path, resume=True).run()
    assert last_epoch(tmp_path) == 3


def test_what_goes_on_ends_where_it_would_have_ended(data, tmp_path):
    in_a_process("interrupted while saving", data, tmp_path / "parts")
    training(data, tmp_path / "parts", resume=True).run()
    training(data, tmp_path / "whole").run()
    whole, parts = (torch.load(tmp_path / run / "models" / "model.pt", weights_only=True) for run in ("whole", "parts"))
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())
