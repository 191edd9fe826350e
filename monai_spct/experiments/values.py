"""Values of a grid: which ones there are, how a folder's name shows them, and how the command line does."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, TypeAlias
from urllib.parse import quote

import yaml
from fire.parser import DefaultParseValue

from monai_spct.experiments.refusals import GridError

__all__ = ["Value", "check_value", "name_of", "same", "word_of"]

Value: TypeAlias = bool | int | float | str | list[Any] | None  # in a list, the same again

_LONGEST = 100  # characters of a value in a folder's name; file systems end at 255 for the whole


def check_value(place: str, value: object) -> Value:
    """``value`` if a cell can have it, else a :class:`~monai_spct.experiments.GridError` that names its place.

    Example:
        >>> from monai_spct.experiments.values import check_value
        >>> check_value("`settings.crop_size`", {"x": 96})
        Traceback (most recent call last):
        ...
        monai_spct.experiments.refusals.GridError: `settings.crop_size` must be a number, a string, a boolean, null or \
a list of these, got {'x': 96}. What is larger belongs into an overlay.
    """
    if isinstance(value, list):
        return [check_value(place, item) for item in value]
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise GridError(
        f"{place} must be a number, a string, a boolean, null or a list of these, got {value!r}. "
        "What is larger belongs into an overlay."
    )


def same(one: Value, other: Value) -> bool:
    """Whether two values are one and the same setting: 1 and 1.0 are, 1 and true are not.

    Example:
        >>> from monai_spct.experiments.values import same
        >>> same(1, 1.0), same(1, True)
        (True, False)
    """
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def name_of(value: Value) -> str:
    """A value as a part of a folder's name: readable, and different for different values.

    Example:
        >>> from monai_spct.experiments.values import name_of
        >>> [name_of(value) for value in (0.1, True, None, [96, 64], "reduce-overhead", "a/b", "0.1")]
        ['0.1', 'true', 'null', '[96,64]', 'reduce-overhead', 'a%2Fb', '%220.1%22']
    """
    # a string that would be read as something else keeps its quotes, so that "0.1" is not taken for 0.1
    plain = isinstance(value, str) and _reads_as_itself(value)
    text = quote(str(value) if plain else json.dumps(value, separators=(",", ":")), safe="[],+@$")
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST - 9]}~{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def word_of(value: Value) -> str:
    """A value as a word of the command line, which ``python -m monai.bundle run`` reads back as this value.

    Example:
        >>> from monai_spct.experiments.values import word_of
        >>> [word_of(value) for value in (0.1, True, None, [96, 64], "reduce-overhead", "0.1", "a,b")]
        ['0.1', 'True', '$None', '[96, 64]', 'reduce-overhead', "'0.1'", "'a,b'"]
    """
    if value is None:
        return "$None"  # MONAI takes `--key None` for a key that was not given
    # fire reads words as Python where it can; the other words are strings, unless they look like an option
    if not isinstance(value, str) or value.startswith("-") or not same(DefaultParseValue(value), value):
        return repr(value)
    return value


def _reads_as_itself(text: str) -> bool:
    try:
        return bool(yaml.safe_load(text) == text)
    except yaml.YAMLError:
        return True
