"""Blur kernels of lenses and dispersers, and how they are applied."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from cassi import ops

_REACH = 4  # standard deviations: 1 - 6e-5 of the light


def point_kernels(spread: Any, bands: int) -> tuple[Tensor, Tensor]:
    """Return a point-spread function as a sum of R products of a row and a column kernel.

    A Gaussian is one such product. An array is split by its singular values, as many as it takes
    to be exact.

    Args:
        spread: standard deviation in pixels, a list of one per band, or an array `(h, w)` or
            `(C, h, w)`.
        bands: C.

    Returns:
        Kernels along the rows `(R, 1|C, h)` and along the columns `(R, 1|C, w)`, float64: the
        point-spread function is Σ_r rows[r, c, i]·columns[r, c, j].

    Raises:
        TypeError: the spread is not numeric.
        ValueError: a width is negative, a side even, or the number of kernels is not C.
    """
    if _is_widths(spread):
        gauss = _gaussians("point_spread", spread, bands)[None]
        return gauss, gauss
    kernels = _as_array("point_spread", spread)
    kernels = kernels[None] if kernels.ndim == 2 else kernels
    _check_kernels("point_spread", kernels, bands, "(h, w) or (C, h, w)", 3)
    u, s, v = torch.linalg.svd(kernels, full_matrices=False)
    limit = torch.finfo(s.dtype).eps * max(kernels.shape[-2:]) * s.amax()
    rank = max(int((s > limit).sum(1).amax()), 1)
    root = s[:, None, :rank].sqrt()
    rows, columns = u[..., :rank] * root, v[:, :rank].mT * root
    return rows.permute(2, 0, 1).contiguous(), columns.permute(2, 0, 1).contiguous()


def line_kernels(spread: Any, bands: int) -> Tensor:
    """Return a line-spread function `(1|C, n)`, float64.

    Args:
        spread: standard deviation in pixels, a list of one per band, or an array `(n,)` or
            `(C, n)`.
        bands: C.

    Raises:
        TypeError: the spread is not numeric.
        ValueError: a width is negative, a length even, or the number of kernels is not C.
    """
    if _is_widths(spread):
        return _gaussians("line_spread", spread, bands)
    kernels = _as_array("line_spread", spread)
    kernels = kernels[None] if kernels.ndim == 1 else kernels
    _check_kernels("line_spread", kernels, bands, "(n,) or (C, n)", 2)
    return kernels


def convolve(image: Tensor, kernel: Tensor, axis: int, full: bool = False) -> Tensor:
    """Convolve images with centred kernels along one axis; beside the image is nothing.

    Args:
        image: `(B, K, C, H, W)`.
        kernel: `(1|C, n)`, or `(R, 1|C, n)` where K is 1 or R.
        axis: -1 along columns, -2 along rows.
        full: keep what leaves the image: n − 1 more pixels along the axis.

    Returns:
        `(B, K or R, C, H, W)`.
    """
    turned = image if axis == -1 else image.mT
    out = ops.convolve1d(turned, kernel[..., None, :])
    if not full:
        out = out.narrow(-1, kernel.shape[-1] // 2, turned.shape[-1])
    return out if axis == -1 else out.mT


def correlate(image: Tensor, kernel: Tensor, axis: int, full: bool = False) -> Tensor:
    """Apply the transpose of `convolve`, with its very bits."""
    turned = image if axis == -1 else image.mT
    if not full:
        reach = kernel.shape[-1] // 2
        turned = pad(turned, (reach, reach))
    rows = turned.shape[:-1]
    out = torch.ops.cassi.correlate1d(
        turned.reshape(-1, turned.shape[-1]),
        kernel[..., None, :].expand(*rows, -1).reshape(-1, kernel.shape[-1]),
    ).unflatten(0, rows)
    return out if axis == -1 else out.mT


def _is_widths(spread: Any) -> bool:
    # A list is what a config gives: one number per band. An array or nested list is a kernel.
    if isinstance(spread, list | tuple):
        return bool(spread) and all(isinstance(value, Real) for value in spread)
    return isinstance(spread, Real)


def _gaussians(name: str, widths: Any, bands: int) -> Tensor:  # (1|C, n)
    each = torch.tensor(widths, dtype=torch.float64).reshape(-1)
    if len(each) not in (1, bands):
        raise ValueError(f"{name}: expected one width or {bands}, one per band, got {len(each)}")
    if not bool(((each >= 0) & each.isfinite()).all()):
        raise ValueError(f"{name}: expected widths >= 0, got {widths}")
    reach = math.ceil(_REACH * each.amax())
    t = torch.arange(-reach, reach + 1, dtype=torch.float64)
    narrow = each.clamp_min(1e-3)[:, None]  # 0 is a single pixel
    kernels = torch.exp(-0.5 * (t / narrow) ** 2)
    return kernels / kernels.sum(1, keepdim=True)


def _as_array(name: str, spread: Any) -> Tensor:
    if not isinstance(spread, Tensor):
        array = np.asarray(spread)
        if array.dtype.kind not in "fiu":
            raise TypeError(f"{name}: expected numbers, got dtype {array.dtype}")
        return torch.from_numpy(array.astype(np.float64))
    if spread.is_complex():
        raise TypeError(f"{name}: expected real numbers, got {spread.dtype}")
    return spread.detach().to("cpu", torch.float64)


def _check_kernels(name: str, kernels: Tensor, bands: int, letters: str, ndim: int) -> None:
    if kernels.ndim != ndim or kernels.shape[0] not in (1, bands):
        raise ValueError(
            f"{name}: expected a number, one per band, or an array {letters} with C = {bands}, "
            f"got shape {tuple(kernels.shape)}"
        )
    if any(side % 2 == 0 for side in kernels.shape[1:]):
        raise ValueError(
            f"{name}: expected kernels of odd sides, which have a middle, "
            f"got shape {tuple(kernels.shape)}"
        )
    if not bool(kernels.isfinite().all()):
        raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")
