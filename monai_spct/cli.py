"""The command ``monai-spct``: what is done before and after a training."""

from __future__ import annotations

import ast
import os
import shlex
import sys
from collections import Counter
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any, NoReturn

import numpy as np
import typer
from monai.bundle import ConfigParser
from tqdm import tqdm

from monai_spct.data import check_split, folder_cases, open_volume, split_with_unlabeled, write_datalist
from monai_spct.workflow import bundles_folder, check_settings, in_words
from monai_spct.workflow import copy as copy_bundle

__all__ = ["app", "check", "copy", "datalist", "grid", "plan", "report"]

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
_TAKES_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
_OF_A_TRAINING = ("split", "in_channels", "out_channels")

_Folder = Annotated[Path, typer.Argument(help="where the images and labels are")]
_LabeledPatients = Annotated[
    int | None, typer.Option("--labeled_patients", help="number of training patients with labels that keep them")
]
_NumTest = Annotated[int | None, typer.Option("--num_test", help="number of patients with labels to test on")]
_NumValidation = Annotated[
    int | None, typer.Option("--num_validation", help="number of patients with labels for validation")
]
_Seed = Annotated[int, typer.Option(help="of the shuffle of patients")]
_Label = Annotated[
    str | None, typer.Option(help="end of a label's name, such as _roi; by default _gt, _seg, _label, ...")
]
_Channels = Annotated[str, typer.Option(help="ends of the names of an image's files, such as _t1,_flair")]
_Patient = Annotated[
    str | None, typer.Option(help="a regular expression that finds the patient in a path, such as [a-z]+[0-9]+")
]


@app.command()
def copy(
    name: Annotated[str, typer.Argument(help="of the bundle: acdc, atrium, prostate or spleen")],
    target: Annotated[Path, typer.Argument(help="a folder that does not exist yet")],
) -> None:
    """Copy a bundle to a place of your own."""
    try:
        typer.echo(copy_bundle(name, target))
    except (OSError, ValueError) as error:
        _refuse(error)


@app.command(context_settings=_TAKES_SETTINGS)
def check(
    context: typer.Context,
    config_file: Annotated[str, typer.Option("--config_file", help="of a training: one, or a list as MONAI takes it")],
    voxels: Annotated[bool, typer.Option(help="whether to read all voxels, or headers alone")] = True,
) -> None:
    """Look at all cases of a training, and list what is wrong with them.

    Settings of the training, such as --dataset_dir and --datalist, may follow. The exit status is 0 when there are no
    errors, 1 when there are, and 2 when the command cannot be carried out.
    """
    parser = ConfigParser()
    try:
        files = ast.literal_eval(config_file) if config_file.startswith("[") else [config_file]
        configs = Path(files[0]).absolute().parent
        parser.read_config(files)
        parser.update({"bundle_root": str(configs.parent), **_settings(context.args)})
        if missing := [name for name in _OF_A_TRAINING if name not in parser]:
            raise ValueError(f"`config_file` must be that of a training, which has {', '.join(missing)}, got {files}.")
        check_settings(parser, configs)
        channels, classes = (parser.get_parsed_content(name) for name in ("in_channels", "out_channels"))
        spatial_dims = parser.get_parsed_content("spatial_dims") if "spatial_dims" in parser else 2
        load = parser.get_parsed_content("load") if "load" in parser else None
    except Exception as error:  # any that an expression of a config may raise
        _refuse(error)
    try:
        split = parser.get_parsed_content("split")
    except Exception as error:
        # files that a list names are missing, or the lists contradict each other: there are no cases to look at yet
        typer.echo(f"error: {in_words(error)}\n1 error: no files were looked at")
        raise typer.Exit(1) from None
    found = check_split(
        split,
        num_classes=classes,
        in_channels=channels,
        spatial_dims=spatial_dims,
        load=load,
        voxels=voxels,
        progress=True,
    )
    levels = Counter(finding.level for finding in found.findings)
    counted = ", ".join(f"{number} {level}{'' if number == 1 else 's'}" for level, number in levels.items())
    looked_at = f"headers {'and voxels' if voxels else 'alone'} were looked at"
    typer.echo("\n".join([found.summary, "", *map(str, found.findings), f"{counted or 'nothing found'}: {looked_at}"]))
    raise typer.Exit(1 if found.errors else 0)


