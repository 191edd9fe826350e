"""The cause of an error that MONAI wraps in others."""

from __future__ import annotations

import sys
from types import TracebackType

__all__ = ["cause_of", "in_words", "put_the_cause_last"]


def cause_of(error: BaseException) -> BaseException:
    """The first error behind ``error`` that MONAI's parser or transforms did not raise themselves.

    Example:
        >>> from monai_spct.workflow import cause_of
        >>> cause_of(ValueError("`alpha` must be positive, got -1."))
        ValueError('`alpha` must be positive, got -1.')
    """
    while error.__cause__ is not None and _raised_by_monai(error):
        error = error.__cause__
    return error


def in_words(error: BaseException) -> str:
    """The message of the cause of ``error``.

    Example:
        >>> from monai_spct.workflow import in_words
        >>> in_words(KeyError("split"))
        "KeyError: 'split'"
    """
    cause = cause_of(error)
    # of a KeyError, the message alone is a name without a sentence
    return str(cause) if isinstance(cause, OSError | ValueError) else f"{type(cause).__name__}: {cause}"


def put_the_cause_last() -> None:
    """End the traceback of this process with the cause, where MONAI wraps it in errors that name components.

    Example:
        >>> from monai_spct.workflow import put_the_cause_last
        >>> put_the_cause_last()
    """
    before = sys.excepthook
    if getattr(before, "puts_the_cause_last", False):
        return

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        before(kind, error, traceback)
        if cause_of(error) is not error:
            sys.stderr.write(f"\nWhat went wrong: {in_words(error)}\n")

    hook.puts_the_cause_last = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def _raised_by_monai(error: BaseException) -> bool:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and str(frame.tb_frame.f_globals.get("__name__", "")).split(".")[0] == "monai"
