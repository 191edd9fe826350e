"""How a report names methods, settings and their values, and in which order it shows them."""

from __future__ import annotations

from typing import Any

__all__ = ["rank", "shown_key", "shown_value"]

# in the order of the paper's tables
_ORDERED = {
    "full_supervision": "full supervision",
    "labeled_only": "labels only",
    "entropy_minimization": "entropy minimization",
    "dan": "DAN",
    "mean_teacher": "Mean Teacher",
    "ua_mt": "UA-MT",
    "co_training": "co-training",
    "self_paced": "without self-consistency",
    "self_consistent": "without self-pacing",
    "self_paced_self_consistent": "the method",
    "enet": "ENet",
    "unet": "U-Net",
    "segnet": "SegNet",
}
_NAMES = _ORDERED | {
    "acdc": "ACDC",
    "atrium": "Left atrium",
    "co_training_weight": "co-training weight",
    "dsc": "DSC (%)",
    "hd": "HD (mm)",
    "hd95": "HD95 (mm)",
    "inference_time": "inference (ms / slice)",
    "labeled_ratio": "labeled",
    "mean": "Mean",
    "num_views": "views",
    "prostate": "Prostate",
    "spleen": "Spleen",
    "training_time": "training (ms / iteration)",
}


def shown_key(key: str) -> str:
    """The name of a key, a dataset, a method, a network or a score."""
    return _NAMES.get(key, key.replace("_", " "))


def shown_value(key: str, value: Any) -> str:
    """A value as the label of a line."""
    if value is None:
        return ""
    if key == "labeled_ratio":
        return f"{100 * value:g} %"
    if key in ("dataset", "method", "network"):
        return shown_key(value)
    return f"{value:g}" if isinstance(value, float) else " ".join(str(value).split())


def rank(key: str, value: Any) -> tuple[float, str]:
    """Sort key of lines: methods and networks as in the paper, most labels first, other values rising."""
    if isinstance(value, int | float):
        return (-value if key == "labeled_ratio" else value), ""
    known = list(_ORDERED)
    return (known.index(value) if value in known else len(known)), str(value)
