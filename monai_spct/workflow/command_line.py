"""What the command line of MONAI's runner says: its config files and its options."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fire.parser import DefaultParseValue

__all__ = ["RUNNER_OPTIONS", "config_files", "flag", "options"]

# what `python -m monai.bundle run` itself takes, and what its `--tracking` adds to a config
RUNNER_OPTIONS = {
    "run_id", "init_id", "final_id", "config_file", "meta_file", "logging_file", "tracking", "args_file",
    "workflow_type", "workflow_name", "properties_path", "tracking_uri", "experiment_name", "run_name",
    "save_execute_config", "is_not_rank0",
}  # fmt: skip


def config_files(argv: Sequence[str]) -> list[Path]:
    """The files behind ``--config_file``, which is one path or a list of paths in Python's notation.

    Args:
        argv: the words of the command line.

    Example:
        >>> from monai_spct.workflow.command_line import config_files
        >>> [path.name for path in config_files(["run", "--config_file", "['train.json','small.json']"])]
        ['train.json', 'small.json']
    """
    value = ""
    for position, argument in enumerate(argv):
        name, _, given = argument.partition("=")
        if name in ("--config_file", "--config-file"):
            value = given or (argv[position + 1] if position + 1 < len(argv) else "")
    if value.lstrip().startswith(("[", "(")):
        return [Path(str(item)).absolute() for item in ast.literal_eval(value)]
    return [Path(value).absolute()] if value else []


def options(argv: Sequence[str]) -> dict[str, Any]:
    """The options by name, those of the runner included, with their values as fire understands them.

    Args:
        argv: the words of the command line.

    Returns:
        Values by key, where ``#`` leads into components; an option without a value is true.

    Example:
        >>> from monai_spct.workflow.command_line import options
        >>> options(["run", "training", "--max_epochs", "7", "-amp", "--optimizer#lr=0.1", "--output_dir", "runs/a"])
        {'max_epochs': 7, 'amp': True, 'optimizer#lr': 0.1, 'output_dir': 'runs/a'}
    """
    found: dict[str, Any] = {}
    for position, argument in enumerate(argv):
        if not _is_option(argument):
            continue
        name, equals, value = argument.lstrip("-").partition("=")
        # fire takes dashes for underscores
        key = name.replace("::", "#").replace("-", "_")
        following = argv[position + 1 : position + 2]
        if equals:
            found[key] = DefaultParseValue(value)
        elif following and not _is_option(following[0]):
            found[key] = DefaultParseValue(following[0])
        else:
            found[key] = True
    return found


def flag(value: object) -> bool:
    """A switch as it comes from a config, or from a command line, where `--resume false` arrives as a word.

    Args:
        value: a truth value, or ``true`` or ``false`` in any case.

    Raises:
        ValueError: when it is something else.

    Example:
        >>> from monai_spct.workflow.command_line import flag
        >>> flag(True), flag("false")
        (True, False)
    """
    words = {"true": True, "false": False}
    if str(value).lower() not in words:
        raise ValueError(f"a switch must be true or false, got {value!r}.")
    return words[str(value).lower()]


def _is_option(argument: str) -> bool:
    # fire takes one dash for two, and a number may have one
    return re.match(r"--?[A-Za-z_]", argument) is not None
