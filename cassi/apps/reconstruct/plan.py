"""Blocks of rows that fit into a budget of memory."""

import math
import re
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_UNITS |= {f"{unit}iB": 2 ** (10 * (k + 1)) for k, unit in enumerate("KMGT")}
_UNITS |= {f"{unit}B": 10 ** (3 * (k + 1)) for k, unit in enumerate("kMGT")}
_PROCESS = 384 * 2**20  # what Python, torch and the libraries take themselves
_IMAGES = 8  # of the measurement's size: itself, mask, gram, what is estimated from it
_GRID = 16  # blocks begin where networks, which work on coarser grids, also have a whole pixel
_MARGIN = 1.1  # scratch memory within operations, and pages half used


@dataclass(frozen=True)
class Block:
    """Rows of a scene, or columns where the camera disperses along rows.

    Its own are from `start` to `stop`; from `first` to `last` are computed, a halo more on either
    side.
    """

    start: int
    stop: int
    first: int
    last: int


def parse_size(text: object) -> int:
    """Return the bytes of a size such as 4GiB, 500MB, or a number.

    >>> parse_size("4GiB") == 4 * 2**30
    True
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([A-Za-z]*)\s*", str(text))
    try:
        size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    except (KeyError, ValueError):
        size = 0
    if size < 1:
        raise ValueError(f"memory_budget: expected a size such as 4GiB or 500MB, got {text!r}")
    return size


def lines_that_fit(budget: int, y: Tensor, bytes_per_line: float) -> int:
    """Return how many rows of a scene a process may work on at once, within a budget in bytes."""
    fixed = _PROCESS + _IMAGES * y.numel() * y.element_size()
    lines = int((budget - fixed) / (_MARGIN * bytes_per_line))
    if lines < 1:
        least = (fixed + 64 * _MARGIN * bytes_per_line) / 2**30
        raise ValueError(
            f"memory_budget: expected at least {least:.2f} GiB for this scene, "
            f"got {budget / 2**30:.2f} GiB"
        )
    return lines


def plan_blocks(length: int, lines: int, halo: int) -> list[Block]:
    """Cut the rows of a scene into blocks of nearly equal size, of which so many fit."""
    if length <= lines:
        return [Block(0, length, 0, length)]
    own = lines - 2 * halo - _GRID
    if own < max(halo, 1):
        raise ValueError(
            f"memory_budget: it fits {lines} rows of the scene, with halo={halo} expected at least "
            f"{3 * max(halo, 1) + _GRID}; give more memory or a smaller halo"
        )
    count = math.ceil(length / own)
    ends = [_GRID * round(index * length / count / _GRID) for index in range(count)] + [length]
    return [
        Block(start, stop, max(0, start - halo), min(length, stop + halo))
        for start, stop in pairwise(ends)
    ]
