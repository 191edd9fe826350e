"""A bundle of its own for a data set."""

from __future__ import annotations

import json
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from monai.bundle import ConfigParser

from monai_spct.data import Split, write_datalist
from monai_spct.handlers import contour_picture
from monai_spct.plan.choices import Choice
from monai_spct.plan.survey import Survey
from monai_spct.workflow import bundles_folder

__all__ = ["write_plan"]

_ACDC = bundles_folder() / "acdc" / "configs"
_PICTURES = 3
_OF_A_SPLIT = {  # keys that a datalist replaces
    *("cases", "dataset_dir", "labeled_ratio", "labeled_patients", "test_ratio", "num_test", "num_validation"),
    *("split_seed", "patient_order"),
}
_OF_THE_DATA = (  # keys that prediction has in common with the training
    *("structures", "in_channels", "spatial_dims", "label_values", "intensity", "resampling", "crop_size", "backbone"),
    *("largest_component", "structures_touch", "test_time_augmentation"),
)


def write_plan(
    found: Survey, split: Split, choices: Sequence[Choice], to: str | Path, *, channels: Sequence[str] = ()
) -> None:
    """Write a bundle that trains on a data set, with a datalist, a page on what was chosen, and pictures.

    Its configs are those for ACDC with ``augmentations/strong.json``, ``methods/best.json`` and what was chosen. The
    folder is there when it is complete, or not at all.

    Args:
        found: what the data are like.
        split: who is labeled, validated and tested.
        choices: settings of ``train.json``.
        to: a folder that does not exist yet.
        channels: how the names of an image's channels end, for inference.

    Raises:
        FileExistsError: if ``to`` exists.

    Example:
        >>> import tempfile
        >>> from monai_spct.data import acdc_cases, split_cases, write_acdc_phantom
        >>> from monai_spct.plan import Machine, choose, survey, write_plan
        >>> folder = Path(tempfile.mkdtemp())
        >>> found = survey(acdc_cases(write_acdc_phantom(folder / "acdc", patients=4)))
        >>> split = split_cases(found.cases, labeled_patients=1)
        >>> write_plan(found, split, choose(found, Machine.here()), folder / "heart")
        >>> sorted(path.name for path in (folder / "heart").iterdir())
        ['configs', 'datalist.json', 'docs']
    """
    to = Path(to).expanduser().absolute()
    if to.exists():
        raise FileExistsError(f"{to} exists: give another name, or move it away.")
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{to.name}-", dir=to.parent) as place:
        part = Path(place) / to.name
        (part / "configs").mkdir(parents=True)
        for name in ("logging.conf", "multi_gpu_train.json"):
            shutil.copy(_ACDC / name, part / "configs")
        configs = _configs(choices, split, channels) | {"metadata": _metadata(to.name, choices)}
        for name, config in configs.items():
            (part / "configs" / f"{name}.json").write_text(json.dumps(config, indent=4) + "\n")
        write_datalist(split, part / "datalist.json")
        (part / "docs").mkdir()
        drawn = list({case["patient"]: case for case in split.labeled}.values())[:_PICTURES]
        _draw(drawn, configs["train"], part / "docs")
        (part / "docs" / "README.md").write_text(_page(found, split, choices, to, drawn), encoding="utf-8")
        part.rename(to)


