import contextlib
import logging
import random

import numpy as np
import pytest
import torch
from monai.data import MetaTensor, get_track_meta, set_track_meta
from monai.transforms import (
    Compose,
    OneOf,
    RandCoarseDropoutd,
    RandCropByPosNegLabeld,
    RandFlipd,
    RandGaussianNoised,
    Randomizable,
    RandRotated,
    RandSpatialCropd,
    SpatialPadd,
)

from monai_spct.data import VolumeDataset

DEPTHS = {"a": 3, "b": 1, "c": 4}
CASES = [{"case": name} for name in DEPTHS]
NOISE = [RandGaussianNoised("image", prob=1.0)]


def volume_of(case: dict[str, str]) -> dict[str, torch.Tensor]:
    """Every voxel of every case has another value."""
    depth = DEPTHS[case["case"]]
    start = 1000 * list(DEPTHS).index(case["case"])
    image = start + torch.arange(6 * 5 * depth, dtype=torch.float64).reshape(1, 6, 5, depth)
    return {"case": case["case"], "image": image, "label": (image % 4).long()}


def test_slices_come_in_the_order_of_cases_and_of_the_last_axis():
    slices = VolumeDataset(CASES, volume_of)
    expected = [volume_of(case)["image"][..., s] for case in CASES for s in range(DEPTHS[case["case"]])]
    assert len(slices) == len(expected) == 8
    for index, image in enumerate(expected):
        assert torch.equal(slices[index]["image"].double(), image)
        assert torch.equal(slices[index]["label"].double(), image % 4)
    assert (slices[0]["image"].dtype, slices[0]["label"].dtype) == (torch.float32, torch.uint8)


@pytest.mark.parametrize("cached", [False, True])
def test_volumes_come_whole_and_as_several_where_the_augmentation_makes_several(tmp_path, cached):
    several = RandCropByPosNegLabeld(["image", "label"], "label", (4, 4, 1), num_samples=3)
    volumes = VolumeDataset(CASES, volume_of, several, spatial_dims=3, cache_dir=tmp_path if cached else None)
    assert len(volumes) == 3
    for index, case in enumerate(CASES):
        assert torch.equal(volumes[index]["image"].double(), volume_of(case)["image"])
    items, again = volumes[0, 5], volumes[0, 5]
    assert [tuple(item["image"].shape) for item in items] == [(1, 4, 4, 1)] * 3
    assert all(torch.equal(one["image"], other["image"]) for one, other in zip(items, again, strict=True))
    assert all(type(item["image"]) is torch.Tensor for item in items)
    assert all(torch.equal(item["image"] % 4, item["label"].float()) for item in items)


def test_slices_and_volumes_share_a_folder_but_no_file(tmp_path):
    slices, volumes = (VolumeDataset(CASES, volume_of, spatial_dims=dims, cache_dir=tmp_path) for dims in (2, 3))
    assert (len(slices), len(volumes)) == (8, 3)
    assert torch.equal(volumes[0]["image"][..., 2], slices[2]["image"])


def test_a_case_without_its_label_is_named():
    """It must not become a batch without labels."""

    def load(case):
        volume = volume_of(case)
        return {"image": volume["image"]} if case["case"] == "b" else volume

    with pytest.raises(ValueError, match="b must have 'label': it is one of `keys`"):
        VolumeDataset(CASES, load)


def test_each_volume_is_prepared_once():
    seen = []

    def load(case):
        seen.append(case["case"])
        return volume_of(case)

    slices = VolumeDataset(CASES, load)
    for _ in range(2):
        for index in range(len(slices)):
            slices[index]
    assert seen == ["a", "b", "c"]


def test_meta_tensors_and_arrays_become_plain_tensors():
    def load(case):
        volume = volume_of(case)
        return {"image": MetaTensor(volume["image"]), "label": volume["label"].numpy()}

    slices = VolumeDataset(CASES, load, [RandRotated(["image", "label"], range_x=1.0, prob=1.0, mode="nearest")])
    for draw in (0, (0, 1)):
        assert {type(value) for value in slices[draw].values()} == {torch.Tensor}
        assert slices[draw]["image"].shape == slices[draw]["label"].shape == (1, 6, 5)


@pytest.mark.parametrize(
    "wrap",
    [list, Compose, lambda noise: Compose([OneOf([*noise, RandGaussianNoised("image", prob=1.0, mean=9.0)])])],
    ids=["list", "Compose", "nested"],
)
def test_a_draw_is_a_function_of_index_and_seed(wrap):
    slices = VolumeDataset(CASES, volume_of, wrap(NOISE))
    first = slices[2, 11]["image"]
    slices[5, 3], slices[2, 4]
    assert torch.equal(slices[2, 11]["image"], first)
    assert torch.equal(VolumeDataset(CASES, volume_of, wrap(NOISE))[2, 11]["image"], first)
    assert not torch.equal(slices[2, 12]["image"], first)
    assert not torch.equal(slices[3, 11]["image"], first)


def test_a_share_of_the_slices_shows_a_structure_however_rare():
    """Of 40 slices, half show one structure, and one the other."""

    def load(_: object) -> dict[str, torch.Tensor]:
        label = torch.zeros(1, 4, 4, 40)
        label[..., :20], label[..., 7] = 1, 2
        return {"image": torch.arange(40.0).expand(1, 4, 4, 40), "label": label}

    def shown(share: float) -> np.ndarray:
        slices = VolumeDataset([{}], load, structure_share=share)
        labels = [slices[index, seed]["label"].max() for seed in range(25) for index in range(40)]
        assert torch.equal(slices[30]["image"], torch.full((1, 4, 4), 30.0))  # without a seed, as asked for
        return np.bincount(labels, minlength=3) / len(labels)

    np.testing.assert_allclose(shown(0.0), [0.5, 0.475, 0.025])
    np.testing.assert_allclose(shown(1.0), [0.0, 0.5, 0.5], atol=0.05)
    np.testing.assert_allclose(shown(0.4), [0.3, 0.485, 0.215], atol=0.05)
    with pytest.raises(ValueError, match="`structure_share` must lie between 0 and 1, got 2"):
        shown(2)


