"""The files of a bundle agree with MONAI's rules, with the code that they name, and with each other."""

import configparser
import json
import logging
import logging.handlers
import pydoc
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from monai.bundle import ConfigComponent, ConfigParser, ConfigWorkflow, ReferenceResolver, verify_net_in_out
from monai.bundle.config_item import ComponentLocator

import monai_spct
from monai_spct.data import (
    VolumeDataset,
    write_acdc_phantom,
    write_atrium_phantom,
    write_promise12_phantom,
    write_spleen_phantom,
)
from monai_spct.workflow import bundles_folder
from tests.bundles.little import network_of
from tests.bundles.metadata_schema import SCHEMA

BUNDLES = {path.name: path for path in sorted(bundles_folder().iterdir()) if (path / "configs").is_dir()}
METHODS, NETWORKS = bundles_folder() / "methods", bundles_folder() / "networks"
RUNS = {
    f"{bundle}-{name}": path / "configs" / f"{name}.json"
    for bundle, path in BUNDLES.items()
    for name in ("train", "evaluate", "inference")
}
OVERLAYS = [*sorted(METHODS.glob("*.json")), *sorted(NETWORKS.glob("*.json"))]
# an overlay for methods or networks refers to what all bundles have alike, see `test_bundles_agree`
COMBINATIONS = {
    **{name: [path] for name, path in RUNS.items()},
    **{f"acdc-train+{path.stem}": [RUNS["acdc-train"], path] for path in OVERLAYS},
    **{
        f"{run}+{overlay}": [path, path.with_name(f"{overlay}.json")]
        for run, path in RUNS.items()
        for overlay in ("phantom", "small", "hour")
        if path.with_name(f"{overlay}.json").is_file()
    },
    **{
        f"{bundle}-train+multi_gpu_train": [path / "configs" / f"{name}.json" for name in ("train", "multi_gpu_train")]
        for bundle, path in BUNDLES.items()
    },
}
EACH_BUNDLE = pytest.mark.parametrize("bundle", BUNDLES.values(), ids=BUNDLES.keys())
PHANTOMS = {
    "acdc": lambda folder: write_acdc_phantom(folder, patients=5, size=(40, 42), spacing=(3.2, 3.4), slices=(4, 4)),
    "prostate": lambda folder: write_promise12_phantom(
        folder, patients=5, size=(40, 42), spacing=(2.3, 2.5), slices=(4, 4)
    ),
    "spleen": lambda folder: write_spleen_phantom(folder, patients=9, size=(48, 48), spacing=(6.7, 7), slices=(4, 4)),
    "atrium": lambda folder: write_atrium_phantom(
        folder, patients=25, size=(44, 48), spacing=(2.0, 2.2), slices=(8, 8)
    ),
}


def configs(bundle: Path) -> dict[str, dict[str, Any]]:
    return {name: read(bundle / "configs" / f"{name}.json") for name in ("train", "evaluate", "inference")}


def metadata(bundle: Path) -> Path:
    return bundle / "configs" / "metadata.json"


def read(path: Path):
    return json.loads(path.read_text())


def nodes(content, place=""):
    """Every value in a config, with the place it is at."""
    yield place, content
    children = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in children:
        yield from nodes(value, f"{place}::{key}" if place else str(key))


# Configs


@pytest.mark.parametrize(
    "path",
    [path for place in ("*/configs", "methods", "networks") for path in bundles_folder().glob(f"{place}/*.json")],
    ids=lambda path: path.relative_to(bundles_folder()).as_posix(),
)
def test_a_config_is_valid_json_without_a_key_twice(path):
    def once(pairs):
        names = [name for name, _ in pairs]
        assert len(names) == len(set(names)), (
            f"twice in {path.name}: {sorted({n for n in names if names.count(n) > 1})}"
        )
        return dict(pairs)

    assert json.loads(path.read_text(), object_pairs_hook=once)


@pytest.mark.parametrize("files", COMBINATIONS.values(), ids=COMBINATIONS.keys())
def test_whatever_a_config_names_or_refers_to_exists(files):
    parser = ConfigParser()
    parser.read_config([str(path) for path in files])
    locator, missing, seen = ComponentLocator(), [], 0
    for place, value in nodes(parser.get()):
        if isinstance(value, dict) and "_target_" in value:
            seen += 1
            name = ConfigComponent(config=value, id=place, locator=locator).resolve_module_name()
            if not callable(name if callable(name) else pydoc.locate(name)):
                missing.append(f"{place}: {value['_target_']}")
        if isinstance(value, str) and value.startswith(("@", "$")):
            references = ReferenceResolver.match_refs_pattern(value)
            seen += len(references)
            missing += [f"{place}: @{reference}" for reference in references if reference not in parser]
    assert seen > 40
    assert missing == []


