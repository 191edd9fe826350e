"""Trainings in the two processes that ``torchrun`` starts, of which one gets SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import ignite.distributed as idist
from ignite.engine import Events
from monai.bundle import ConfigWorkflow

from tests.faults.runs_to_kill import TRAIN
from tests.faults.test_kills import SETTINGS


def run(data: Path, output: Path, settings: dict[str, Any], *, sigterm_after: int | None = None) -> int:
    """The exit status of a training, or 0."""
    files = [str(TRAIN), str(TRAIN.with_name("multi_gpu_train.json"))]
    where = {"dataset_dir": str(data), "output_dir": str(output)}
    workflow = ConfigWorkflow(files, workflow_type="train", logging_file=False, **where, **settings)
    workflow.initialize()
    if sigterm_after is not None and idist.get_rank() == 1:
        trainer = workflow.parser.get_parsed_content("train#trainer")
        trainer.add_event_handler(
            Events.ITERATION_COMPLETED(once=sigterm_after), lambda: os.kill(os.getpid(), signal.SIGTERM)
        )
    try:
        workflow.run()
    except SystemExit as end:
        return int(end.code)  # type: ignore[call-overload]
    return 0


def main(data: Path, output: Path) -> None:
    settings = {**SETTINGS, "max_epochs": 1, "epoch_length": 12, "kept_epochs": []}
    statuses = [
        run(data, output / "whole", settings),
        run(data, output / "parts", settings, sigterm_after=3),
        run(data, output / "parts", {**settings, "resume": True}),
    ]
    (output / f"statuses_{idist.get_rank()}.txt").write_text(str(statuses))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
