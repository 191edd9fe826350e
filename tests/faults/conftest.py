"""What all tests of faults share."""

import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from monai_spct.data import write_acdc_phantom
from monai_spct.networks import ENet, build_ensemble
from tests.bundles.conftest import process_left_as_it_was

__all__ = ["data", "own_data", "process_left_as_it_was", "weights"]  # fixtures


@pytest.fixture(scope="package")
def data(tmp_path_factory) -> Path:
    """Five patients: 1 labeled, 2 unlabeled, 1 for validation, 1 for testing; 2 cases each."""
    folder = tmp_path_factory.mktemp("acdc") / "data"
    return write_acdc_phantom(folder, patients=5, size=(40, 44), spacing=(3.2, 3.5), slices=(4, 5))


@pytest.fixture(scope="package")
def weights(tmp_path_factory) -> Path:
    """Of two networks that have learned nothing."""
    path = tmp_path_factory.mktemp("weights") / "model.pt"
    torch.save(build_ensemble(partial(ENet, out_channels=4), num_views=2, seed=0).state_dict(), path)
    return path


@pytest.fixture
def own_data(data, tmp_path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(data, tmp_path / "own data"))