def test_datasets_may_share_their_transforms():
    one, other = VolumeDataset(CASES, volume_of, NOISE), VolumeDataset(CASES, volume_of, NOISE)
    first = one[2, 11]["image"]
    other[3, 5]
    assert torch.equal(one[2, 11]["image"], first)


def test_the_transforms_of_one_draw_do_not_share_their_numbers():
    twice = [RandGaussianNoised("image", prob=1.0), RandGaussianNoised("image", prob=1.0)]
    clean = VolumeDataset(CASES, volume_of)[0]["image"]
    once = VolumeDataset(CASES, volume_of, twice[:1])[0, 5]["image"] - clean
    both = VolumeDataset(CASES, volume_of, twice)[0, 5]["image"] - clean
    assert not torch.allclose(both, 2 * once, atol=1e-3)


def test_augmentation_leaves_what_is_in_memory_alone():
    in_place = RandCoarseDropoutd("image", holes=2, spatial_size=3, fill_value=0.0, prob=1.0)
    slices = VolumeDataset(CASES, volume_of, [in_place, *NOISE, RandFlipd(["image", "label"], prob=1.0)])
    before = [slices[index]["image"].clone() for index in range(len(slices))]
    for seed in range(20):
        slices[seed % len(slices), seed]
    assert all(torch.equal(slices[index]["image"], image) for index, image in enumerate(before))


def test_drawing_leaves_the_global_random_states_alone():
    slices = VolumeDataset(CASES, volume_of, NOISE)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    slices[0, 1]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]  # noqa: NPY002


@pytest.fixture(params=[True, False], ids=["tracked", "not tracked"])
def tracked(request):
    """Whether MONAI keeps a record of transforms, outside of the dataset."""
    before = get_track_meta()
    set_track_meta(request.param)
    yield request.param
    set_track_meta(before)


def test_an_augmentation_that_fails_leaves_the_setting_alone_too(tracked):
    def fail(item):
        raise KeyError(f"no such key: {list(item)}")

    with pytest.raises(RuntimeError, match="applying transform"):
        VolumeDataset(CASES, volume_of, [fail])[0, 1]
    assert get_track_meta() is tracked


def test_values_are_those_that_augmentation_with_a_record_gives():
    keys = ["image", "label"]
    chain = [
        SpatialPadd(keys, [8, 8]),
        RandSpatialCropd(keys, [7, 7], random_size=False),
        RandRotated(keys, range_x=0.8, prob=0.7, mode=["bilinear", "nearest"], padding_mode="zeros"),
        RandFlipd(keys, prob=0.5, spatial_axis=0),
        RandFlipd(keys, prob=0.5, spatial_axis=1),
    ]
    slices, augment = VolumeDataset(CASES, volume_of, chain), Compose(chain)
    seen = set()
    for seed in range(16):
        item = slices[seed % len(slices), seed]
        state = np.random.RandomState(seed)
        for transform in chain:
            if isinstance(transform, Randomizable):
                transform.set_random_state(state=state)
        assert get_track_meta()
        expected = augment({key: value.clone() for key, value in slices[seed % len(slices)].items()})
        for key in keys:
            assert isinstance(expected[key], MetaTensor)  # so that it was one with a record
            assert torch.equal(item[key], expected[key].as_tensor()), (key, seed)
        seen.add(len(expected["image"].applied_operations))
        assert item["image"].shape == (1, 7, 7)
    assert seen == {5}


def test_cases_without_a_slice_are_refused():
    with pytest.raises(ValueError, match="none of the 2 cases has a slice"):
        VolumeDataset([{}, {}], lambda case: {"image": torch.zeros(1, 6, 5, 0)}, keys=["image"])  # noqa: ARG005


def test_slices_are_counted_beside_their_volumes(caplog):
    with caplog.at_level(logging.INFO, "monai_spct"):
        VolumeDataset(CASES, volume_of, progress="labeled")
        VolumeDataset(CASES[:2], volume_of)  # of which nobody asked to hear
    assert [record.message for record in caplog.records] == ["labeled: 8 slices of 3 volumes"]


def one_labeled_voxel(case):
    label = torch.zeros(1, 8, 6, 3)
    label[0, 2, 2, 1] = case["value"]
    return {"image": torch.rand(1, 8, 6, 3), "label": label}


@pytest.mark.parametrize("cached", [False, True], ids=["memory", "cache"])
@pytest.mark.parametrize(
    ("values", "missing"),
    [((0, 0), "classes 1, 2"), ((1, 0), "class 2"), ((1, 2), None)],
    ids=["background", "a class", "all"],
)
def test_a_class_that_no_labeled_voxel_has_is_named_before_training(tmp_path, cached, values, missing):
    cases = [{"case": str(value), "value": value} for value in values]
    settings = {"num_classes": 3, "cache_dir": tmp_path if cached else None}
    expected = f"no labeled case has {missing}" if missing else None
    with pytest.warns(UserWarning, match=expected) if expected else contextlib.nullcontext():
        VolumeDataset(cases, one_labeled_voxel, **settings)
