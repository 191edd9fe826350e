"""MONAI's tools work on the bundles: the model zoo's checks, in its order, and exports by the commands of the docs."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from monai.bundle import load_bundle_config

from monai_spct.networks import ENet, load_weights
from tests.bundles.little import BUNDLES, ROOT, network_of
from tests.bundles.metadata_schema import SCHEMA
from tests.forks import forked

GUIDE = ROOT / "docs" / "how-to" / "export.md"
NETWORKS = {"acdc": 1, "prostate": 2, "spleen": 3, "atrium": 2}  # of the weights; those of acdc come with it
EXPORTED = "prostate"  # here; that of the guide is acdc
EACH_BUNDLE = pytest.mark.parametrize("bundle", NETWORKS)


def run(commands: list[list[str]], cwd: Path) -> subprocess.CompletedProcess[str]:
    """What all said; the status is that of the first one that failed."""
    done = [forked(["-m", "monai.bundle", *words], cwd) for words in commands]
    said = ("".join(getattr(one, stream) for one in done) for stream in ("stdout", "stderr"))
    return subprocess.CompletedProcess(commands, next((d.returncode for d in done if d.returncode), 0), *said)


def loaded(folder: Path) -> torch.nn.Module:
    return load_weights(network_of(folder, NETWORKS[folder.name]), folder / "models" / "model.pt").eval()


@pytest.fixture(scope="module")
def zoo(tmp_path_factory) -> Path:
    """A folder of bundles with weights, as the model zoo's checks expect them."""
    base = tmp_path_factory.mktemp("zoo") / "bundles"
    torch.manual_seed(0)  # rounding, which exports are held to, depends on the images
    for name, views in NETWORKS.items():
        shutil.copytree(BUNDLES / name, base / name, ignore=shutil.ignore_patterns("output", "phantom"))
        if not (base / name / "models" / "model.pt").is_file():  # as those that are trained elsewhere
            network = network_of(base / name, views)
            size = (64, 64) if network.networks[0].__class__ is ENet else (32, 32, 32)
            with torch.no_grad():
                network.train()(torch.rand(2, 1, *size))  # running statistics that are not the initial ones
            torch.save(network.state_dict(), base / name / "models" / "model.pt")
        (base / name / "eval").mkdir()
        (base / name / "eval" / "schema.json").write_text(json.dumps(SCHEMA))  # or MONAI would download its own
    return base


@pytest.fixture(scope="module")
def checked(zoo) -> subprocess.CompletedProcess[str]:
    """What MONAI says of each bundle, from the folder above, as the model zoo calls it."""
    commands = []
    for name in NETWORKS:
        config = ["--config_file", f"{name}/configs/inference.json", "--bundle_root", name]
        meta = ["--meta_file", f"{name}/configs/metadata.json"]
        commands += [
            ["verify_metadata", *meta, "--filepath", f"{name}/eval/schema.json"],
            ["verify_net_in_out", "network_def", *meta, *config],
        ]
        if name == EXPORTED:
            files = ["--filepath", f"{name}/models/verify_model.ts", "--ckpt_file", f"{name}/models/model.pt"]
            commands.append(["ckpt_export", "network_def", *files, *meta, *config])
    return run(commands, zoo)


@EACH_BUNDLE
def test_the_files_are_there(zoo, bundle):
    for file in ("LICENSE", "configs/metadata.json", "models/model.pt", "configs/inference.json"):
        assert (zoo / bundle / file).stat().st_size > 0, file
    for file in ("docs/README.md", "docs/data_license.txt", "models/README.md"):
        assert (BUNDLES / bundle / file).stat().st_size > 0, file


@EACH_BUNDLE
def test_the_version_is_in_the_changelog(zoo, bundle):
    metadata = json.loads((zoo / bundle / "configs" / "metadata.json").read_text())
    assert metadata["version"] in metadata["changelog"]


def test_metadata_network_and_export_pass(checked):
    assert checked.returncode == 0, checked.stderr[-3000:]
    for line, count in (
        ("metadata is verified with no error.", len(NETWORKS)),
        ("data shape of network is verified with no error.", len(NETWORKS)),
        ("exported to file: ", 1),
    ):
        assert (checked.stdout + checked.stderr).count(line) == count, line


def test_the_torchscript_says_what_the_network_says_and_carries_metadata_and_config(zoo, checked):
    assert checked.returncode == 0, checked.stderr[-3000:]
    path = zoo / EXPORTED / "models" / "verify_model.ts"
    files = {"metadata.json": "", "inference.json": ""}
    exported, network = torch.jit.load(path, _extra_files=files), loaded(zoo / EXPORTED)
    for size in ((1, 64, 48), (2, 187, 201)):
        image = torch.rand(size[0], 1, *size[1:])
        with torch.no_grad():
            pred = exported(image)
            torch.testing.assert_close(pred, network(image), rtol=0, atol=1e-5)
        torch.testing.assert_close(pred.sum(1), torch.ones(size), rtol=0, atol=1e-5)
    for name, content in files.items():
        configs = zoo / EXPORTED / "configs"
        assert json.loads(content).items() >= json.loads((configs / name).read_text()).items(), name
    parser = load_bundle_config(str(path), "inference.json")
    assert parser["_meta_#version"]
    assert [type(t).__name__ for t in parser.get_parsed_content("postprocessing").transforms][-1] == "AsDiscreted"


# The readme of a bundle

SECTIONS = [
    *("Description", "Model overview", "Data", "Preprocessing", "Training configuration", "Input", "Output"),
    *("Performance", "MONAI bundle commands", "Limits", "References", "License"),
]


@EACH_BUNDLE
def test_the_readme_has_its_sections(bundle):
    text = (BUNDLES / bundle / "docs" / "README.md").read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert f"ckpt_export network_def --filepath bundles/{bundle}/models/model.ts" in text


# The guide


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.skipif(not GUIDE.is_file(), reason="pages come with a checkout")
def test_the_guides_commands_and_lines_work(zoo, monkeypatch):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    here = zoo.parent
    (here / "schema.json").write_text(json.dumps(SCHEMA))
    shutil.copytree(zoo / "acdc" / "models", zoo / "acdc" / "output" / "models")  # as if it had been trained
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    commands = [shlex.split(line)[3:] for line in lines if line.startswith("python -m monai.bundle ")]
    assert [words[0] for words in commands] == ["ckpt_export", "onnx_export", "verify_net_in_out", "verify_metadata"]
    done = run(commands, here)
    assert done.returncode == 0, done.stderr[-3000:]

    onnx.checker.check_model(str(here / "model.onnx"))
    names: dict[str, Any] = {}
    monkeypatch.chdir(here)
    for block in blocks("python"):
        exec(compile(block, GUIDE.name, "exec"), names)
    assert names["classes"].shape == (1, 40, 44, 10)
    network = loaded(zoo / "acdc")
    for size in ((1, 64, 48), (3, 187, 201)):
        image = torch.rand(size[0], 1, *size[1:], generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            expected = network(image)
        torch.testing.assert_close(names["network"](image), expected, rtol=0, atol=1e-5)
