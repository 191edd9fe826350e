"""Finding, copying and starting the bundles that come with the package: ``python -m monai_spct.bundles``."""

from __future__ import annotations

import difflib
import inspect
import json
import logging
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from pydoc import locate
from types import TracebackType
from typing import Any

import ignite.distributed as idist
import torch
import yaml
from monai.bundle import ConfigParser
from monai.bundle.utils import merge_kv
from torch import distributed as dist
from torch import nn

from monai_spct.command_line import config_files, options
from monai_spct.data import Split
from monai_spct.functional.checks import positive
from monai_spct.rules import SIDE
from monai_spct.settings import with_options, without_places

__all__ = [
    "bundle_root",
    "bundles_folder",
    "cause_of",
    "copy",
    "did_you_mean",
    "flag",
    "in_words",
    "join_processes",
    "put_the_cause_last",
    "refuse_idle_settings",
    "refuse_processes_apart",
    "refuse_unknown_overrides",
    "settings_of_run",
    "synchronize_batch_norms",
    "tell_results",
]

# what `python -m monai.bundle run` itself takes, and what its `--tracking` adds to a config
_RUNNER_OPTIONS = {
    "run_id", "init_id", "final_id", "config_file", "meta_file", "logging_file", "tracking", "args_file",
    "workflow_type", "workflow_name", "properties_path", "tracking_uri", "experiment_name", "run_name",
    "save_execute_config", "is_not_rank0",
}  # fmt: skip


# what an overlay may set without a consequence for the evaluation of what it trains
_OF_A_TRAINING = {"num_views", "device", "imports", "initialize"}


def bundles_folder() -> Path:
    """The folder of the bundles: beside the package in a checkout, inside it when installed from a wheel.

    Example:
        >>> from monai_spct.bundles import bundles_folder
        >>> (bundles_folder() / "acdc" / "configs" / "train.json").is_file()
        True
    """
    package = Path(__file__).resolve().parent
    installed, checkout = package / "_bundles", package.parent / "bundles"
    return installed if installed.is_dir() else checkout


def copy(name: str, target: str | Path) -> str:
    """Copy a bundle to a place of one's own, where its configs may be changed and its results go.

    The overlays for methods and networks come along, in ``methods`` and ``networks`` beside the copy's configs folder.

    Args:
        name: of the bundle, for example ``acdc``.
        target: a folder that does not exist yet.

    Returns:
        A line that says what to run next.

    Raises:
        ValueError: when there is no bundle of this name.
        FileExistsError: when ``target`` exists.

    Example:
        >>> import tempfile
        >>> from monai_spct.bundles import copy
        >>> print(copy("acdc", tempfile.mkdtemp() + "/mine"))  # doctest: +ELLIPSIS
        python -m monai.bundle run training --config_file .../mine/configs/train.json --dataset_dir ...
    """
    source, target = bundles_folder() / name, Path(target)
    if not (source / "configs").is_dir():
        names = sorted(path.parent.name for path in bundles_folder().glob("*/configs"))
        raise ValueError(f"`name` must be one of {names}, got {name!r}.")
    shutil.copytree(source, target, ignore=_written_by_runs)
    for overlays in ("methods", "networks"):
        shutil.copytree(bundles_folder() / overlays, target / overlays)
    return f"python -m monai.bundle run training --config_file {target / 'configs' / 'train.json'} --dataset_dir ..."


def _written_by_runs(folder: str, names: list[str]) -> set[str]:
    if Path(folder).name == "models":
        return set(names) - {"README.md"}
    patterns = ("cache", "eval", "phantom", "predictions", "mlruns", "mlruns.db*", "config_*.json", "__pycache__")
    return shutil.ignore_patterns(*patterns)(folder, names)


def bundle_root(name: str, argv: Sequence[str] | None = None) -> str:
    """The folder of the bundle that a config belongs to, from whatever directory it is run.

    Args:
        name: of the bundle.
        argv: the command line; this process's by default.

    Returns:
        The folder above the ``configs`` folder of the first ``--config_file`` of the command line; without one, the
        bundle in the working directory if it is one, else the bundle that came with the package.

    Example:
        >>> from monai_spct.bundles import bundle_root
        >>> bundle_root("acdc", ["--config_file", "['/data/mine/configs/train.json','/data/mine/configs/small.json']"])
        '/data/mine'
    """
    for path in config_files(sys.argv if argv is None else argv):
        if path.parent.name == "configs":
            return str(path.parent.parent)
    return "." if Path("configs/metadata.json").is_file() else str(bundles_folder() / name)


