"""Commands in processes of their own, forked from one that has imported torch and MONAI, which takes seconds each time.

Such a process has words, folder, environment and files of its own, and ends as Python does: after an error with the
words of the hook for errors and the status 1. What is fixed when Python starts, such as the seed of hashes, is not.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from tests.bundles.little import ROOT, environment, python

SECONDS = 540  # after which a process is ended


class Forks:
    """Starts processes, which may run side by side."""

    def __init__(self) -> None:
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.forks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(CUDA_VISIBLE_DEVICES=""),
            cwd=ROOT,
        )

    def start(self, words: list[str], *, cwd: Path, out: Path, err: Path, env: dict[str, str] | None = None) -> int:
        """The number of a new process, whose words go to the end of these files."""
        files = [str(path.absolute()) for path in (out, err)]
        return int(self._ask({"words": words, "cwd": str(cwd), "files": files, "env": env or {}})[0])

    def wait(self, process: int) -> tuple[int, float]:
        """Its exit status, and the seconds that it has worked."""
        status, seconds = self._ask({"wait": process})
        return int(status), float(seconds)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.server.communicate(timeout=60)

    def _ask(self, wanted: dict[str, Any]) -> list[str]:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(wanted) + "\n")
        self.server.stdin.flush()
        return self.server.stdout.readline().split()


@cache
def forks() -> Forks:
    """Those of this process: one, since its imports are what takes long."""
    found = Forks()
    atexit.register(found.close)
    return found


def forked(words: Sequence[object], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """What came of the words that would follow ``python``."""
    if sys.platform != "linux":  # where libraries live through a fork
        return python(list(map(str, words)), cwd, **env)
    [done] = side_by_side([words], cwd, env)
    return done


def side_by_side(
    commands: Sequence[Sequence[object]], cwd: Path, *envs: dict[str, str]
) -> list[subprocess.CompletedProcess[str]]:
    """What came of several."""
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for number, (words, env) in enumerate(zip(commands, envs, strict=True)):
            files = {name: Path(folder, f"{name}_{number}") for name in ("out", "err")}
            given = list(map(str, words))
            started.append((given, forks().start(given, cwd=cwd, env=env, **files), files))
        ended = [(given, forks().wait(process)[0], files) for given, process, files in started]
        return [
            subprocess.CompletedProcess(given, status, *(files[name].read_text() for name in ("out", "err")))
            for given, status, files in ended
        ]


def two_forked(words: Sequence[object]) -> list[subprocess.CompletedProcess[str]]:
    """Two processes that find each other as those of ``torchrun`` do, which end by themselves alone."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(found.getsockname()[1]), "OMP_NUM_THREADS": "1"}
    sizes = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", **where}
    envs = [{**sizes, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    return side_by_side([words] * 2, ROOT, *envs)


# On the other side


def serve() -> list[str] | None:
    """Answer each line; in a new process, come back with its words."""
    while line := sys.stdin.readline():
        wanted = json.loads(line)
        if "wait" in wanted:
            _, status, usage = os.wait4(wanted["wait"], 0)
            print(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, flush=True)  # noqa: T201
        elif process := os.fork():
            print(process, flush=True)  # noqa: T201
        else:
            become(wanted)
            return list(wanted["words"])
    return None


def become(wanted: dict[str, Any]) -> None:
    """Streams, folder and environment of a process."""
    signal.alarm(SECONDS)
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for number, place in enumerate((os.open(os.devnull, os.O_RDONLY), *(os.open(f, append) for f in wanted["files"]))):
        os.dup2(place, number)
        os.close(place)
    os.chdir(wanted["cwd"])
    os.environ.update(wanted["env"])
    sys.path.insert(0, wanted["cwd"])


def run(words: list[str]) -> None:
    """What Python does with them."""
    first, *rest = words
    if first == "-W":
        action, _, category = rest[0].partition("::")
        warnings.simplefilter(action, getattr(builtins, category or "Warning"))  # type: ignore[arg-type]
        run(rest[1:])
    elif first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec", dont_inherit=True), {"__name__": "__main__"})
    else:
        sys.argv = words
        runpy.run_path(first, run_name="__main__")


def end(words: list[str]) -> NoReturn:
    """Run to the end, but for the memory, which takes a second to tidy up."""
    status: object = 0
    try:
        run(words)
    except SystemExit as error:
        status = error.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    if not isinstance(status, int | None):
        print(status, file=sys.stderr)  # noqa: T201
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


if __name__ == "__main__":
    # torch._dynamo is imported by a run's first step, in each process anew, if not here
    for module in ("monai.bundle", "monai_spct.cli", "monai_spct.workflow.cells", "torch._dynamo"):
        importlib.import_module(module)
    gc.freeze()  # or collections would copy what all have in common
    words = serve()
    if words is not None:
        end(words)
