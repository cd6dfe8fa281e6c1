"""Spectra between the bands of a cube, with error bars that widen there."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cassi.data.wavelengths import find_places

LENGTHS = (15.0, 20.0, 30.0, 45.0, 65.0, 100.0, 150.0, 220.0)
"""nm, over which spectra change: that which predicts bands from the others best is taken."""
_MEAN = 100.0
"""Prior variance of the mean of a spectrum, relative to that of its changes: it is hardly known."""
_JITTER = 1e-6
_LEAST = 5  # bands, below which no length can be found
_FEW = 100.0  # nm, the length then


def interpolate_spectra(
    cube: Tensor,
    wavelengths: Sequence[float],
    wanted: Sequence[float],
    std: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    r"""Bring a cube to any wavelengths in its range, as a Gaussian process along wavelength.

        x(λ) = kᵀ K⁻¹ x,  σ²(λ) = (kᵀ K⁻¹ σ)² + s² (k(λ, λ) − kᵀ K⁻¹ k)

    K is the covariance of the bands, k that of λ with them: Matérn 5/2 and a free mean. Its length
    is the one of `LENGTHS` with which the bands of the whole cube are predicted best from all other
    bands. s² is, at every pixel, the mean square of these errors in units of their expected size.
    The first and the last band do not count, since nothing lies beyond them. A wanted band that the
    cube has is copied, with its σ.

    Args:
        cube: `(C, H, W)`, floating.
        wavelengths: of its bands, nm, rising.
        wanted: nm, rising; none is outside the range of the bands.
        std: σ of every value, `(C, H, W)`. Errors of neighbouring bands count as alike.

    Returns:
        The cube `(len(wanted), H, W)`, in the cube's dtype, and its σ, where `std` is given.

    Raises:
        TypeError: the cube is not a floating tensor.
        ValueError: wavelengths do not fit the cube or do not rise, it has fewer than two bands, or
            wanted wavelengths lie outside its range: nothing is extrapolated.

    Source: Rasmussen, Williams, "Gaussian processes for machine learning", 2006, equations 2.25 and
    2.26, and 5.12 for the errors of bands that are left out.

    >>> cube = torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1)
    >>> interpolate_spectra(cube, [400, 500, 600], [400, 450])[0].flatten().round(decimals=1)
    tensor([1.0000, 1.5000])
    """
    places = find_places(cube, wavelengths, wanted)
    if places is None:
        return cube.clone(), None if std is None else std.clone()
    nm = torch.as_tensor(wavelengths, dtype=torch.float64)
    at = torch.as_tensor(wanted, dtype=torch.float64)
    inner = slice(1, -1) if len(nm) >= _LEAST else slice(None)
    inverses = {length: _covariance(nm, nm, length, _JITTER).inverse() for length in LENGTHS}
    length = _find_length(cube, inverses, inner) if len(nm) >= _LEAST else _FEW
    inverse = inverses.get(length, _covariance(nm, nm, length, _JITTER).inverse())
    shared = _covariance(at, nm, length)
    weights = shared @ inverse
    missing = (1 + _MEAN - (weights * shared).sum(1)).clamp_min(0)
    place = torch.from_numpy(places)
    copied = place == place.round()
    weights[copied] = torch.eye(len(nm), dtype=torch.float64)[place[copied].long()]
    missing[copied] = 0
    out = _combine(weights, cube)
    if std is None:
        return out, None
    left = _combine(inverse[inner], cube)  # the errors of bands left out, times their precision
    spread = inverse.diagonal()[inner].to(left).view(-1, 1, 1)
    size = (left.square() / spread).mean(0)
    known = _combine(weights, std).clamp_min(0)
    wider = missing.to(known).view(-1, 1, 1) * size
    return out, torch.where(
        copied.to(known.device).view(-1, 1, 1), known, (known**2 + wider).sqrt()
    )


def _covariance(a: Tensor, b: Tensor, length: float, jitter: float = 0.0) -> Tensor:
    t = math.sqrt(5) * (a[:, None] - b).abs() / length
    covariance = (1 + t + t.square() / 3) * torch.exp(-t) + _MEAN
    return covariance + jitter * torch.eye(len(a), len(b), dtype=a.dtype)


@torch.no_grad()
def _find_length(cube: Tensor, inverses: dict[float, Tensor], inner: slice) -> float:
    pixels = cube.flatten(1).double().cpu()
    moment = pixels @ pixels.T / pixels.shape[1]
    misses = {}
    for length, inverse in inverses.items():
        error = (inverse @ moment @ inverse).diagonal() / inverse.diagonal().square()
        misses[length] = float(error[inner].mean())
    return min(misses, key=lambda length: misses[length])


def _combine(weights: Tensor, cube: Tensor) -> Tensor:
    """Return Σ_c weights[j, c] cube[c], summed in order, with any number of threads."""
    wide = torch.promote_types(cube.dtype, torch.float32)
    rows = []
    for row in weights.tolist():
        total = torch.zeros_like(cube[0], dtype=wide)
        for weight, band in zip(row, cube, strict=True):
            if weight:
                total = total + weight * band.to(wide)
        rows.append(total.to(cube.dtype))
    return torch.stack(rows)
