"""Operators as sums and products of plain torch operators, for graphs that are read elsewhere.

The references change tensors in place, which such a graph cannot hold. These do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from cassi.ops import _reference
from cassi.ops._library import kernels
from cassi.ops._reference import accumulation_dtype, band_offset, detector_width


def _bands(mask: Tensor, bands: int) -> list[Tensor]:  # C × (1|B, K, H, W)
    each = mask.unbind(2)
    return list(each) * bands if len(each) == 1 else list(each)


def forward(x: Tensor, mask: Tensor, step: int) -> Tensor:
    """Compute y = A x."""
    dtype, bands, width = accumulation_dtype(x, mask), x.shape[1], x.shape[-1]
    wide = detector_width(width, bands, step)
    y: Any = 0
    for c, m in enumerate(_bands(mask, bands)):
        left = band_offset(c, bands, step)
        image = m.to(dtype) * x[:, c : c + 1].to(dtype)
        y = y + pad(image, (left, wide - width - left))
    return y.to(x.dtype)


def adjoint(y: Tensor, mask: Tensor, bands: int, step: int, channels_last: bool = False) -> Tensor:
    """Compute Aᵀy."""
    dtype, width = accumulation_dtype(y, mask), mask.shape[-1]
    planes = []
    for c, m in enumerate(_bands(mask, bands)):
        left = band_offset(c, bands, step)
        planes.append((m.to(dtype) * y[..., left : left + width].to(dtype)).sum(1))
    return torch.stack(planes, 1).to(y.dtype)


def add_adjoint(v: Tensor, y: Tensor, mask: Tensor, step: int) -> Tensor:
    """Compute v + Aᵀy."""
    dtype = accumulation_dtype(v, y, mask)
    return (v + adjoint(y.to(dtype), mask, v.shape[1], step)).to(v.dtype)


def gram(mask: Tensor, bands: int, step: int) -> Tensor:
    """Compute A Aᵀ, K×K per pixel."""
    m = mask.to(accumulation_dtype(mask))
    wide = detector_width(mask.shape[-1], bands, step)
    g: Any = 0
    for c, plane in enumerate(_bands(m, bands)):
        left = band_offset(c, bands, step)
        product = plane[:, :, None] * plane[:, None]
        g = g + pad(product, (left, wide - mask.shape[-1] - left))
    return g


def gram_solve(r: Tensor, gram: Tensor, rho: Tensor) -> Tensor:
    """Compute (G + D)⁺ r for one shot.

    Raises:
        ValueError: several shots, which need the eigenvalues of matrices.
    """
    if gram.shape[1] != 1:
        raise ValueError(f"gram_solve: expected one shot to export, got {gram.shape[1]}")
    return _reference.gram_solve(r, gram, rho)


def data_step(v: Tensor, y: Tensor, mask: Tensor, gram: Tensor, rho: Tensor, step: int) -> Tensor:
    """Compute v + Aᵀ(AAᵀ + D)⁺(y − Av)."""
    dtype = accumulation_dtype(v, y, mask)
    residual = y.to(dtype) - forward(v.to(dtype), mask, step)
    return add_adjoint(v, gram_solve(residual, gram, rho), mask, step)


def ratio_inverse(
    y: Tensor, mask: Tensor, bands: int, step: int, channels_last: bool = False
) -> Tensor:
    """Divide y by the number of bands, and each window by the mask."""
    dtype = accumulation_dtype(y, mask)
    ones = torch.ones((1, 1, bands, 1, mask.shape[-1]), dtype=dtype, device=y.device)
    count = gram(ones, bands, step)[:, 0].clamp_min(1)
    inverse = mask.to(dtype).clamp_min(_reference.RATIO_FLOOR).reciprocal()
    return adjoint(y.to(dtype) / count, inverse, bands, step).to(y.dtype)


PLAIN: dict[Any, Callable[..., Any]] = {
    getattr(kernels, function.__name__).default: function
    for function in (forward, adjoint, add_adjoint, gram, gram_solve, data_step, ratio_inverse)
}
"""Operator → what it is made of."""
