import io

import pytest
import torch
from monai.transforms import RandAdjustContrast, RandGaussianNoise

from monai_spct.transforms import BatchCompose, CopyPaste, CutMix, EachImage, RandomQuarterTurn


def jitter(seed: int) -> EachImage:
    return EachImage([RandAdjustContrast(prob=0.8), RandGaussianNoise(prob=0.5)], seed=seed)


TRANSFORMS = {
    "turns": RandomQuarterTurn,
    "cutmix": CutMix,
    "copy-paste": CopyPaste,
    "each image": jitter,
    "all": lambda seed: BatchCompose([RandomQuarterTurn(seed=seed), jitter(seed), CutMix(seed=seed)]),
}


@pytest.mark.parametrize("make", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_draws_go_on_after_a_checkpoint_and_another_seed_draws_others(make):
    batch = torch.rand(2, 6, 1, 8, 8).unbind()

    def draws(transform):
        return [transform(*batch)[0] for _ in range(6)]

    transform = make(seed=0)
    draws(transform)
    torch.save(transform.state_dict(), buffer := io.BytesIO())
    expected, resumed = draws(transform), make(seed=1)
    other = draws(make(seed=1))
    buffer.seek(0)
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    assert all(torch.equal(one, two) for one, two in zip(draws(resumed), expected, strict=True))
    assert not all(torch.equal(one, two) for one, two in zip(other, expected, strict=True))


def test_each_image_has_a_draw_of_its_own_and_predictions_stay():
    images, prediction = torch.rand(1, 1, 8, 8).expand(20, 1, 8, 8), torch.rand(2, 20, 4, 8, 8)
    seen, same = EachImage([RandAdjustContrast(prob=0.7)], seed=0)(images, prediction)
    assert same is prediction
    assert type(seen) is torch.Tensor
    unchanged = sum(torch.allclose(one, image) for one, image in zip(seen, images, strict=True))
    assert 0 < unchanged < 14
    assert len({one.sum().item() for one in seen}) == 20 - unchanged + 1


def test_transforms_follow_one_another():
    images, prediction = torch.rand(6, 1, 8, 8), torch.rand(2, 6, 4, 8, 8)
    together = BatchCompose([RandomQuarterTurn(seed=0), CutMix(prob=1.0, seed=1)])(images, prediction)
    apart = CutMix(prob=1.0, seed=1)(*RandomQuarterTurn(seed=0)(images, prediction))
    assert all(torch.equal(one, two) for one, two in zip(together, apart, strict=True))
