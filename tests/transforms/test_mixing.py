import numpy as np
import pytest
import torch

from monai_spct.transforms import CopyPaste, CutMix, boxes

SIZES = pytest.mark.parametrize("size", [(12, 12), (7, 11), (6, 9, 5)], ids=str)


def slow_box(side, place, size) -> np.ndarray:
    """Each voxel looked at by itself."""
    mask = np.zeros(size, dtype=bool)
    for voxel in np.ndindex(size):
        inside = True
        for x, share, where, n in zip(voxel, side, place, size, strict=True):
            length = min(max(round(share * n), 1), n)
            start = round(where * (n - length))
            inside &= start <= x < start + length
        mask[voxel] = inside
    return mask


@SIZES
def test_boxes_are_those_of_a_slow_loop(size):
    draws = np.random.default_rng(0)
    sides, places = draws.uniform(size=(2, 20, len(size)))
    sides[:2], places[:2] = [[0.0], [1.3]], [[0.0], [1.0]]  # at least a voxel, at most all of them
    masks = boxes(sides, places, size=size)
    assert masks.shape == (20, 1, *size)
    for mask, side, place in zip(masks, sides, places, strict=True):
        assert np.array_equal(mask[0].numpy(), slow_box(side, place, size))


def numbered(count: int, size: tuple[int, ...], *leading: int, channels: int = 1) -> torch.Tensor:
    """Images whose voxels say which image and which voxel they are."""
    voxels = torch.arange(count * int(np.prod(size)), dtype=torch.float32).reshape(count, 1, *size)
    return voxels.expand(*leading, count, channels, *size)


def is_box(mask: torch.Tensor) -> bool:
    where = mask.nonzero()
    return len(where) == int((where.amax(0) - where.amin(0) + 1).prod())


@SIZES
def test_cutmix_pastes_a_box_of_another_image_and_what_is_said_of_it(size):
    images, prediction = numbered(40, size, channels=2), numbered(40, size, 3, channels=4)
    before = images.clone()
    mixed, said, uncertain = CutMix(prob=0.5, area=(0.1, 0.4), seed=0)(images, prediction, images[:, :1])
    assert torch.equal(images, before)
    assert torch.equal(said, mixed[:, :1].expand_as(said))
    assert torch.equal(uncertain, mixed[:, :1])
    changed = (mixed != images)[:, 0]
    volume = int(np.prod(size))
    for n, mask in enumerate(changed):
        if mask.any():
            assert is_box(mask)
            [source] = torch.div(mixed[n, 0][mask], volume, rounding_mode="floor").unique().tolist()
            assert source != n
            assert torch.equal(mixed[n, 0][mask] % volume, images[n, 0][mask] % volume)  # at the same place
    assert 10 < changed.flatten(1).any(1).sum() < 30


@pytest.mark.parametrize("size", [(64, 64), (32, 32, 32)], ids=str)
def test_boxes_of_cutmix_have_the_area_and_the_aspect_that_were_asked_for(size):
    images = numbered(300, size)
    [mixed] = CutMix(prob=1.0, area=(0.1, 0.2), aspect=2.0, seed=0)(images)
    changed = (mixed != images)[:, 0]
    shares = changed.flatten(1).float().mean(1)
    assert 0.08 < shares.min() < 0.11
    assert 0.19 < shares.max() < 0.22  # sides are whole voxels
    sides = torch.stack([mask.nonzero().amax(0) - mask.nonzero().amin(0) + 1 for mask in changed])
    aspects = sides.amax(1) / sides.amin(1)
    assert 1.5 < aspects.max() < 2.2


def test_cutmix_never_or_always():
    images = numbered(8, (6, 6))
    assert torch.equal(CutMix(prob=0.0, seed=0)(images)[0], images)
    [mixed] = CutMix(prob=1.0, seed=0)(images)
    assert (mixed != images).flatten(1).any(1).all()


def test_an_image_alone_cannot_be_mixed_with_others():
    with pytest.raises(ValueError, match="at least 2 are needed, got 1"):
        CutMix(seed=0)(torch.zeros(1, 1, 6, 6))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CutMix(area=(0.4, 0.2)), r"`area` must be two shares .* got \(0.4, 0.2\)"),
        (lambda: CutMix(area=(0.0, 0.2)), "`area` must be"),
        (lambda: CutMix(prob=1.5), "`prob` must lie between 0 and 1"),
        (lambda: CutMix(aspect=0.0), "`aspect` must be positive"),
        (lambda: CopyPaste(side=0.0), "`side` must be positive"),
        (lambda: CopyPaste(side=1.1), "`side` must lie between 0 and 1"),
    ],
)
def test_a_setting_out_of_its_range_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@SIZES
@pytest.mark.parametrize("count", [1, 4])
def test_copy_paste_goes_both_ways_and_says_what_is_labeled(size, count):
    labeled, unlabeled = numbered(count, size), -1 - numbered(count, size)
    mix, shares = CopyPaste(side=2 / 3, seed=0), []
    box = int(np.prod([round(2 / 3 * n) for n in size])) / np.prod(size)
    for _ in range(20):
        mixed, known = mix(labeled, unlabeled)
        assert known.dtype == torch.bool
        assert known.shape == (count, *size)
        assert torch.equal(mixed[:, 0], torch.where(known, labeled[:, 0], unlabeled[:, 0]))
        of_batch = known.flatten(1).float().mean(1)
        for mask, share in zip(known, of_batch, strict=True):
            assert is_box(mask if share == pytest.approx(box) else ~mask)
        if count > 1:  # half of a batch goes each way
            assert of_batch.mean().item() == pytest.approx(0.5, abs=1e-6)
        shares.extend(of_batch.tolist())
    assert {round(share, 5) for share in shares} == {round(box, 5), round(1 - box, 5)}


def test_copy_paste_needs_as_many_labeled_as_unlabeled_images():
    with pytest.raises(ValueError, match="`labeled_batch_size` and `unlabeled_batch_size` must be equal, got 2 and 3"):
        CopyPaste()(torch.zeros(2, 1, 6, 6), torch.zeros(3, 1, 6, 6))
