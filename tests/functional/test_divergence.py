"""Entropies and divergences agree with sums written out by hand, and stay finite where probabilities vanish."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from monai_spct.functional import entropy, generalized_jsd, kl_divergence, log_softmax, mixture

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:])
MAGNITUDES = pytest.mark.parametrize("magnitude", [200.0, 1e4], ids="{:g}".format)


def entropy_by_hand(p):
    return -sum(x * math.log(x) for x in p if x > 0)


def kl_by_hand(p, q):
    return sum(x * math.log(x / y) for x, y in zip(p, q, strict=True) if x > 0)


def mixture_by_hand(views, weights):
    return [sum(w * p[c] for w, p in zip(weights, views, strict=True)) for c in range(len(views[0]))]


def jsd_by_hand(views, weights, alpha):
    own = sum(w * entropy_by_hand(p) for w, p in zip(weights, views, strict=True))
    return entropy_by_hand(mixture_by_hand(views, weights)) - (1 - alpha) * own


def at_each_voxel(log_probs, weights):
    """Yields the index ``(b, *s)`` of a voxel with the K probability lists and the K weights there."""
    probs = log_probs.exp().movedim(2, -1)
    for voxel in product(*map(range, weights.shape[1:])):
        yield voxel, [view[voxel].tolist() for view in probs], [share[voxel].item() for share in weights]


@st.composite
def views_and_weights(draw, most=5, largest=30.0):
    """Log-probabilities ``(K, B, C, *S)`` on 1-D to 3-D images, and weights ``(K, B, *S)`` that sum to one."""
    k, b, c = draw(st.integers(2, most)), draw(st.integers(1, 2)), draw(st.integers(2, 4))
    space = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=3))
    logits = draw(hnp.arrays(np.float64, (k, b, c, *space), elements=st.floats(-largest, largest)))
    trust = torch.from_numpy(draw(hnp.arrays(np.float64, (k, b, *space), elements=st.floats(1e-5, 1.0))))
    return log_softmax(torch.from_numpy(logits), dim=2), trust / trust.sum(0)


def random_logits(*shape, scale=3.0, seed=0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def bernoulli(*probabilities):
    """Log-probabilities ``(K, 1, 2, 1)`` of K two-class predictions."""
    p = torch.tensor(probabilities, dtype=torch.float64)
    return torch.stack([p, 1 - p], dim=1).clamp(min=1e-300).log().reshape(len(probabilities), 1, 2, 1)


@settings(deadline=None, max_examples=40)
@given(case=views_and_weights())
def test_entropy_kl_and_mixture_agree_with_sums_by_hand(case):
    log_probs, weights = case
    entropies, mixed = entropy(log_probs, dim=2), mixture(log_probs, weights)
    to_the_mean, between = kl_divergence(log_probs, mixed[None], dim=2), kl_divergence(*log_probs[:2], dim=1)
    for voxel, views, shares in at_each_voxel(log_probs, weights):
        by_hand = mixture_by_hand(views, shares)
        assert mixed.movedim(1, -1)[voxel].exp().tolist() == pytest.approx(by_hand, abs=1e-12)
        assert between[voxel].item() == pytest.approx(kl_by_hand(*views[:2]), abs=1e-12)
        for k, view in enumerate(views):
            assert entropies[k][voxel].item() == pytest.approx(entropy_by_hand(view), abs=1e-12)
            assert to_the_mean[k][voxel].item() == pytest.approx(kl_by_hand(view, by_hand), abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(case=views_and_weights(), alpha=st.floats(0, 1))
def test_the_generalized_jsd_agrees_with_sums_by_hand_with_and_without_weights(case, alpha):
    log_probs, weights = case
    weighted, plain = generalized_jsd(log_probs, weights, alpha=alpha), generalized_jsd(log_probs, alpha=alpha)
    assert weighted.shape == plain.shape == weights.shape[1:]
    for voxel, views, shares in at_each_voxel(log_probs, weights):
        assert weighted[voxel].item() == pytest.approx(jsd_by_hand(views, shares, alpha), abs=1e-12)
        uniform = [1 / len(views)] * len(views)
        assert plain[voxel].item() == pytest.approx(jsd_by_hand(views, uniform, alpha), abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(case=views_and_weights(most=2))
def test_kl_is_never_negative_and_zero_to_itself(case):
    (p, q), _ = case
    assert kl_divergence(p, q, dim=1).min() >= -1e-12
    assert (kl_divergence(p, p, dim=1) == 0).all()


def test_kl_is_not_symmetric():
    """The networks come first and the pseudo-label second: KL([.5, .5] || [.25, .75]) is log 2 - log(3) / 2."""
    p, q = bernoulli(0.5)[0], bernoulli(0.25)[0]
    assert kl_divergence(p, q, dim=1).item() == pytest.approx(math.log(2) - math.log(3) / 2)
    assert kl_divergence(q, p, dim=1).item() == pytest.approx(3 / 4 * math.log(3) - math.log(2))


@settings(deadline=None, max_examples=40)
@given(case=views_and_weights(), alpha=st.floats(0, 1), data=st.data())
def test_the_jsd_does_not_care_which_network_is_first(case, alpha, data):
    log_probs, weights = case
    order = data.draw(st.permutations(range(len(log_probs))))
    for old, new in [(weights, weights[order]), (None, None)]:
        moved = generalized_jsd(log_probs[order], new, alpha=alpha)
        torch.testing.assert_close(moved, generalized_jsd(log_probs, old, alpha=alpha))


@settings(deadline=None, max_examples=40)
@given(case=views_and_weights(largest=200.0))
def test_the_jsd_lies_between_zero_and_the_entropy_of_the_weights(case):
    log_probs, weights = case
    plain = generalized_jsd(log_probs)
    assert plain.min() >= -1e-12
    assert plain.max() <= math.log(len(log_probs)) + 1e-12
    weighted = generalized_jsd(log_probs, weights)
    assert weighted.min() >= -1e-12
    assert (weighted <= -(weights * weights.log()).sum(0) + 1e-12).all()


@pytest.mark.parametrize("views", [2, 3, 4, 5])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_certain_networks_that_all_disagree_reach_log_k(views, alpha):
    log_probs = log_softmax(1e4 * torch.eye(views).reshape(views, 1, views, 1), dim=2)
    assert generalized_jsd(log_probs, alpha=alpha).item() == pytest.approx(math.log(views), abs=1e-6)


@settings(deadline=None, max_examples=25)
@given(case=views_and_weights(), alpha=st.floats(0, 1))
def test_networks_that_agree_have_only_the_entropy_share(case, alpha):
    log_probs, weights = case
    agreeing = log_probs[:1].expand_as(log_probs)
    expected = alpha * entropy(log_probs[0], dim=1)
    torch.testing.assert_close(generalized_jsd(agreeing, weights, alpha=alpha), expected, rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=25)
@given(case=views_and_weights())
def test_alpha_zero_is_the_mean_divergence_from_the_mixture_and_alpha_one_its_entropy(case):
    log_probs, weights = case
    mixed = mixture(log_probs, weights)
    divergence = (weights * kl_divergence(log_probs, mixed[None], dim=2)).sum(0)
    torch.testing.assert_close(generalized_jsd(log_probs, weights), divergence, rtol=0, atol=1e-12)
    torch.testing.assert_close(generalized_jsd(log_probs, weights, alpha=1.0), entropy(mixed, dim=1))


GRID = [i / 20 for i in range(21)]


@pytest.mark.parametrize(
    ("alpha", "zeros"),
    [(0.0, {(p, p) for p in GRID}), (0.1, {(0, 0), (1, 1)}), (0.5, {(0, 0), (1, 1)}), (1.0, {(0, 0), (1, 1)})],
    ids=["alpha 0: the diagonal", "alpha 0.1: two corners", "alpha 0.5: two corners", "alpha 1: two corners"],
)
def test_two_bernoulli_predictions_have_no_divergence_only_at(alpha, zeros):
    """The paper's picture of the entropy-regularized divergence."""
    at = {(p, q): generalized_jsd(bernoulli(p, q), alpha=alpha).item() for p in GRID for q in GRID}
    assert {pair for pair, value in at.items() if abs(value) < 1e-9} == zeros
    assert min(at.values()) > -1e-12
    assert at[0, 1] == at[1, 0] == pytest.approx(math.log(2))


