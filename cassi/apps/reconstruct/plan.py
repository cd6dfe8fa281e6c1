"""Plan the blocks of rows in which a scene fits into a budget of memory."""

import math
import re
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_UNITS |= {f"{unit}iB": 2 ** (10 * (k + 1)) for k, unit in enumerate("KMGT")}
_UNITS |= {f"{unit}B": 10 ** (3 * (k + 1)) for k, unit in enumerate("kMGT")}
# Memory of Python, torch and the other libraries.
_PROCESS_BYTES = 384 * 2**20
# Images of the measurement's size that every process holds: measurement, mask, the gram AAᵀ,
# and the images that the statistics are estimated from.
_MEASUREMENT_COPIES = 8
# Blocks begin at multiples of this many rows. Networks also compute on coarser grids; a block that
# begins at such a row begins with a whole pixel of each of these grids.
_BLOCK_GRID = 16
# Factor on the measured bytes, for scratch memory within operations and half-used memory pages. A
# smaller factor may exceed the budget, a larger one makes more blocks.
_MEMORY_MARGIN = 1.1


@dataclass(frozen=True)
class Block:
    """Lines of a scene: rows, or columns if the dispersion is vertical (axis −2).

    Attributes:
        start: first line of the block.
        stop: the line after its last one.
        first: first line that is computed; it lies a halo before `start`.
        last: the line after the last one that is computed; it lies a halo after `stop`.
    """

    start: int
    stop: int
    first: int
    last: int


def parse_size(text: object) -> int:
    """Return the bytes of a size such as 4GiB, 500MB, or a number.

    Raises:
        ValueError: the text is no size, or less than one byte.

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
    """Return how many rows of a scene a process can reconstruct at once within a budget.

    Args:
        budget: bytes of memory for the process.
        y: the measurement `(1, K, H', W')`.
        bytes_per_line: bytes that a reconstruction takes for each row.

    Raises:
        ValueError: the budget is too small for one row.
    """
    fixed_bytes = _PROCESS_BYTES + _MEASUREMENT_COPIES * y.numel() * y.element_size()
    lines = int((budget - fixed_bytes) / (_MEMORY_MARGIN * bytes_per_line))
    if lines < 1:
        # The message names a budget for 64 rows: blocks of single rows would be all halo.
        min_gib = (fixed_bytes + 64 * _MEMORY_MARGIN * bytes_per_line) / 2**30
        raise ValueError(
            f"memory_budget: expected at least {min_gib:.2f} GiB for this scene, "
            f"got {budget / 2**30:.2f} GiB"
        )
    return lines


def plan_blocks(length: int, lines: int, halo: int) -> list[Block]:
    """Cut a scene of `length` rows into blocks of nearly equal size.

    A block with its halo on both sides has at most `lines` rows.

    Raises:
        ValueError: `lines` is so small that blocks would consist mostly of halos.
    """
    if length <= lines:
        return [Block(0, length, 0, length)]
    # Rounding to the grid may lengthen a block by one step of the grid.
    own_lines = lines - 2 * halo - _BLOCK_GRID
    if own_lines < max(halo, 1):
        raise ValueError(
            f"memory_budget: expected room for at least {3 * max(halo, 1) + _BLOCK_GRID} rows with "
            f"halo={halo}, got room for {lines}; give more memory or a smaller halo"
        )
    count = math.ceil(length / own_lines)
    starts = [_BLOCK_GRID * round(index * length / count / _BLOCK_GRID) for index in range(count)]
    return [
        Block(start, stop, max(0, start - halo), min(length, stop + halo))
        for start, stop in pairwise([*starts, length])
    ]
