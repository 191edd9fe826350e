"""The DSC that probabilities promise is that of calibrated networks on average, and orders cases as it should."""

import pytest
import torch

from monai_spct.metrics import dice, expected_dice


def test_of_probabilities_that_are_true_it_is_the_mean_dsc():
    torch.manual_seed(0)
    probs = torch.softmax(3 * torch.randn(1, 3, 40, 50), dim=1)
    flat = probs[0].flatten(1).T
    truths = torch.multinomial(flat, 300, replacement=True)  # each voxel by its probabilities
    found = flat.argmax(1)
    for index, expected in enumerate(expected_dice(probs)[0], start=1):
        true = [dice((found == index).numpy(), (truths[:, draw] == index).numpy()) for draw in range(300)]
        assert float(expected) == pytest.approx(sum(true) / 300, abs=2e-3)


def test_it_is_of_each_volume_and_structure_by_itself():
    sure, unsure = torch.tensor([0.02, 0.96, 0.02]), torch.tensor([0.3, 0.4, 0.3])
    volumes = torch.stack([sure, unsure])[..., None].expand(2, 3, 10).clone()
    volumes[:, :, 5:] = torch.tensor([1.0, 0, 0])[:, None]
    first, second = expected_dice(volumes)
    torch.testing.assert_close(first, torch.tensor([2 * 0.96 / 1.96, 0]))  # the second structure is found nowhere
    torch.testing.assert_close(second, torch.tensor([2 * 0.4 / 1.4, 0]))
