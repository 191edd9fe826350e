import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from monai_spct.workflow import bundles_folder

SCRIPT = bundles_folder() / "experiments" / "start.py"
spec = importlib.util.spec_from_file_location("start", SCRIPT)
start = importlib.util.module_from_spec(spec)
spec.loader.exec_module(start)

SHOW = "import os; print('on', os.environ['CUDA_VISIBLE_DEVICES'])"


@pytest.fixture(autouse=True)
def own_locks(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def test_each_job_has_a_gpu_of_its_own_and_waits_for_one():
    names, third = ["7", "GPU-9"], []

    def wait():
        with start.free_gpu(names) as gpu:
            third.append(gpu)

    with start.free_gpu(names) as first:
        with start.free_gpu(names) as second:
            assert (first, second) == ("7", "GPU-9")
            waiting = threading.Thread(target=wait)
            waiting.start()
            time.sleep(0.5)
            assert not third
        waiting.join(10)
    assert third == ["GPU-9"]


def test_without_gpus_nobody_waits(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with start.free_gpu(start.gpus()) as one, start.free_gpu(start.gpus()) as other:
        assert (one, other) == (None, None)


def run(log, *command, **env):
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(log), "4", *command],
        env={**os.environ, **env}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_a_command_sees_one_gpu_and_its_words_are_in_a_log(tmp_path):
    log = tmp_path / "new" / "training.log"
    assert run(log, sys.executable, "-c", SHOW, CUDA_VISIBLE_DEVICES="7,9").returncode == 0
    assert run(log, sys.executable, "-c", SHOW, CUDA_VISIBLE_DEVICES="9").returncode == 0
    assert [line for line in log.read_text().splitlines() if line.startswith("on")] == ["on 7", "on 9"]


def test_a_failure_is_shown(tmp_path):
    done = run(tmp_path / "training.log", sys.executable, "-c", "raise SystemExit('no memory left')")
    assert done.returncode == 1
    assert f"status 1: {tmp_path / 'training.log'} ends with" in done.stderr
    assert "no memory left" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a process that its parent has ended")
@pytest.mark.parametrize("how", ["the parent is killed", "it is killed", "Ctrl-C"])
def test_a_command_ends_with_who_started_it(tmp_path, how):
    """And is asked to by SIGTERM, at which a training saves its state."""
    log, said = (
        tmp_path / "log",
        "import signal, time; signal.signal(15, lambda *_: exit(print('asked'))); print('up'); ",
    )
    words = [sys.executable, str(SCRIPT), str(log), "4", sys.executable, "-uc", f"{said}time.sleep(60)"]
    middle = (
        "import subprocess, sys; child = subprocess.Popen(sys.argv[1:]); print(child.pid, flush=True); child.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", middle, *words], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        until(lambda: log.is_file() and "\nup" in log.read_text())
        if how == "the parent is killed":
            parent.kill()
        else:
            os.kill(pid, signal.SIGKILL if how == "it is killed" else signal.SIGINT)
        until(lambda: "asked" in log.read_text())


def until(true, seconds=30):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)
