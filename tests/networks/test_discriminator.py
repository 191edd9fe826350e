import pytest
import torch

from monai_spct.networks import Discriminator


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def with_opinions(*args, **settings) -> Discriminator:
    """MONAI starts all weights near 0, and with them the logits."""
    network = Discriminator(*args, features=4, **settings)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(10)
    return network


def images_and_probs(count: int, *space: int, channels: int = 1, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(count, channels, *space), (3 * torch.randn(count, classes, *space)).softmax(1)


@pytest.mark.parametrize("space", [(64, 64), (65, 99), (16, 16), (17, 31), (16, 16, 16), (21, 16, 17)], ids=str)
@pytest.mark.parametrize(("channels", "classes"), [(1, 4), (3, 2)], ids=["4 classes", "3 channels, 2 classes"])
def test_each_image_has_one_logit(space, channels, classes):
    settings = {"num_layers": 1} if min(space) < 64 else {}
    network = Discriminator(len(space), channels, classes, features=2, **settings)
    logits = network(*images_and_probs(3, *space, channels=channels, classes=classes))
    assert logits.shape == (3,)
    assert logits.isfinite().all()
    assert logits.requires_grad


@pytest.mark.parametrize(("num_layers", "smallest"), [(1, 8), (2, 16), (3, 32)])
@pytest.mark.parametrize("spatial_dims", [2, 3], ids=["2-D", "3-D"])
def test_an_image_that_is_too_small_is_refused_with_the_rule_and_its_size(spatial_dims, num_layers, smallest):
    network = Discriminator(spatial_dims, features=1, num_layers=num_layers)
    for axis in range(spatial_dims):
        space = [smallest] * spatial_dims
        space[axis] -= 1
        with pytest.raises(ValueError, match="needs images of at least") as error:
            network(*images_and_probs(1, *space))
        assert str(error.value) == (
            f"`Discriminator` needs images of at least {smallest} voxels along each axis, got {tuple(space)}."
        )


@pytest.mark.parametrize(("num_layers", "smallest"), [(1, 8), (2, 16), (3, 32), (4, 64)])
def test_an_image_of_the_smallest_size_is_judged_and_learned_from(num_layers, smallest):
    network = Discriminator(features=1, num_layers=num_layers)
    network(*images_and_probs(1, smallest, smallest)).sum().backward()  # also alone in its batch
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())


@pytest.mark.parametrize("train", [True, False], ids=["learning", "judging"])
@pytest.mark.parametrize("space", [(16, 19), (16, 17, 19)], ids=["2-D", "3-D"])
def test_the_logit_of_an_image_does_not_depend_on_its_batch(space, train):
    network = with_opinions(len(space), num_layers=1).train(train)
    image, probs = images_and_probs(5, *space)
    image = image * torch.arange(1.0, 6.0).reshape(5, *[1] * (1 + len(space)))  # batch statistics would differ
    together = network(image, probs)
    alone = torch.cat([network(image[b : b + 1], probs[b : b + 1]) for b in range(5)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    assert together.std() > 0.01


@pytest.mark.parametrize("spatial_dims", [2, 3], ids=["2-D", "3-D"])
def test_every_parameter_learns(spatial_dims):
    network = Discriminator(spatial_dims, num_layers=2, features=2)
    network(*images_and_probs(2, *[32] * spatial_dims)).sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_image_and_probabilities_both_have_a_say():
    network = with_opinions(num_layers=1)
    image, probs = images_and_probs(2, 16, 16)
    logits = network(image, probs)
    for other in (network(image.flip(0), probs), network(image, probs.flip(0)), network(image, probs.flip(1))):
        assert not torch.allclose(other, logits, atol=1e-2)


def test_the_verdict_is_the_mean_of_those_on_the_patches():
    network, patches = with_opinions(num_layers=1), []
    network.patches.register_forward_hook(lambda module, inputs, output: patches.append(output[-1]))  # noqa: ARG005
    logits = network(*images_and_probs(2, 20, 17))
    for b in range(2):
        values = patches[0][b].flatten().tolist()
        assert len(values) > 4
        assert logits[b].item() == pytest.approx(sum(values) / len(values), abs=1e-5)
    assert patches[0].std() > 0.01
