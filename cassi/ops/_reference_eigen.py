"""Pure-torch orthogonal iteration: the specification of the compiled kernels.

Canonical shapes: moments `(B, C, C)`, frame `(B, C, R)`. All runs in float64.
"""

import torch
from torch import Tensor

SHIFT = 1e-9
"""Of the trace, added to the diagonal: a direction without energy stays what it was."""
LEAST = 1e-150
"""Added to that, so that nothing is divided by 0."""
DEPENDENT = 1e-24
"""Of a squared length: what is left of it once all directions before are taken off."""


def orthogonal_iteration(moments: Tensor, frame: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Take steps of V ← Q, Q R = (M + εI) V; return Rayleigh quotients and −V."""
    m, v = moments.double(), frame.double()
    shift = (SHIFT * m.diagonal(dim1=1, dim2=2).sum(1) + LEAST)[:, None, None]
    for _ in range(steps):
        v = _orthonormal(m @ v + shift * v)
    return (v * (m @ v)).sum(1).clamp_min(0), -v


def _orthonormal(w: Tensor) -> Tensor:
    """Modified Gram–Schmidt; a column that depends on those before it becomes 0."""
    rest, before, done = w, w.square().sum(1, keepdim=True), []
    for j in range(w.shape[2]):
        column = rest[..., :1]
        square = column.square().sum(1, keepdim=True)
        depends = (square < DEPENDENT * before[..., j : j + 1]) | (square == 0)
        square = torch.where(depends, 1, square)
        column = torch.where(depends, 0, column)
        done.append(column / square.sqrt())
        rest = rest[..., 1:] - column * ((column * rest[..., 1:]).sum(1, keepdim=True) / square)
    return torch.cat(done, 2)
