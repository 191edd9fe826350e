"""What tests of bundles and of faults share."""

import shutil
import sys
from pathlib import Path

import pytest
from monai.utils import set_determinism

from monai_spct.data import write_acdc_phantom


@pytest.fixture(autouse=True)
def process_left_as_it_was(monkeypatch):
    """A run changes the hook for errors, the search path and the random state of its process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    yield
    set_determinism(None)


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """Five patients: 1 labeled, 1 for testing, the others unlabeled or for validation; 2 cases each."""
    folder = tmp_path_factory.mktemp("acdc") / "data"
    return write_acdc_phantom(folder, patients=5, size=(40, 44), spacing=(3.2, 3.5), slices=(4, 5))


@pytest.fixture
def own_data(data, tmp_path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(data, tmp_path / "own data"))
