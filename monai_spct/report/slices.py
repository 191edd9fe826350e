"""Predictions of a run for chosen slices."""

from __future__ import annotations

import json
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

from monai_spct.data.case_names import case_names
from monai_spct.functional.spelling import did_you_mean
from monai_spct.report.runs import Run

__all__ = ["PredictedSlice", "predicted_slices"]


@dataclass(frozen=True, eq=False)  # arrays have no truth value
class PredictedSlice:
    """A slice with its truth and a prediction.

    Args:
        image: gray values ``(H, W)``, of the first channel.
        truth: class indices ``(H, W)``.
        pred: class indices ``(H, W)``.
        entropy: of the predicted probabilities ``(H, W)``, in nats.
        spacing: mm, the size of a pixel along both axes.
        structures: names by class index: all classes but the background.
        case: the name of the volume.
        number: of the slice in its volume, from 1.
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


@torch.inference_mode()
def predicted_slices(
    run: Run, wanted: Sequence[str] | int, *, weights: str = "model.pt", data: str | Path | None = None
) -> list[PredictedSlice]:
    """Slices of a run's test cases with predictions, on the grid of its preprocessing.

    Network, data and inference are those of the run's own evaluation, by its recorded configuration, on the CPU.

    Args:
        run: a finished one.
        wanted: slices such as ``patient004_frame01:5``, counted from 1; or a number of cases, spread evenly over the
            sorted ones, of each of which the slice with the largest true structures is taken.
        weights: a file in the run's ``models``, such as ``epoch_020.pt`` for one of the ``kept_epochs``.
        data: where the dataset is now; by default, where it was for the run.

    Returns:
        The slices, in the order of ``wanted``.

    Raises:
        ValueError: when there are no such weights, data, cases or slices, or when the configuration is of another kind.
    """
    parser = _evaluation(run, weights, data)
    dataset = parser.get_parsed_content("dataset")
    places = {name: place for place, name in enumerate(_names(dataset.data))}
    structures = {int(index): name for index, name in parser.get_parsed_content("structures").items()}
    network, inferer = parser.get_parsed_content("network").eval(), parser.get_parsed_content("inferer")
    volumes: dict[str, list[PredictedSlice]] = {}
    slices = []
    for case, number in _chosen(wanted, sorted(places)):
        if case not in volumes:
            volumes[case] = _predict(case, dataset[places[case]], network, inferer, structures)
        volume = volumes[case]
        if number is None:
            slices.append(max(volume, key=lambda plane: np.isin(plane.truth, list(structures)).sum()))
        elif 1 <= number <= len(volume):
            slices.append(volume[number - 1])
        else:
            raise ValueError(f"slices of {case} have numbers from 1 to {len(volume)}, got {number}.")
    return slices


def _names(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Case names, as in the scores."""
    images = [case["image"] if isinstance(case["image"], str) else case["image"][0] for case in cases]
    return [str(case.get("case", name)) for case, name in zip(cases, case_names(images), strict=True)]


def _predict(
    case: str, item: Mapping[str, Any], network: Any, inferer: Any, structures: Mapping[int, str]
) -> list[PredictedSlice]:
    """All slices of a volume."""
    image, label = item["image"], item["label"]
    if label.shape[1:] != image.shape[1:]:  # scores may be those of the original grid, where labels then are
        label = ResampleToMatch(mode="nearest")(label, image)
    probabilities: Tensor = inferer(image[None], network)[0].as_subclass(Tensor)
    if not torch.allclose(probabilities.sum(0), torch.ones(()), atol=1e-3):
        raise ValueError("`network` must predict probabilities that sum to 1 over the classes, in evaluation mode.")
    across, down, *_ = image.pixdim.tolist()
    volumes = (image[0], label[0].long(), probabilities.argmax(0), torch.special.entr(probabilities).sum(0))
    planes = zip(*(np.moveaxis(volume.numpy(), 2, 0) for volume in volumes), strict=True)
    return [
        PredictedSlice(gray, truth, pred, entropy, (across, down), structures, case, number)
        for number, (gray, truth, pred, entropy) in enumerate(planes, start=1)
    ]


def _evaluation(run: Run, weights: str, data: str | Path | None) -> ConfigParser:
    """The configuration of the run's evaluation, with its paths."""
    path = run.folder / "models" / weights
    if not path.is_file():
        raise ValueError(f"there is no {path}; `kept_epochs` says of which epochs a training keeps the weights.")
    config = run.record.get("configuration", {}).get("evaluating", {})
    if missing := [key for key in ("network", "dataset", "inferer", "structures") if key not in config]:
        raise ValueError(f"the evaluation of {run.folder} has no `{missing[0]}`: there are no slices to show of it.")
    folder = run.record.get("dataset_dir") if data is None else str(data)  # none where a component makes the data
    if folder is not None and not Path(folder).exists():
        raise ValueError(f"the data of `{run.labels['dataset']}` are not at {folder}: say where with `data`.")
    record = path.with_name("model.json")  # what an evaluation takes over from the training
    trained = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    places = {"output_dir": str(run.folder), "ckpt_path": str(path), "device": torch.device("cpu")}
    return ConfigParser({**config, **trained, **places, **({} if folder is None else {"dataset_dir": folder})})


def _chosen(wanted: Sequence[str] | int, cases: Sequence[str]) -> list[tuple[str, int | None]]:
    """Cases and slice numbers; none for the slice with the largest structures."""
    if isinstance(wanted, int):
        if not 1 <= wanted <= len(cases):
            raise ValueError(f"`slices` must be 1 to {len(cases)}, the number of cases, got {wanted}.")
        return [(cases[number * len(cases) // wanted], None) for number in range(wanted)]
    chosen: list[tuple[str, int | None]] = []
    for name in wanted:
        case, _, number = name.rpartition(":")
        if not case or not number.isdecimal():
            raise ValueError(f"a slice is named like `patient004_frame01:5`, by a case and a number, got `{name}`.")
        if case not in cases:
            raise ValueError(f"no case `{case}` was scored.{did_you_mean(case, cases)}")
        chosen.append((case, int(number)))
    return chosen
