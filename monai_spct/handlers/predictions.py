"""Predictions as NIfTI files on the grid of their images."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
from ignite.engine import Engine, Events
from torch import Tensor

from monai_spct.data import save_like
from monai_spct.handlers.cases import CaseNames, source_of

__all__ = ["SavePredictions"]

logger = logging.getLogger(__name__)


class SavePredictions:
    """Ignite handler for MONAI's evaluators that writes each prediction to ``<case>.nii.gz``.

    Cases are named by their entry ``case`` in the batch, or else by their image file. Reads the evaluator's output
    after postprocessing and decollation: ``image``, whose file gives the grid, ``pred``, class indices ``(1, *S)``, and
    if there is one ``uncertainty``, ``(1, *S)``, which goes to ``<case>_uncertainty.nii.gz``.

    Args:
        folder: where the files go.

    Raises:
        ValueError: when an image does not name its file, or two images of a run have one name.

    Example:
        >>> from monai_spct.handlers import SavePredictions
        >>> SavePredictions("predictions").folder.name
        'predictions'
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.names = CaseNames()

    def attach(self, engine: Engine) -> None:
        """Write after each iteration of ``engine``."""
        engine.add_event_handler(Events.STARTED, self.names.forget)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        """Write the volumes of this iteration."""
        state: Any = engine.state
        for case, item in zip(state.batch, state.output, strict=True):
            source = source_of(item["image"])
            if source is None:
                raise ValueError("`SavePredictions` needs images that name their file: load them with `LoadImaged`.")
            name = self.names(case, item["image"])
            save_like(_array(item["pred"]), source, self.folder / f"{name}.nii.gz", prediction=True)
            if "uncertainty" in item:
                target = self.folder / f"{name}_uncertainty.nii.gz"
                save_like(_array(item["uncertainty"]), source, target, dtype=np.float32, prediction=True)
            logger.info("wrote %s", self.folder / f"{name}.nii.gz")


def _array(item: Tensor) -> np.ndarray[Any, Any]:
    volume: np.ndarray[Any, Any] = np.asarray(item.detach().cpu())[0]
    return volume
