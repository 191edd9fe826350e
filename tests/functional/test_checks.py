"""Settings out of range are refused by their name, the rule and the value; others pass unchanged."""

import math

import pytest

from monai_spct.functional.checks import at_least, in_unit_interval, positive


@pytest.mark.parametrize("value", [5e-324, 1e-5, 1, 17.6, math.inf])
def test_positive_values_pass(value):
    assert positive("gamma", value) == value


@pytest.mark.parametrize("value", [0, 0.0, -0.0, -1e-300, -3, -math.inf, math.nan])
def test_values_that_are_not_positive_are_refused(value):
    with pytest.raises(ValueError, match=rf"^`gamma` must be positive, got {value!r}\.$"):
        positive("gamma", value)


@pytest.mark.parametrize("value", [0, 0.0, 1e-300, 0.5, 1, 1.0])
def test_shares_pass(value):
    assert in_unit_interval("alpha", value) == value


@pytest.mark.parametrize("value", [-1e-9, 1 + 1e-9, 2, -math.inf, math.inf, math.nan])
def test_values_that_are_no_shares_are_refused(value):
    with pytest.raises(ValueError, match=rf"^`alpha` must lie between 0 and 1, got {value!r}\.$"):
        in_unit_interval("alpha", value)


@pytest.mark.parametrize(("value", "minimum"), [(2, 2), (7, 2), (0, 0), (3.0, 2)])
def test_counts_pass_as_whole_numbers(value, minimum):
    count = at_least("num_views", value, minimum)
    assert count == value
    assert type(count) is int


@pytest.mark.parametrize("value", [1, 0, -2, 2.5, 1.999])
def test_values_that_are_no_counts_are_refused(value):
    with pytest.raises(ValueError, match=rf"^`num_views` must be a whole number of at least 2, got {value!r}\.$"):
        at_least("num_views", value, 2)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_what_is_no_number_is_refused_by_name(value):
    with pytest.raises(ValueError, match="`n` must be a whole number of at least 2"):
        at_least("n", value, 2)


@pytest.mark.parametrize("value", [None, "3", True, 1.5, float("nan"), float("inf"), 0], ids=repr)
def test_what_is_no_whole_number_of_at_least_one_is_refused(value):
    with pytest.raises(ValueError, match=f"`n` must be a whole number of at least 1, got {value!r}"):
        at_least("n", value, 1)
