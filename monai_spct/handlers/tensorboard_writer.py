"""TensorBoard's curves of a run that is interrupted and goes on, without a doubled or a missing point."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ignite.distributed as idist
from torch.utils.tensorboard import SummaryWriter

__all__ = ["TensorBoardWriter"]

_SUFFIX = ".training"


class TensorBoardWriter:
    """The ``SummaryWriter`` that all handlers of a training share, with a state that belongs into its checkpoints.

    The state is the length of each of its event files. A run that goes on cuts them there, so that what was written
    between the checkpoint and the kill is not there twice, and writes into a file of its own. A run that starts anew
    over another one lets TensorBoard forget that one's points. Other event files in the folder stay as they are.

    Args:
        log_dir: of TensorBoard. Nothing is written into it before there is something to write.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.handlers import TensorBoardWriter
        >>> log_dir = tempfile.mkdtemp()
        >>> writer = TensorBoardWriter(log_dir)
        >>> writer.add_scalar("loss", 0.5, 1)
        >>> checkpoint = writer.state_dict()
        >>> writer.add_scalar("loss", 0.25, 2)
        >>> writer.flush()
        >>> TensorBoardWriter(log_dir).load_state_dict(checkpoint)
        >>> [file.stat().st_size for file in Path(log_dir).iterdir()] == list(checkpoint["sizes"].values())
        True
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self.log_dir = Path(log_dir)
        self._writer: SummaryWriter | None = None
        self._goes_on = False

    def add_scalar(self, *args: Any, **kwargs: Any) -> None:
        """As that of ``SummaryWriter``."""
        self._open().add_scalar(*args, **kwargs)

    def add_figure(self, *args: Any, **kwargs: Any) -> None:
        """As that of ``SummaryWriter``."""
        self._open().add_figure(*args, **kwargs)

    def flush(self) -> None:
        """Let others read all that was added."""
        if self._writer is not None:
            self._writer.flush()

    def state_dict(self) -> dict[str, dict[str, int]]:
        """The length of each event file, with all in it that was added so far."""
        if idist.get_rank() > 0:
            return {"sizes": {}}
        self.flush()
        sizes = {}
        for path in self._files():
            with path.open("ab") as file:
                os.fsync(file.fileno())  # a checkpoint must not reach the disk before what it knows of
            sizes[path.name] = path.stat().st_size
        return {"sizes": sizes}

    def load_state_dict(self, state_dict: dict[str, dict[str, int]]) -> None:
        """Go on from ``state_dict``: what was written after it is removed."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._goes_on = True
        if idist.get_rank() > 0:
            return
        for path in self._files():
            size = state_dict["sizes"].get(path.name)
            if size is None:
                path.unlink()
            elif path.stat().st_size > size:
                os.truncate(path, size)

    def _files(self) -> list[Path]:
        return sorted(self.log_dir.glob(f"events.out.tfevents.*{_SUFFIX}"))

    def _open(self) -> SummaryWriter:
        if self._writer is None:
            # at its first step, a run that starts anew hides what files before its own have from there on
            purge = None if self._goes_on or not self._files() else 0
            self._writer = SummaryWriter(self.log_dir, purge_step=purge, filename_suffix=_SUFFIX)
        return self._writer
