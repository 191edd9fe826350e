"""A bundle so small that a cell takes no longer than Python needs to start, for tests of what surrounds a training."""

import json
from pathlib import Path


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def write_tiny_bundle(folder: Path) -> Path:
    """A folder of bundles with one, `tiny`, that sleeps for `seconds`, and then fails if `works` is not true."""
    write(
        folder / "tiny" / "configs" / "train.json",
        {
            "imports": ["$import time", "$import pathlib"],
            "output_dir": "nowhere",
            "dataset_dir": "$'made up'",
            "resume": False,
            "seconds": 0,
            "works": True,
            "objective": {},
            "seed": 0,
            "max_epochs": 4,
            "ratio": 0.5,
            "ways": {"one": 1, "many": [1, 2]},
            "part": {"_target_": "pathlib.Path", "_disabled_": True},
            "train": {"trainer": {"max_epochs": "@max_epochs"}},
            "run": ["$time.sleep(@seconds)", "$None if @works else pathlib.Path('nowhere').read_text()"],
            "training": "%run",
        },
    )
    write(
        folder / "tiny" / "configs" / "evaluate.json",
        {
            "imports": ["$import pathlib"],
            "output_dir": "nowhere",
            "dataset_dir": "$'made up'",
            "ratio": 0.5,
            "pictures": 5,
            "folder": "$pathlib.Path(@output_dir, 'eval')",
            "run": [
                "$@folder.mkdir(exist_ok=True)",
                "$(@folder / 'summary.json').write_text('{\"mean\": {\"dsc_mean\": 0.75}}')",
            ],
            "evaluating": "%run",
        },
    )
    write(folder / "methods" / "plain.json", {})
    write(folder / "methods" / "all_labels.json", {"ratio": 1.0, "max_epochs": 4, "new": 1})
    write(folder / "networks" / "wide.json", {"ways": {"one": 3, "many": []}})
    return folder
