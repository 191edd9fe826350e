"""Names of former versions, and what they are called now."""

from __future__ import annotations

from typing import Final

__all__ = ["RENAMED"]

RENAMED: Final = {
    "pace": "gamma",
    "pace_start": "gamma_start",
    "move": "transform",
}
"""Configuration keys: old name to new name."""
