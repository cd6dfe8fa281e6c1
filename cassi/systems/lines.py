"""Matrices that couple detector pixels of a row: products, and solutions from the stable end."""

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from cassi import ops


def solve_lines(r: Tensor, gram: Tensor, rho: float | Tensor, offsets: Sequence[float]) -> Tensor:
    """Solve as `cassi.ops.band_solve`, from the numerically stable end of the lines.

    Where most light of a pixel falls on the second of two detector pixels, elimination from the
    first pixel on multiplies rounding errors at each pixel by the ratio of the two weights.
    Elimination from the other end divides them by it.

    r is `(B, K, H, D)`, the gram `(1 or B, T·K, K, H, D)`.
    """
    if sum(offset % 1 for offset in offsets) <= len(offsets) / 2:
        return ops.band_solve(r, gram, rho)
    rho = rho.flip(-1) if isinstance(rho, Tensor) and rho.ndim > 2 else rho
    return ops.band_solve(r.flip(-1), _from_the_end(gram), rho).flip(-1)


def add_lines(v: Tensor, y: Tensor, gram: Tensor) -> Tensor:
    """Return v + G y, v and y `(B, K, H, D)`, G as `cassi.ops.gram_taps` makes it."""
    shots, wide = y.shape[1], y.shape[-1]
    out = torch.add(v, y, alpha=0)  # a new tensor, mapped where either is
    for apart, part in enumerate(gram.to(y.dtype).unflatten(1, (-1, shots)).unbind(1)):
        for k, j in product(range(shots), repeat=2):
            entries = part[:, k, j, :, : wide - apart]
            out[:, k, :, : wide - apart].addcmul_(entries, y[:, j, :, apart:])
            if apart:
                out[:, j, :, apart:].addcmul_(entries, y[:, k, :, : wide - apart])
    return out


def _from_the_end(gram: Tensor) -> Tensor:
    """Return the band matrix `(1|B, T·K, K, H, W')` of detector rows read backwards."""
    shots = gram.shape[2]
    parts = gram.unflatten(1, (-1, shots)).transpose(2, 3).flip(-1)
    # The entry of pixels j and j + d stands at j: at the one that now comes first.
    return torch.stack([part.roll(-d, -1) for d, part in enumerate(parts.unbind(1))], 1).flatten(
        1, 2
    )
