"""Bundles of the package, and copies of them."""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["bundles_folder", "copy"]

_WRITTEN_BY_RUNS = shutil.ignore_patterns(
    *("cache", "output", "phantom", "mlruns", "mlruns.db*", "config_*.json", "__pycache__")
)


def bundles_folder() -> Path:
    """The folder of the bundles: beside the package in a checkout, inside it when installed from a wheel.

    Example:
        >>> from monai_spct.workflow import bundles_folder
        >>> (bundles_folder() / "acdc" / "configs" / "train.json").is_file()
        True
    """
    package = Path(__file__).resolve().parents[1]
    installed, checkout = package / "_bundles", package.parent / "bundles"
    return installed if installed.is_dir() else checkout


def copy(name: str, target: str | Path) -> str:
    """Copy a bundle, with the overlays for methods and networks and without results.

    Args:
        name: of the bundle, for example ``acdc``.
        target: a folder that does not exist yet.

    Returns:
        The command to run next.

    Raises:
        ValueError: when there is no bundle of this name.
        FileExistsError: when ``target`` exists.

    Example:
        >>> import tempfile
        >>> from monai_spct.workflow import copy
        >>> print(copy("acdc", tempfile.mkdtemp() + "/mine"))  # doctest: +ELLIPSIS
        python -m monai.bundle run training --config_file .../mine/configs/train.json --dataset_dir ...
    """
    source, target = bundles_folder() / name, Path(target)
    if not (source / "configs").is_dir():
        names = sorted(path.parent.name for path in bundles_folder().glob("*/configs"))
        raise ValueError(f"`name` must be one of {names}, got {name!r}.")
    shutil.copytree(source, target, ignore=_WRITTEN_BY_RUNS)
    for overlays in ("augmentations", "methods", "networks"):
        shutil.copytree(bundles_folder() / overlays, target / overlays)
    return f"python -m monai.bundle run training --config_file {target / 'configs' / 'train.json'} --dataset_dir ..."
