"""Masks that cannot code a scene are refused, with the place that is wrong."""

from __future__ import annotations

import pytest
import torch

from cassi.systems import check_mask


def _lit(*shape: int) -> torch.Tensor:
    return torch.full(shape, 0.5)


def test_masks_that_pass() -> None:
    for shape in ((1, 1, 4, 5), (2, 3, 4, 5)):
        check_mask(_lit(*shape))
    check_mask(torch.eye(4)[None, None])
    mask = _lit(1, 1, 4, 5)
    mask[0, 0, 0, :2] = torch.tensor([-0.0009, 1.0009])  # a rounding error
    check_mask(mask)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.01, r"transmissions in \[0, 1\], got 0\.5 to 1\.01; divide"),
        (-0.01, r"got -0\.01 to 0\.5"),
        (255.0, "got 0.5 to 255"),
    ],
)
def test_values_out_of_range(value: float, message: str) -> None:
    mask = _lit(1, 1, 4, 5)
    mask[0, 0, 1, 2] = value
    with pytest.raises(ValueError, match=message):
        check_mask(mask)


def test_dark_columns_and_rows() -> None:
    mask = _lit(2, 1, 9, 8)
    mask[0, :, :, 3] = 0
    check_mask(mask)  # the other shot lights it
    mask[1, :, :, 3] = 0
    with pytest.raises(ValueError, match=r"mask: 1 all-dark column \(3\); crop"):
        check_mask(mask)
    mask = _lit(1, 2, 9, 8)
    mask[:, :, 2:] = 0
    with pytest.raises(ValueError, match=r"7 all-dark rows \(2, 3, 4, 5, 6, …\)"):
        check_mask(mask)
    mask[:, :, 7:] = 0.5
    with pytest.raises(ValueError, match=r"mask: 5 all-dark rows \(2, 3, 4, 5, 6\); crop"):
        check_mask(mask)
    mask = _lit(1, 2, 9, 8)
    mask[:, 0, 4] = 0  # one band's mask alone
    check_mask(mask)


def test_nan() -> None:
    mask = _lit(1, 1, 4, 5)
    mask[0, 0, 1, 2] = float("nan")
    with pytest.raises(ValueError, match="mask"):
        check_mask(mask)
