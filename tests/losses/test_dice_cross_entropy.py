import math

import numpy as np
import pytest
import torch
from monai.losses import DiceCELoss

from monai_spct.losses import VoxelWeightedDiceCELoss

SIZES = pytest.mark.parametrize("size", [(7, 5), (4, 6, 3)], ids=str)


def case(size, *, classes=4, seed=0, dtype=torch.float64):
    draws = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, classes, *size, generator=draws, dtype=dtype)
    label = torch.randint(classes, (3, 1, *size), generator=draws)
    return logits, label, torch.rand(3, *size, generator=draws, dtype=dtype)


def slow_loss(logits, label, weight, smooth=1e-5) -> float:
    """Voxel by voxel and class by class."""
    p = logits.softmax(1).double().numpy()
    classes, voxels = p.shape[1], list(np.ndindex(*weight.shape))
    dice = []
    for c in range(1, classes):
        overlap = total = 0.0
        for b, *x in voxels:
            w, inside = weight[(b, *x)].item(), label[(b, 0, *x)].item() == c
            overlap += w * p[(b, c, *x)] * inside
            total += w * (p[(b, c, *x)] + inside)
        dice.append((2 * overlap + smooth) / (total + smooth))
    entropy = [-weight[(b, *x)].item() * math.log(p[(b, label[(b, 0, *x)].item(), *x)]) for b, *x in voxels]
    return 1 - float(np.mean(dice)) + float(np.mean(entropy))


@SIZES
def test_it_is_the_loss_of_a_slow_loop(size):
    logits, label, weight = case(size)
    weight[0] = 0
    assert VoxelWeightedDiceCELoss()(logits, label, weight).item() == pytest.approx(slow_loss(logits, label, weight))


@SIZES
@pytest.mark.parametrize("classes", [2, 4])
def test_without_weights_it_is_that_of_monai(size, classes):
    logits, label, weight = case(size, classes=classes)
    label[label == 1] = 0  # a class that is nowhere
    monai = DiceCELoss(to_onehot_y=True, softmax=True, include_background=False, batch=True)(logits, label)
    torch.testing.assert_close(VoxelWeightedDiceCELoss()(logits, label), monai)
    torch.testing.assert_close(VoxelWeightedDiceCELoss()(logits, label, torch.ones_like(weight)), monai)


def test_what_weighs_nothing_does_not_matter_and_gets_no_gradient():
    logits, label, weight = case((7, 5))
    weight[:, 3:] = 0
    logits.requires_grad_()
    VoxelWeightedDiceCELoss()(logits, label, weight).backward()
    assert (logits.grad[:, :, 3:] == 0).all()
    assert (logits.grad[:, :, :3] != 0).all()


def test_gradients_are_right():
    logits, label, weight = case((3, 2))
    assert torch.autograd.gradcheck(lambda x: VoxelWeightedDiceCELoss()(x, label, weight), logits.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:])
def test_extreme_logits_and_no_weight_at_all_are_finite(dtype):
    logits, label, weight = case((40, 30), dtype=torch.float32)
    extreme = (1e4 * logits.sign()).to(dtype).requires_grad_()
    loss = VoxelWeightedDiceCELoss()(extreme, label, weight)
    loss.backward()
    assert loss.isfinite()
    assert loss.dtype == torch.float32
    assert extreme.grad.isfinite().all()
    assert VoxelWeightedDiceCELoss()(extreme, label, torch.zeros_like(weight)).item() == 0
