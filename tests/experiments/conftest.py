"""What the tests of grids share."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.experiments.tiny_bundle import write_tiny_bundle


@pytest.fixture
def tiny(tmp_path) -> Path:
    return write_tiny_bundle(tmp_path / "bundles")


@pytest.fixture
def listening() -> Iterator[None]:
    """Python does not listen to Ctrl-C where a shell has started it in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
