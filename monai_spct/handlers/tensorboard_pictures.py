"""Pictures of validations among the curves of TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ignite.distributed as idist
from ignite.engine import Engine, Events
from torch.utils.tensorboard import SummaryWriter

from monai_spct.handlers.cases import CaseNames
from monai_spct.handlers.pictures import volume_pictures
from monai_spct.handlers.tensorboard_writer import TensorBoardWriter

__all__ = ["TensorBoardPictures"]

_DPI = 90  # of a picture that is shown smaller than a file is, and written again and again


class TensorBoardPictures:
    """Ignite handler for the evaluator that validates: the first volumes, with contours, under ``validation/<case>``.

    The same volumes come in every epoch, so that TensorBoard's slider shows how their predictions change. MONAI's
    ``TensorBoardImageHandler`` has image, truth and prediction apart from each other, as gray animations.

    Args:
        writer: of TensorBoard.
        structures: names by class index.
        max_pictures: how many volumes.
        slices: which slices, or how many; see :func:`contour_picture`.

    Raises:
        ValueError: while it draws, as :class:`SavePictures`, which reads the same.

    Example:
        >>> import tempfile, torch
        >>> from ignite.engine import Engine
        >>> from monai_spct.handlers import TensorBoardPictures, TensorBoardWriter
        >>> evaluator = Engine(lambda engine, batch: batch)  # in place of a `SupervisedEvaluator` with `decollate=True`
        >>> item = {"case": "patient001", "image": torch.ones(1, 16, 16, 4), "pred": torch.ones(1, 16, 16, 4)}
        >>> writer = TensorBoardWriter(tempfile.mkdtemp())
        >>> TensorBoardPictures(writer, structures={1: "LV"}).attach(evaluator)
        >>> _ = evaluator.run([[item]])
    """

    def __init__(
        self,
        writer: SummaryWriter | TensorBoardWriter,
        *,
        structures: Mapping[int, str] | Mapping[str, str],
        max_pictures: int = 2,
        slices: int | Sequence[int] = 4,
    ) -> None:
        self.writer: Any = writer
        self.structures = {int(index): name for index, name in structures.items()}  # JSON has no numbers as keys
        self.max_pictures = max_pictures
        self.slices = slices
        self._names = CaseNames()

    def attach(self, engine: Engine) -> None:
        """Draw after each iteration of ``engine``, and start counting with each of its runs."""
        if idist.get_rank() > 0:
            return
        engine.add_event_handler(Events.STARTED, self._names.forget)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        """Draw the volumes of one iteration."""
        settings: dict[str, Any] = {"max_pictures": self.max_pictures, "slices": self.slices, "steady": True}
        for name, figure in volume_pictures(
            engine, type(self).__name__, self._names, structures=self.structures, **settings
        ):
            figure.set_dpi(_DPI)
            self.writer.add_figure(f"validation/{name}", figure, engine.state.epoch)
            self.writer.flush()
