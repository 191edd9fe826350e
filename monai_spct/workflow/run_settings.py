"""What the run of a command line is made of."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from monai.bundle import ConfigParser

from monai_spct.data import Split
from monai_spct.data.rules import SIDE
from monai_spct.workflow.command_line import RUNNER_OPTIONS, config_files, options
from monai_spct.workflow.comparison import with_options, without_places

__all__ = ["settings_of_run"]


def settings_of_run(split: Split | None = None, argv: Sequence[str] | None = None) -> dict[str, Any]:
    """What the command line's run is made of, for :class:`~monai_spct.handlers.SaveCheckpoints` to compare.

    Args:
        split: whose cases belong to it, by name.
        argv: the command line; this process's by default.

    Returns:
        The keys of its config files and options, but for those of places, and ``cases`` with the list that each
        one is on. Nothing without ``--config_file``.

    Example:
        >>> from monai_spct.workflow import bundles_folder, settings_of_run
        >>> config = str(bundles_folder() / "acdc" / "configs" / "train.json")
        >>> settings_of_run(argv=["--config_file", config, "--max_epochs", "7"])["max_epochs"]
        7
    """
    argv = sys.argv if argv is None else argv
    files = config_files(argv)
    if not files:
        return {}
    given = {key: value for key, value in options(argv).items() if key not in RUNNER_OPTIONS}
    content: Any = ConfigParser.load_config_files([str(path) for path in files])
    lists = {} if split is None else {name: getattr(split, name) for name in SIDE}
    cases = {case["case"]: name for name, members in lists.items() for case in members}
    return {**without_places(with_options(content, given)), "cases": cases}
