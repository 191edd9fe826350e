import warnings

import pytest
import torch
from monai.networks.nets import UNet

from monai_spct.networks import ResidualUNet


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("size", [(64, 48), (37, 51), (5, 3), (32, 33, 16), (7, 9, 5)], ids=str)
def test_any_size_is_that_of_the_padded_image_cut_back(size):
    network = ResidualUNet(len(size), in_channels=2, features=4).eval()
    image = torch.rand(2, 2, *size)
    logits = network(image)
    assert logits.shape == (2, 4, *size)
    padded = torch.zeros(2, 2, *(max(32, -(-n // 16) * 16) for n in size))
    window = (slice(None), slice(None), *(slice(0, n) for n in size))
    padded[window] = image
    torch.testing.assert_close(logits, network.network(padded)[window])
    torch.testing.assert_close(torch.jit.script(network)(image), logits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # instance norms look at the size
        traced = torch.jit.trace(network, torch.rand(1, 2, *(40 for _ in size)))
    torch.testing.assert_close(traced(image), logits)


def test_it_is_the_network_of_monai_with_its_weights():
    network = ResidualUNet(features=8, out_channels=3)
    monai = UNet(2, 1, 3, [8, 16, 32, 64, 128], [2, 2, 2, 2], num_res_units=2)
    monai.load_state_dict(network.network.state_dict())
    image = torch.rand(2, 1, 32, 48)
    torch.testing.assert_close(network(image), monai(image))
    assert sum(parameter.numel() for parameter in ResidualUNet().parameters()) == 1_625_849


def test_it_learns_and_an_image_does_not_depend_on_its_batch():
    network = ResidualUNet(features=4)
    images, label = torch.rand(2, 1, 33, 40), torch.randint(4, (2, 33, 40))
    optimizer, losses = torch.optim.Adam(network.parameters(), lr=0.01), []
    for _ in range(30):
        losses.append(torch.nn.functional.cross_entropy(network(images), label))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]
    torch.testing.assert_close(network(images)[:1], network(images[:1]), rtol=1e-4, atol=1e-5)
