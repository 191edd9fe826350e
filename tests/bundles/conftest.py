"""What all tests of bundles share."""

import sys

import pytest
from monai.utils import set_determinism


@pytest.fixture(autouse=True)
def process_left_as_it_was(monkeypatch):
    """A run changes the hook for errors, the search path and the random state of its process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    yield
    set_determinism(None)
