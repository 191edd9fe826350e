"""Overrides and overlays that would change nothing are refused before anything runs."""

from __future__ import annotations

import difflib
import inspect
import json
import re
import sys
from collections.abc import Sequence
from pydoc import locate
from typing import Any

import yaml
from monai.bundle import ConfigParser
from monai.bundle.utils import merge_kv

from monai_spct.workflow.command_line import RUNNER_OPTIONS, config_files, options
from monai_spct.workflow.spelling import did_you_mean

__all__ = ["refuse_idle_settings", "refuse_unknown_overrides"]


def refuse_unknown_overrides(argv: Sequence[str] | None = None) -> None:
    """Refuse an override, of the command line or of an overlay, that changes nothing, and name the nearest that would.

    MONAI takes ``--max_epoch 7`` without a word and goes on with the old ``max_epochs``. Overlays are all config files
    but the first. They may have keys of their own if something refers to them.

    Args:
        argv: the command line; this process's by default. One without ``--config_file`` is not looked at.

    Raises:
        ValueError: naming each unknown override and the nearest right name.

    Example:
        >>> from monai_spct.workflow import bundles_folder, refuse_unknown_overrides
        >>> config = str(bundles_folder() / "acdc" / "configs" / "train.json")
        >>> refuse_unknown_overrides(["--config_file", config, "--max_epoch", "7"])
        Traceback (most recent call last):
        ...
        ValueError: unknown override `--max_epoch`: no config file has such a key. Did you mean `--max_epochs`?
        >>> refuse_unknown_overrides(["--config_file", config, "--train#inferrer", "7"])
        Traceback (most recent call last):
        ...
        ValueError: unknown override `--train#inferrer`: `train` has no such key. Did you mean `--train#inferer`?
    """
    argv = sys.argv if argv is None else argv
    files = config_files(argv)
    if not files:
        return
    contents = [yaml.safe_load(path.read_text()) or {} for path in files]
    # what other runs of the bundle know, since an overlay may serve several of them, and what is run by its name
    elsewhere = set(argv) | {"initialize", "run", "finalize"}
    for name in ("train", "evaluate", "inference"):
        beside = files[0].with_name(f"{name}.json")
        elsewhere |= set(json.loads(beside.read_text())) if beside.is_file() else set()
    elsewhere |= set(re.findall(r"[@%](\w+)", json.dumps(contents)))
    config = ConfigParser(contents[0])
    problems = []
    for path, content in zip(files[1:], contents[1:], strict=True):
        for key, value in content.items():
            first, *others = parts = key.lstrip("+").replace("::", "#").split("#")
            there = first in config
            own = not there and (first.startswith("_") or first in elsewhere)
            unknown = None if own else _unknown(config.get(), parts)
            if unknown:
                shown, why, hint = unknown
                problems.append(f"unknown key `{shown}` in {path.name}: {why or 'nothing reads it'}.{hint}")
            if there and not unknown:
                merge_kv(config, key, value)
            elif not others:
                config[first] = value
    for override in options(argv):
        parts = override.split("#")
        if parts[0] not in RUNNER_OPTIONS and (unknown := _unknown(config.get(), parts, prefix="--")):
            shown, why, hint = unknown
            problems.append(f"unknown override `{shown}`: {why or 'no config file has such a key'}.{hint}")
    if problems:
        raise ValueError(" ".join(problems))


def _unknown(config: Any, parts: Sequence[str], *, prefix: str = "") -> tuple[str, str, str] | None:
    """How much of a key is not in a config, where, and which key was meant; nothing if it is there, or may be new."""
    for depth, part in enumerate(parts):
        place, shown = "#".join(parts[:depth]), prefix + "#".join(parts[: depth + 1])
        if isinstance(config, list):
            if not (part.isdigit() and int(part) < len(config)):
                return shown, f"`{place}` has {len(config)} items, counted from 0", ""
            config = config[int(part)]
        elif not isinstance(config, dict):
            return None  # a reference or an expression
        elif part in config:
            config = config[part]
        elif depth + 1 == len(parts) and place and _may_be_new(config, part):
            return None
        else:
            hint = did_you_mean(part, map(str, config), prefix=f"{prefix}{place}{'#' if place else ''}")
            return shown, f"`{place}` has no such key" if place else "", hint
    return None


def _may_be_new(config: dict[str, Any], name: str) -> bool:
    """Whether a part of a config takes a key that it does not have."""
    if "_target_" not in config:
        # numbers and words are data, as the names of structures; parts of a run are all there
        return name.startswith("_") or not any(isinstance(value, dict | list) for value in config.values())
    if not difflib.get_close_matches(name, map(str, config), n=1, cutoff=0.9):
        return True  # an argument, of which the component knows more
    try:
        return name in inspect.signature(locate(str(config["_target_"]))).parameters  # type: ignore[arg-type]
    except (TypeError, ValueError):  # it has a short name, or tells nothing
        return False


def refuse_idle_settings(
    datalist: object, *, without: Sequence[str], only_with: Sequence[str] = (), argv: Sequence[str] | None = None
) -> None:
    """Refuse a setting that changes nothing, since a datalist is given, or none is.

    Looked at are the command line and the overlays, which are all config files but the first.

    Args:
        datalist: the datalist, or nothing.
        without: settings that have a meaning without a datalist alone.
        only_with: settings that have a meaning with a datalist alone.
        argv: the command line; this process's by default.

    Raises:
        ValueError: naming each such setting and where it is given.

    Example:
        >>> from monai_spct.workflow import refuse_idle_settings
        >>> argv = ["--config_file", "train.json", "--datalist", "my.json", "--labeled_ratio", "0.1"]
        >>> refuse_idle_settings("my.json", without=["labeled_ratio"], argv=argv)
        Traceback (most recent call last):
        ...
        ValueError: `datalist` says who is labeled, validated and tested, so that other settings of that have no effect:
        leave out `labeled_ratio` (command line).
    """
    argv = sys.argv if argv is None else argv
    idle = only_with if datalist is None else without
    given = {
        path.name: {
            str(key).lstrip("+") for key, value in (yaml.safe_load(path.read_text()) or {}).items() if value is not None
        }
        for path in config_files(argv)[1:]
    }
    places = {"command line": {key.split("#")[0] for key in options(argv)}, **given}
    found = [f"`{name}` ({place})" for place, names in places.items() for name in idle if name in names]
    if found and datalist is None:
        raise ValueError(f"without a `datalist` there are no lists to choose from: leave out {', '.join(found)}.")
    if found:
        raise ValueError(
            "`datalist` says who is labeled, validated and tested, so that other settings of that have no effect:\n"
            f"leave out {', '.join(found)}."
        )