@pytest.mark.parametrize("path", RUNS.values(), ids=RUNS.keys())
def test_an_expression_that_reads_other_keys_starts_with_a_dollar(path):
    forgotten = [
        f"{place}: {value}"
        for place, value in nodes(read(path))
        if isinstance(value, str) and "@" in value and not value.startswith(("@", "$"))
    ]
    assert forgotten == []


@EACH_BUNDLE
@pytest.mark.parametrize(
    ("one", "other"),
    [("train", "evaluate"), ("train", "inference"), ("evaluate", "inference")],
    ids=str,
)
def test_what_two_configs_share_they_say_alike(bundle, one, other):
    first, second = configs(bundle)[one], configs(bundle)[other]
    allowed = {
        ("train", "evaluate"): "initialize network network_def num_views resampled run split",
        ("train", "inference"): "cases initialize loaded network network_def num_views resampled run",
        (
            "evaluate",
            "inference",
        ): "cases ckpt_path dataset evaluator handlers initialize loaded postprocessing resampled run",
    }[one, other].split()
    shared = first.keys() & second.keys()
    assert shared >= {
        *("imports", "bundle_root", "output_dir", "dataset_dir", "datalist", "device", "amp", "structures"),
        *("in_channels", "out_channels", "backbone", "cases", "load", "intensity", "resampling", "preprocessing"),
    }
    # the weights that come with the bundle for ACDC, which tools load without a training, are those of another network
    shipped = {"backbone", "crop_size", "resampling"} if bundle.name == "acdc" and one == "train" else set()
    assert {key for key in shared if first[key] != second[key]} <= {*allowed, *shipped}


@EACH_BUNDLE
def test_training_and_evaluation_split_alike(bundle):
    """A patient that was learned from must not be tested on."""
    train, evaluate = configs(bundle)["train"], configs(bundle)["evaluate"]
    for key in ("split_seed", "test_ratio", "num_test"):
        assert train[key] == evaluate[key]
    tested = evaluate["split"]
    assert {key: train["split"][key] for key in tested} == tested


@EACH_BUNDLE
@pytest.mark.parametrize("name", ["evaluate", "inference"])
def test_an_overlay_that_serves_training_and_testing_means_one_thing_in_both(bundle, name):
    """The images that a network is tested on are prepared like those that it has learned from."""
    prepared = {}
    overlay = "hour" if bundle.name == "atrium" else "small"
    for run in ("train", name):
        parser = ConfigParser()
        parser.read_config([str(bundle / "configs" / f"{file}.json") for file in (run, overlay)])
        prepared[run] = parser["load"] + parser["intensity"] + parser["resampling"]
    assert prepared["train"] == prepared[name]


@EACH_BUNDLE
@pytest.mark.parametrize(
    "size", [(150, 160), (150, 250), (300, 160), (192, 192), (1, 1)], ids=lambda size: "x".join(map(str, size))
)
def test_slices_smaller_than_the_crop_are_padded(bundle, size):
    parser = ConfigParser(read(bundle / "configs" / "train.json"))
    parser.update({"crop_size": 192, "spatial_dims": 2})
    augment = parser.get_parsed_content("augmentation")
    image = torch.rand(1, *size, 1) + 1
    label = (image > 1.5).float()
    slices = VolumeDataset([{}], lambda _: {"image": image, "label": label}, augment)
    for seed in range(8):
        item = slices[0, seed]
        assert item["image"].shape == item["label"].shape == (1, 192, 192)
        assert set(item["label"].unique().tolist()) <= {0, 1}
    # as it is padded and cropped, before it is rotated and flipped
    item = VolumeDataset([{}], lambda _: {"image": image, "label": label}, augment[:2])[0, 0]
    inside = item["image"] > 0
    assert inside.sum() == min(192, size[0]) * min(192, size[1])  # nothing is lost that there is room for
    assert torch.equal(item["label"][inside], (item["image"][inside] > 1.5).to(torch.uint8))
    assert not item["label"][~inside].any()


def test_what_is_recommended_is_made_of_overlays_that_there_are():
    parts = [METHODS / "cutmix.json", NETWORKS / "residual_unet.json"]
    own = {"largest_component": True, "test_time_augmentation": "$@spatial_dims == 2"}
    assert read(METHODS / "best.json") == {**read(parts[0]), **read(parts[1]), **own}


@pytest.mark.parametrize("config", [RUNS["acdc-evaluate"], RUNS["acdc-inference"]], ids=["evaluate", "inference"])
def test_a_structure_far_from_those_it_touches_goes_before_its_components_are_compared(config):
    said = torch.tensor([0, 3, 2, 2, 1, 0, 3, 3, 0, 2])  # most of structure 3 is not where the others are
    kept = {}
    for touch in (False, True):
        parser = ConfigParser()
        parser.read_config(config)
        parser.update({"largest_component": True, "structures_touch": touch, "resampling": []})
        item = {"pred": torch.nn.functional.one_hot(said).T[:, None, None].float()}
        kept[touch] = parser.get_parsed_content("postprocessing")(item)["pred"].flatten().tolist()
    assert kept[False] == [0, 0, 2, 2, 1, 0, 3, 3, 0, 0]
    assert kept[True] == [0, 3, 2, 2, 1, 0, 0, 0, 0, 0]