def refuse_unknown_overrides(argv: Sequence[str] | None = None) -> None:
    """Refuse an override, of the command line or of an overlay, that changes nothing, and name the nearest that would.

    MONAI takes ``--max_epoch 7`` without a word and goes on with the old ``max_epochs``. Overlays are all config files
    but the first. They may have keys of their own if something refers to them.

    Args:
        argv: the command line; this process's by default. One without ``--config_file`` is not looked at.

    Raises:
        ValueError: naming each unknown override and the nearest right name.

    Example:
        >>> from monai_spct.bundles import bundles_folder, refuse_unknown_overrides
        >>> config = str(bundles_folder() / "acdc" / "configs" / "train.json")
        >>> refuse_unknown_overrides(["--config_file", config, "--max_epoch", "7"])
        Traceback (most recent call last):
        ...
        ValueError: unknown override `--max_epoch`: no config file has such a key. Did you mean `--max_epochs`?
        >>> refuse_unknown_overrides(["--config_file", config, "--train#inferrer", "7"])
        Traceback (most recent call last):
        ...
        ValueError: unknown override `--train#inferrer`: `train` has no such key. Did you mean `--train#inferer`?
    """
    argv = sys.argv if argv is None else argv
    files = config_files(argv)
    if not files:
        return
    contents = [yaml.safe_load(path.read_text()) or {} for path in files]
    # what other runs of the bundle know, since an overlay may serve several of them, and what is run by its name
    elsewhere = set(argv) | {"initialize", "run", "finalize"}
    for name in ("train", "evaluate", "inference"):
        beside = files[0].with_name(f"{name}.json")
        elsewhere |= set(json.loads(beside.read_text())) if beside.is_file() else set()
    elsewhere |= set(re.findall(r"[@%](\w+)", json.dumps(contents)))
    config = ConfigParser(contents[0])
    problems = []
    for path, content in zip(files[1:], contents[1:], strict=True):
        for key, value in content.items():
            first, *others = parts = key.lstrip("+").replace("::", "#").split("#")
            there = first in config
            own = not there and (first.startswith("_") or first in elsewhere)
            unknown = None if own else _unknown(config.get(), parts)
            if unknown:
                shown, why, hint = unknown
                problems.append(f"unknown key `{shown}` in {path.name}: {why or 'nothing reads it'}.{hint}")
            if there and not unknown:
                merge_kv(config, key, value)
            elif not others:
                config[first] = value
    for override in options(argv):
        parts = override.split("#")
        if parts[0] not in _RUNNER_OPTIONS and (unknown := _unknown(config.get(), parts, prefix="--")):
            shown, why, hint = unknown
            problems.append(f"unknown override `{shown}`: {why or 'no config file has such a key'}.{hint}")
    if problems:
        raise ValueError(" ".join(problems))


def _unknown(config: Any, parts: Sequence[str], *, prefix: str = "") -> tuple[str, str, str] | None:
    """How much of a key is not in a config, where, and which key was meant; nothing if it is there, or may be new."""
    for depth, part in enumerate(parts):
        place, shown = "#".join(parts[:depth]), prefix + "#".join(parts[: depth + 1])
        if isinstance(config, list):
            if not (part.isdigit() and int(part) < len(config)):
                return shown, f"`{place}` has {len(config)} items, counted from 0", ""
            config = config[int(part)]
        elif not isinstance(config, dict):
            return None  # a reference or an expression
        elif part in config:
            config = config[part]
        elif depth + 1 == len(parts) and place and _may_be_new(config, part):
            return None
        else:
            hint = did_you_mean(part, map(str, config), prefix=f"{prefix}{place}{'#' if place else ''}")
            return shown, f"`{place}` has no such key" if place else "", hint
    return None


def _may_be_new(config: dict[str, Any], name: str) -> bool:
    """Whether a part of a config takes a key that it does not have."""
    if "_target_" not in config:
        # numbers and words are data, as the names of structures; parts of a run are all there
        return name.startswith("_") or not any(isinstance(value, dict | list) for value in config.values())
    if not difflib.get_close_matches(name, map(str, config), n=1, cutoff=0.9):
        return True  # an argument, of which the component knows more
    try:
        return name in inspect.signature(locate(str(config["_target_"]))).parameters  # type: ignore[arg-type]
    except (TypeError, ValueError):  # it has a short name, or tells nothing
        return False


