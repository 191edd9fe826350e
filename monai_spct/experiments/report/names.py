"""How reports name what grids name."""

from __future__ import annotations

from collections.abc import Sequence

from monai_spct.experiments.values import Value

__all__ = ["no_result_yet", "shown_key", "shown_score", "shown_value"]

_NAMED = 6  # cells in a note; `status` names all
_NAMES = {
    "acdc": "ACDC",
    "co_training": "co-training",
    "co_training_weight": "co-training weight",
    "dan": "DAN",
    "dsc": "DSC (%)",
    "enet": "ENet",
    "hd": "HD (mm)",
    "hd95": "HD95 (mm)",
    "inference_time": "inference (ms / slice)",
    "labeled_only": "labels only",
    "labeled_ratio": "labeled",
    "mean_teacher": "Mean Teacher",
    "methods": "method",
    "networks": "network",
    "num_views": "views",
    "prostate": "Prostate",
    "segnet": "SegNet",
    "self_consistent": "without self-pacing",
    "self_paced": "without self-consistency",
    "self_paced_self_consistent": "the method",
    "spleen": "Spleen",
    "training_time": "training (ms / iteration)",
    "ua_mt": "UA-MT",
    "unet": "U-Net",
}


def shown_key(key: str) -> str:
    """A key of a grid as the head of a column.

    Example:
        >>> from monai_spct.experiments.report.names import shown_key
        >>> shown_key("methods"), shown_key("entropy_weight")
        ('method', 'entropy weight')
    """
    return _NAMES.get(key, key.replace("_", " "))


shown_score = shown_key


def shown_value(key: str, value: Value) -> str:
    """A value of a grid as the label of a line.

    Example:
        >>> from monai_spct.experiments.report.names import shown_value
        >>> shown_value("methods", "ua_mt"), shown_value("labeled_ratio", 0.05), shown_value("alpha", None)
        ('UA-MT', '5 %', '')
    """
    if key == "labeled_ratio" and isinstance(value, float | int):
        return f"{100 * value:g} %"
    if value is None:
        return ""
    if key in ("datasets", "methods", "networks"):
        return shown_key(str(value))
    return f"{value:g}" if isinstance(value, float) else " ".join(str(value).split())


def no_result_yet(cells: Sequence[str]) -> str:
    """A note on what is missing.

    Example:
        >>> from monai_spct.experiments.report.names import no_result_yet
        >>> no_result_yet([f"acdc/dan/enet/seed={seed}" for seed in range(10)])
        'No result yet of acdc/dan/enet/seed=0, acdc/dan/enet/seed=1, ..., acdc/dan/enet/seed=9: 10 runs.'
    """
    if len(cells) <= _NAMED:
        return f"No result yet of {', '.join(cells)}."
    return f"No result yet of {cells[0]}, {cells[1]}, ..., {cells[-1]}: {len(cells)} runs."
