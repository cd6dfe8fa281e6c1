"""Which bands and steps fit a detector's size."""

from __future__ import annotations

import pytest

from cassi.systems import fitting_dispersions, infer_bands


def test_all_that_fit() -> None:
    assert fitting_dispersions(256, 310) == [
        (55, 1), (28, 2), (19, 3), (10, 6), (7, 9), (4, 18), (3, 27), (2, 54),
    ]  # fmt: skip
    assert fitting_dispersions(256, 257) == [(2, 1)]
    assert fitting_dispersions(256, 256) == []
    assert fitting_dispersions(256, 255) == []


def test_every_listed_pair_has_the_right_size() -> None:
    for bands, step in fitting_dispersions(7, 67):
        assert 7 + (bands - 1) * step == 67
        assert infer_bands(7, 67, -step) == infer_bands(7, 67, step, bands) == bands


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((256, 310, 2), 28),
        ((256, 310, -2), 28),
        ((256, 310, 54), 2),
        ((256, 256, 2), 1),
        ((256, 256, 2, 1), 1),
        ((256, 256, 0, 28), 28),
    ],
)
def test_number_of_bands(arguments: tuple[int, ...], expected: int) -> None:
    assert infer_bands(*arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (256, 310, 4),
            "310 pixels .* a mask of 256, step 4; what would fit: 55 bands x step 1, 28",
        ),
        ((256, 310, 2, 31), r"31 bands and step 2; what would fit: .* \(either sign\)"),
        ((256, 310, 0), "step 0; what would fit: 55 bands x step 1"),
        ((256, 310, 0, 28), "28 bands and step 0; what would fit"),
        ((256, 250, 2), "the measurement is smaller than the mask"),
        ((256, 256, 2, 28), "equal sizes leave no room for dispersion"),
        ((256, 256, 0), "system.bands: expected the number of bands, which step 0 leaves open"),
    ],
)
def test_no_fit(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        infer_bands(*arguments)