@app.command()
def datalist(
    folder: _Folder,
    to: Annotated[Path, typer.Option(help="the new file, in JSON")],
    labeled_ratio: Annotated[
        float, typer.Option("--labeled_ratio", help="share of the training patients with labels that keep them")
    ] = 1.0,
    labeled_patients: _LabeledPatients = None,
    test_ratio: Annotated[
        float, typer.Option("--test_ratio", help="share of the patients with labels to test on")
    ] = 0.25,
    num_test: _NumTest = None,
    num_validation: _NumValidation = None,
    seed: _Seed = 0,
    label: _Label = None,
    channels: _Channels = "",
    patient: _Patient = None,
) -> None:
    """Write a datalist of the images and labels in a folder, split by patient.

    Images without a label are for training without one, unless their patient is tested or validated on. In a folder
    without labels, all images are unlabeled: a list to predict on.
    """
    try:
        path = to.expanduser()
        cases = folder_cases(folder, label=label, channels=_words(channels), patient=patient)
        split = split_with_unlabeled(
            cases,
            labeled_ratio=labeled_ratio,
            labeled_patients=labeled_patients,
            test_ratio=test_ratio,
            num_test=num_test,
            num_validation=num_validation or 0,
            seed=seed,
        )
        with_label = [*split.labeled, *split.validation, *split.test]
        if not with_label and label is not None:
            raise ValueError(f"none of the {len(cases)} images in {folder} has a label that ends in {label}.")
        values = _label_values(with_label)
        write_datalist(split, path)
    except (ImportError, OSError, ValueError) as error:
        _refuse(error)
    lines = [str(split)]
    if all(case["patient"] == case["case"] for case in cases):
        lines.append("each image counts as a patient of its own; `--patient` says otherwise")
    if left_out := len(cases) - len(with_label) - len(split.unlabeled):
        lines.append(f"left out: unlabeled images of patients for validation or test, or copies of theirs, {left_out}")
    if not with_label:
        lines.append("no image has a label; `--label` says how the names of labels end")
    elif not split.unlabeled:
        lines.append("nothing is unlabeled: without unlabeled images this is plain supervised training")
    if with_label and not values:
        lines.append("labels hold background alone: there is nothing to learn")
    run = "training --config_file bundles/acdc/configs/train.json"
    if not with_label:
        run = "inferring --config_file bundles/acdc/configs/inference.json --predicted unlabeled"
    command = [f"python -m monai.bundle run {run} --datalist {shlex.quote(str(path))}"]
    if values:
        names = {str(number): f"{value:g}" for number, value in enumerate(values, 1)}
        command.append(f'--structures "{names}"')
    if values != list(range(1, len(values) + 1)):
        command.append(f'--label_values "[{", ".join(f"{value:g}" for value in values)}]"')
    if not isinstance(cases[0]["image"], str):
        command.append(f"--in_channels {len(cases[0]['image'])}")
    typer.echo("\n".join([*lines, "", " ".join(command)]))


@app.command()
def plan(
    folder: _Folder,
    to: Annotated[Path, typer.Option(help="the new folder of the bundle")],
    names: Annotated[
        str, typer.Option(help="of the structures, such as liver,tumor, in the order of the labels' values")
    ] = "",
    labeled_patients: _LabeledPatients = None,
    num_test: _NumTest = None,
    num_validation: _NumValidation = None,
    seed: _Seed = 0,
    label: _Label = None,
    channels: _Channels = "",
    patient: _Patient = None,
) -> None:
    """Look at the images and labels in a folder, and write a bundle that trains on them.

    It has a datalist, configs for training, evaluation and prediction with the recommended system, and docs/README.md:
    what was found, what was chosen and why, with pictures.
    """
    try:
        from monai_spct.plan import Machine, choose, held_out, survey, write_plan

        ends = _words(channels)
        found = survey(folder_cases(folder, label=label, channels=ends, patient=patient), progress=True)
        with_label = {case["patient"] for case in found.cases if "label" in case}
        tested, validated = held_out(len(with_label))
        split = split_with_unlabeled(
            found.cases,
            labeled_ratio=1.0,
            labeled_patients=labeled_patients,
            num_test=tested if num_test is None else num_test,
            num_validation=validated if num_validation is None else num_validation,
            seed=seed,
        )
        choices = choose(found, Machine.here(), structures=_words(names) or None)
        write_plan(found, split, choices, to, channels=ends)
    except (ImportError, OSError, ValueError) as error:
        _refuse(error)
    chosen = [f"{choice.key} = {shorten(str(choice.value), 60)}: {choice.why}" for choice in choices]
    page = to / "docs" / "README.md"
    train = shlex.quote(str(to / "configs" / "train.json"))
    said = [found.summary, *found.findings, "", str(split), "", *chosen, "", f"all of it, with pictures: {page}", ""]
    typer.echo("\n".join([*said, f"python -m monai.bundle run training --config_file {train}"]))


