"""Pure-torch 1-D convolution and trilinear interpolation: the specification of compiled kernels.

Convolution and correlation are partial derivatives of one trilinear form,

    T(a, v, g) = Σ_{n,m} a[n] v[m] g[n + m],

with respect to g (`convolve1d`), a (`correlate1d` of g and v) and v (`correlate1d` of g and a), so
the gradient of each is made of the other two. Canonical shapes: signals `(R, N)`, kernels
`(R, M)`, full convolutions `(R, N+M-1)`; corner features `(N, 8, F)`, points `(N, 3)`. Sums run in
float32 at least; results come back in the dtype of the first argument, gradients of the fused
backward in the dtype of what they are the gradient of.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from cassi.ops._reference import accumulation_dtype

_PIECE = 4096


def convolve1d(a: Tensor, v: Tensor) -> Tensor:
    """Convolve every row of a with the same row of v: out[n] = Σ_m v[m] a[n − m]."""
    dtype = accumulation_dtype(a, v)
    length = a.shape[1] + v.shape[1] - 1
    long, short = (a, v) if a.shape[1] >= v.shape[1] else (v, a)
    long, short = long.to(dtype), short.to(dtype)
    out = a.new_zeros((a.shape[0], length), dtype=dtype)
    for m in range(short.shape[1]):
        out[:, m : m + long.shape[1]].addcmul_(long, short[:, m : m + 1])
    return out.to(a.dtype)


def correlate1d(g: Tensor, v: Tensor) -> Tensor:
    """Correlate every row of g with the same row of v: out[n] = Σ_m g[n + m] v[m]."""
    dtype = accumulation_dtype(g, v)
    signal, kernel = g.to(dtype), v.to(dtype)
    taps = v.shape[1]
    length = g.shape[1] - taps + 1
    out = g.new_zeros((g.shape[0], length), dtype=dtype)
    if taps <= length:
        for m in range(taps):
            out.addcmul_(signal[:, m : m + length], kernel[:, m : m + 1])
    else:
        for n in range(length):
            out[:, n] = sum_in_order(signal[:, n : n + taps] * kernel)
    return out.to(g.dtype)


def trilinear(features: Tensor, points: Tensor) -> Tensor:
    """Interpolate between the corners of a unit cell, with u = (p + 1)/2 and w(u) = (1 − u, u).

    out = Σ_{i,j,k} w_i(u₀) w_j(u₁) w_k(u₂) features[4i + 2j + k]
    """
    dtype = accumulation_dtype(features, points)
    u = (points.to(dtype) + 1) / 2
    values = features.to(dtype).unflatten(1, (2, 2, 2))
    for axis in range(3):
        t = u[:, axis].reshape(-1, *(1,) * (values.ndim - 2))
        values = (1 - t) * values[:, 0] + t * values[:, 1]  # exact at either corner
    return values.to(features.dtype).contiguous()


def trilinear_backward(grad: Tensor, features: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Differentiate `trilinear`: gradients of features and points.

    Written without changes in place, so that torch can differentiate it again.
    """
    dtype = accumulation_dtype(features, points)
    u = (points.to(dtype) + 1) / 2
    weights = torch.stack((1 - u, u), 2)  # (N, 3, 2)
    i, j, k = (
        weights[:, axis].reshape(-1, *(2 if a == axis else 1 for a in range(3)))
        for axis in range(3)
    )
    upstream = grad.to(dtype).unsqueeze(1)  # (N, 1, F)
    grad_features = (i * j * k).flatten(1).unsqueeze(2) * upstream
    share = (features.to(dtype) * upstream).sum(2).unflatten(1, (2, 2, 2))
    slopes = (share.diff(dim=1) * j * k, share.diff(dim=2) * i * k, share.diff(dim=3) * i * j)
    grad_points = torch.stack([slope.sum((1, 2, 3)) for slope in slopes], 1) / 2
    return grad_features.to(features.dtype).contiguous(), grad_points.to(points.dtype)


def sum_in_order(values: Tensor) -> Tensor:
    """Sum along the last dimension, `(R, N)` → `(R,)`, with the same bits for any thread count."""
    # In pieces: torch divides one long sum among its threads, and their number changes its bits.
    piece = min(_PIECE, values.shape[1])
    return pad(values, (0, -values.shape[1] % piece)).unflatten(1, (-1, piece)).sum(2).sum(1)
