"""Each way to start one and the same training, in one process; what comes of it, as JSON, in a file."""

from __future__ import annotations

import io
import json
import runpy
import shlex
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import monai.bundle
import torch
import yaml
from monai.bundle import ConfigWorkflow

from monai_spct.workflow import copy, in_words


def command(*words: object) -> None:
    sys.argv = ["monai.bundle", *map(str, words)]
    runpy.run_module("monai.bundle", run_name="__main__", alter_sys=True)


def words(settings: dict[str, Any]) -> list[str]:
    # switches as users type them: a name alone, and dashes
    return [
        word
        for key, value in settings.items()
        for word in ([f"--{key}"] if value is True else [f"--{key.replace('_', '-')}", str(value)])
    ]


def on_the_command_line(config: Path, settings: dict[str, Any]) -> None:
    command("run", "training", "--config_file", config, *words(settings))


def with_one_dash(config: Path, settings: dict[str, Any]) -> None:
    command("run", "training", "-config_file", config, *(word.replace("--", "-") for word in words(settings)))


def by_an_args_file(config: Path, settings: dict[str, Any]) -> None:
    file = config.parents[1] / "args.json"
    file.write_text(json.dumps({"run_id": "training", "config_file": str(config), **settings}))
    command("run", "--args_file", file)


def in_yaml(config: Path, settings: dict[str, Any]) -> None:
    for file in config.parent.glob("*.json"):
        if file.stem != "metadata":
            file.with_suffix(".yaml").write_text(yaml.safe_dump(json.loads(file.read_text()), sort_keys=False))
            file.unlink()
    on_the_command_line(config.with_suffix(".yaml"), settings)


def by_a_program(config: Path, settings: dict[str, Any]) -> None:
    monai.bundle.run("training", config_file=[str(config)], **settings)


def _workflow(config: Path, settings: dict[str, Any]) -> ConfigWorkflow:
    workflow = ConfigWorkflow(str(config), workflow_type="train", **settings)
    workflow.initialize()
    return workflow


def by_a_workflow(config: Path, settings: dict[str, Any]) -> None:
    _workflow(config, settings).run()


def by_a_property_of_one(config: Path, settings: dict[str, Any]) -> None:
    _workflow(config, settings).trainer.run()


WAYS: list[Callable[[Path, dict[str, Any]], None]] = [
    *(on_the_command_line, with_one_dash, by_an_args_file, in_yaml, by_a_program, by_a_workflow, by_a_property_of_one)
]


def main(folder: Path, settings: dict[str, Any], mistake: dict[str, Any]) -> None:
    results: dict[str, Any] = {}
    for way in WAYS:
        copy("acdc", folder / way.__name__)
        config = folder / way.__name__ / "configs" / "train.json"
        # what the program itself is given is nobody's business
        sys.argv = ["host.py", "--config_file", "exp.yaml", "--epochs", "3"]
        results[way.__name__] = found = {}
        with redirect_stdout(io.StringIO()) as said:
            way(config, settings)
        found["said"] = said.getvalue()
        last = torch.load(folder / way.__name__ / "output" / "models" / "last.pt", weights_only=True)
        found["settings"] = json.loads(last["run"]["settings"])
        config = next(config.parent.glob("train.*"))
        for name, more in {
            "mistake": {**settings, **mistake},
            "resumed": {**settings, "max_epochs": 3, "resume": True},
        }.items():
            try:
                (on_the_command_line if way is in_yaml else way)(config, more)
                found[name] = "nothing"
            except (RuntimeError, ValueError) as error:
                found[name] = in_words(error)
    [line] = [line for line in results["on_the_command_line"]["said"].splitlines() if line.startswith("evaluate:")]
    (folder / "results.json").write_text(json.dumps(results))
    command(*shlex.split(line)[4:])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(json.loads, sys.argv[2:]))
