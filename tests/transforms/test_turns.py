import numpy as np
import pytest
import torch

from monai_spct.transforms import RandomQuarterTurn, turn

SIZES = {"2-D": (6, 6), "2-D odd": (7, 7), "3-D": (6, 6, 5)}
BY_SIZE = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def slow_turn(images: torch.Tensor, turns: np.ndarray) -> torch.Tensor:
    """Each image ``(C, *S)`` of a batch turned by itself."""
    return torch.stack([torch.rot90(image, int(k), (1, 2)) for image, k in zip(images, turns, strict=True)])


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("leading", [(), (2,), (2, 3)], ids=["no axis", "one axis", "two axes"])
@BY_SIZE
def test_each_image_is_turned_from_the_first_axis_toward_the_second(size, leading, channels_last):
    turns = np.array([3, 0, 2, 1, 1, -1, 4, -6])
    predictions = torch.rand(*leading, len(turns), 2, *size)
    if channels_last and not leading:
        predictions = predictions.to(memory_format=FORMATS[predictions.ndim])
    turned = turn(predictions, turns, spatial_dims=len(size))
    assert turned.shape == predictions.shape
    for index in np.ndindex(leading):
        assert torch.equal(turned[index], slow_turn(predictions[index], turns))
    assert torch.equal(turn(turned, -turns, spatial_dims=len(size)), predictions)


def test_the_gradient_of_a_turn_is_the_inverse_turn():
    turns = np.array([3, 0, 2, 1, 1])
    images = torch.rand(2, len(turns), 2, 6, 6, requires_grad=True)
    gradient = torch.rand(2, len(turns), 2, 6, 6)
    turn(images, turns, spatial_dims=2).backward(gradient)
    assert torch.equal(images.grad, turn(gradient, -turns, spatial_dims=2))


@BY_SIZE
def test_images_and_predictions_are_turned_by_one_draw(size):
    images, prediction, other = (torch.rand(*shape, *size) for shape in ((40, 1), (2, 40, 3), (40, 1)))
    before = images.clone()
    transform = RandomQuarterTurn(seed=1)
    turned = transform(images, prediction, other)
    assert set(transform.turns.tolist()) == {0, 1, 2, 3}
    assert torch.equal(turned[0], slow_turn(images, transform.turns))
    assert torch.equal(turned[2], slow_turn(other, transform.turns))
    for one, each in zip(turned[1], prediction, strict=True):
        assert torch.equal(one, slow_turn(each, transform.turns))
    [alone] = RandomQuarterTurn(seed=1)(images)
    assert torch.equal(alone, turned[0])
    assert torch.equal(images, before)


@pytest.mark.parametrize("size", [(6, 7), (7, 6, 6)], ids=str)
def test_images_that_are_not_square_make_half_turns_only(size):
    transform = RandomQuarterTurn(seed=0)
    [turned] = transform(torch.rand(40, 1, *size))
    assert turned.shape == (40, 1, *size)
    assert set(transform.turns.tolist()) == {0, 2}


def test_all_four_turns_are_as_likely():
    transform = RandomQuarterTurn(seed=0)
    transform.randomize(torch.empty(4000, 1, 1, 1))
    counts = np.bincount(transform.turns, minlength=4)
    assert (abs(counts - 1000) < 120).all()  # more than four standard deviations


def test_the_draws_depend_on_the_seed_alone_and_leave_the_global_states_alone():
    images = torch.rand(20, 1, 4, 4)
    [first] = RandomQuarterTurn(seed=7)(images)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    assert torch.equal(RandomQuarterTurn(seed=7)(images)[0], first)
    assert torch.equal(RandomQuarterTurn().set_random_state(seed=7)(images)[0], first)
    assert not torch.equal(RandomQuarterTurn(seed=8)(images)[0], first)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002


def test_a_state_goes_on_with_the_draws():
    images = torch.rand(20, 1, 4, 4)
    one, other = RandomQuarterTurn(seed=7), RandomQuarterTurn(seed=8)
    one(images)
    other.load_state_dict(one.state_dict())
    assert torch.equal(other(images)[0], one(images)[0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float16, torch.float64], ids=str)
def test_no_value_is_interpolated(dtype):
    images = torch.arange(2 * 3 * 16).reshape(6, 1, 4, 4).to(dtype)
    [turned] = RandomQuarterTurn(seed=0)(images)
    assert turned.dtype == dtype
    assert torch.equal(turned.flatten(1).sort().values, images.flatten(1).sort().values)
