import numpy as np
import pytest
import torch

from monai_spct.transforms import RandomQuarterTurn, turn

SIZES = {"2-D": (6, 6), "2-D odd": (7, 7), "3-D": (6, 6, 5)}
BY_SIZE = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())


def slow_turn(images: torch.Tensor, turns: np.ndarray) -> torch.Tensor:
    """Each image ``(C, *S)`` of a batch turned by itself."""
    return torch.stack([torch.rot90(image, int(k), (1, 2)) for image, k in zip(images, turns, strict=True)])


def drawn_turns(images: torch.Tensor, *, seed: int) -> np.ndarray:
    transform = RandomQuarterTurn(seed=seed)
    transform.randomize(images)
    return transform.turns


@BY_SIZE
def test_each_image_has_its_own_turn(size):
    images = torch.rand(40, 2, *size)
    turns = drawn_turns(images, seed=1)
    augmented, _ = RandomQuarterTurn(seed=1)(images)
    assert torch.equal(augmented, slow_turn(images, turns))
    assert set(turns.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("turns", [[0, 1, 2, 3], [-1, -2, -3, 4], [5, 6, 7, -4]], ids=str)
@BY_SIZE
def test_turns_count_from_the_first_axis_toward_the_second(size, turns):
    images = torch.rand(4, 1, *size)
    augmented = turn(images, np.array(turns), spatial_dims=len(size))
    assert torch.equal(augmented, slow_turn(images, np.array(turns)))


@pytest.mark.parametrize("leading", [(), (2,), (2, 3)], ids=["no axis", "one axis", "two axes"])
@BY_SIZE
def test_each_image_behind_leading_axes_is_turned_by_itself(size, leading):
    turns = np.array([3, 0, 2, 1, 1])
    predictions = torch.rand(*leading, len(turns), 2, *size)
    augmented = turn(predictions, turns, spatial_dims=len(size))
    assert augmented.shape == predictions.shape
    for index in np.ndindex(leading):
        assert torch.equal(augmented[index], slow_turn(predictions[index], turns))


@pytest.mark.parametrize(
    ("size", "memory_format"),
    [((6, 6), torch.channels_last), ((6, 6, 5), torch.channels_last_3d)],
    ids=["2-D", "3-D"],
)
def test_images_with_channels_last_are_turned_alike(size, memory_format):
    turns = np.array([3, 0, 2, 1, 1])
    images = torch.rand(len(turns), 2, *size)
    channels_last = images.to(memory_format=memory_format)
    assert channels_last.stride() != images.stride()
    augmented = turn(channels_last, turns, spatial_dims=len(size))
    assert torch.equal(augmented, slow_turn(images, turns))
    assert torch.equal(turn(augmented, -turns, spatial_dims=len(size)), images)


@pytest.mark.parametrize("leading", [(), (2,)], ids=["images", "predictions"])
def test_the_gradient_of_a_turn_is_the_inverse_turn(leading):
    turns = np.array([3, 0, 2, 1, 1])
    images = torch.rand(*leading, len(turns), 2, 6, 6, requires_grad=True)
    gradient = torch.rand(*leading, len(turns), 2, 6, 6)
    turn(images, turns, spatial_dims=2).backward(gradient)
    assert torch.equal(images.grad, turn(gradient, -turns, spatial_dims=2))
    assert not torch.equal(images.grad, turn(gradient, turns, spatial_dims=2))


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)], ids=["one network", "K networks", "two leading axes"])
@pytest.mark.parametrize("channels", [1, 4], ids=["1 class", "4 classes"])
@BY_SIZE
def test_the_undo_takes_predictions_about_moved_images_back(size, channels, leading):
    transform = RandomQuarterTurn(seed=2)
    images = torch.rand(9, 1, *size)
    augmented, undo = transform(images)
    assert not torch.equal(augmented, images)
    assert torch.equal(undo(augmented), images)
    # a prediction without regard to position commutes with every turn
    factors = torch.rand(*leading, 1, channels, *(1 for _ in size))
    assert torch.equal(undo(augmented * factors), images * factors)


def test_an_undo_belongs_to_its_own_move():
    transform = RandomQuarterTurn(seed=0)
    images = torch.rand(8, 1, 5, 5)
    first, undo_first = transform(images)
    second, undo_second = transform(images)
    assert not torch.equal(first, second)
    assert torch.equal(undo_first(first), images)
    assert torch.equal(undo_second(second), images)
    assert not torch.equal(undo_second(first), images)


@pytest.mark.parametrize("size", [(6, 7), (7, 6, 6)], ids=str)
def test_images_that_are_not_square_make_half_turns_only(size):
    images = torch.rand(40, 1, *size)
    augmented, undo = RandomQuarterTurn(seed=0)(images)
    halves = torch.rot90(images, 2, (2, 3))
    kinds = [(torch.equal(m, i), torch.equal(m, h)) for m, i, h in zip(augmented, images, halves, strict=True)]
    assert set(kinds) == {(True, False), (False, True)}
    assert torch.equal(undo(augmented), images)


def test_only_the_first_two_axes_must_be_square():
    turns = drawn_turns(torch.rand(40, 1, 6, 6, 3), seed=0)
    assert set(turns.tolist()) == {0, 1, 2, 3}


def test_all_four_turns_are_as_likely():
    turns = drawn_turns(torch.empty(4000, 1, 1, 1), seed=0)
    counts = np.bincount(turns, minlength=4)
    assert counts.sum() == 4000
    assert (abs(counts - 1000) < 120).all()  # more than four standard deviations


def test_the_draws_depend_on_the_seed_alone():
    images = torch.rand(20, 1, 4, 4)
    first = [RandomQuarterTurn(seed=7)(images)[0] for _ in range(2)]
    assert torch.equal(*first)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    assert torch.equal(RandomQuarterTurn(seed=7)(images)[0], first[0])
    assert torch.equal(RandomQuarterTurn().set_random_state(seed=7)(images)[0], first[0])
    assert not torch.equal(RandomQuarterTurn(seed=8)(images)[0], first[0])


def test_drawing_leaves_the_global_random_states_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    RandomQuarterTurn(seed=0)(torch.zeros(5, 1, 4, 4))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002


def test_the_argument_stays_as_it_is():
    images = torch.rand(9, 1, 6, 6)
    before = images.clone()
    augmented, undo = RandomQuarterTurn(seed=0)(images)
    augmented_before = augmented.clone()
    undo(augmented)
    assert torch.equal(images, before)
    assert torch.equal(augmented, augmented_before)


def test_gradients_flow_back_through_the_undo():
    transform = RandomQuarterTurn(seed=3)
    images = torch.rand(9, 1, 6, 6)
    weights = torch.rand(2, 9, 1, 6, 6)
    augmented, undo = transform(images)
    prediction = torch.stack([augmented, 2 * augmented]).requires_grad_()
    (undo(prediction) * weights).sum().backward()
    # where a weight of the original frame is in the augmented one
    turns = drawn_turns(images, seed=3)
    expected = torch.stack([slow_turn(w, turns) for w in weights])
    assert torch.equal(prediction.grad, expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float16, torch.float64], ids=str)
def test_no_value_is_interpolated(dtype):
    images = torch.arange(2 * 3 * 16).reshape(6, 1, 4, 4).to(dtype)
    augmented, _ = RandomQuarterTurn(seed=0)(images)
    assert augmented.dtype == dtype
    assert torch.equal(augmented.flatten(1).sort().values, images.flatten(1).sort().values)
