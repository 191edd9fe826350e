"""Cells of a grid: each row of a table is a training and its evaluation."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from fire.parser import DefaultParseValue
from monai.bundle import ConfigParser

from monai_spct.data.rules import SIDE
from monai_spct.functional.spelling import did_you_mean
from monai_spct.workflow.comparison import PLACES, without_places
from monai_spct.workflow.errors import in_words
from monai_spct.workflow.folder import bundles_folder
from monai_spct.workflow.output_dir import digest
from monai_spct.workflow.run import check_settings

__all__ = ["OPTIONS", "Cell", "find_table", "read_cells"]

OPTIONS = ("table", "folder", "bundles")
"""What a grid takes beside the folders of its datasets."""
_NAMES = ("dataset", "method", "network", "overlays")
_NO_OVERLAYS = ("train", "evaluate", "inference", "metadata")
_RESERVED = {
    "output_dir": "each cell has its own folder",
    "bundle_root": "each cell has its own folder",
    "ckpt_path": "a cell is evaluated with its own weights",
    "resume": "a cell goes on by itself",
    "accept_changes": "other settings make another cell",
    "dataset_dir": "say where data are as `dataset=folder`, for example `acdc=/data/ACDC`",
}
# other values of these do not make another cell
_NO_SETTINGS = {*PLACES, "imports", "initialize"} - {"kept_epochs"}
# not recorded; from all other keys a report makes data and networks
_PLACES = ("output_dir", "ckpt_path", "resume", "accept_changes", "device", "num_workers")


@dataclass(frozen=True)
class Cell:
    r"""One training and its evaluation.

    Args:
        name: of its folder; it ends with a digest of configuration and cases.
        training: words of the command that trains.
        evaluating: words of the command that evaluates.
        epochs: of the training.
        record: content of ``cell.json``.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.workflow.cells import read_cells
        >>> table = Path(tempfile.mkdtemp()) / "mine.tsv"
        >>> _ = table.write_text("dataset\tmethod\toverlays\tseed\nacdc\tdan\tphantom\t3\n")
        >>> cell, = read_cells(table)
        >>> cell.name, cell.epochs  # doctest: +ELLIPSIS
        ('acdc/dan/default/phantom/seed=3/...', 16)
        >>> cell.training[1:5]
        ['-m', 'monai.bundle', 'run', 'training']
    """

    name: str
    training: Sequence[str]
    evaluating: Sequence[str]
    epochs: int
    record: Mapping[str, Any]


def find_table(name: str | Path) -> Path:
    """A table by its path, or one of the package by its name.

    Raises:
        ValueError: naming the nearest one.

    Example:
        >>> from monai_spct.workflow.cells import find_table
        >>> find_table("acdc_dcs")
        Traceback (most recent call last):
        ...
        ValueError: there is no table `acdc_dcs`. Did you mean `acdc_dsc`?
    """
    there = {path.stem: path for path in (bundles_folder() / "experiments").glob("*.tsv")}
    return Path(name) if Path(name).is_file() else _named("table", str(name), there)


def read_cells(
    table: str | Path,
    *,
    folder: str | Path = "runs",
    bundles: str | Path | None = None,
    data: Mapping[str, str] | None = None,
) -> list[Cell]:
    r"""The cells of a table.

    A row has a ``dataset`` (a bundle), and may have a ``method``, a ``network``, ``overlays`` separated by commas, and
    any keys of the bundle's configs, with values as on the command line. An empty field is not given.

    Args:
        table: a file with tabs (``.tsv``) or commas, or the name of one of the package.
        folder: of the cells' folders.
        bundles: a folder with your own bundles, methods and networks, which go before those of the package.
        data: the folder of each dataset; by default the ``dataset_dir`` of its bundle.

    Raises:
        ValueError: naming all rows with a mistake, with the nearest right name, or data that are missing.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.workflow.cells import read_cells
        >>> table = Path(tempfile.mkdtemp()) / "mine.tsv"
        >>> _ = table.write_text("dataset\tmethod\toverlays\nacdc\tmean_techer\tphantom\n")
        >>> read_cells(table)
        Traceback (most recent call last):
        ...
        ValueError: mine.tsv, row 1: there is no method `mean_techer`. Did you mean `mean_teacher`?
    """
    path = find_table(table)
    rows = pd.read_csv(path, sep="\t" if path.suffix == ".tsv" else ",", dtype=str, keep_default_na=False)
    reader = _Reader(Path(folder), None if bundles is None else Path(bundles).expanduser().absolute(), data or {})
    cells: dict[str, Cell] = {}
    problems: dict[str, list[int]] = {}
    for number, row in enumerate(rows.to_dict("records"), start=1):
        try:
            cell = reader.cell({str(key).strip(): value.strip() for key, value in row.items() if value.strip()})
        except ValueError as error:
            problems.setdefault(str(error), []).append(number)
        else:
            cells.setdefault(cell.name, cell)
    if problems:
        rows_of = {one: f"row{'s' * (len(at) > 1)} {', '.join(map(str, at))}" for one, at in problems.items()}
        raise ValueError("\n".join(f"{path.name}, {rows_of[problem]}: {problem}" for problem in problems))
    if unknown := [name for name in data or {} if name not in set(rows.get("dataset", ()))]:
        names = [*OPTIONS, *rows.get("dataset", ())]
        raise ValueError(f"`{unknown[0]}` is no dataset of {path.name} and no option.{did_you_mean(unknown[0], names)}")
    return list(cells.values())


@dataclass
class _Reader:
    folder: Path
    bundles: Path | None
    data: Mapping[str, str]

    def __post_init__(self) -> None:
        self.roots = [bundles_folder(), *([] if self.bundles is None else [self.bundles])]
        self.cases: dict[str, dict[str, str]] = {}

    def cell(self, row: dict[str, str]) -> Cell:
        names = {"method": "default", "network": "default", **{key: row[key] for key in _NAMES if key in row}}
        overlays = [name.strip() for name in names.pop("overlays", "").split(",") if name.strip()]
        bundle = self._bundle(names.get("dataset", ""))
        configs = bundle / "configs"
        own = {path.stem: path for path in configs.glob("*.json") if path.stem not in _NO_OVERLAYS}
        shared = [_named(f"overlay of {bundle.name}", name, own) for name in overlays]
        method, network = (self._shared(kind, names[kind], bundle) for kind in ("method", "network"))
        files = {
            "training": [configs / "train.json", *shared, *method, *network],
            "evaluating": [configs / "evaluate.json", *shared, *network],
        }
        given = {key: value for key, value in row.items() if key not in _NAMES}
        words, contents = self._checked(files, given, self.data.get(bundle.name))
        cases = self._cases(bundle.name, contents["training"])
        settings = {verb: without_places(content, _NO_SETTINGS) for verb, content in contents.items()}

        axes = {key: DefaultParseValue(value) for key, value in given.items()}
        parts = [*overlays, *(f"{key}={value}" for key, value in given.items())]
        # of other letters, Snakemake has a use for some
        plain = ["".join(one if one.isalnum() or one in "=._-+#" else "_" for one in part)[:80] for part in parts]
        unique = digest({**settings, "cases": cases})
        name = "/".join([bundle.name, names["method"], names["network"], *plain, unique])
        place = str(self.folder / name)
        commands = {
            verb: [
                *(sys.executable, "-m", "monai.bundle", "run", verb),
                *("--config_file", json.dumps([str(path) for path in files[verb]], ensure_ascii=False)),
                *words[verb],
                f"--output_dir={place}",
            ]
            for verb in files
        }
        epochs = ConfigParser(contents["training"]).get_parsed_content("train#trainer#max_epochs")
        folder = contents["evaluating"].get("dataset_dir")
        record = {
            **{**names, "overlays": overlays, "axes": axes, "cases": cases},
            "dataset_dir": folder if isinstance(folder, str) else None,
            "configuration": {verb: without_places(content, _PLACES) for verb, content in contents.items()},
        }
        return Cell(name, [*commands["training"], "--resume=true"], commands["evaluating"], int(epochs), record)

    def _bundle(self, name: str) -> Path:
        there = {
            path.parents[1].name: path.parents[1] for root in self.roots for path in root.glob("*/configs/train.json")
        }
        return _named("bundle", name, there)

    def _shared(self, kind: str, name: str, bundle: Path) -> list[Path]:
        """The overlay for a method or a network: a copied bundle may have its own."""
        folders = [*(root / f"{kind}s" for root in self.roots), bundle / f"{kind}s"]
        there = {path.stem: path for folder in folders for path in folder.glob("*.json")}
        return [] if name == "default" else [_named(kind, name, {**there, "default": bundle})]

    def _checked(
        self, files: Mapping[str, list[Path]], given: Mapping[str, str], data: str | None
    ) -> tuple[dict[str, list[str]], dict[str, dict[str, Any]]]:
        """The options of each command, which gets those that it knows, and its merged config."""
        parsers: dict[str, Any] = {
            verb: ConfigParser(ConfigParser.load_config_files(list(map(str, paths)))) for verb, paths in files.items()
        }
        everything = {str(key) for parser in parsers.values() for key in parser.get()}
        for key in given:
            if key in _RESERVED:
                raise ValueError(f"`{key}` is not for a table to set: {_RESERVED[key]}.")
            if key.split("#")[0] not in everything:
                near = did_you_mean(key, everything.union(_NAMES) - _RESERVED.keys())
                raise ValueError(f"`{key}` is no key of these configs.{near}")
        if data is not None and "datalist" not in given:
            given = {"dataset_dir": str(Path(data).expanduser().absolute()), **given}
        words = {}
        for verb, parser in parsers.items():
            options = {key: value for key, value in given.items() if key.split("#")[0] in parser}
            try:
                parser.update({key: DefaultParseValue(value) for key, value in options.items()})
            except (IndexError, KeyError, TypeError) as error:
                raise ValueError(f"one of {', '.join(options)} is no key of these configs: {error}.") from error
            check_settings(parser, files[verb][0].parent)
            words[verb] = [f"--{key}={value}" for key, value in options.items()]
        return words, {verb: parser.get() for verb, parser in parsers.items()}

    def _cases(self, dataset: str, content: Mapping[str, Any]) -> dict[str, str]:
        """Which case is on which list; nothing where the configuration makes the data."""
        data, datalist = content.get("dataset_dir"), content.get("datalist")
        if datalist is None and not isinstance(data, str):
            return {}
        if datalist is None and not str(data).startswith(("$", "@", "%")) and not Path(str(data)).is_dir():
            raise ValueError(f"the data of `{dataset}` are not at {data}: say where they are, `{dataset}=FOLDER`.")
        try:
            split = ConfigParser(dict(content)).get_parsed_content("split")
        except Exception as error:  # any that an expression of a config may raise
            raise ValueError(in_words(error)) from error
        return {case["case"]: name for name in SIDE for case in getattr(split, name)}


def _named(kind: str, name: str, there: Mapping[str, Path]) -> Path:
    if name not in there:
        raise ValueError(f"there is no {kind} `{name}`.{did_you_mean(name, there)}")
    return there[name]
