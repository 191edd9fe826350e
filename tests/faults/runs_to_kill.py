"""A training to be killed, in a process of its own: ``python -m tests.faults.runs_to_kill SETTINGS``."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from ignite.engine import Events
from monai.bundle import ConfigWorkflow

from tests.bundles.little import config

TRAIN = config("train")


def main(settings: dict[str, Any], sigterm_at: list[Any] | None) -> None:
    """What ``python -m monai.bundle run training`` does.

    ``sigterm_at`` names an engine and one of its iterations, counted over the whole process, after which SIGTERM comes.
    """
    workflow = ConfigWorkflow([str(TRAIN)], workflow_type="train", logging_file=False, **settings)
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


if __name__ == "__main__":
    given = map(json.loads, sys.argv[1:])
    sys.argv = ["run"]
    main(*given)
