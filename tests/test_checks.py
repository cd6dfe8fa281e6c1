"""Whole numbers, and names that are nearly right."""

import pytest

from cassi.checks import did_you_mean, not_negative, whole_number


@pytest.mark.parametrize("value", [2, 5])
def test_whole_numbers_in_range_pass(value):
    assert whole_number("n", value, 2) == whole_number("n", value, 2, 5) == value


@pytest.mark.parametrize("value", [1, 6, 2.0, True, "3", None, float("nan")])
def test_other_values_are_refused(value):
    with pytest.raises(ValueError, match=r"^n: expected a whole number from 2 to 5, got "):
        whole_number("n", value, 2, 5)
    if value != 6:
        with pytest.raises(ValueError, match=r"^n: expected a whole number of at least 2, got "):
            whole_number("n", value, 2)


@pytest.mark.parametrize("value", [-1, -0.5, True, "3", None, float("nan")])
def test_numbers_that_are_not_negative(value):
    assert (not_negative("n", 0), not_negative("n", 2.5)) == (0.0, 2.5)
    with pytest.raises(ValueError, match=r"^n: expected a number >= 0, got "):
        not_negative("n", value)


def test_near_names():
    known = ["gap_tv", "admm_tv", "BK7"]
    assert did_you_mean("gap_tw", known) == "; did you mean gap_tv?"
    assert did_you_mean("apm_tv", known) == "; did you mean gap_tv or admm_tv?"
    assert did_you_mean("apm_tv", known, n=1) == "; did you mean gap_tv?"
    assert did_you_mean("bk8", known, place="a.") == "; did you mean a.BK7?"
    assert did_you_mean("xyz", known) == did_you_mean(3, known) == ""
