"""Schedules have exact values at their joints, never turn back, and follow a run's own length."""

import math
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from monai_spct.functional import gamma_upper_bound, geometric_growth, linear_rampup, sigmoid_rampup

FULL = 4.0


def sigmoid(progress, **joints):
    return sigmoid_rampup(progress, value=FULL, **joints)


def linear(progress, **joints):
    return linear_rampup(progress, value=FULL, **joints)


def growth(progress, **joints):
    return geometric_growth(progress, initial=0.2, final=FULL, **joints)


EACH = pytest.mark.parametrize("schedule", [sigmoid, linear, growth], ids=lambda s: s.__name__)
RAMPS = pytest.mark.parametrize("ramp", [sigmoid, linear], ids=lambda s: s.__name__)
SHARES = st.floats(0, 1)


@pytest.mark.parametrize(
    ("progress", "value"),
    [
        (0.0, 0.75),
        (0.2 - 1e-12, 0.75),
        (0.2, 0.75 + 0.25 * math.exp(-5)),
        (0.4, 0.75 + 0.25 * math.exp(-1.25)),
        (0.6, 1.0),
        (0.99, 1.0),
    ],
    ids=["at first", "just before the start", "at the start", "half-way", "at the end", "at last"],
)
def test_the_sigmoid_ramp_up_starts_from_where_it_is_told(progress, value):
    """As the threshold of UA-MT, from 3/4 of the largest entropy to all of it."""
    assert sigmoid_rampup(progress, value=1.0, initial=0.75, start=0.2, end=0.6) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("progress", "value"),
    [(0.0, 0.0), (0.2, 0.0), (0.3, FULL / 4), (0.4, FULL / 2), (0.6, FULL), (0.99, FULL)],
    ids=["at first", "at the start", "a quarter of the way", "half-way", "at the end", "at last"],
)
def test_the_linear_ramp_up_is_exact(progress, value):
    assert linear(progress, start=0.2, end=0.6) == pytest.approx(value, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    ("progress", "value"),
    [(0.0, 0.5), (0.2, 2.0), (0.3, 4.0), (0.4, 8.0), (0.99, 8.0)],
    ids=["at first", "half-way", "three quarters of the way", "at the end", "at last"],
)
def test_geometric_growth_is_exact(progress, value):
    """From 1/2 to 8 are four doublings, one in each tenth of the run."""
    assert geometric_growth(progress, initial=0.5, final=8.0, end=0.4) == pytest.approx(value)


@RAMPS
@settings(deadline=None, max_examples=100)
@given(joints=st.tuples(SHARES, SHARES).map(sorted), progress=st.tuples(SHARES, SHARES).map(sorted))
def test_ramp_ups_keep_their_order_and_range_wherever_they_start_and_end(ramp, joints, progress):
    start, end = joints
    assume(start < end)
    earlier, later = (ramp(share, start=start, end=end) for share in progress)
    assert 0 <= earlier <= later <= FULL
    assert ramp(end, start=start, end=end) == FULL
    if start > 0:
        assert ramp(math.nextafter(start, 0), start=start, end=end) == 0


@EACH
@pytest.mark.parametrize("end", [0.3, 0.5, 1.0])
def test_no_schedule_jumps_where_it_ends(schedule, end):
    assert schedule(end - 1e-9, end=end) == pytest.approx(schedule(end, end=end), rel=1e-6)
    assert schedule(end, end=end) == pytest.approx(FULL)


@EACH
@pytest.mark.parametrize("epochs", [2, 3, 7, 100, 300])
def test_a_run_of_any_length_starts_low_and_spends_its_second_half_at_full_weight(schedule, epochs):
    values = [schedule(epoch / epochs) for epoch in range(epochs)]
    assert values[0] <= 0.2
    assert values[math.ceil(epochs / 2) :] == pytest.approx([FULL] * (epochs // 2))


@pytest.mark.parametrize("epochs", [20, 100, 150])
def test_the_gamma_grows_by_one_factor_each_epoch_to_its_bound_and_stays(epochs):
    bound = gamma_upper_bound(2)
    values = [geometric_growth(epoch / epochs, initial=0.2, final=bound) for epoch in range(epochs)]
    half = epochs // 2
    factors = [after / before for before, after in pairwise(values[: half + 1])]
    assert factors == pytest.approx([(bound / 0.2) ** (1 / half)] * half)
    assert factors[0] > 1
    assert values[half:] == pytest.approx([bound] * (epochs - half))


@pytest.mark.parametrize("schedule", [linear_rampup, sigmoid_rampup], ids=["linear", "sigmoid"])
@pytest.mark.parametrize(("start", "end"), [(0.6, 0.5), (0.5, 0.5)], ids=["crossed", "same"])
def test_joints_in_the_wrong_order_are_refused(schedule, start, end):
    with pytest.raises(ValueError, match=f"`start` must lie before `end`, got {start} and {end}"):
        schedule(0.3, value=1.0, start=start, end=end)
