"""A command ends when what has started it ends, in whatever way."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from monai_spct.experiments import process
from monai_spct.experiments.process import call, stopped_by_sigterm

# says its number, and sleeps; with `deaf` it does not listen to what asks it to end
SLEEPS = (
    "import os, pathlib, signal, sys, time; "
    "'deaf' in sys.argv and signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(60)"
)


def number_in(path: Path) -> int:
    """The process that writes its number into a file, once it is there."""
    for _ in range(600):
        if path.is_file() and path.read_text():
            return int(path.read_text())
        time.sleep(0.05)
    raise AssertionError(f"nobody wrote {path}")


def is_alive(number: int) -> bool:
    try:
        # a dead one stays in the table until its new parent looks
        return "\nState:\tZ" not in Path(f"/proc/{number}/status").read_text()
    except FileNotFoundError:
        return False


def dies(number: int) -> bool:
    for _ in range(200):
        if not is_alive(number):
            return True
        time.sleep(0.05)
    return False


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="looks at /proc")


@pytest.mark.parametrize("before", ["before\n", "a bar: 50%|###"], ids=["a line", "half a line"])
def test_all_that_a_command_says_is_in_the_log_after_the_command(tmp_path, before):
    log = tmp_path / "training.log"
    log.write_text(before)
    code = "import sys; print('out'); print('error', file=sys.stderr); sys.exit(3)"
    assert call([sys.executable, "-c", code], log) == 3
    command, *said = log.read_text().removeprefix(before).strip().splitlines()
    assert command[:2] == "$ "
    assert shlex.split(command[2:]) == [sys.executable, "-c", code]
    assert said == ["out", "error"]


def test_a_second_passes_between_ticks(tmp_path):
    ticks = []
    assert call([sys.executable, "-c", "import time; time.sleep(1.5)"], tmp_path / "log", lambda: ticks.append(0)) == 0
    assert ticks


def test_a_signal_is_told_from_an_exit_status(tmp_path):
    assert call([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], tmp_path / "log") == -signal.SIGKILL


@needs_proc
@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_command_ends_with_an_interruption(tmp_path, number):
    child = tmp_path / "number"

    def interrupt() -> None:
        number_in(child)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt), stopped_by_sigterm():
        call([sys.executable, "-c", SLEEPS, str(child)], tmp_path / "log")
    thread.join()
    assert not is_alive(number_in(child))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@needs_proc
def test_a_command_that_does_not_listen_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "_GRACE", 0.2)
    child = tmp_path / "number"

    def fail() -> None:
        number_in(child)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        call([sys.executable, "-c", SLEEPS, str(child), "deaf"], tmp_path / "log", fail)
    assert not is_alive(number_in(child))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part is Linux's")
def test_a_command_ends_when_its_parent_is_killed(tmp_path):
    child = tmp_path / "number"
    code = (
        "import pathlib, runpy, sys; "
        "call = runpy.run_path(sys.argv[1])['call']; "
        "call([sys.executable, '-c', sys.argv[2], sys.argv[3], 'deaf'], pathlib.Path(sys.argv[4]))"
    )
    words = [process.__file__, SLEEPS, str(child), str(tmp_path / "log")]
    parent = subprocess.Popen([sys.executable, "-c", code, *words])
    number = number_in(child)
    assert is_alive(number)
    parent.kill()
    parent.wait()
    assert dies(number)
