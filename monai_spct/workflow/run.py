"""Functions that bundle configs call: checks of their settings, the record of a run and its evaluation.

The command line, ``--args_file``, ``monai.bundle.run`` and ``monai.bundle.load`` all make a ``ConfigWorkflow``, which
holds the merged config. These functions find it among their callers.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pydoc import ErrorDuringImport, locate
from typing import Any

import ignite.distributed as idist
from ignite.engine import Engine, Events
from monai.bundle import ConfigComponent, ConfigParser, ConfigWorkflow, ReferenceResolver

from monai_spct.data import Split, seen_ranges
from monai_spct.data.rules import SIDE
from monai_spct.files.atomic import replacing
from monai_spct.functional.checks import at_least
from monai_spct.functional.spelling import did_you_mean, nearest
from monai_spct.workflow.comparison import without_places
from monai_spct.workflow.errors import put_the_cause_last
from monai_spct.workflow.page import read_record, validation_in_words
from monai_spct.workflow.processes import refuse_processes_apart

__all__ = [
    "bundle_root",
    "check_ensemble",
    "check_patience",
    "check_settings",
    "flag",
    "record_model",
    "settings_of_run",
    "tell_results",
    "weights",
]

logger = logging.getLogger(__name__)

# settings that a datalist replaces, and one that needs a datalist
_WHO_IS_TESTED = {"split_seed", "patient_order", "test_ratio", "num_test", "num_validation"}
_NOT_WITH_DATALIST = {*_WHO_IS_TESTED, "dataset_dir", "labeled_ratio", "labeled_patients", "channels"}
_WITH_DATALIST = {"predicted"}
_PATHS = ("bundle_root", "output_dir", "dataset_dir", "datalist", "cache_dir", "ckpt_path")
# keys with another meaning in an evaluation, or found out there
_OF_A_TRAINING = {
    *("amp", "bundle_root", "ckpt_path", "device", "imports", "initialize", "network", "num_views", "output_dir"),
    *("run", "split"),
}
_WRITTEN_OTHERWISE = ("cases", "loaded", "network_def", "resampled")  # in files of a training
_OF_A_COMMAND = ("dataset_dir", "datalist")
_OF_A_PREDICTION = {"seen", "crop_size", "largest_component", "structures_touch", "test_time_augmentation"}
_RENAMED = {  # keys and components of former versions
    **{"EvaluationNetwork": "Discriminator", "Weighted": "WeightedTerm", "move": "transform"},
    **{"SliceDataset": "VolumeDataset"},
    **{"initial_pace": "initial_gamma", "pace": "gamma", "pace_start": "gamma_start", "paces": "gammas"},
    **{"pace_upper_bound": "gamma_upper_bound", "teacher_uncertainty": "train#inferer#uncertainty"},
}


@dataclass
class _Run:
    parser: Any
    configs: Path | None = None  # the folder of the bundle's own config files
    names: tuple[str, ...] = ("initialize", "run", "finalize")  # of the lists that the workflow runs

    def __post_init__(self) -> None:
        self.config: dict[str, Any] = {key: value for key, value in self.parser.get().items() if key != "_meta_"}

    @classmethod
    def find(cls) -> _Run | None:
        """The innermost parser among the callers, with its workflow if there is one."""
        frame, parser = inspect.currentframe(), None
        while frame is not None:
            caller = frame.f_locals.get("self")
            if parser is None and isinstance(caller, ConfigParser):
                parser = caller
            if isinstance(caller, ConfigWorkflow) and caller.parser is parser:
                names = (caller.init_id, caller.run_id, caller.final_id)
                return cls(parser, Path(caller.config_root_path).absolute(), names)
            frame = frame.f_back
        return None if parser is None else cls(parser)

    def file(self, name: str) -> Path | None:
        """A config file of the bundle, by its stem."""
        paths = [self.configs / f"{name}.{suffix}" for suffix in ConfigParser.suffixes] if self.configs else []
        return next((path for path in paths if path.is_file()), None)

    def own(self, name: str) -> dict[str, Any]:
        """Its content, or nothing."""
        if (path := self.file(name)) is None:
            return {}
        parser: Any = ConfigParser(ConfigParser.load_config_file(path))
        parser.resolve_macro_and_relative_ids()
        return dict(parser.get())

    def base(self) -> dict[str, Any]:
        """The bundle's own file that the config was made from: all its keys are there.

        An evaluation may be an overlay on the training, as in the model zoo.
        """
        files = (self.own(name) for name in ("evaluate", "inference", "train"))
        return next((file for file in files if file and file.keys() <= self.config.keys()), {})


def bundle_root() -> str:
    """The folder of the running bundle, above its ``configs``; the working directory without a ``metadata.json``.

    Example:
        >>> from monai_spct.workflow import bundle_root
        >>> bundle_root()
        '.'
    """
    run = _Run.find()
    if run is None or run.configs is None or not (run.configs / "metadata.json").is_file():
        return "."
    return str(run.configs.parent if run.configs.name == "configs" else run.configs)


def flag(value: object) -> bool:
    """A switch: ``True`` or ``False``, or one of these as a word, as ``--resume false`` on a command line is.

    Raises:
        ValueError: for any other value.

    Example:
        >>> from monai_spct.workflow import flag
        >>> flag(True), flag("false")
        (True, False)
    """
    if str(value).lower() not in ("true", "false"):
        raise ValueError(f"a switch must be true or false, got {value!r}.")
    return str(value).lower() == "true"


def settings_of_run(split: Split | None = None) -> dict[str, Any]:
    """Settings and cases of the run, for :class:`~monai_spct.handlers.SaveCheckpoints` to save and compare.

    Args:
        split: the cases of the run.

    Returns:
        The merged config as JSON, without keys that say where it runs, and ``cases`` with the list of each case; empty
        when no config calls.

    Example:
        >>> from monai.bundle import ConfigParser
        >>> config = {"seed": 0, "device": "cpu", "made_of": {"_target_": "monai_spct.workflow.settings_of_run"}}
        >>> ConfigParser(config).get_parsed_content("made_of")["seed"]
        0
    """
    run = _Run.find()
    if run is None:
        return {}
    lists = {} if split is None else {name: getattr(split, name) for name in SIDE}
    cases = {case["case"]: name for name, members in lists.items() for case in members}
    return {**without_places(_as_json(run.config)), "cases": cases}


def check_settings(parser: ConfigParser | None = None, configs: str | Path | None = None) -> None:
    """Refuse keys that nothing reads, unknown arguments, settings without effect and processes that do not cooperate.

    An error that ends the process closes with its cause from now on.

    Args:
        parser: of the merged config; by default the running one.
        configs: the folder of the bundle's config files; by default that of the running workflow. Without one, only
            components are checked.

    Raises:
        ValueError: naming each such setting and, where there is one, the right name.

    Example:
        >>> from monai.bundle import ConfigParser
        >>> from monai_spct.workflow import bundles_folder, check_settings
        >>> configs = bundles_folder() / "acdc" / "configs"
        >>> parser = ConfigParser(ConfigParser.load_config_file(configs / "train.json"))
        >>> parser["max_epoch"] = 7
        >>> check_settings(parser, configs)
        Traceback (most recent call last):
        ...
        ValueError: unknown key `max_epoch`: nothing reads it. Did you mean `max_epochs`?
    """
    if parser is not None:
        parser.resolve_macro_and_relative_ids()  # type: ignore[no-untyped-call]  # as before a run
        run: _Run | None = _Run(parser, Path(configs) if configs else None)
    else:
        put_the_cause_last()
        run = _Run.find()
    if run is None:
        return
    if run.configs is not None and parser is None and "bundle_root" in run.config:
        if run.config.keys() >= {"ckpt_path", "output_dir"}:
            _adopt_model(run)
        run.parser.get_parsed_content("bundle_root")  # while the workflow is among the callers
    problems = [*_unread(run), *_not_taken(run.config, run.parser.locator)]
    for name in _PATHS:
        value = run.config.get(name)
        if isinstance(value, bool | int | float | os.PathLike):
            problems.append(f"`{name}` must be text, got {value!r}: write it as {str(Path(str(value)).absolute())!r}.")
    if problems:
        raise ValueError(" ".join(problems))
    _refuse_idle(run)
    steps = json.dumps(run.config.get("initialize", []), default=str)
    if "join_processes" not in steps:
        overlay = "multi_gpu_train.json"
        training = "train" in run.config and run.configs is not None and (run.configs / overlay).is_file()
        refuse_processes_apart(overlay if training else None)


def _refuse_idle(run: _Run) -> None:
    base, config = run.base(), run.config
    listed = config.get("datalist") is not None
    names = _NOT_WITH_DATALIST if listed else _WITH_DATALIST
    idle = [f"`{name}`" for name in base if name in names and config[name] not in (None, base[name])]
    if idle and listed:
        raise ValueError(
            "`datalist` says who is labeled, validated and tested, so that other settings of that have no effect: "
            f"leave out {', '.join(idle)}."
        )
    if idle:
        raise ValueError(f"without a `datalist` there are no lists to choose from: leave out {', '.join(idle)}.")


def _unread(run: _Run) -> Iterator[str]:
    """Keys that are neither the bundle's nor referred to."""
    files = [file for name in ("train", "evaluate", "inference") if (file := run.own(name))]
    if not files:
        return
    read = {reference for _, node in _nodes(run.config) for reference in _references(node)}
    bundled = [dict(_nodes(file)) for file in files]
    # an own key whose value something else was given may have been copied there by `%`, which no longer shows
    given = [(path, node) for path, node in _nodes(run.config) if all(node != file.get(path) for file in bundled)]
    known = {path for file in bundled for path in file} | {(name,) for name in run.names}

    def unread(part: Mapping[str, Any], place: tuple[str, ...]) -> Iterator[str]:
        for key, value in part.items():
            path = (*place, str(key))
            if path in known:
                whole = {"::".join(path[: depth + 1]) for depth in range(len(path))}
                if isinstance(value, dict) and "_target_" not in value and not whole & read:
                    yield from unread(value, path)
            elif not key.startswith("_") and not any(_leads(reference, path) for reference in read):
                names = [str(name) for name in part if (*place, str(name)) in known]
                copied = any(node == value for other, node in given if other[: len(path)] != path)
                if key in _RENAMED or nearest(key, names, cutoff=0.8) or not copied:
                    yield f"unknown key `{'#'.join(path)}`: {_hint(key, names, 'nothing reads it', place)}"

    yield from unread(run.config, ())


