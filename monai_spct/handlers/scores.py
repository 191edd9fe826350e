"""Scores and inference time of an evaluation."""

from __future__ import annotations

import json
import logging
import os
import statistics
import time
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from monai.engines.utils import IterationEvents

from monai_spct.files.atomic import replacing
from monai_spct.metrics import VolumeScores, format_table, summarize, write_scores

__all__ = ["SaveInferenceTime", "SaveScores"]

logger = logging.getLogger(__name__)


class SaveScores:
    """Ignite handler for MONAI's evaluators that writes ``scores.csv`` and ``summary.json``, and logs a table.

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

    def __call__(self) -> None:
        """Write now."""
        if idist.get_rank() == 0:
            write_scores(self.metric.rows, self.folder)
            logger.info("scores are in %s\n%s", self.folder, format_table(summarize(self.metric.rows)))


class SaveInferenceTime:
    """Ignite handler for MONAI's evaluators that writes the median time of a slice's prediction to a JSON file.

    Args:
        path: the file. It holds ``seconds_per_slice``, ``volumes`` and ``device``, in words.

    Example:
        >>> from monai_spct.handlers import SaveInferenceTime
        >>> SaveInferenceTime("eval/inference_time.json").path.name
        'inference_time.json'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._seconds: list[float] = []
        self._start = 0.0
        self._device = ""

    def attach(self, engine: Engine) -> None:
        """Measure each volume of ``engine``."""
        engine.add_event_handler(Events.STARTED, self._seconds.clear)
        engine.add_event_handler(Events.ITERATION_STARTED, self._begin)
        engine.add_event_handler(IterationEvents.FORWARD_COMPLETED, self)
        engine.add_event_handler(Events.COMPLETED, self._write)

    def _begin(self) -> None:
        self._start = time.perf_counter()

    def __call__(self, engine: Engine) -> None:
        """A volume is predicted."""
        output: Any = engine.state.output
        prediction = output["pred"]
        if prediction.is_cuda:
            torch.cuda.synchronize(prediction.device)
            self._device = torch.cuda.get_device_name(prediction.device)
        else:
            self._device = f"CPU, {torch.get_num_threads()} threads"
        slices = len(prediction) * prediction.shape[-1]
        self._seconds.append((time.perf_counter() - self._start) / slices)

    def _write(self) -> None:
        if idist.get_rank() > 0 or not self._seconds:
            return
        median = statistics.median(self._seconds)
        record = {"seconds_per_slice": round(median, 6), "volumes": len(self._seconds), "device": self._device}
        with replacing(self.path, "w") as file:
            json.dump(record, file, indent=2)
