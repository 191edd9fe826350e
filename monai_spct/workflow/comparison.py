"""Settings that identify a run, and the differences of two runs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

__all__ = ["PLACES", "differences", "without_places"]

PLACES = (
    *("accept_changes", "bundle_root", "cache_dir", "ckpt_path", "datalist", "device", "kept_epochs", "log_interval"),
    *("num_checkpoints", "num_workers", "output_dir", "resume"),
    # what MONAI's `--tracking` adds
    *("experiment_name", "is_not_rank0", "run_name", "save_execute_config", "tracking_uri"),
)
"""Keys that say where a run reads, computes and writes. With other values it is the same run."""


def without_places(content: Mapping[str, Any], places: Collection[str] = PLACES) -> dict[str, Any]:
    """A config without some keys, and without ``dataset_dir`` where that is a folder and not a component.

    Example:
        >>> from monai_spct.workflow.comparison import without_places
        >>> without_places({"seed": 0, "device": "cpu", "dataset_dir": "/data/ACDC"})
        {'seed': 0}
    """
    kept = {key: value for key, value in content.items() if key not in places}
    if isinstance(kept.get("dataset_dir"), str):
        del kept["dataset_dir"]
    return kept


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Differences of two configurations, in words.

    Example:
        >>> from monai_spct.workflow.comparison import differences
        >>> differences({"seed": 0, "loss": {"weight": 1}}, {"loss": {"weight": 2}})
        ['`seed` was 0, is not there', '`loss#weight` was 1, is 2']
    """
    old, new = _leaves(before), _leaves(after)
    keys = [*old, *(key for key in new if key not in old)]
    return [
        f"`{key}` {_said('was', key, old)}, {_said('is', key, new)}"
        for key in keys
        if key not in old or key not in new or old[key] != new[key]
    ]


def _leaves(node: Any, place: str = "") -> dict[str, Any]:
    items = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ()
    found = {}
    for key, value in items:
        found.update(_leaves(value, f"{place}#{key}" if place else str(key)))
    return found or ({place: node} if place else {})


def _said(verb: str, key: str, leaves: Mapping[str, Any]) -> str:
    return f"{verb} {json.dumps(leaves[key])}" if key in leaves else f"{verb} not there"
