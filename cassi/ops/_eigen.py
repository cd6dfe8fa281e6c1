"""Leading eigenvectors of small symmetric matrices, as a function of tensors."""

import torch
from torch import Tensor

from cassi.ops._checks import check_floating, check_same_device, shape_of
from cassi.ops._library import call, define, operators
from cassi.ops._recording import is_recorded, is_tracked

# Most steps of one call.
MAX_STEPS = 1000


def orthogonal_iteration(moments: Tensor, frame: Tensor, steps: int = 2) -> tuple[Tensor, Tensor]:
    """Take steps of orthogonal iteration towards the leading eigenvectors of symmetric matrices.

        V ← Q,   Q R = (M + εI) V,   ε = 1e-9·trace(M)

    If two eigenvalues are nearly equal, V may mix their vectors. A column of (M + εI) V that
    depends linearly on the columns before it becomes 0. The host reads no value, so it does not
    wait for a GPU. If a gradient is recorded, the pure-torch reference runs in place of the
    compiled kernel.

    Args:
        moments: M `(B, C, C)`, with eigenvalues >= 0.
        frame: V `(B, C, R)`, R <= C; orthonormal columns near the eigenvectors, or any other.
        steps: number of steps, 1 to 1000.

    Returns:
        The Rayleigh quotients vᵀMv of the new V, `(B, R)`, >= 0, and −V `(B, C, R)`; both float64.
        Because of the minus, the signs of the columns change from call to call.

    Raises:
        TypeError: an argument is not a floating tensor.
        ValueError: shapes or devices do not fit each other, or `steps` is out of range.

    Source: Golub, Van Loan, "Matrix computations", 4th ed., 2013, section 8.2.4.

    >>> moments = torch.diag(torch.tensor([1.0, 4.0, 2.0]))[None]
    >>> orthogonal_iteration(moments, torch.eye(3)[None], 30)[0]
    tensor([[1., 4., 2.]], dtype=torch.float64)
    """
    check_floating("moments", moments)
    check_floating("frame", frame)
    if moments.ndim != 3 or moments.shape[1] != moments.shape[2]:
        raise ValueError(f"moments: expected (B, C, C), got shape {shape_of(moments)}")
    batch, size = moments.shape[:2]
    if frame.ndim != 3 or frame.shape[:2] != (batch, size) or not 1 <= frame.shape[2] <= size:
        raise ValueError(
            f"frame: expected ({batch}, {size}, 1 to {size}), got shape {shape_of(frame)}"
        )
    if not 1 <= steps <= MAX_STEPS:
        raise ValueError(f"steps: expected 1 to {MAX_STEPS}, got {steps}")
    check_same_device(moments=moments, frame=frame)
    if is_recorded() and is_tracked(moments, frame):
        return reference(moments, frame, steps)
    values, vectors = call(operators.orthogonal_iteration, moments, frame, steps)
    return values, vectors


# Pure-torch references, the specification of the compiled kernels. Sums run in float32 at least.

# This fraction of the trace is added to the diagonal, so that a direction without energy stays as
# it is instead of becoming 0.
SHIFT_FRACTION = 1e-9
# Added to the shift, so that it is not 0 for a matrix of zeros.
MIN_SHIFT = 1e-150
# Gram–Schmidt subtracts from a column its projections onto the columns before it. If less than this
# fraction of its squared norm remains, the rest is taken for rounding error.
MIN_SQUARED_NORM_FRACTION = 1e-24


def reference(moments: Tensor, frame: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Take steps of V ← Q, Q R = (M + εI) V; return Rayleigh quotients and −V."""
    m, v = moments.double(), frame.double()
    shift = (SHIFT_FRACTION * m.diagonal(dim1=1, dim2=2).sum(1) + MIN_SHIFT)[:, None, None]
    for _ in range(steps):
        v = _orthonormal(m @ v + shift * v)
    return (v * (m @ v)).sum(1).clamp_min(0), -v


def _orthonormal(w: Tensor) -> Tensor:
    """Orthonormalize by modified Gram–Schmidt; a column that depends on earlier ones becomes 0."""
    remaining_columns, squared_norms, orthonormal_columns = w, w.square().sum(1, keepdim=True), []
    for j in range(w.shape[2]):
        column = remaining_columns[..., :1]
        square = column.square().sum(1, keepdim=True)
        depends = (square < MIN_SQUARED_NORM_FRACTION * squared_norms[..., j : j + 1]) | (
            square == 0
        )
        square = torch.where(depends, 1, square)
        column = torch.where(depends, 0, column)
        orthonormal_columns.append(column / square.sqrt())
        remaining_columns = remaining_columns[..., 1:] - column * (
            (column * remaining_columns[..., 1:]).sum(1, keepdim=True) / square
        )
    return torch.cat(orthonormal_columns, 2)


def _fake(moments: Tensor, frame: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    batch, size, rank = frame.shape
    vectors = frame.new_empty((batch, size, rank), dtype=torch.float64)
    return vectors.new_empty((batch, rank)), vectors


define(
    "orthogonal_iteration(Tensor moments, Tensor frame, int steps) -> (Tensor, Tensor)",
    reference,
    _fake,
)
