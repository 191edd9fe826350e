"""What all tests of faults share."""

from functools import partial
from pathlib import Path

import pytest
import torch

from monai_spct.networks import UNet, build_ensemble
from tests.bundles.conftest import data, own_data, process_left_as_it_was

__all__ = ["data", "own_data", "process_left_as_it_was", "weights"]  # fixtures


@pytest.fixture(scope="session")
def weights(tmp_path_factory) -> Path:
    """Of two networks that have learned nothing."""
    path = tmp_path_factory.mktemp("weights") / "model.pt"
    torch.save(build_ensemble(partial(UNet, out_channels=4, features=4), num_views=2, seed=0).state_dict(), path)
    return path