@app.command(context_settings=_TAKES_SETTINGS)
def grid(context: typer.Context) -> None:
    """Train, evaluate and report on each row of a table, by Snakemake. Interrupted, it goes on.

    First comes the table, a file or the name of one in the package; then DATASET=FOLDER says where data are, folder=...
    where results go (runs by default), and bundles=... where bundles of your own are. All options are Snakemake's:

    monai-spct grid acdc_dsc acdc=/data/ACDC --cores 2
    """
    table, *words = context.args or [""]
    before = list(takewhile(lambda word: not word.startswith("-"), words))
    names = {"folder", "bundles", *(path.parent.name for path in bundles_folder().glob("*/configs"))}
    after = [word for word in words[len(before) :] if word.partition("=")[0] in names and "=" in word]
    options = [word for word in words[len(before) :] if word not in after]
    if not table or table.startswith("-"):
        _refuse(ValueError("the table comes first: monai-spct grid acdc_dsc acdc=/data/ACDC --cores 2"))
    if unclear := [word for word in before if "=" not in word]:
        _refuse(ValueError(f"after the table comes DATASET=FOLDER, got {unclear[0]!r}."))
    if find_spec("snakemake") is None:
        _refuse(ValueError("grids are run by Snakemake: pip install 'monai-spct[experiments]'"))
    snakemake = [sys.executable, "-m", "snakemake", "--snakefile", str(bundles_folder() / "experiments" / "Snakefile")]
    os.execv(sys.executable, [*snakemake, *options, "--config", f"table={table}", *before, *after])


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="of a grid, of some of its runs, or any other with runs")],
    show: Annotated[
        str | None,
        typer.Option(help="a YAML file of tables and figures, or the name of one that comes with the package"),
    ] = None,
    to: Annotated[Path | None, typer.Option(help="where it goes; by default report in the first folder")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="where a dataset is now, for pictures, such as acdc=/data/ACDC")
    ] = None,
) -> None:
    """Write tables, figures and a page on all runs in a folder."""
    try:
        from monai_spct.report import read_show, write_report  # of which pandas is a part

        if unnamed := [place for place in data or [] if "=" not in place]:
            raise ValueError(f"`--data` must be a dataset and its folder, such as acdc=/data/ACDC, got {unnamed[0]}.")
        places = dict(place.split("=", 1) for place in data or [])
        typer.echo(write_report(*folders, show=read_show(show) if show else None, to=to, data=places))
    except (ImportError, OSError, ValueError) as error:
        _refuse(error)


def _words(text: str) -> list[str]:
    return text.split(",") if text else []


def _label_values(cases: list[dict[str, Any]]) -> list[float]:
    """What the labels hold, sorted, but for the background."""
    labels = tqdm([case["label"] for case in cases], desc="reading labels", leave=False, disable=not cases)
    return sorted({value for file in labels for value in np.unique(open_volume(file).load()).tolist()} - {0})


def _settings(words: list[str]) -> dict[str, Any]:
    """Options that are keys of a config, with values as Python has them, or else text."""
    settings: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            raise ValueError(f"settings are `--key value`, got {word!r}.")
        name, equals, value = word.removeprefix("--").partition("=")
        given = value if equals else next(rest, "true")
        try:
            settings[name] = ast.literal_eval(given)
        except (SyntaxError, ValueError):
            settings[name] = given
    return settings


def _refuse(error: Exception) -> NoReturn:
    sys.stderr.write(f"{in_words(error)}\n")
    raise typer.Exit(2)
