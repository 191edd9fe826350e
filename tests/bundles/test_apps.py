"""The steps that MONAI Label and MONAI Deploy take with a bundle end in the prediction of the bundle itself.

Neither is installed here. The steps are those of the classes that run bundles: `BundleInferTask` of MONAI Label 0.8.5
and `MonaiBundleInferenceOperator` of the MONAI Deploy App SDK 4.0.0.
"""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser, ckpt_export, load_bundle_config
from monai.data import MetaTensor
from monai.transforms import Compose, LoadImaged, MapTransform

from monai_spct.data import write_acdc_phantom
from tests.bundles.little import BUNDLES, network_of, workflow


class Made(NamedTuple):
    """A bundle with weights, an image, and what the bundle predicts for it."""

    folder: Path
    image: Path
    mask: np.ndarray


@pytest.fixture(scope="module", params=["acdc", "spleen"])
def made(request, tmp_path_factory) -> Made:
    base = tmp_path_factory.mktemp(request.param)
    folder = base / "bundle"
    shutil.copytree(BUNDLES / request.param, folder, ignore=shutil.ignore_patterns("output", "phantom"))
    (base / "images").mkdir()
    if request.param == "acdc":  # with the weights that it comes with
        [image, *_] = sorted(write_acdc_phantom(base / "data", patients=1).rglob("*_frame01.nii.gz"))
        shutil.copy(image, base / "images" / "case.nii.gz")
    else:
        settled(folder)
        voxels = np.random.default_rng(0).integers(-100, 300, (40, 44, 5)).astype(np.int16)
        nib.save(nib.Nifti1Image(voxels, np.diag([-2.0, -2, 5, 1])), base / "images" / "case.nii.gz")
    where = {"bundle_root": folder, "output_dir": base / "output", "dataset_dir": base / "images"}
    settings = {"ckpt_path": folder / "models" / "model.pt", "max_pictures": 0, "device": "cpu"}
    workflow("inference", bundle=request.param, **where, **settings, as_trained=False).run()
    mask = np.asarray(nib.load(base / "output" / "predictions" / "case.nii.gz").dataobj)
    assert len(np.unique(mask)) > 1  # or any other mask would do
    return Made(folder, base / "images" / "case.nii.gz", mask)


def settled(folder: Path) -> None:
    """Write weights of three networks; a batch settles the norms, so that the vote is not of one class everywhere."""
    network = network_of(folder, num_views=3)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    torch.manual_seed(0)
    with torch.no_grad():
        network.train()(torch.rand(2, 1, 64, 64))
    torch.save(network.state_dict(), folder / "models" / "model.pt")


def metadata(folder: Path) -> dict:
    return json.loads((folder / "configs" / "metadata.json").read_text())["network_data_format"]


def test_label_finds_its_labels(made):
    assert next(iter(metadata(made.folder)["inputs"])) == "image"
    name, pred = next(iter(metadata(made.folder)["outputs"].items()))
    assert name == "pred"
    labels = {text.lower(): int(number) for number, text in pred["channel_def"].items() if text.lower() != "background"}
    assert sorted(labels.values()) == list(range(1, pred["num_channels"]))


def test_label_ends_in_the_prediction_of_the_bundle(made):
    parser = ConfigParser()
    parser.read_config(str(made.folder / "configs" / "inference.json"))
    parser.config.update({"bundle_root": str(made.folder), "device": "cpu"})
    network = parser.get_parsed_content("network_def")
    network.load_state_dict(torch.load(made.folder / "models" / "model.pt", weights_only=True), strict=True)
    network.eval()

    case = {"image": str(made.image), "image_path": str(made.image), "model": "bundle", "device": "cpu"}
    for transform in parser.get_parsed_content("preprocessing").transforms:
        if isinstance(transform, LoadImaged):
            assert all(key in case for key in transform.keys)  # it looks at each of them, also at those that may miss
            transform._loader.image_only = False
        case = transform(case)
    with torch.no_grad():
        case["pred"] = parser.get_parsed_content("inferer")(case["image"][None], network)[0]
    for transform in parser.get_parsed_content("postprocessing").transforms:
        case = transform(case)
    assert case["pred"].shape == (1, *made.mask.shape)
    np.testing.assert_array_equal(case["pred"][0].numpy(), made.mask)


def test_deploy_ends_in_the_prediction_of_the_bundle(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the file is all that it has
    ckpt_export(
        "network_def",
        filepath="model.ts",
        config_file=str(made.folder / "configs" / "inference.json"),
        bundle_root=str(made.folder),
    )
    parser = load_bundle_config("model.ts", "inference.json")
    network = torch.jit.load("model.ts", map_location="cpu").eval()
    before, after = (without_files(parser.get_parsed_content(f"{name}processing")) for name in ("pre", "post"))
    assert all(isinstance(transforms.transforms[0], MapTransform) for transforms in (before, after))

    file = nib.load(made.image)
    voxels = torch.from_numpy(np.asarray(file.dataobj).astype(np.float32))
    geometry = {"affine": torch.from_numpy(file.affine), "original_channel_dim": "no_channel"}
    case = before({"image": MetaTensor(voxels, meta=geometry)})
    with torch.no_grad():
        [pred] = parser.get_parsed_content("inferer")(inputs=case["image"][None], network=network)
    mask = after({"pred": pred, **case})["pred"]
    assert mask.shape == (1, *made.mask.shape)
    np.testing.assert_array_equal(mask[0].numpy(), made.mask)


def without_files(transforms: Compose) -> Compose:
    kept = [
        t for t in transforms.transforms if not any(word in type(t).__name__ for word in ("LoadImage", "SaveImage"))
    ]
    transforms.transforms = tuple(kept)
    return transforms
