"""A child process that never outlives this one."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

__all__ = ["call", "stopped_by_sigterm"]

_GRACE = 10.0  # seconds that a child has to end when it is asked to
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


def call(command: Sequence[str], log: Path, tick: Callable[[], object] = lambda: None) -> int:
    """Run a command to its end, with all that it says at the end of a log.

    Whatever ends this process ends the command too: an exception such as ``KeyboardInterrupt``, and on Linux also a
    signal that cannot be caught. So nobody trains on in a cell that the kernel has unlocked.

    Args:
        command: its words.
        log: the file; it is appended to.
        tick: called every second.

    Returns:
        The exit status; minus the number of a signal.

    Example:
        >>> import sys, tempfile
        >>> from pathlib import Path
        >>> from monai_spct.experiments.process import call
        >>> log = Path(tempfile.mkdtemp()) / "training.log"
        >>> call([sys.executable, "-c", "print('hello')"], log)
        0
        >>> log.read_text().splitlines()[-1]
        'hello'
    """
    # what was killed may have ended within a line, for example that of a progress bar
    start = "" if not log.is_file() or log.read_bytes()[-1:] in (b"", b"\n") else "\n"
    with log.open("a", encoding="utf-8") as file, warnings.catch_warnings():
        file.write(f"{start}$ {shlex.join(command)}\n")
        file.flush()
        # Python 3.12 and newer warn of any work between fork and exec in a process with threads; this is one call
        warnings.simplefilter("ignore", DeprecationWarning)
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},  # a log that can be followed, and is complete after a kill
            preexec_fn=_end_with(os.getpid()) if sys.platform == "linux" else None,
        )
    try:
        while True:
            try:
                return child.wait(timeout=1)
            except subprocess.TimeoutExpired:
                tick()
    except BaseException:
        child.terminate()
        try:
            child.wait(timeout=_GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM, which clusters send before they kill, do what Ctrl-C does.

    Example:
        >>> import os, signal
        >>> from monai_spct.experiments.process import stopped_by_sigterm
        >>> try:
        ...     with stopped_by_sigterm():
        ...         os.kill(os.getpid(), signal.SIGTERM)
        ... except KeyboardInterrupt:
        ...     print("stopped")
        stopped
    """

    def stop(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    if threading.current_thread() is not threading.main_thread():  # no other may handle signals
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_with(parent: int) -> Callable[[], None]:
    libc = ctypes.CDLL(None, use_errno=True)  # loaded here: after a fork, the less is done the better

    def ask_the_kernel() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has died already
            os._exit(1)

    return ask_the_kernel