def refuse_idle_settings(
    datalist: object, *, without: Sequence[str], only_with: Sequence[str] = (), argv: Sequence[str] | None = None
) -> None:
    """Refuse a setting that changes nothing, since a datalist is given, or none is.

    Looked at are the command line and the overlays, which are all config files but the first.

    Args:
        datalist: the datalist, or nothing.
        without: settings that have a meaning without a datalist alone.
        only_with: settings that have a meaning with a datalist alone.
        argv: the command line; this process's by default.

    Raises:
        ValueError: naming each such setting and where it is given.

    Example:
        >>> from monai_spct.bundles import refuse_idle_settings
        >>> argv = ["--config_file", "train.json", "--datalist", "my.json", "--labeled_ratio", "0.1"]
        >>> refuse_idle_settings("my.json", without=["labeled_ratio"], argv=argv)
        Traceback (most recent call last):
        ...
        ValueError: `datalist` says who is labeled, validated and tested, so that other settings of that have no effect:
        leave out `labeled_ratio` (command line).
    """
    argv = sys.argv if argv is None else argv
    idle = only_with if datalist is None else without
    given = {
        path.name: {
            str(key).lstrip("+") for key, value in (yaml.safe_load(path.read_text()) or {}).items() if value is not None
        }
        for path in config_files(argv)[1:]
    }
    places = {"command line": {key.split("#")[0] for key in options(argv)}, **given}
    found = [f"`{name}` ({place})" for place, names in places.items() for name in idle if name in names]
    if found and datalist is None:
        raise ValueError(f"without a `datalist` there are no lists to choose from: leave out {', '.join(found)}.")
    if found:
        raise ValueError(
            "`datalist` says who is labeled, validated and tested, so that other settings of that have no effect:\n"
            f"leave out {', '.join(found)}."
        )


def settings_of_run(split: Split | None = None, argv: Sequence[str] | None = None) -> dict[str, Any]:
    """What the command line's run is made of, for :class:`~monai_spct.handlers.SaveCheckpoints` to compare.

    Args:
        split: whose cases belong to it, by name.
        argv: the command line; this process's by default.

    Returns:
        The keys of its config files and options, but for :data:`~monai_spct.settings.PLACES`, and ``cases`` with the
        list that each one is on. Nothing without ``--config_file``.

    Example:
        >>> from monai_spct.bundles import bundles_folder, settings_of_run
        >>> config = str(bundles_folder() / "acdc" / "configs" / "train.json")
        >>> settings_of_run(argv=["--config_file", config, "--max_epochs", "7"])["max_epochs"]
        7
    """
    argv = sys.argv if argv is None else argv
    files = config_files(argv)
    if not files:
        return {}
    given = {key: value for key, value in options(argv).items() if key not in _RUNNER_OPTIONS}
    content: Any = ConfigParser.load_config_files([str(path) for path in files])
    lists = {} if split is None else {name: getattr(split, name) for name in SIDE}
    cases = {case["case"]: name for name, members in lists.items() for case in members}
    return {**without_places(with_options(content, given)), "cases": cases}


def did_you_mean(name: object, names: Iterable[str], *, prefix: str = "") -> str:
    """A sentence with the nearest of the right names, after a blank; nothing where none is near.

    Args:
        name: the wrong one.
        names: the right ones.
        prefix: what stands before a name where it is shown, and does not make two names alike.

    Example:
        >>> from monai_spct.bundles import did_you_mean
        >>> did_you_mean("max_epoch", ["epoch_length", "max_epochs"])
        ' Did you mean `max_epochs`?'
        >>> did_you_mean("xyzzy", ["max_epochs"])
        ''
    """
    near = difflib.get_close_matches(str(name), sorted(names), n=1, cutoff=0.5)
    return f" Did you mean `{prefix}{near[0]}`?" if near else ""


def flag(value: object) -> bool:
    """A switch as it comes from a config, or from a command line, where `--resume false` arrives as a word.

    Args:
        value: a truth value, or ``true`` or ``false`` in any case.

    Raises:
        ValueError: when it is something else.

    Example:
        >>> from monai_spct.bundles import flag
        >>> flag(True), flag("false")
        (True, False)
    """
    words = {"true": True, "false": False}
    if str(value).lower() not in words:
        raise ValueError(f"a switch must be true or false, got {value!r}.")
    return words[str(value).lower()]


