"""The weights and the loss solve the paper's problems: Theorem 1, Theorem 2, and the range of gamma."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import minimize, minimize_scalar

from monai_spct.functional import (
    gamma_upper_bound,
    generalized_jsd,
    initial_gamma,
    kl_divergence,
    log_softmax,
    mixture,
    self_paced_jsd,
    self_paced_weights,
)

EPS = 1e-5
GAMMAS = st.floats(1e-3, 20.0)


def entropy_by_hand(p):
    return -sum(x * math.log(x) for x in p if x > 0)


def kl_by_hand(p, q):
    return sum(x * math.log(x / y) for x, y in zip(p, q, strict=True) if x > 0)


def mean_by_hand(views, shares):
    return [sum(share * p[c] for share, p in zip(shares, views, strict=True)) for c in range(len(views[0]))]


def weights_by_hand(views, gamma, eps=EPS):
    mean = mean_by_hand(views, [1 / len(views)] * len(views))
    return [max(1 - kl_by_hand(p, mean) / gamma, eps) for p in views]


def loss_by_hand(views, gamma, alpha):
    weights = weights_by_hand(views, gamma)
    shares = [w / sum(weights) for w in weights]
    own = sum(share * entropy_by_hand(p) for share, p in zip(shares, views, strict=True))
    return sum(weights) * (entropy_by_hand(mean_by_hand(views, shares)) - (1 - alpha) * own)


def objective_of_a_weight(weight, divergence, gamma):
    """What Theorem 1 minimizes."""
    return gamma * (weight**2 / 2 - weight) + weight * divergence


def objective_of_a_pseudo_label(label, log_probs, weights):
    """What Theorem 2 minimizes at each voxel, for log-probabilities ``label`` ``(B, C, *S)``."""
    return (weights * kl_divergence(log_probs, label[None], dim=2)).sum(0)


@st.composite
def views(draw, largest=30.0):
    """Log-probabilities ``(K, B, C, *S)`` on 1-D to 3-D images."""
    space = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=3))
    shape = (draw(st.integers(2, 5)), draw(st.integers(1, 2)), draw(st.integers(2, 4)), *space)
    logits = draw(hnp.arrays(np.float64, shape, elements=st.floats(-largest, largest)))
    return log_softmax(torch.from_numpy(logits), dim=2)


def random_logits(*shape, scale=3.0, seed=0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_views(*shape, **settings_):
    return log_softmax(random_logits(*shape, **settings_), dim=2)


def bernoulli_voxels(*networks):
    """Log-probabilities ``(K, 1, 2, V)`` from the K networks' probabilities of the first class at V voxels."""
    p = torch.tensor(networks, dtype=torch.float64)
    return torch.stack([p, 1 - p], dim=1).log()[:, None]


class TestTheorem1:
    @settings(deadline=None, max_examples=60)
    @given(p=st.floats(0.001, 0.999), label=st.floats(0.001, 0.999), gamma=GAMMAS)
    def test_the_weight_is_the_numerical_minimum(self, p, label, gamma):
        log_probs, consensus = bernoulli_voxels([p]), bernoulli_voxels([label])[0]
        weight = self_paced_weights(log_probs, consensus, gamma=gamma, eps=1e-12).item()
        divergence = kl_by_hand([p, 1 - p], [label, 1 - label])
        found = minimize_scalar(
            objective_of_a_weight,
            bounds=(0, 1),
            args=(divergence, gamma),
            method="bounded",
            options={"xatol": 1e-9},
        )
        assert weight == pytest.approx(found.x, abs=1e-5)

    @settings(deadline=None, max_examples=40)
    @given(log_probs=views(), gamma=GAMMAS)
    def test_more_divergence_never_means_more_weight(self, log_probs, gamma):
        consensus = mixture(log_probs)
        order = kl_divergence(log_probs, consensus[None], dim=2).flatten().argsort()
        weights = self_paced_weights(log_probs, consensus, gamma=gamma).flatten()[order]
        assert (weights.diff() <= 0).all()
        assert (weights >= EPS).all()
        assert (weights <= 1).all()

    def test_only_the_voxel_above_the_threshold_has_the_smallest_weight(self):
        """Sure networks that disagree are log 2 from their mean; nearly agreeing ones are close to it."""
        log_probs = bernoulli_voxels([0.8, 1 - 1e-12, 0.5], [0.8, 1e-12, 0.6])
        weights = self_paced_weights(log_probs, mixture(log_probs), gamma=0.69)
        assert weights[:, 0, 1].tolist() == [EPS, EPS]
        assert weights[:, 0, [0, 2]].min() > 0.99
        just_above = self_paced_weights(log_probs, mixture(log_probs), gamma=0.70)
        torch.testing.assert_close(
            just_above[:, 0, 1], torch.full((2,), 1 - math.log(2) / 0.7, dtype=torch.float64), rtol=0, atol=1e-9
        )


