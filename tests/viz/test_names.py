import math

import pytest

from cassi.viz.names import name_band


@pytest.mark.parametrize(
    ("error", "name"),
    [
        *((None, "605.4 nm"), (0.0, "605.4 nm"), (0.04, "605.4 nm"), (math.nan, "605.4 nm")),
        *((0.06, "605.4 ± 0.1 nm"), (0.13, "605.4 ± 0.1 nm"), (0.96, "605.4 ± 1.0 nm")),
        *((1.23, "605.4 ± 1.2 nm"), (2.3, "605 ± 2 nm"), (14.2, "605 ± 14 nm")),
        *((23, "610 ± 20 nm"), (math.inf, "605.4 nm")),
    ],
)
def test_an_error_and_its_wavelength_end_at_one_decimal_place(error, name):
    assert name_band(1, [500.0, 605.44], None if error is None else [0.0, error]) == name


def test_a_band_without_a_wavelength_has_a_number():
    assert name_band(1, None, [1.0, 1.0]) == "band 2"
    assert name_band(0, [605.0], [0.2]) == "605.0 ± 0.2 nm"