def join_processes(device: torch.device | str, *, timeout_minutes: float = 30) -> None:
    """Let this process train together with the others that ``torchrun`` has started.

    GPUs exchange gradients by NCCL, CPUs by Gloo. The log of all processes but the first has warnings and errors alone.
    ``ignite.distributed.finalize()`` parts them again.

    Args:
        device: of this process: ``cuda:0`` for the first on a machine, ``cuda:1`` for the second, ..., or ``cpu``.
        timeout_minutes: how long a process waits for another one before it fails. All wait for the slowest when
            volumes have been loaded and after a validation.

    Raises:
        ValueError: when ``torchrun`` did not start this process, ``device`` is no GPU of this machine, or
            ``timeout_minutes`` is not positive.

    Example:
        >>> from monai_spct.bundles import join_processes
        >>> join_processes("cpu")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: several processes are started by `torchrun`, which sets `RANK`, ...
    """
    device = torch.device(device)
    variables = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in variables if name not in os.environ]
    if missing:
        raise ValueError(
            f"several processes are started by `torchrun`, which sets `{'`, `'.join(variables)}`; missing here: "
            f"{', '.join(missing)}. For one process leave `multi_gpu_train.json` out."
        )
    timeout = timedelta(minutes=positive("timeout_minutes", timeout_minutes))
    if device.type == "cuda":
        if device.index is None or device.index >= torch.cuda.device_count():
            raise ValueError(
                f"`device` must be a GPU of its own for each process, of the {torch.cuda.device_count()} that this "
                f"machine has, got {device} in process {os.environ['LOCAL_RANK']}: start as many as there are GPUs."
            )
        torch.cuda.set_device(device)
    if "SLURM_JOB_ID" in os.environ:  # there ignite asks SLURM, which knows the jobs and not the processes of a job
        os.environ["SLURM_LOCALID"] = os.environ["LOCAL_RANK"]
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timeout)
    idist.sync()  # all at once, since ignite's first look at the processes is an exchange among them
    if idist.get_rank() > 0:
        logging.disable(logging.INFO)


def refuse_processes_apart(overlay: str | None = None) -> None:
    """Refuse to be one of several processes that know nothing of each other and write over each other's files.

    Args:
        overlay: the config with which they work together, by its name; none where there is no such thing.

    Raises:
        ValueError: when there are several, as ``torchrun`` starts them, and this one has not joined the others.

    Example:
        >>> from monai_spct.bundles import refuse_processes_apart
        >>> refuse_processes_apart("multi_gpu_train.json")  # one process
    """
    count = os.environ.get("WORLD_SIZE", "")
    if not count.isdecimal() or int(count) < 2 or (dist.is_available() and dist.is_initialized()):
        return
    remedy = f"add `{overlay}` as the last config, or start one" if overlay else "start one"
    raise ValueError(
        f"`WORLD_SIZE` is {count}, so this is one of several processes, and each of them would do all of the work and "
        f"write over the files of the others: {remedy} without `torchrun`."
    )


def synchronize_batch_norms(network: nn.Module) -> None:
    """Let batch normalizations learn from the batches of all processes, as if these were one batch; in place.

    They become ``torch.nn.SyncBatchNorm``, whose parameters and names of states are the same. Copies that are made
    later, as teachers are, do so too.

    Args:
        network: the students, on their GPU.

    Raises:
        ValueError: when the network is not on a GPU: torch cannot do this on a CPU.

    Example:
        >>> import torch
        >>> from monai_spct.bundles import synchronize_batch_norms
        >>> synchronize_batch_norms(torch.nn.Sequential(torch.nn.BatchNorm2d(1)))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: `sync_batch_norm` needs GPUs: torch exchanges the statistics of batches between them alone, ...
    """
    devices = {str(parameter.device) for parameter in network.parameters() if parameter.device.type != "cuda"}
    if devices:
        raise ValueError(
            "`sync_batch_norm` needs GPUs: torch exchanges the statistics of batches between them alone, and the "
            f"network is on {', '.join(sorted(devices))}."
        )
    nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]


def cause_of(error: BaseException) -> BaseException:
    """The first error behind one that MONAI's parser or transforms did not raise themselves.

    Args:
        error: what was caught.

    Example:
        >>> from monai_spct.bundles import cause_of
        >>> cause_of(ValueError("`alpha` must be positive, got -1."))
        ValueError('`alpha` must be positive, got -1.')
    """
    while error.__cause__ is not None and _raised_by_monai(error):
        error = error.__cause__
    return error


