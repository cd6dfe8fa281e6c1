"""Small instances of every system, at odd sizes: the list that drives the operator tests."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cassi.systems.base import System
from cassi.systems.dd_cassi import DDCassi
from cassi.systems.sd_cassi import SDCassi


def _mask(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def _binary(*shape: int) -> torch.Tensor:
    return (_mask(*shape) > 0.5).double()


EXAMPLES: dict[str, Callable[[], System]] = {
    "sd": lambda: SDCassi(_mask(7, 9), bands=5, step=2),
    "sd_negative": lambda: SDCassi(_mask(5, 8), bands=4, step=-3),
    "sd_step_zero": lambda: SDCassi(_mask(6, 5), bands=3, step=0),
    "sd_gaps": lambda: SDCassi(_mask(4, 3), bands=3, step=5),
    "sd_one_band": lambda: SDCassi(_mask(3, 4), bands=1, step=2),
    "sd_one_pixel": lambda: SDCassi(_mask(1, 1), bands=4, step=1),
    "sd_rows": lambda: SDCassi(_mask(7, 4), bands=3, step=-2, axis=-2),
    "sd_binary": lambda: SDCassi(_binary(9, 7), bands=3, step=1),
    "sd_mask_per_band": lambda: SDCassi(_mask(4, 6, 5), bands=4, step=1),
    "sd_two_shots": lambda: SDCassi(_mask(2, 1, 5, 6), bands=6, step=1),
    "sd_three_shots_rows": lambda: SDCassi(_mask(3, 4, 6, 5), bands=4, step=-1, axis=-2),
    "sd_equal_shots": lambda: SDCassi(_mask(1, 1, 4, 5).expand(2, -1, -1, -1), bands=3, step=1),
    "dd": lambda: DDCassi(_mask(5, 15), bands=5, step=2, width=7),
    "dd_repeated": lambda: DDCassi(_mask(5, 7), bands=4, step=-3),
    "dd_rows_three_shots": lambda: DDCassi(_mask(3, 1, 9, 5), bands=3, step=1, axis=-2, width=7),
    "dd_mask_per_band": lambda: DDCassi(_mask(2, 3, 4, 9), bands=3, step=-2, width=5),
    "dd_offsets": lambda: DDCassi(_mask(4, 9), bands=3, offsets=[0.0, 1.25, 3.5], width=5),
}
"""Name → maker of a float64 system on the CPU."""
