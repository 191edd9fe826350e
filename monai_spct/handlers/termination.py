"""SIGTERM as a request, which is heeded where nothing gets lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["Sigterm", "Terminated"]


class Terminated(SystemExit):
    """A run has ended because SIGTERM asked it to; the exit status is that of a process which the signal ended, 143.

    Args:
        message: what was saved.

    Example:
        >>> from monai_spct.handlers import Terminated
        >>> error = Terminated("ended by SIGTERM in epoch 3")
        >>> str(error), error.code
        ('ended by SIGTERM in epoch 3', 143)
    """

    def __init__(self, message: str) -> None:
        super().__init__(128 + signal.SIGTERM)
        self.message = message

    def __str__(self) -> str:
        return self.message


class Sigterm:
    """Notes SIGTERM, which batch systems send some time before they kill, instead of ending the process at once.

    Further ones change nothing: a batch system and ``torchrun`` may both send it. In a thread other than the main one,
    and where the signal is ignored, everything stays as it is.

    Example:
        >>> import os, signal
        >>> from monai_spct.handlers import Sigterm
        >>> sigterm = Sigterm()
        >>> sigterm.heed()
        >>> os.kill(os.getpid(), signal.SIGTERM)
        >>> sigterm.received
        True
        >>> sigterm.leave()
    """

    def __init__(self) -> None:
        self.received = False
        self.at_once: Callable[[], None] | None = None
        self._before: Any = None

    def heed(self) -> None:
        """From now on, note the signal, and call ``at_once`` if there is such a function then."""
        self.received = False
        before = signal.getsignal(signal.SIGTERM)
        if threading.current_thread() is threading.main_thread() and (before == signal.SIG_DFL or callable(before)):
            self._before = before
            signal.signal(signal.SIGTERM, self._note)

    def leave(self) -> None:
        """From now on, the signal has its old effect."""
        self.at_once = None
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - so are handlers called
        if self.received:
            return
        self.received = True
        if self.at_once is not None:
            self.at_once()
