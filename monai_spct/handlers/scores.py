"""What an evaluation found, as files and as a table on the screen."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import ignite.distributed as idist
from ignite.engine import Engine, Events

from monai_spct.metrics import VolumeScores, format_table, summarize, write_scores

__all__ = ["SaveScores"]

logger = logging.getLogger(__name__)


class SaveScores:
    """Ignite handler for MONAI's evaluators: ``scores.csv``, ``summary.json`` and a table in the log at the end.

    Args:
        folder: where the files go.
        metric: the evaluator's metric, which holds the scores.

    Example:
        >>> from monai_spct.handlers import SaveScores
        >>> from monai_spct.metrics import VolumeScores
        >>> SaveScores("eval", VolumeScores(structures=["LV"])).folder.name
        'eval'
    """

    def __init__(self, folder: str | os.PathLike[str], metric: VolumeScores) -> None:
        self.folder = Path(folder)
        self.metric = metric

    def attach(self, engine: Engine) -> None:
        """Write whenever an evaluation of ``engine`` ends."""
        engine.add_event_handler(Events.COMPLETED, self)

    def __call__(self, engine: Engine) -> None:  # noqa: ARG002 - an event passes its engine
        """Write now."""
        if idist.get_rank() > 0:
            return
        write_scores(self.metric.rows, self.folder)
        logger.info("scores are in %s\n%s", self.folder, format_table(summarize(self.metric.rows)))