def _configs(choices: Sequence[Choice], split: Split, channels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Complete configs, so that each command needs one file."""
    bundles = bundles_folder()
    overlays = [bundles / "augmentations" / "strong.json", bundles / "methods" / "best.json"]
    train = _read(_ACDC / "train.json", *overlays) | {choice.key: choice.value for choice in choices}
    evaluate, inference = (
        config | {key: train[key] for key in _OF_THE_DATA if key in config}
        for config in (_read(_ACDC / "evaluate.json"), _read(_ACDC / "inference.json"))
    )
    listed = {
        "datalist": "$@bundle_root + '/datalist.json'",
        "split": {"_target_": "monai_spct.data.read_datalist", "path": "@datalist"},
    }
    train, evaluate = (
        {key: value for key, value in config.items() if key not in _OF_A_SPLIT} | listed for config in (train, evaluate)
    )
    evaluate["scored"] = "validation" if split.validation and not split.test else "test"
    inference |= {"dataset_dir": "new_scans", "channels": list(channels) or None}
    return {"train": train, "evaluate": evaluate, "inference": inference}


def _read(*files: Path) -> dict[str, Any]:
    parser = ConfigParser()
    parser.read_config([str(file) for file in files])
    return {key: value for key, value in parser.get().items() if key != "_meta_"}


def _metadata(name: str, choices: Sequence[Choice]) -> dict[str, Any]:
    """As the model zoo wants it."""
    chosen = {choice.key: choice.value for choice in choices}
    structures, channels = chosen["structures"].values(), chosen["in_channels"]
    classes = {str(number): name for number, name in enumerate(["background", *structures])}
    metadata = _read(_ACDC / "metadata.json")
    image, pred = metadata["network_data_format"]["inputs"]["image"], metadata["network_data_format"]["outputs"]["pred"]
    for tensor, meaning in ((image, {str(n): f"channel {n}" for n in range(channels)}), (pred, classes)):
        shape = ["*"] * chosen["spatial_dims"]
        tensor |= {"num_channels": len(meaning), "spatial_shape": shape, "channel_def": meaning}
    image["modality"] = "n/a"
    return metadata | {
        "version": "0.1.0",
        "changelog": {"0.1.0": "planned"},
        "name": name,
        "task": f"Semi-supervised segmentation of {', '.join(structures)}",
        "description": f"Segmentation of {', '.join(structures)}, learned from few labeled and many unlabeled images.",
        "authors": "",
        "copyright": "",
        "data_source": "",
        "image_classes": f"{channels} channel{'s' * (channels > 1)}, scaled to [0, 1]",
        "label_classes": ", ".join(f"{number} {of}" for number, of in classes.items()),
    }


def _draw(cases: Sequence[Mapping[str, Any]], train: Mapping[str, Any], folder: Path) -> None:
    """Pictures of labeled cases as the networks see them, but for augmentation."""
    parser: Any = ConfigParser(dict(train))
    parser.resolve_macro_and_relative_ids()
    preprocess = parser.get_parsed_content("preprocessing")
    names = {int(number): name for number, name in train["structures"].items()}
    for case in cases:
        seen = preprocess(dict(case))
        figure = contour_picture(
            seen["image"][0],
            seen["label"][0],
            structures=names,
            title=case["case"],
            spacing=seen["image"].pixdim.tolist(),
        )
        figure.savefig(folder / f"{case['case']}.png")


def _page(found: Survey, split: Split, choices: Sequence[Choice], to: Path, drawn: Sequence[Mapping[str, Any]]) -> str:
    run = "python -m monai.bundle run"
    configs = shlex.quote(str(to / "configs"))
    commands = [f"{run} training --config_file {configs}/train.json"]
    if split.test or split.validation:
        commands.append(f"{run} evaluating --config_file {configs}/evaluate.json")
    commands.append(f"{run} inferring --config_file {configs}/inference.json --dataset_dir new_scans")
    rows = [f"| `{choice.key}` | {_shown(choice.value)} | {choice.why} |" for choice in choices]
    pictures = [f"![{case['case']}]({quote(case['case'])}.png)" for case in drawn]
    return "\n".join(
        [
            *(f"# {to.name}", "", "## How to run it", "", "```bash", *commands, "```", ""),
            *("## What was found", "", "```", found.summary, "```", "", *(f"- {said}" for said in found.findings), ""),
            *("## Who is labeled", "", "```", str(split), "```", ""),
            *("`datalist.json` names them; it can be changed by hand.", ""),
            *("## What was chosen", "", "| key | value | reason |", "|---|---|---|", *rows, ""),
            "Each is a key of `configs/train.json`, and an option of the training. All else is as in the bundle for",
            "ACDC with `augmentations/strong.json` and `methods/best.json`.",
            *("", "## What the networks see", "", *pictures, ""),
        ]
    )


def _shown(value: Any) -> str:
    said = json.dumps(value, ensure_ascii=False)
    return f"`{said}`" if len(said) < 80 else "see `configs/train.json`"
