"""Augmentation overlays change images as they should, and labels alike, in every bundle."""

from functools import partial

import pytest
import torch
from monai.transforms import Compose

from monai_spct.data import write_acdc_phantom, write_promise12_phantom, write_spleen_phantom
from tests.bundles.little import BUNDLES, overlay, part, trained, training

STRONG = BUNDLES / "augmentations" / "strong.json"
WRITE = {
    "acdc": partial(write_acdc_phantom, size=(40, 44), spacing=(3.2, 3.5), slices=(4, 5)),
    "prostate": partial(write_promise12_phantom, size=(40, 44), spacing=(2.3, 2.5), slices=(4, 5)),
    "spleen": partial(write_spleen_phantom, size=(48, 52), spacing=(6.7, 7.0), slices=(4, 5)),
}
BESIDE = {"spleen": {"num_test": 1, "image_size": 48}}


def composed(run, key: str, seed: int) -> Compose:
    return Compose(part(run, key)).set_random_state(seed=seed)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return training(data, tmp_path_factory.mktemp("strong"), STRONG)


def test_image_and_label_move_together(run):
    """A label taken for an image stays on the label, but for interpolation."""
    label = torch.zeros(1, 50, 60)
    label[:, 10:30, 20:45] = 3.0
    agreement, moved = [], []
    for seed in range(30):
        item = composed(run, "spatial_augmentation", seed)({"image": label.clone(), "label": label.clone()})
        assert item["image"].shape == item["label"].shape == (1, 32, 32)
        assert set(item["label"].unique().tolist()) <= {0.0, 3.0}
        agreement.append(((item["image"] - item["label"]).abs() < 1.6).float().mean().item())
        moved.append(item["label"].sum().item())
    assert min(agreement) > 0.97
    assert len(set(moved)) > 20


def test_gray_values_change_and_labels_and_unlabeled_images_alone_are_fine(run):
    image, label = torch.rand(1, 32, 32), torch.randint(4, (1, 32, 32))
    results = [
        composed(run, "intensity_augmentation", seed)({"image": image.clone(), "label": label.clone()})
        for seed in range(40)
    ]
    assert all(torch.equal(torch.as_tensor(item["label"]), label) for item in results)
    assert all(torch.as_tensor(item["image"]).isfinite().all() for item in results)
    changed = [not torch.allclose(torch.as_tensor(item["image"]), image) for item in results]
    assert 20 < sum(changed) < 40
    assert composed(run, "augmentation", 0)({"image": image})["image"].shape == (1, 32, 32)


@pytest.mark.parametrize("order", [1, -1], ids=["strong first", "strong last"])
def test_the_teacher_of_cutmix_sees_unlabeled_images_in_their_own_gray_values(data, tmp_path, order):
    run = training(data, tmp_path, *(STRONG, overlay("cutmix"))[::order])
    shapes, gray_values = part(run, "spatial_augmentation"), part(run, "intensity_augmentation")
    assert gray_values
    assert part(run, "train#dataset").augment.transforms == (*shapes, *gray_values)
    assert part(run, "train#unlabeled_dataset").augment.transforms == tuple(shapes)


@pytest.mark.parametrize("bundle", WRITE)
def test_every_bundle_trains_with_it(bundle, tmp_path):
    if bundle == "prostate":
        pytest.importorskip("itk")
    folder = WRITE[bundle](tmp_path / "data", patients=4)
    settings = {"max_epochs": 1, "epoch_length": 1, "bundle": bundle, **BESIDE.get(bundle, {})}
    trained(folder, tmp_path / "output", STRONG, **settings)
    assert (tmp_path / "output" / "models" / "model.pt").is_file()
