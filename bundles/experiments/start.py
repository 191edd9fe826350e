"""Run one command of a cell: on a GPU of its own, with a log, and never longer than who has started it.

python start.py LOG EPOCHS COMMAND...
"""

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

LINES = 15  # of a log that are shown when its command has failed
EVERY = 60  # seconds between two looks at the progress


def end_with_the_parent() -> None:
    """Ask Linux for SIGTERM when the parent ends, even if it is killed; a training then saves its state and ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # 1 is PR_SET_PDEATHSIG


def gpus() -> list[str]:
    """The GPUs that there are to choose from."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name.strip() for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name.strip()]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        words = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return []


@contextlib.contextmanager
def free_gpu(names: list[str]) -> Iterator[str | None]:
    """A GPU that no other job of this user has; waits until there is one. Nothing where there are none."""
    # jobs of a batch system number the GPUs that each of them may see
    owner = f"{os.getuid() if hasattr(os, 'getuid') else ''}-{os.environ.get('SLURM_JOB_ID', '')}"
    locks = {
        name: FileLock(Path(tempfile.gettempdir(), f"monai_spct-gpu-{owner}-{name.replace('/', '_')}"))
        for name in names
    }
    while locks:
        for name, lock in locks.items():
            with contextlib.suppress(Timeout), lock.acquire(timeout=0):
                yield name
                return
        time.sleep(1)
    yield None


def epochs_done(log: Path) -> int:
    """How many epochs the history of a training has."""
    with contextlib.suppress(OSError), (log.parent / "eval" / "history.csv").open() as file:
        return max(sum(1 for _ in file) - 1, 0)
    return 0


def main(log: Path, epochs: int, command: list[str]) -> int:
    """Run the command to its end; its status is the result."""
    parent = os.getppid()
    end_with_the_parent()
    if os.getppid() != parent:  # it has ended already
        return 1
    log.parent.mkdir(parents=True, exist_ok=True)
    with free_gpu(gpus()) as gpu, log.open("a", encoding="utf-8") as file:
        file.write(f"\n$ {shlex.join(command)}\n")
        file.flush()
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})},
            preexec_fn=end_with_the_parent,
            process_group=0,  # a terminal's Ctrl-C comes as SIGTERM instead, at which a training saves its state
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: child.terminate())
        status = _watch(child, log, epochs)
    if status:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        sys.stderr.write("\n".join([f"status {status}: {log} ends with", *lines[-LINES:], ""]))
    return 128 - status if status < 0 else status


def _watch(child: subprocess.Popen, log: Path, epochs: int) -> int:
    """Say how far it is from time to time; its exit status in the end."""
    said = first = epochs_done(log)
    start = time.monotonic()
    while True:
        try:
            return child.wait(timeout=EVERY)
        except subprocess.TimeoutExpired:
            done = epochs_done(log)
        if first < done != said:
            left = (epochs - done) * (time.monotonic() - start) / (done - first) / 60
            sys.stderr.write(f"{log.parent}: epoch {done} of {epochs}, {left:.0f} minutes left\n")
            said = done


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
