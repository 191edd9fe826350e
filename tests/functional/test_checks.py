"""Settings out of range are refused by their name, the rule and the value; others pass unchanged."""

import math

import pytest

from monai_spct.functional.checks import at_least, in_unit_interval, positive

RULES = {
    "must be positive": (lambda value: positive("x", value), [5e-324, 17.6, math.inf], [0.0, -0.0, -1e-300]),
    "must lie between 0 and 1": (lambda value: in_unit_interval("x", value), [0, 0.5, 1], [-1e-9, 1 + 1e-9, math.inf]),
    "must be a whole number of at least 2": (
        lambda value: at_least("x", value, 2),
        [2, 3.0],
        [1, 2.5, "3", None, True, math.inf],
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_values_pass_or_are_refused(rule):
    check, right, wrong = RULES[rule]
    assert [check(value) for value in right] == right
    for value in [*wrong, -math.inf, math.nan]:
        with pytest.raises(ValueError, match=rf"^`x` {rule}, got {value!r}\.$"):
            check(value)


def test_a_count_is_an_int():
    assert type(at_least("x", 3.0, 2)) is int
