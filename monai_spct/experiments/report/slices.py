"""What the networks of a finished cell say about chosen slices, for pictures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.bundle import ConfigParser
from monai.transforms import ResampleToMatch
from numpy.typing import NDArray
from torch import Tensor

from monai_spct.experiments.cell import CELL, read_json
from monai_spct.experiments.refusals import GridError
from monai_spct.experiments.results import FinishedCell
from monai_spct.metrics.volume import case_name
from monai_spct.workflow.spelling import did_you_mean

__all__ = ["PredictedSlice", "predicted_slices"]

_NEEDED = ("network", "dataset", "inferer", "structures")


@dataclass(frozen=True, eq=False)  # arrays have no truth value
class PredictedSlice:
    """A slice with its truth and a prediction.

    Args:
        image: gray values ``(H, W)``.
        truth: class indices ``(H, W)``.
        pred: class indices ``(H, W)``.
        entropy: of the predicted probabilities ``(H, W)``, in nats.
        spacing: mm, the size of a pixel along both axes.
        structures: names by class index: all classes but the background.
        case: the name of the volume.
        number: of the slice in its volume, from 1.

    Example:
        >>> import numpy as np
        >>> from monai_spct.experiments.report.slices import PredictedSlice
        >>> plane, classes = np.zeros((8, 8)), np.zeros((8, 8), int)
        >>> PredictedSlice(plane, classes, classes, plane, (1.0, 1.0), {1: "LV"}, "patient001", 5).name
        'patient001:5'
    """

    image: NDArray[np.floating[Any]]
    truth: NDArray[np.integer[Any]]
    pred: NDArray[np.integer[Any]]
    entropy: NDArray[np.floating[Any]]
    spacing: tuple[float, float]
    structures: Mapping[int, str]
    case: str
    number: int

    @property
    def name(self) -> str:
        """Case and number, as :func:`predicted_slices` takes them."""
        return f"{self.case}:{self.number}"


def predicted_slices(
    cell: FinishedCell, wanted: Sequence[str] | int, *, weights: str = "model.pt", data: str | Path | None = None
) -> list[PredictedSlice]:
    """Slices of the cases that a cell was scored on, as its networks see them, on the grid of its preprocessing.

    Network, data and inference are those of the cell's own evaluation, by its recorded configuration, on the CPU. Only
    volumes that are asked for are loaded.

    Args:
        cell: a finished one.
        wanted: slices such as ``patient004_frame01:5``, a case and a number from 1; or how many: of cases spread evenly
            over the sorted ones, so that they are of several patients, the slice on which the true structures are
            largest.
        weights: a file in the cell's ``models``. A training leaves ``epoch_020.pt`` of the epochs in its
            ``kept_epochs``.
        data: where the dataset is now; by default, where it was when the cell was run.

    Returns:
        The slices, in the order of ``wanted``.

    Raises:
        GridError: when there are no such weights, data, cases or slices, or when the configuration is of another kind.

    Example:
        >>> from monai_spct.experiments import finished_cells
        >>> from monai_spct.experiments.report.slices import predicted_slices
        >>> [predicted_slices(cell, ["patient004_frame01:5"]) for cell in finished_cells("nowhere")]
        []
    """
    parser = _parser(cell, _weights(cell, weights), data)
    dataset = parser.get_parsed_content("dataset")
    places = {case_name(item["image"]): place for place, item in enumerate(dataset.data)}
    if len(places) < len(dataset.data):
        raise GridError(f"{cell.folder}: cases of one name cannot be told apart.")
    chosen = _chosen(wanted, sorted(places))

    structures = {int(index): name for index, name in parser.get_parsed_content("structures").items()}
    network, inferer = parser.get_parsed_content("network").eval(), parser.get_parsed_content("inferer")
    volumes: dict[str, list[PredictedSlice]] = {}
    slices = []
    for case, number in chosen:
        if case not in volumes:
            volumes[case] = _predict(case, dataset[places[case]], network, inferer, structures)
        volume = volumes[case]
        if number is None:
            slices.append(max(volume, key=lambda plane: np.isin(plane.truth, list(structures)).sum()))
        elif 1 <= number <= len(volume):
            slices.append(volume[number - 1])
        else:
            raise GridError(f"slices of {case} have numbers from 1 to {len(volume)}, got {number}.")
    return slices


@torch.inference_mode()
def _predict(
    case: str, item: Mapping[str, Any], network: Any, inferer: Any, structures: Mapping[int, str]
) -> list[PredictedSlice]:
    """All slices of a volume."""
    image, label = item["image"], item["label"]
    if label.shape[1:] != image.shape[1:]:  # scores may be those of the original grid, where labels then are
        label = ResampleToMatch(mode="nearest")(label, image)
    probabilities: Tensor = inferer(image[None], network)[0].as_subclass(Tensor)
    if not torch.allclose(probabilities.sum(0), torch.ones(()), atol=1e-3):
        raise GridError("`network` must predict probabilities that sum to 1 over the classes, in evaluation mode.")
    across, down, *_ = image.pixdim.tolist()
    volumes = (image[0], label[0].long(), probabilities.argmax(0), torch.special.entr(probabilities).sum(0))
    planes = zip(*(np.moveaxis(volume.numpy(), 2, 0) for volume in volumes), strict=True)
    return [
        PredictedSlice(gray, truth, pred, entropy, (across, down), structures, case, number)
        for number, (gray, truth, pred, entropy) in enumerate(planes, start=1)
    ]


def _weights(cell: FinishedCell, name: str) -> Path:
    path = cell.folder / "models" / name
    if not path.is_file():
        epoch = re.fullmatch(r"epoch_(\d+)\.pt", name)
        hint = f"weights of epoch {int(epoch[1])} were not kept; set `kept_epochs`" if epoch else "no such weights"
        raise GridError(f"{path}: {hint}.")
    return path


def _parser(cell: FinishedCell, weights: Path, data: str | Path | None) -> Any:
    """The cell's evaluation, told its places, as on the command line."""
    config = read_json(cell.folder / CELL).get("configuration", {}).get("evaluating", {})
    if missing := [key for key in _NEEDED if key not in config]:
        raise GridError(f"the evaluation of {cell.folder} has no `{missing[0]}`: there are no slices to show of it.")
    folder = cell.record.get("dataset_dir") if data is None else str(data)  # none where a component makes the data
    if folder is not None and not folder.startswith(("$", "@", "%")) and not Path(folder).exists():
        raise GridError(f"the data of `{cell.dataset}` are not at {folder}: say where with `data`.")
    places = {"output_dir": str(cell.folder), "ckpt_path": str(weights), "device": torch.device("cpu")}
    return ConfigParser({**config, **places, **({} if folder is None else {"dataset_dir": folder})})


def _chosen(wanted: Sequence[str] | int, cases: Sequence[str]) -> list[tuple[str, int | None]]:
    """Cases and slices; none for the slice that shows most."""
    if isinstance(wanted, int):
        if not 1 <= wanted <= len(cases):
            raise GridError(f"`wanted` must be 1 to {len(cases)} of the cases, got {wanted}.")
        return [(cases[number * len(cases) // wanted], None) for number in range(wanted)]
    chosen: list[tuple[str, int | None]] = []
    for name in wanted:
        case, _, number = name.rpartition(":")
        if not case or not number.isdecimal():
            raise GridError(f"a slice is named like `patient004_frame01:5`, by a case and a number, got `{name}`.")
        if case not in cases:
            raise GridError(f"no case `{case}` was scored.{did_you_mean(case, cases)}")
        chosen.append((case, int(number)))
    return chosen