def in_words(error: BaseException) -> str:
    """What an error that MONAI may have wrapped says.

    Args:
        error: what was caught.

    Example:
        >>> from monai_spct.bundles import in_words
        >>> in_words(KeyError("split"))
        "KeyError: 'split'"
    """
    cause = cause_of(error)
    # of a KeyError, the message alone is a name without a sentence
    return str(cause) if isinstance(cause, OSError | ValueError) else f"{type(cause).__name__}: {cause}"


def put_the_cause_last() -> None:
    """Let an error that ends this process close with what went wrong.

    MONAI's parser and transforms wrap each error in others that name the component, so that the last line of a long
    traceback, the one that people read, says nothing of what is wrong. What follows the traceback then is the first
    error that MONAI did not raise itself.

    Example:
        >>> from monai_spct.bundles import put_the_cause_last
        >>> put_the_cause_last()
    """

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        sys.__excepthook__(kind, error, traceback)
        if cause_of(error) is not error:
            sys.stderr.write(f"\nWhat went wrong: {in_words(error)}\n")

    sys.excepthook = hook


def tell_results(output_dir: str | Path, argv: Sequence[str] | None = None) -> None:
    """Write on the screen what a training left where, and the command that evaluates it. Of several processes one does.

    The command has those config files and options of the training that change an evaluation. Overlays for methods do
    not: the number of networks is read from the weights.

    Args:
        output_dir: of the training.
        argv: the command line; this process's by default. One without ``--config_file`` is not continued.

    Example:
        >>> from monai_spct.bundles import bundles_folder, tell_results
        >>> config = str(bundles_folder() / "acdc" / "configs" / "train.json")
        >>> options = ["--dataset_dir", "/data/ACDC", "--num_validation", "5", "--max_epochs", "20"]
        >>> argv = ["run", "training", "--config_file", config, *options]
        >>> tell_results("runs/first", argv)  # doctest: +ELLIPSIS
        weights:      runs/first/models/model.pt
        curves:       runs/first/eval/curves.png
        TensorBoard:  tensorboard --logdir runs/first/eval
        evaluate:     python -m monai.bundle run evaluating --config_file ...evaluate.json --dataset_dir /data/ACDC ...
    """
    if idist.get_rank() > 0:
        return
    argv, folder = list(sys.argv if argv is None else argv), Path(output_dir)
    lines = [
        f"weights:      {folder / 'models' / 'model.pt'}",
        f"curves:       {folder / 'eval' / 'curves.png'}",
        f"TensorBoard:  {shlex.join(['tensorboard', '--logdir', str(folder / 'eval')])}",
    ]
    if command := _evaluation(argv):
        lines.append(f"evaluate:     {shlex.join(command)}")
    sys.stdout.write("\n".join(lines) + "\n")


def _evaluation(argv: Sequence[str]) -> list[str]:
    """The command that evaluates what the command line of a training made; nothing where that is not known."""
    files = config_files(argv)
    evaluate = files[0].with_name("evaluate.json") if files else None
    if evaluate is None or not evaluate.is_file():
        return []
    training, known = (set(json.loads(path.read_text())) for path in (files[0], evaluate))
    kept = [evaluate]
    for overlay in files[1:]:
        keys = {key.lstrip("+").split("#")[0] for key in yaml.safe_load(overlay.read_text())}
        if keys & known - _OF_A_TRAINING:
            kept.append(overlay)
            known |= keys - training  # a setting of the overlay's own
    words: list[str] = []
    for position, argument in enumerate(argv):
        name, equals, _ = argument.partition("=")
        if name.startswith("-") and name.lstrip("-").split("#")[0] in known - {"num_views"}:
            words += [argument] if equals else argv[position : position + 2]
    # with double quotes, around which a shell takes single ones
    given = str(kept[0]) if len(kept) == 1 else json.dumps([str(path) for path in kept])
    return ["python", "-m", "monai.bundle", "run", "evaluating", "--config_file", given, *words]


def _raised_by_monai(error: BaseException) -> bool:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and str(frame.tb_frame.f_globals.get("__name__", "")).split(".")[0] == "monai"


if __name__ == "__main__":
    import fire

    fire.Fire({"copy": copy, "folder": lambda: str(bundles_folder())})
