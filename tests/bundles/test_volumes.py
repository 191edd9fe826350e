"""Bundles train networks with three axes by two settings."""

import json
import shutil

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.transforms import Compose

from tests.bundles.little import BUNDLES, failure, overlay, part, predicting, trained, training
from tests.bundles.test_methods import METHODS, OWN

STRONG = BUNDLES / "augmentations" / "strong.json"
VOLUMES = {"spatial_dims": 3, "crop_size": [24, 16, 4]}


@pytest.mark.parametrize("name", METHODS)
def test_every_system_trains_on_patches_with_strong_augmentation(name, data, tmp_path):
    size = [32, 32, 32] if name == "dan" else [24, 16, 4]  # of which its discriminator has something left
    settings = {"epoch_length": 1, **OWN.get(name, {}), **VOLUMES, "crop_size": size}
    run = trained(data, tmp_path, overlay(name), STRONG, **settings)
    trainer = part(run, "train#trainer")
    assert trainer.state.output["pred"].shape == (2, 4, *size)
    assert torch.isfinite(trainer.state.output["loss"])
    weights = torch.load(tmp_path / "models" / "model.pt", weights_only=True)
    assert any(value.ndim == 5 for value in weights.values())


@pytest.mark.parametrize("bundle", ["acdc", "prostate", "spleen"])
def test_the_small_protocol_crops_volumes_of_any_number_of_slices(bundle):
    parser = ConfigParser()
    parser.read_config([BUNDLES / bundle / "configs" / f"{name}.json" for name in ("train", "small")])
    parser.update({"spatial_dims": 3, "crop_size": [16, 16, 8], "dataset_dir": "nowhere"})
    augment = Compose(parser.get_parsed_content("spatial_augmentation"))
    for slices in (6, 10):
        volume = torch.rand(1, 20, 20, slices)
        assert augment({"image": volume, "label": volume > 0.5})["image"].shape == (1, 16, 16, 8)


def test_patches_of_image_and_label_stay_together_and_one_in_three_shows_a_structure(data, tmp_path):
    run = training(data, tmp_path, **VOLUMES, labeled_batch_size=4, epoch_length=12)
    volumes = part(run, "train#dataset")
    assert len(volumes) == 2  # two phases of one patient
    for batch in part(run, "train#dataloader"):
        assert batch["image"].shape == batch["label"].shape == (4, 1, 24, 16, 4)
    assert part(run, "structure_share") == 0.33


def test_evaluation_and_prediction_take_the_patches_over_from_the_training(data, tmp_path):
    trained(data, tmp_path, STRONG, **VOLUMES)
    run = predicting("evaluate", data, tmp_path)
    assert tuple(part(run, "inferer").windows.roi_size) == (24, 16, 4)
    run.run()
    assert json.loads((tmp_path / "eval" / "summary.json").read_text())
    (tmp_path / "scan").mkdir()
    source = next(data.rglob("*_frame01.nii.gz"))
    shutil.copy(source, tmp_path / "scan" / "new.nii.gz")
    predicting("inference", tmp_path / "scan", tmp_path).run()
    image, label = nib.load(source), nib.load(tmp_path / "predictions" / "new.nii.gz")
    assert label.shape == image.shape
    np.testing.assert_allclose(label.affine, image.affine)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"spatial_dims": 3, "crop_size": [24, 16]}, "`crop_size` must be one number, or one for each of the 3 axes"),
        ({"crop_size": [24, 16, 4]}, "one for each of the 2 axes of `spatial_dims`, got [24, 16, 4]"),
        ({"spatial_dims": 4, "crop_size": 16}, "`spatial_dims` must be 2 or 3, got 4"),
    ],
)
def test_sizes_that_do_not_fit_the_axes_are_named(settings, said, data, tmp_path):
    assert said in failure(lambda: training(data, tmp_path, **settings))
