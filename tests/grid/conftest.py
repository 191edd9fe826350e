"""What the tests of grids share."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from monai_spct.data import write_acdc_phantom
from monai_spct.workflow import bundles_folder
from tests.forks import forked

SNAKEMAKE = ["-m", "snakemake", "--snakefile", str(bundles_folder() / "experiments" / "Snakefile")]


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def write_table(path: Path, *rows: Mapping[str, object]) -> Path:
    """A table with the columns that any of its rows has."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([str(row.get(name, "")) for name in names] for row in rows)]
    return write(path, "".join("\t".join(line) + "\n" for line in lines))


def grid(folder: Path, table: Path, *words: str, **env: str) -> subprocess.CompletedProcess:
    """Snakemake, run in a folder to its end."""
    given = [*SNAKEMAKE, "--cores", "1", *words[1:], "--config", f"table={table}", *words[0].split()]
    return forked(given, folder, **env)


@pytest.fixture(scope="package")
def data(tmp_path_factory) -> Path:
    """Five patients: 1 labeled, 3 unlabeled, 1 for testing; 2 cases each."""
    folder = tmp_path_factory.mktemp("acdc") / "data"
    return write_acdc_phantom(folder, patients=5, size=(40, 44), spacing=(3.2, 3.5), slices=(4, 5))


@pytest.fixture(scope="package")
def tiny(tmp_path_factory) -> Path:
    """A folder of bundles with one, `tiny`, whose training fails if `works` is not true, and whose cases are files."""
    folder = tmp_path_factory.mktemp("bundles")
    split = "$types.SimpleNamespace(labeled=@cases, unlabeled=[], validation=[], test=[])"
    shared = {
        "imports": ["$import pathlib", "$import types"],
        "dataset_dir": "nowhere",
        "output_dir": "nowhere",
        "cases": "$[{'case': path.name} for path in sorted(pathlib.Path(@dataset_dir).iterdir())]",
        "split": split,
        "ratio": 0.5,
        "works": True,
    }
    training = {
        **shared,
        "resume": False,
        "seed": 0,
        "device": "cpu",
        "max_epochs": 4,
        "train": {"trainer": {"max_epochs": "@max_epochs"}},
        "run": [
            "$None if @works else pathlib.Path('no such file').read_text()",
            "$pathlib.Path(@output_dir, 'trained.json').write_text('{}')",
        ],
        "training": "%run",
    }
    evaluating = {
        **shared,
        "pictures": 5,
        "part": {"size": 1},
        "run": [
            "$pathlib.Path(@output_dir, 'eval').mkdir(exist_ok=True)",
            "$pathlib.Path(@output_dir, 'eval', 'summary.json').write_text('{}')",
        ],
        "evaluating": "%run",
    }
    write(folder / "tiny" / "configs" / "train.json", training)
    write(folder / "tiny" / "configs" / "evaluate.json", evaluating)
    write(folder / "methods" / "own.json", {"ratio": 1.0})
    return folder


@pytest.fixture
def cases(tmp_path) -> Path:
    """The data of `tiny`."""
    for name in ("p1", "p2"):
        write(tmp_path / "data" / name, "")
    return tmp_path / "data"