class TestTheorem2:
    @pytest.mark.parametrize("count", [2, 3])
    @pytest.mark.parametrize("gamma", [0.05, 0.5, 5.0])
    def test_the_loss_is_the_weighted_divergence_at_the_best_pseudo_label(self, count, gamma):
        """The best pseudo-label is searched without knowledge of its closed form, from an even guess."""
        log_probs = random_views(count, 1, 3, 4)
        loss, weights = self_paced_jsd(log_probs, gamma=gamma)
        for voxel in range(4):
            one, trust = log_probs[..., voxel : voxel + 1], weights[..., voxel : voxel + 1]

            def unreduced(logits, one=one, trust=trust):
                label = log_softmax(torch.from_numpy(logits).reshape(1, 3, 1), dim=1)
                return (objective_of_a_pseudo_label(label, one, trust) / trust.sum()).item()

            found = minimize(unreduced, np.zeros(3), tol=1e-10, method="Nelder-Mead", options={"maxiter": 2000})
            assert loss[0, voxel].item() == pytest.approx(found.fun * trust.sum().item(), abs=1e-7)
            best = mixture(one, trust / trust.sum(0)).exp().flatten()
            searched = torch.softmax(torch.from_numpy(found.x), dim=0)
            torch.testing.assert_close(searched, best, rtol=0, atol=1e-3)

    @settings(deadline=None, max_examples=40)
    @given(log_probs=views(), gamma=GAMMAS, seed=st.integers(0, 99))
    def test_any_other_pseudo_label_is_worse_by_its_divergence_from_the_best(self, log_probs, gamma, seed):
        loss, weights = self_paced_jsd(log_probs, gamma=gamma)
        best = mixture(log_probs, weights / weights.sum(0))
        other = log_softmax(random_logits(*best.shape, seed=seed), dim=1)
        excess = objective_of_a_pseudo_label(other, log_probs, weights) - loss
        assert excess.min() >= -1e-12
        expected = weights.sum(0) * kl_divergence(best, other, dim=1)
        torch.testing.assert_close(excess, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("space", [(3, 2), (2, 3, 2)], ids=["2-D", "3-D"])
@settings(deadline=None, max_examples=25)
@given(count=st.integers(2, 5), gamma=GAMMAS, alpha=st.floats(0, 1), seed=st.integers(0, 99))
def test_weights_and_loss_agree_with_sums_by_hand(space, count, gamma, alpha, seed):
    log_probs = random_views(count, 2, 3, *space, seed=seed)
    loss, weights = self_paced_jsd(log_probs, gamma=gamma, alpha=alpha)
    assert loss.shape == (2, *space)
    assert weights.shape == (count, 2, *space)
    probs = log_probs.exp().movedim(2, -1)
    for voxel in product(*map(range, loss.shape)):
        predictions = [view[voxel].tolist() for view in probs]
        assert loss[voxel].item() == pytest.approx(loss_by_hand(predictions, gamma, alpha), abs=1e-12)
        by_hand = weights_by_hand(predictions, gamma)
        assert [weight[voxel].item() for weight in weights] == pytest.approx(by_hand, abs=1e-10)


@settings(deadline=None, max_examples=25)
@given(log_probs=views(), gamma=GAMMAS, alpha=st.floats(0, 1), data=st.data())
def test_the_loss_does_not_care_which_network_is_first(log_probs, gamma, alpha, data):
    order = data.draw(st.permutations(range(len(log_probs))))
    loss, weights = self_paced_jsd(log_probs, gamma=gamma, alpha=alpha)
    moved_loss, moved_weights = self_paced_jsd(log_probs[order], gamma=gamma, alpha=alpha)
    torch.testing.assert_close(moved_loss, loss, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(moved_weights, weights[order], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize(
    ("gamma", "weight"),
    [(1e-30, EPS), (1e-6, EPS), (1e9, 1.0), (1e30, 1.0), (math.inf, 1.0)],
    ids=["1e-30: all eps", "1e-6: all eps", "1e9: all full", "1e30: all full", "infinity: all full"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_at_either_end_of_the_gamma_the_loss_is_a_multiple_of_the_plain_divergence(count, gamma, weight, dtype):
    """No 0/0 where every weight is the smallest one."""
    logits = random_logits(count, 2, 3, 4, 5).to(dtype).requires_grad_()
    log_probs = log_softmax(logits, dim=2)
    loss, weights = self_paced_jsd(log_probs, gamma=gamma)
    torch.testing.assert_close(weights, torch.full_like(weights, weight), rtol=0, atol=1e-8)
    torch.testing.assert_close(loss, count * weight * generalized_jsd(log_probs), rtol=1e-4, atol=1e-6 * weight)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    (plain,) = torch.autograd.grad(count * weight * generalized_jsd(log_softmax(logits, dim=2)).sum(), logits)
    torch.testing.assert_close(gradient, plain, rtol=1e-4, atol=1e-6 * weight)
    assert gradient.any()


@pytest.mark.parametrize("gamma", [1e-30, 0.2, 1e30], ids="{:g}".format)
def test_networks_that_agree_everywhere_have_no_loss_at_any_gamma(gamma):
    logits = random_logits(1, 2, 3, 4).expand(3, -1, -1, -1).clone().requires_grad_()
    loss, weights = self_paced_jsd(log_softmax(logits, dim=2), gamma=gamma)
    loss.sum().backward()
    torch.testing.assert_close(loss, torch.zeros_like(loss), rtol=0, atol=1e-12)
    torch.testing.assert_close(logits.grad, torch.zeros_like(logits), rtol=0, atol=1e-12)
    assert weights.isfinite().all()


class TestWhoLearns:
    """The weights are constants of the loss."""

    def loss_and_gradient(self, logits, through_weights=None, gamma=1.0, alpha=0.3):
        """The loss written out with its weights, through which gradients flow or not; or the package's loss."""
        logits = logits.clone().requires_grad_()
        log_probs = log_softmax(logits, dim=2)
        if through_weights is None:
            loss, _ = self_paced_jsd(log_probs, gamma=gamma, alpha=alpha)
        else:
            weights = self_paced_weights(log_probs, mixture(log_probs), gamma=gamma)
            weights = weights if through_weights else weights.detach()
            loss = weights.sum(0) * generalized_jsd(log_probs, weights / weights.sum(0), alpha=alpha)
        return loss.detach(), torch.autograd.grad(loss.sum(), logits)[0]

    @pytest.mark.parametrize("count", [2, 3])
    def test_the_gradient_is_the_one_at_constant_weights_and_not_the_one_through_them(self, count):
        logits = random_logits(count, 1, 3, 6, scale=1.0)
        loss, gradient = self.loss_and_gradient(logits)
        same_loss, constant = self.loss_and_gradient(logits, through_weights=False)
        other_loss, through = self.loss_and_gradient(logits, through_weights=True)
        torch.testing.assert_close(loss, same_loss)
        torch.testing.assert_close(loss, other_loss)
        torch.testing.assert_close(gradient, constant)
        assert (gradient - through).abs().max() > 0.01


class TestInitialGamma:
    @pytest.mark.parametrize("gammas", [{"0.1": 0.4, "0.05": 0.5}, {0.05: 0.5, 0.1: 0.4}], ids=["strings", "numbers"])
    def test_it_is_that_of_the_smallest_ratio_which_the_share_does_not_exceed(self, gammas):
        for share, gamma in {0.0: 0.5, 0.05: 0.5, 0.0500001: 0.4, 0.1: 0.4, 0.2: 0.4, 1.0: 0.4}.items():
            assert initial_gamma(share, gammas) == gamma

    @pytest.mark.parametrize("ratio", [0.05, 0.07, 0.1, 0.2])
    def test_a_listed_ratio_is_found_again_from_whole_patients(self, ratio):
        gammas = {ratio: 1.0, ratio / 2: 2.0, 2 * ratio: 3.0}
        for patients in range(1, 200):
            labeled = int(ratio * patients + 1e-9)
            if labeled >= 1 and labeled / patients > ratio / 2:
                assert initial_gamma(labeled / patients, gammas) == 1.0

    def test_nothing_listed_is_refused(self):
        with pytest.raises(ValueError, match="`gammas` must list at least one ratio, got none"):
            initial_gamma(0.1, {})


class TestGammaUpperBound:
    @pytest.mark.parametrize(
        ("count", "eps", "bound"),
        [(2, 1e-5, 17.6096), (3, 1e-5, 18.1946), (2, 0.5, 2.0), (4, 2**-10, 12.0), (2, 1.0, 1.0)],
    )
    def test_it_is_the_binary_logarithm_of_k_over_eps(self, count, eps, bound):
        assert gamma_upper_bound(count, eps) == pytest.approx(bound, abs=1e-4)

    @pytest.mark.parametrize(
        ("count", "eps", "message"),
        [
            (1, 1e-5, "`num_views` must be a whole number of at least 2, got 1"),
            (2, 0.0, "`eps` must be positive, got 0.0"),
        ],
        ids=["one network", "eps 0"],
    )
    def test_a_count_or_floor_out_of_range_is_refused(self, count, eps, message):
        with pytest.raises(ValueError, match=message):
            gamma_upper_bound(count, eps)

    @settings(deadline=None, max_examples=60)
    @given(log_probs=views(largest=300.0), seed=st.integers(0, 99), eps=st.sampled_from([1e-5, 1e-2]))
    def test_no_network_diverges_more_than_the_bound_from_the_weighted_mean(self, log_probs, seed, eps):
        """Networks have any weights from eps to 1, most of them at one of the ends."""
        draw = torch.rand(len(log_probs), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        weights = (3 * draw - 1).clamp(eps, 1).reshape(-1, 1, *[1] * (log_probs.ndim - 3))
        shares = (weights / weights.sum(0)).expand(log_probs[:, :, 0].shape)
        divergence = kl_divergence(log_probs, mixture(log_probs, shares)[None], dim=2)
        assert (divergence <= -shares.log() + 1e-9).all()
        assert divergence.max() <= math.log(len(log_probs) / eps) + 1e-9 <= gamma_upper_bound(len(log_probs), eps)


@pytest.mark.parametrize(("gamma", "eps"), [(1e-46, 1e-5), (1e-300, 1e-5), (0.2, 1e-50)], ids=str)
def test_settings_below_the_smallest_float_give_no_nan(gamma, eps):
    log_probs = torch.randn(2, 1, 4, 3, 3, generator=torch.Generator().manual_seed(0)).log_softmax(2)
    log_probs[1, ..., 0] = log_probs[0, ..., 0]  # some voxels agree
    log_probs.requires_grad_()
    loss, weights = self_paced_jsd(log_probs, gamma=gamma, eps=eps)
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(log_probs.grad).all()
    assert (weights > 0).all()