def test_a_network_without_weight_has_no_say():
    """Its weight is exactly 0, whose logarithm is minus infinity."""
    logits = random_logits(2, 1, 3, 4).requires_grad_()
    log_probs = log_softmax(logits, dim=2)
    weights = torch.tensor([1.0, 0.0], dtype=torch.float64).reshape(2, 1, 1).expand(2, 1, 4)
    torch.testing.assert_close(mixture(log_probs, weights), log_probs[0])
    value = generalized_jsd(log_probs, weights, alpha=1.0)
    torch.testing.assert_close(value, entropy(log_probs[0], dim=1))
    value.sum().backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[0].any()
    assert not logits.grad[1].any()


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("weighted", [False, True], ids=["equal weights", "weights"])
@pytest.mark.parametrize("views", [2, 3])
def test_the_gradient_of_the_jsd_agrees_with_numerical_differences(alpha, weighted, views):
    logits = random_logits(views, 2, 3, 2, 2).requires_grad_()
    weights = torch.softmax(random_logits(views, 2, 2, 2, seed=1), dim=0) if weighted else None
    assert torch.autograd.gradcheck(lambda x: generalized_jsd(log_softmax(x, dim=2), weights, alpha=alpha), logits)


@pytest.mark.parametrize(
    ("given_dtype", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
    ids=lambda d: str(d)[6:],
)
def test_log_probabilities_have_at_least_single_precision_and_gradients_the_dtype_of_the_logits(given_dtype, expected):
    logits = random_logits(2, 1, 3, 4).to(given_dtype).requires_grad_()
    log_probs = log_softmax(logits, dim=2)
    assert log_probs.dtype == expected
    torch.testing.assert_close(log_probs.exp().sum(2), torch.ones(2, 1, 4, dtype=expected))
    generalized_jsd(log_probs).sum().backward()
    assert logits.grad.dtype == given_dtype


@DTYPES
@MAGNITUDES
def test_extreme_logits_of_either_sign_have_almost_no_entropy_and_uniform_ones_log_c(dtype, magnitude):
    certain = torch.full((1, 5, 5), -magnitude, dtype=dtype)
    certain[:, range(5), range(5)] = magnitude
    assert entropy(log_softmax(certain, dim=1), dim=1).abs().max() < 1e-6
    for value in (magnitude, -magnitude):
        uniform = torch.full((1, 5, 4), value, dtype=dtype)
        expected = torch.full((1, 4), math.log(5))
        torch.testing.assert_close(entropy(log_softmax(uniform, dim=1), dim=1), expected)


@DTYPES
@MAGNITUDES
@pytest.mark.parametrize("views", [2, 3, 5])
def test_the_jsd_of_extreme_logits_is_finite_and_between_zero_and_log_k(dtype, magnitude, views):
    """Every combination of signs of two to five networks over three classes, some sure, some torn, some even."""
    signs = torch.randint(-1, 2, (views, 1, 3, 500), generator=torch.Generator().manual_seed(0))
    logits = (magnitude * signs).to(dtype).requires_grad_()
    value = generalized_jsd(log_softmax(logits, dim=2))
    value.sum().backward()
    assert value.isfinite().all()
    assert value.min() >= -1e-6
    assert value.max() <= math.log(views) + 1e-6
    assert logits.grad.isfinite().all()
