"""Multiply and solve with band matrices, which couple neighbouring pixels of a detector line."""

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from cassi import ops


def solve_lines(r: Tensor, gram: Tensor, rho: float | Tensor, offsets: Sequence[float]) -> Tensor:
    """Solve as `cassi.ops.band_solve`, from the numerically stable end of the lines.

    r is `(B, K, H, D)`, the gram `(1 or B, T·K, K, H, D)`.
    """
    # Where most light of a scene pixel falls on the second of two detector pixels, elimination
    # from the first pixel on multiplies rounding errors at each pixel by the ratio of the two
    # weights. Elimination from the other end divides the errors by this ratio. The mean fraction
    # of the offsets tells which pixel gets more light.
    if sum(offset % 1 for offset in offsets) <= len(offsets) / 2:
        return ops.band_solve(r, gram, rho)
    rho = rho.flip(-1) if isinstance(rho, Tensor) and rho.ndim > 2 else rho
    return ops.band_solve(r.flip(-1), _reverse_gram(gram), rho).flip(-1)


def add_lines(v: Tensor, y: Tensor, gram: Tensor) -> Tensor:
    """Return v + G y for v and y `(B, K, H, D)` and a gram G of `cassi.ops.gram_taps`."""
    shots, width = y.shape[1], y.shape[-1]
    # Not v.clone(): under vmap the sum must be a mapped tensor if v or y is one.
    total = torch.add(v, y, alpha=0)
    for distance, block in enumerate(gram.to(y.dtype).unflatten(1, (-1, shots)).unbind(1)):
        for k, j in product(range(shots), repeat=2):
            entries = block[:, k, j, :, : width - distance]
            total[:, k, :, : width - distance].addcmul_(entries, y[:, j, :, distance:])
            if distance:
                total[:, j, :, distance:].addcmul_(entries, y[:, k, :, : width - distance])
    return total


def _reverse_gram(gram: Tensor) -> Tensor:
    """Return the band matrix `(1|B, T·K, K, H, W')` of detector rows read backwards."""
    shots = gram.shape[2]
    blocks = gram.unflatten(1, (-1, shots)).transpose(2, 3).flip(-1)
    # A gram stores the entry of pixels j and j + d at j. Reversed, j + d comes first, so the
    # entries of distance d move by d.
    return torch.stack(
        [block.roll(-distance, -1) for distance, block in enumerate(blocks.unbind(1))], 1
    ).flatten(1, 2)
