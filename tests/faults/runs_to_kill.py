"""Trainings in processes of their own, to be killed: a server forks one for each, so that torch is imported once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # by a run's first step, in each fork anew, if not here
from ignite.engine import Events
from monai.bundle import ConfigWorkflow

from tests.bundles.little import ROOT, config, environment

TRAIN = config("train")


def train(output: str, settings: dict[str, Any], sigterm_at: list[Any] | None) -> None:
    """What ``python -m monai.bundle run training`` does.

    ``sigterm_at`` names an engine and one of its iterations, counted over the whole process, after which SIGTERM comes.
    """
    workflow = ConfigWorkflow([str(TRAIN)], workflow_type="train", logging_file=False, **settings, output_dir=output)
    workflow.initialize()
    if sigterm_at is not None:
        engine = workflow.parser.get_parsed_content(sigterm_at[0])
        left = [sigterm_at[1]]

        def send() -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGTERM)

        engine.add_event_handler(Events.ITERATION_COMPLETED, send)
    workflow.run()
    workflow.finalize()


def serve() -> None:
    """For each line of JSON, fork a training, say its number, and then how it ended."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        wanted = json.loads(line)
        child = os.fork()
        if child == 0:
            status: Any = 1
            with open(wanted.pop("log"), "ab", buffering=0) as log:  # noqa: PTH123
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            sys.argv = ["run"]
            try:
                train(**wanted)
                status = 0
            except SystemExit as end:
                status = end.code
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        print(child, flush=True)  # noqa: T201
        _, status, usage = os.wait4(child, 0)
        print(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, flush=True)  # noqa: T201


@dataclass
class Ended:
    """How a training ended, how many seconds it worked, and what it said."""

    status: int
    seconds: float
    log: str


class Server:
    """The server, in a process of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.runs_to_kill"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(CUDA_VISIBLE_DEVICES=""),
            cwd=ROOT,
        )

    def start(self, output: Path, *, sigterm_at: list[Any] | None = None, **settings: Any) -> int:
        """Start a training; its process."""
        self.log = output.with_suffix(".log")
        wanted = {"output": str(output), "log": str(self.log), "settings": settings, "sigterm_at": sigterm_at}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(wanted) + "\n")
        self.process.stdin.flush()
        return int(self._line())

    def wait(self) -> Ended:
        """Wait for its end."""
        status, seconds = self._line().split()
        return Ended(int(status), float(seconds), self.log.read_text())

    def close(self) -> None:
        self.process.communicate(timeout=60)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


if __name__ == "__main__":
    serve()
