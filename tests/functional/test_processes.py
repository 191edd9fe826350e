"""With several processes: `tests/bundles/test_multi_gpu.py`."""

import pytest
import torch

from monai_spct.functional import average_over_processes


def test_one_process_keeps_what_it_has():
    tensor = torch.rand(3)
    before = tensor.clone()
    average_over_processes([tensor])
    assert torch.equal(tensor, before)


def test_counters_are_refused():
    with pytest.raises(ValueError, match=r"`tensors` must be floating ones, got torch\.int64\."):
        average_over_processes([torch.zeros(2), torch.tensor(3)])
