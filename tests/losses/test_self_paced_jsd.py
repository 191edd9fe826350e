"""The loss fits an ordinary PyTorch or MONAI loop, checks what it is given, and is finite for every finite logit."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from monai_spct.functional import entropy, generalized_jsd, log_softmax, mixture, self_paced_jsd
from monai_spct.losses import SelfPacedJSDLoss

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:])


def random_logits(*shape, scale=3.0, seed=0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


SHAPES = pytest.mark.parametrize(
    "shape", [(2, 3, 4, 5), (3, 2, 2, 4, 5), (2, 1, 3, 2, 3, 4)], ids=["1-D", "2-D, three networks", "3-D"]
)


@SHAPES
def test_a_list_of_predictions_and_their_stack_are_the_same(shape):
    views, criterion = random_logits(*shape), SelfPacedJSDLoss(gamma=0.2, alpha=0.1)
    for sequence in (list(views), tuple(views)):
        assert criterion(sequence).item() == criterion(views).item()


@SHAPES
def test_reductions_are_the_mean_and_sum_of_the_loss_at_each_voxel(shape):
    views = random_logits(*shape)
    each, mean, total = (SelfPacedJSDLoss(gamma=0.2, reduction=r)(views) for r in ("none", "mean", "sum"))
    assert each.shape == (shape[1], *shape[3:])
    assert mean.shape == total.shape == ()
    torch.testing.assert_close(mean, each.mean())
    torch.testing.assert_close(total, each.sum())
    assert SelfPacedJSDLoss(gamma=0.2)(views).item() == mean.item()


def test_its_settings_reach_the_function():
    views = random_logits(3, 2, 4, 5)
    criterion = SelfPacedJSDLoss(gamma=0.1, alpha=0.3, eps=1e-2, reduction="none")
    expected, weights = self_paced_jsd(log_softmax(views, dim=2), gamma=0.1, alpha=0.3, eps=1e-2)
    assert (weights == 1e-2).any()
    torch.testing.assert_close(criterion(views), expected)


@pytest.mark.parametrize("scale", [3.0, 200.0], ids=["all probabilities positive", "some exactly zero"])
@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_probabilities_and_logits_have_the_same_loss_and_gradient(scale, alpha):
    logits = random_logits(2, 2, 4, 6, scale=scale).requires_grad_()
    probs = logits.softmax(dim=2)
    assert (probs == 0).any() == (scale == 200.0)
    from_logits = SelfPacedJSDLoss(gamma=0.5, alpha=alpha)(logits)
    from_probs = SelfPacedJSDLoss(gamma=0.5, alpha=alpha, softmax=False)(probs)
    torch.testing.assert_close(from_probs, from_logits)
    gradients = [torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (from_probs, from_logits)]
    assert gradients[0].any()
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


@DTYPES
def test_probabilities_of_exactly_zero_and_one_have_a_finite_loss_and_gradient(dtype):
    """Two networks over three voxels: agree, disagree, one unsure."""
    views = torch.tensor([[[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]], [[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]]], dtype=dtype)
    probs = views[:, None].requires_grad_()
    each = SelfPacedJSDLoss(gamma=1e9, softmax=False, reduction="none")(probs)
    three_quarters = -0.75 * math.log(0.75) - 0.25 * math.log(0.25) - 0.5 * math.log(2)
    expected = 2 * torch.tensor([[0.0, math.log(2), three_quarters]])
    torch.testing.assert_close(each, expected, rtol=0, atol=1e-6)
    for alpha in (0.0, 1.0):
        loss = SelfPacedJSDLoss(gamma=0.5, alpha=alpha, softmax=False)(probs)
        (gradient,) = torch.autograd.grad(loss, probs)
        assert loss.isfinite()
        assert gradient.isfinite().all()


class TestSettings:
    def test_pace_and_alpha_may_be_set_between_iterations(self):
        views, criterion = random_logits(2, 1, 3, 20), SelfPacedJSDLoss(gamma=0.1)
        before = criterion(views).item()
        criterion.gamma, criterion.alpha = 2.0, 0.5
        assert (criterion.gamma, criterion.alpha) == (2.0, 0.5)
        assert criterion(views).item() == SelfPacedJSDLoss(gamma=2.0, alpha=0.5)(views).item() > before

    @pytest.mark.parametrize(
        ("name", "value", "rule"),
        [
            *[("gamma", value, "be positive") for value in (0.0, -1.5, math.nan)],
            *[("alpha", value, "lie between 0 and 1") for value in (-0.1, 1.1, math.nan)],
            *[("eps", value, ".*") for value in (0.0, 1.5, math.nan)],
        ],
    )
    def test_a_setting_out_of_range_is_refused_whenever_it_is_set(self, name, value, rule):
        message = rf"`{name}` must {rule}, got {value!r}\."
        with pytest.raises(ValueError, match=message):
            SelfPacedJSDLoss(**{"gamma": 0.2, name: value})
        if name != "eps":
            criterion = SelfPacedJSDLoss(gamma=0.2, alpha=0.3)
            with pytest.raises(ValueError, match=message):
                setattr(criterion, name, value)
            assert (criterion.gamma, criterion.alpha) == (0.2, 0.3)

    @pytest.mark.parametrize(
        "copied", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))], ids=["deepcopy", "pickle"]
    )
    def test_copies_have_the_same_settings_and_go_their_own_way(self, copied):
        original = SelfPacedJSDLoss(gamma=0.3, alpha=0.2, eps=1e-3, softmax=False, reduction="sum")
        other = copied(original)
        views = random_logits(2, 1, 3, 4).softmax(dim=2)
        assert other(views).item() == original(views).item()
        other.gamma = 5.0
        assert original.gamma == 0.3


class TestWrongInputs:
    @pytest.mark.parametrize("as_list", [False, True], ids=["stack", "list"])
    @pytest.mark.parametrize("count", [0, 1])
    def test_fewer_than_two_networks_are_refused(self, count, as_list):
        views = torch.zeros(count, 1, 3, 4, 4)
        with pytest.raises(
            ValueError, match=rf"`views` must hold the predictions of at least 2 networks, got {count}\."
        ):
            SelfPacedJSDLoss(gamma=0.2)(list(views) if as_list else views)

    def test_predictions_of_several_shapes_are_refused_and_shown(self):
        views = [torch.zeros(1, 3, 4, 4), torch.zeros(1, 3, 4, 5)]
        with pytest.raises(ValueError, match=r"`views` .*\(1, 3, 4, 4\), \(1, 3, 4, 5\)"):
            SelfPacedJSDLoss(gamma=0.2)(views)

    @pytest.mark.parametrize("views", [torch.zeros(2, 1, 3), [torch.zeros(1, 3)] * 2], ids=["stack", "list"])
    def test_predictions_without_space_are_refused_and_shown(self, views):
        with pytest.raises(ValueError, match=r"`views` must be \(K, B, C, \*S\), got the shape \(2, 1, 3\)\."):
            SelfPacedJSDLoss(gamma=0.2)(views)


class TestDtypeAndDevice:
    @pytest.mark.parametrize("softmax", [True, False], ids=["logits", "probabilities"])
    @pytest.mark.parametrize(
        ("dtype", "expected"),
        [
            (torch.float16, torch.float32),
            (torch.bfloat16, torch.float32),
            (torch.float32, torch.float32),
            (torch.float64, torch.float64),
        ],
        ids=lambda d: str(d)[6:],
    )
    def test_the_loss_has_at_least_single_precision_and_the_gradient_the_dtype_of_the_input(
        self, dtype, expected, softmax
    ):
        views = random_logits(2, 2, 3, 4)
        views = (views if softmax else views.softmax(dim=2)).to(dtype).requires_grad_()
        loss = SelfPacedJSDLoss(gamma=0.2, softmax=softmax)(views)
        loss.backward()
        assert loss.dtype == expected
        assert views.grad.dtype == dtype
        torch.testing.assert_close(loss, SelfPacedJSDLoss(gamma=0.2, softmax=softmax)(views.to(expected)))


@DTYPES
@pytest.mark.parametrize("magnitude", [200.0, 1e4], ids="{:g}".format)
@pytest.mark.parametrize("gamma", [1e-6, 0.2, 17.6, 1e6], ids="gamma {:g}".format)
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0], ids="alpha {:g}".format)
def test_extreme_logits_have_a_finite_loss_and_gradient(dtype, magnitude, gamma, alpha):
    signs = torch.randint(-1, 2, (3, 2, 4, 100), generator=torch.Generator().manual_seed(0))
    logits = (magnitude * signs).to(dtype).requires_grad_()
    each = SelfPacedJSDLoss(gamma=gamma, alpha=alpha, reduction="none")(logits)
    each.mean().backward()
    assert each.isfinite().all()
    assert each.min() >= -1e-6
    # a weighted divergence is at most the entropy of its weights, and of alpha's share at most log C
    assert each.max() <= 3 * (math.log(3) + alpha * math.log(4)) + 1e-5
    assert logits.grad.isfinite().all()


def small_network(seed):
    network = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.4, generator=torch.Generator().manual_seed(seed))
    return network


@pytest.mark.parametrize("alpha", [0.0, 0.5], ids=["agree", "agree and be certain"])
def test_two_networks_in_an_ordinary_loop_come_to(alpha):
    networks, images = [small_network(seed) for seed in (1, 2)], random_logits(4, 1, 12, 12, scale=1.0)
    optimizer = torch.optim.Adam([p for network in networks for p in network.parameters()], lr=0.02)
    criterion = SelfPacedJSDLoss(gamma=0.2, alpha=alpha)

    def disagreement_and_uncertainty():
        with torch.no_grad():
            log_probs = log_softmax(torch.stack([network(images) for network in networks]), dim=2)
            return generalized_jsd(log_probs).mean().item(), entropy(mixture(log_probs), dim=1).mean().item()

    before = disagreement_and_uncertainty()
    for epoch in range(40):
        criterion.gamma = 0.2 * 1.1**epoch
        optimizer.zero_grad()
        criterion([network(images) for network in networks]).backward()
        optimizer.step()
    after = disagreement_and_uncertainty()
    assert before[0] > 0.1
    assert after[0] < 0.1 * before[0]
    if alpha > 0:
        assert after[1] < 0.2 * before[1]