# MONAI's properties


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder of data by the name of the bundle."""
    return {name: write(tmp_path_factory.mktemp(name) / "data") for name, write in PHANTOMS.items()}


@EACH_BUNDLE
@pytest.mark.parametrize("overlays", [[], ["phantom"]], ids=["plain", "phantom"])
@pytest.mark.parametrize(("name", "kind"), [("train", "train"), ("evaluate", "infer"), ("inference", "infer")])
def test_every_property_that_monai_asks_for_is_there(tmp_path, data, bundle, name, kind, overlays):
    if bundle.name == "prostate":
        pytest.importorskip("itk")
    network = network_of(bundle, num_views=2)
    (tmp_path / "models").mkdir()
    torch.save(network.state_dict(), tmp_path / "models" / "model.pt")
    files = [str(bundle / "configs" / f"{file}.json") for file in (name, *overlays)]
    options = {"dataset_dir": str(data[bundle.name]), "output_dir": str(tmp_path)}
    if name == "train":
        options["cache_dir"] = str(tmp_path / "cache")
    workflow = ConfigWorkflow(files, workflow_type=kind, logging_file=False, **options)
    workflow.initialize()
    assert workflow.check_properties() == []


@EACH_BUNDLE
def test_each_config_can_be_run_by_both_names(bundle):
    """``run training`` as in MONAI's older bundles, and ``run`` as in the newer ones."""
    for name, verb in {"train": "training", "evaluate": "evaluating", "inference": "inferring"}.items():
        content = configs(bundle)[name]
        assert content[verb] == "%run"
        assert content["run"]


# metadata.json


@EACH_BUNDLE
def test_the_metadata_satisfy_the_schema(bundle):
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(read(metadata(bundle)), SCHEMA)


@EACH_BUNDLE
def test_the_version_has_its_line_in_the_changelog(bundle):
    content = read(metadata(bundle))
    assert content["version"] in content["changelog"]
    assert content["required_packages_version"]["monai-spct"] == monai_spct.__version__


@EACH_BUNDLE
def test_input_and_output_are_those_of_the_configs(bundle):
    content, train = read(metadata(bundle)), configs(bundle)["train"]
    inputs, outputs = content["network_data_format"]["inputs"], content["network_data_format"]["outputs"]
    assert next(iter(inputs)) == "image"
    assert next(iter(outputs)) == "pred"
    assert inputs["image"]["num_channels"] == train["in_channels"] == len(inputs["image"]["channel_def"])
    assert outputs["pred"]["num_channels"] == 1 + len(train["structures"]) == len(outputs["pred"]["channel_def"])
    assert list(outputs["pred"]["channel_def"]) == ["0", *train["structures"]]  # the same classes have names


@pytest.mark.filterwarnings("ignore:Modifying image pixdim:UserWarning")
@pytest.mark.parametrize("config", RUNS, ids=lambda name: name)
@pytest.mark.parametrize("anything", [32, 37], ids=["even", "odd"])
def test_the_network_takes_and_gives_what_the_metadata_say(tmp_path, config, anything):
    verify_net_in_out(
        net_id="network_def",
        config_file=str(RUNS[config]),
        meta_file=str(RUNS[config].with_name("metadata.json")),
        device="cpu",
        p=2,
        n=2,
        any=anything,
        output_dir=str(tmp_path),
    )


# The other files


def test_the_logging_file_names_classes_of_logging_alone():
    """MONAI refuses others, since the file is evaluated as code. All bundles have this one."""
    path = BUNDLES["acdc"] / "configs" / "logging.conf"
    content = configparser.ConfigParser()
    content.read(path)
    classes = [section["class"] for section in content.values() if "class" in section]
    assert classes
    for name in classes:
        assert any(hasattr(module, name.split(".")[-1]) for module in (logging, logging.handlers))
        assert name.split(".")[:-1] in ([], ["logging"], ["handlers"], ["logging", "handlers"])
    from monai.bundle.workflows import _apply_logging_file

    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        _apply_logging_file(str(path))
        assert root.level == logging.INFO
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


def test_no_file_names_a_machine_or_a_person():
    for place in ("*/configs/*.json", "*/configs/*.conf", "methods/*.json"):
        for path in bundles_folder().glob(place):
            # an absolute path in quotes, unless it goes on from another one; `/data` is where examples have their data
            absolute = re.findall(r"""(?<!\+ )['"](/\w[^'"]*)['"]""", path.read_text())
            assert all(name.startswith("/data/") for name in absolute), (path, absolute)