def _not_taken(node: Any, locator: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Arguments that components do not take, and former names of components."""
    target = node.get("_target_") if isinstance(node, dict) else None
    if isinstance(target, str):
        if (old := target.split(".")[-1]) in _RENAMED and target.startswith("monai_spct."):
            yield f"`{old}` in `{'#'.join(path)}` is now `{_RENAMED[old]}`."
        component: Any = ConfigComponent(config=node, locator=locator)
        taken, others = _arguments(component.resolve_module_name())
        for key in node:
            # what a component hands on is its own affair, but for a slip of the pen
            if not (key.startswith("_") or key in taken or (others and not nearest(key, taken, cutoff=0.9))):
                why = f"`{old}` takes no such argument"
                yield f"unknown key `{'#'.join((*path, key))}`: {_hint(key, taken, why, path)}"
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from _not_taken(value, locator, (*path, str(key)))


def _arguments(target: str) -> tuple[list[str], bool]:
    """Names of a component's arguments, with those of its base classes, and whether it takes others too."""
    names: list[str] = []
    try:
        found: Any = locate(target)
        for base in inspect.getmro(found)[:-1] if inspect.isclass(found) else [found]:
            parameters = inspect.signature(base).parameters.values()
            names += [item.name for item in parameters]
            if not any(item.kind is item.VAR_KEYWORD for item in parameters):
                return names, base is not found
    except (ErrorDuringImport, TypeError, ValueError):  # nothing is known of it
        pass
    return names, True


def _hint(key: str, names: Collection[str], why: str, place: tuple[str, ...]) -> str:
    if key in _RENAMED:
        return f"`{key}` is now `{_RENAMED[key]}`."
    return f"{why}.{did_you_mean(key, names, prefix=''.join(f'{part}#' for part in place))}"


def _nodes(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All parts of a config, each with its place."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*path, str(key)), value
        yield from _nodes(value, (*path, str(key)))


def _references(node: Any) -> Collection[str]:
    return ReferenceResolver.match_refs_pattern(node) if isinstance(node, str) else ()


def _leads(reference: str, path: tuple[str, ...]) -> bool:
    """Whether a reference leads to a place, into it, or to what it is a part of."""
    parts = tuple(reference.split("::"))
    return parts[: len(path)] == path[: len(parts)]


def _as_json(node: Any) -> Any:
    """A config as a JSON file has it, with the class in place of an object that a program gave."""
    if isinstance(node, Mapping):
        return {str(key): _as_json(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        tracking = [isinstance(item, dict) and item.get("_target_") == "MLFlowHandler" for item in node]
        return [_as_json(item) for item, left_out in zip(node, tracking, strict=True) if not left_out]
    if node is None or isinstance(node, bool | int | float | str):
        return node
    return str(node) if isinstance(node, os.PathLike) else f"{type(node).__module__}.{type(node).__qualname__}"


def check_patience(patience: int | None, split: Split) -> None:
    """Refuse early stopping that could never stop.

    Args:
        patience: number of validations, or None.
        split: of the training.

    Raises:
        ValueError: if ``patience`` is no whole number of at least 1, or there is nobody to validate on.

    Example:
        >>> from monai_spct.data import Split
        >>> from monai_spct.workflow import check_patience
        >>> check_patience(5, Split([], [], [], []))
        Traceback (most recent call last):
        ...
        ValueError: `patience` counts validations, and there are no validation patients: `num_validation` decides.
    """
    if patience is not None and at_least("patience", patience, 1) and not split.validation:
        decides = "`num_validation`" if split.datalist is None else f"the list `validation` of {split.datalist}"
        raise ValueError(f"`patience` counts validations, and there are no validation patients: {decides} decides.")


def tell_results(output_dir: str | Path) -> None:
    """Print where the results of a training are, how good its validations were, and the command that evaluates it.

    What evaluation and prediction must have in common with the training (grid, network, structures, split, ...) is in
    ``models/model.json``, where :func:`check_settings` finds it beside the weights. Only rank 0 prints.

    Args:
        output_dir: of the training.

    Example:
        >>> from monai_spct.workflow import tell_results
        >>> tell_results("runs/first")
        weights:      runs/first/models/model.pt
        page:         runs/first/index.html
        curves:       runs/first/eval/curves.png
        TensorBoard:  tensorboard --logdir runs/first/eval
    """
    if idist.get_rank() > 0:
        return
    folder, run = Path(output_dir), _Run.find()
    lines = [
        f"weights:      {folder / 'models' / 'model.pt'}",
        f"page:         {folder / 'index.html'}",
        f"curves:       {folder / 'eval' / 'curves.png'}",
        f"TensorBoard:  {shlex.join(['tensorboard', '--logdir', str(folder / 'eval')])}",
    ]
    if said := validation_in_words(read_record(folder / "trained.json")):
        lines.insert(0, f"validation:   {said}")
    if run is not None and "trainer" in run.base().get("train", {}) and (file := run.file("evaluate")):
        base = run.base()
        changed = [key for key in (*_OF_A_COMMAND, "output_dir") if run.config.get(key) != base.get(key)]
        # of its folder what an expression has become, too
        given = {key: str(folder) if key == "output_dir" else run.config[key] for key in changed}
        words = [word for key, value in given.items() if _is_path(value) for word in (f"--{key}", value)]
        command = ["python", "-m", "monai.bundle", "run", "evaluating", "--config_file", str(file), *words]
        lines.append(f"evaluate:     {shlex.join(command)}")
    sys.stdout.write("\n".join(lines) + "\n")


def weights(output_dir: str | Path, bundle_root: str | Path) -> str:
    """Path of the weights of a training; of those that come with the bundle, where there was no training.

    Args:
        output_dir: of the training.
        bundle_root: of the bundle, with ``models/model.pt`` if it comes with weights.

    Example:
        >>> from monai_spct.workflow import weights
        >>> weights("runs/first", "nowhere")
        'runs/first/models/model.pt'
    """
    trained, shipped = (Path(folder) / "models" / "model.pt" for folder in (output_dir, bundle_root))
    if trained.parent.exists() or not shipped.is_file():
        return str(trained)
    logger.warning(f"there was no training in {output_dir}: these are the weights that come with the bundle.")
    return str(shipped)


def record_model(output_dir: str | Path, trainer: Engine, cases: Sequence[Mapping[str, Any]] = ()) -> None:
    """Have ``models/model.json`` written when the training starts: what evaluation and prediction take over of it.

    These are the keys of ``evaluate.json`` and ``inference.json`` that differ from the bundle's, with keys of one's own
    that they refer to; those of the split; and as ``seen`` the ranges of the images. Only rank 0 writes.

    Args:
        output_dir: of the training.
        trainer: that will run.
        cases: to train on.

    Example:
        >>> from ignite.engine import Engine
        >>> from monai_spct.workflow import record_model
        >>> record_model("runs/first", Engine(lambda engine, batch: None))  # nothing to write outside of a workflow
    """
    run = _Run.find()
    if run is None or idist.get_rank() > 0:
        return
    kept = _of_the_model(run)
    if objects := [key for key, value in kept.items() if not _is_json(value)]:
        logger.warning(f"evaluation and prediction cannot take over objects of a program: {', '.join(objects)}")
        kept = {key: value for key, value in kept.items() if key not in objects}
    if seen := seen_ranges(cases):
        kept["seen"] = seen
    # once the files of another run are out of the way
    trainer.add_event_handler(Events.STARTED, partial(_write, Path(output_dir) / "models" / "model.json", kept))


def check_ensemble(path: str | Path) -> None:
    """Refuse to learn from networks of another training, by the ``model.json`` beside their weights.

    Another grid would spoil what they say, and another split would teach what is tested on.

    Args:
        path: of the weights.

    Raises:
        ValueError: naming the settings that differ.

    Example:
        >>> from monai_spct.workflow import check_ensemble
        >>> check_ensemble("runs/first/models/model.pt")  # nothing to compare outside of a workflow
    """
    run, file = _Run.find(), Path(path).parent / "model.json"
    if run is None or not file.is_file():
        return
    base = run.own("evaluate")
    theirs, mine = {**base, **_read_model(file)}, {**base, **_of_the_model(run)}
    keys = sorted((theirs.keys() | mine.keys()) - _OF_A_PREDICTION)
    if other := [f"`{key}`" for key in keys if theirs.get(key) != mine.get(key)]:
        raise ValueError(f"the networks of {path} were trained with other settings: give the same {', '.join(other)}.")


def _of_the_model(run: _Run) -> dict[str, Any]:
    """What evaluation and prediction must have in common with a training, where it is not what they have.

    Who is tested stands there always, so that scores of patients who were learned from can be told.
    """
    base, predicting = run.base(), {**run.own("inference"), **run.own("evaluate")}
    kept = {
        key: value
        for key, value in run.config.items()
        if key in predicting.keys() - _OF_A_TRAINING
        and (value != predicting[key] or (key in _WHO_IS_TESTED and run.config.get("datalist") is None))
        and not (key in _WRITTEN_OTHERWISE and value == base.get(key))
        and not (key in _OF_A_COMMAND and _is_path(value))
    }
    return kept | _referred_to(list(kept.values()), run.config, predicting.keys())


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, "w") as file:
        json.dump(content, file, indent=4)


def _read_model(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} must hold an object of settings: {error}.") from error


def _is_path(value: object) -> bool:
    """A text that is no expression, reference or macro."""
    return isinstance(value, str) and not value.startswith(("$", "@", "%"))


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def _referred_to(nodes: list[Any], config: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Keys of a config that the nodes refer to, these again to, and so on, but for the known ones."""
    found: dict[str, Any] = {}
    while nodes:
        for reference in [name for _, part in _nodes([nodes.pop()]) for name in _references(part)]:
            key = reference.split("::")[0]
            if key in config and key not in known and key not in found:
                found[key] = config[key]
                nodes.append(config[key])
    return found


def _adopt_model(run: _Run) -> None:
    """Take over what the training of the weights had, where nothing else is asked for.

    The file is a config, and as such code: that of a run or of the bundle is read, not one beside any weights.
    """
    weights_path, *roots = (run.parser.get_parsed_content(key) for key in ("ckpt_path", "output_dir", "bundle_root"))
    path = Path(str(weights_path)).resolve().parent / "model.json"
    if not (flag(run.config.get("as_trained", True)) and Path(str(weights_path)).is_file()):
        return
    if not path.is_file() or path.parent not in [Path(str(root)).resolve() / "models" for root in roots]:
        logger.warning(f"{weights_path} is not in the folder of a run: it is taken to be trained with these settings.")
        return
    model, base = _read_model(path), run.base()
    if run.config.get("datalist") is not None:
        model = {key: value for key, value in model.items() if key not in _NOT_WITH_DATALIST}
    adopted = {key: value for key, value in model.items() if key in base and run.config[key] == base[key]}
    others = [key for key in model if key in base and key not in adopted and run.config[key] != model[key]]
    adopted |= _referred_to(list(adopted.values()), model, run.config.keys())
    if others:
        learned = " Patients that it learned from may be scored." if _WHO_IS_TESTED & set(others) else ""
        logger.warning(f"these settings differ from those of the training: {', '.join(others)}.{learned}")
    if adopted:
        logger.info(f"settings of the training, from {path}: {', '.join(adopted)}.")
        run.parser.update(adopted)
        run.parser.parse()
        run.config.update(adopted)
