"""What the tests of grids share."""

from pathlib import Path

import pytest

from tests.experiments.tiny_bundle import write_tiny_bundle


@pytest.fixture
def tiny(tmp_path) -> Path:
    return write_tiny_bundle(tmp_path / "bundles")
