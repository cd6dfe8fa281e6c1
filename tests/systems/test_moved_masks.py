"""Masks that are shifted and turned, against slices, averages and quarter turns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cassi.systems.masks import move_mask


def _mask(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.rand(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_move_changes_nothing(dtype: torch.dtype) -> None:
    mask = _mask(2, 3, 6, 9).to(dtype)
    moved = move_mask(mask, (0, 0), 0)
    assert moved.dtype == dtype
    torch.testing.assert_close(moved, mask, rtol=0, atol=1e-7 if dtype == torch.float32 else 1e-14)


def test_whole_pixels_down_and_right_continue_the_border() -> None:
    mask = _mask(2, 3, 6, 9)
    moved = move_mask(mask, (2, -3), 0)
    rows, columns = (torch.arange(6) - 2).clamp(min=0), (torch.arange(9) + 3).clamp(max=8)
    torch.testing.assert_close(moved, mask[..., rows, :][..., columns])


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_fractions_of_a_pixel_are_interpolated(share: float) -> None:
    mask = _mask(1, 1, 7, 8)
    moved = move_mask(mask, (0, share), 0)
    expected = (1 - share) * mask[..., 1:] + share * mask[..., :-1]
    torch.testing.assert_close(moved[..., 1:], expected)
    moved = move_mask(mask, (share, 0), 0)
    expected = (1 - share) * mask[..., 1:, :] + share * mask[..., :-1, :]
    torch.testing.assert_close(moved[..., 1:, :], expected)


@pytest.mark.parametrize("turns", [-1, 1, 2])
@pytest.mark.parametrize("side", [6, 7])
def test_quarter_turns_are_counterclockwise(turns: int, side: int) -> None:
    mask = _mask(2, 2, side, side)
    moved = move_mask(mask, (0, 0), 90.0 * turns)
    torch.testing.assert_close(moved, mask.rot90(turns, (-2, -1)))


def test_half_a_turn_of_a_wide_mask() -> None:
    mask = _mask(1, 1, 4, 9)
    torch.testing.assert_close(move_mask(mask, (0, 0), 180), mask.flip(-2, -1))


def test_it_is_turned_first_and_shifted_then() -> None:
    mask = _mask(1, 1, 7, 7)
    both = move_mask(mask, (1, 2), 90)
    torch.testing.assert_close(both, move_mask(move_mask(mask, (0, 0), 90), (1, 2), 0))
