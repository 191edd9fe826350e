"""A table of the cases of an evaluator, the least certain first."""

from __future__ import annotations

import csv
import logging
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from monai.engines.utils import IterationEvents
from monai.utils.type_conversion import convert_to_tensor
from scipy.stats import spearmanr

from monai_spct.files.atomic import replacing
from monai_spct.handlers.cases import CaseNames, source_of
from monai_spct.inferers import VolumeInferer
from monai_spct.metrics import VolumeScores, expected_dice
from monai_spct.networks import Ensemble
from monai_spct.networks.ensemble import VoteWithEntropy

__all__ = ["SaveRanking"]

logger = logging.getLogger(__name__)


@dataclass
class _Case:
    case: str
    image: str
    expected_dsc: float
    entropy: float
    disagreement: float | None
    dsc: float | None = None


class SaveRanking:
    """Ignite handler for MONAI's evaluators that writes a table of the cases, the least certain first.

    The columns are ``case``; ``image``, its file; ``expected_dsc``, the mean over structures of
    :func:`~monai_spct.metrics.expected_dice`, by which they are sorted, the lowest first; ``entropy`` of the vote and
    ``disagreement`` of the networks, that is their generalized Jensen-Shannon divergence, both in nats, summed over all
    voxels and divided by the expected number of voxels of structures; and ``dsc``, the true mean, if there is a metric.
    One network does not disagree, and leaves its column empty, as other inferers do.

    Reads probabilities ``pred`` ``(B, C, *S)`` before postprocessing, on the voxels that networks see. Where the
    inferer is a :class:`~monai_spct.inferers.VolumeInferer`, it has an :class:`~monai_spct.networks.Ensemble` of
    several networks tell its mean entropy beside its vote.

    Args:
        path: the file.
        metric: the evaluator's metric, which holds the scores, where there are labels.

    Example:
        >>> from monai_spct.handlers import SaveRanking
        >>> SaveRanking("predictions/ranking.csv").path.name
        'ranking.csv'
    """

    def __init__(self, path: str | os.PathLike[str], *, metric: VolumeScores | None = None) -> None:
        self.path = Path(path)
        self.metric = metric
        self.names = CaseNames()
        self._rows: list[_Case] = []
        self._numbers: list[tuple[float, float, float | None]] = []  # of the volumes of this iteration

    def attach(self, engine: Engine) -> None:
        """Look at each prediction of ``engine``, and write when all are made."""
        engine.add_event_handler(Events.STARTED, self._start)
        engine.add_event_handler(IterationEvents.FORWARD_COMPLETED, self)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._name)
        engine.add_event_handler(Events.COMPLETED, self._write)

    def _start(self, engine: Any) -> None:
        self.names.forget()
        self._rows.clear()
        votes = isinstance(engine.network, Ensemble) and len(engine.network.networks) > 1
        if votes and isinstance(engine.inferer, VolumeInferer):  # another one might not expect a further channel
            engine.network = VoteWithEntropy(engine.network)

    def __call__(self, engine: Any) -> None:
        """Volumes are predicted."""
        output, each = engine.state.output, None
        if isinstance(engine.network, VoteWithEntropy):
            output["pred"], each = output["pred"][:, :-1], convert_to_tensor(output["pred"], track_meta=False)[:, -1]
        probs = convert_to_tensor(output["pred"], track_meta=False).float()
        vote = torch.special.entr(probs).sum(1)
        self._numbers = []
        for place, dsc in enumerate(expected_dice(probs).mean(1)):
            voxels = (1 - probs[place, 0]).sum()  # of all structures, as many as are to be expected
            spread = None if each is None else float((vote[place] - each[place]).sum() / voxels)
            self._numbers.append((float(dsc), float(vote[place].sum() / voxels), spread))

    def _name(self, engine: Any) -> None:
        state = engine.state
        for case, item, numbers in zip(state.batch, state.output, self._numbers, strict=True):
            image = item["image"]
            self._rows.append(_Case(self.names(case, image), source_of(image) or "", *numbers))

    def _write(self) -> None:
        if idist.get_rank() > 0:
            return
        if self.metric is not None:
            self._add_truth(self.metric)
        names = [field.name for field in fields(_Case) if field.name != "dsc" or self.metric is not None]
        with replacing(self.path, "w") as file:
            writer = csv.DictWriter(file, names, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            for row in sorted(self._rows, key=lambda row: row.expected_dsc):
                numbers = {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(row).items()}
                writer.writerow(numbers)
        logger.info("cases are in %s, the least certain first", self.path)

    def _add_truth(self, metric: VolumeScores) -> None:
        for row in self._rows:
            scores = [score.dsc for score in metric.rows if score.case == row.case]
            row.dsc = sum(scores) / len(scores) if scores else None
        known = [(row.expected_dsc, row.dsc) for row in self._rows if row.dsc is not None]
        if all(len(set(numbers)) > 1 for numbers in zip(*known, strict=True)) and len(known) > 2:
            rho = spearmanr(*zip(*known, strict=True)).statistic
            logger.info("Spearman correlation of expected and true DSC of %d cases: %.2f", len(known), rho)
