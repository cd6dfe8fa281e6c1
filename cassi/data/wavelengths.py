"""Wavelengths of bands: checks, units, those of the benchmark; spectra between the bands."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cassi import ops
from cassi.data.formats import as_numbers

_NO_LENGTHS = {"wavenumber", "cm-1", "cm^-1", "1/cm", "hz", "mhz", "ghz", "thz", "ev", "index"}
BENCHMARK_WAVELENGTHS = (
    *(453.5, 457.5, 462.0, 466.0, 471.5, 476.5, 481.5, 487.0, 492.5, 498.0, 504.0, 510.0, 516.0),
    *(522.5, 529.5, 536.5, 544.0, 551.5, 558.5, 567.5, 575.5, 584.5, 594.5, 604.0, 614.5, 625.0),
    *(636.5, 648.0),
)
"""The 28 bands (nm) that the published networks are trained and compared on (Meng, Ma, Yuan,
"End-to-end low cost compressive spectral imaging with spatial-spectral self-attention", 2020)."""


def checked_wavelengths(values: object, bands: int) -> tuple[float, ...]:
    """Wavelengths (nm) to write: one a band, rising; ValueError where they are not."""
    nm = _flat(values)
    if len(nm) != bands:
        raise ValueError(f"expected {bands} wavelengths, one a band, got {len(nm)}")
    if not np.isfinite(nm).all() or nm.min() < 10 or (np.diff(nm) <= 0).any():
        raise ValueError(f"expected rising wavelengths in nm, got {np.round(nm, 4).tolist()}")
    return tuple(nm.tolist())


def checked_widths(values: object, bands: int) -> tuple[float, ...]:
    """Widths (nm) of bands to write: one a band, positive; ValueError where they are not."""
    nm = _flat(values)
    if len(nm) != bands or not np.isfinite(nm).all() or not nm.min() > 0:
        raise ValueError(f"fwhm: expected {bands} widths > 0 in nm, got {nm.tolist()}")
    return tuple(nm.tolist())


def _flat(values: object) -> np.ndarray:
    values = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    return np.asarray(values, dtype=np.float64).ravel()


def to_nanometres(values: object, unit: str = "") -> np.ndarray:
    """Wavelengths in nm, float64 `(C,)`, out of numbers or texts; empty if they cannot be lengths.

    Without a stated unit numbers below 1e-3 are metres, below 10 micrometres, else nanometres.
    """
    nm = as_numbers(values)
    if not nm.size or not np.isfinite(nm).all() or nm.min() <= 0:
        return np.empty(0)
    unit = unit.strip().lower()
    if unit == "nm" or unit.startswith("nanomet"):
        factor = 1.0
    elif unit in {"um", "µm", "μm", "microns"} or unit.startswith("micromet"):
        factor = 1e3
    elif unit in {"å", "angstrom", "angstroms"}:
        factor = 0.1
    elif unit in {"m", "metre", "metres", "meter", "meters"}:
        factor = 1e9
    elif unit in _NO_LENGTHS:
        return np.empty(0)
    else:
        factor = 1e9 if nm.max() < 1e-3 else 1e3 if nm.max() < 10 else 1.0
    # 453.5 nm written as 0.4535 µm is 453.49999999999994 after the product.
    nm = nm if factor == 1.0 else np.round(nm * factor, 6)
    return nm if nm.min() >= 10 else np.empty(0)


# Wavelengths come out of files as decimal fractions; this is far below any camera's band width.
_SAME_NM = 1e-3

LENGTHS = (15.0, 20.0, 30.0, 45.0, 65.0, 100.0, 150.0, 220.0)
"""nm, over which spectra change: that which predicts bands from the others best is taken."""
_MEAN = 100.0
"""Prior variance of the mean of a spectrum, relative to that of its changes: it is hardly known."""
_JITTER = 1e-6
_LEAST = 5  # bands, below which no length can be found
_FEW = 2.0  # times the range of the bands, the length then


def resample(cube: Tensor, source_nm: Sequence[float], target_nm: Sequence[float]) -> Tensor:
    """Interpolate a cube linearly over wavelength, in its own dtype: how scenes are loaded.

        out[j] = (1 - t) cube[i] + t cube[i+1],  t = (λ_j - λ_i) / (λ_{i+1} - λ_i)

    A wanted band that the source has is copied.

    Args:
        cube: `(C, H, W)`, floating.
        source_nm: wavelengths of its bands, nm, rising.
        target_nm: wanted wavelengths, nm, rising; none is outside the source's range.

    Returns:
        `(len(target_nm), H, W)`, in the cube's dtype.

    Raises:
        TypeError: the cube is not a floating tensor.
        ValueError: wavelengths do not fit the cube or do not rise, the source has fewer than two
            bands, or wanted bands lie outside its range: nothing is extrapolated.

    >>> resample(torch.tensor([1.0, 3.0]).view(2, 1, 1), [400, 500], [425, 500]).flatten()
    tensor([1.5000, 3.0000])
    """
    place = _places(cube, source_nm, target_nm)
    if place is None:
        return cube.clone()
    left = np.minimum(place.astype(np.int64), len(cube) - 2)
    weight = torch.from_numpy(place - left).to(cube.dtype).view(-1, 1, 1)
    first = torch.from_numpy(left)
    return torch.lerp(cube[first], cube[first + 1], weight)


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
    places = _places(cube, wavelengths, wanted)
    if places is None:
        return cube.clone(), None if std is None else std.clone()
    nm = torch.as_tensor(wavelengths, dtype=torch.float64)
    at = torch.as_tensor(wanted, dtype=torch.float64)
    inner = slice(1, -1) if len(nm) >= _LEAST else slice(None)
    length, inverse = _find_length(cube, nm, inner)
    weights = _covariance(at, nm, length) @ inverse
    missing = _missing(weights, nm, at, length)
    nearest = torch.from_numpy(places).round().long()
    copied = (nm[nearest] - at).abs() <= _SAME_NM
    weights[copied] = torch.eye(len(nm), dtype=torch.float64)[nearest[copied]]
    missing[copied] = 0
    out = _combine(weights, cube)
    if std is None:
        return out, None
    known = _combine(weights, std).clamp_min(0)
    wider = missing.to(known).view(-1, 1, 1) * _error_size(cube, inverse, inner)
    return out, torch.where(
        copied.to(known.device).view(-1, 1, 1), known, (known**2 + wider).sqrt()
    )


def spectra_at(cube: Tensor, points: Sequence[Sequence[float]]) -> Tensor:
    """Interpolate the spectra of a cube at points between its pixels, linearly in both directions.

    Args:
        cube: `(C, H, W)`, floating.
        points: (row, column), pixels from 0, whole or not.

    Returns:
        `(len(points), C)`, in the cube's dtype.

    Raises:
        TypeError: the cube is not a floating tensor.
        ValueError: it is not (C, H, W), or a point is no pair or lies outside.

    >>> spectra_at(torch.tensor([1.0, 3.0]).view(1, 1, 2), [(0, 0.25)])
    tensor([[1.5000]])
    """
    _check_cube(cube)
    size = cube.new_tensor(cube.shape[1:], dtype=torch.float64)
    places = torch.as_tensor(points, dtype=torch.float64, device=cube.device)
    if places.ndim != 2 or places.shape[1:] != (2,):
        raise ValueError(f"points: expected pairs (row, column), got shape {tuple(places.shape)}")
    if not ((places >= 0) & (places <= size - 1)).all():
        raise ValueError(f"points: expected (row, column) inside {tuple(cube.shape[1:])} pixels")
    # Only the part around the points: all of it is read in float64.
    low = places.amin(0).floor().long().tolist()
    high = places.amax(0).ceil().long().tolist()
    part = cube[:, low[0] : high[0] + 1, low[1] : high[1] + 1]
    span = part.new_tensor(part.shape[1:], dtype=torch.float64) - 1
    unit = 2 * (places - places.new_tensor(low)) / span.clamp(min=1) - 1
    return ops.sample_volume(part[:, None], torch.cat([torch.zeros_like(unit[:, :1]), unit], 1))


def _check_cube(cube: object) -> None:
    if not isinstance(cube, Tensor) or not cube.is_floating_point():
        got = cube.dtype if isinstance(cube, Tensor | np.ndarray) else cube
        raise TypeError(f"cube: expected a floating tensor, got {got}")
    if cube.ndim != 3:
        raise ValueError(f"cube: expected (C, H, W), got shape {tuple(cube.shape)}")


def _places(
    cube: Tensor, source_nm: Sequence[float], target_nm: Sequence[float]
) -> np.ndarray | None:
    """Return where wanted bands lie among those of a cube, in bands; None: they are the same."""
    _check_cube(cube)
    source = np.asarray(checked_wavelengths(source_nm, len(cube)))
    target = np.asarray(checked_wavelengths(target_nm, len(target_nm)))
    if len(source) == len(target) and np.abs(source - target).max() <= _SAME_NM:
        return None
    if len(source) < 2:
        raise ValueError(
            f"too few bands: expected at least 2 to interpolate {len(target)} from, got 1 at "
            f"{source[0]:g} nm"
        )
    outside = target[(target < source[0] - _SAME_NM) | (target > source[-1] + _SAME_NM)]
    if outside.size:
        listed = ", ".join(f"{nm:g}" for nm in outside[:4]) + (", …" if outside.size > 4 else "")
        raise ValueError(
            f"expected bands that cover the wanted {target[0]:g}-{target[-1]:g} nm, got "
            f"{source[0]:g}-{source[-1]:g} nm; {listed} nm would be extrapolated: choose "
            "wavelengths inside"
        )
    return np.interp(target, source, np.arange(len(source)))


def _covariance(a: Tensor, b: Tensor, length: float, jitter: float = 0.0) -> Tensor:
    t = math.sqrt(5) * (a[:, None] - b).abs() / length
    covariance = (1 + t + t.square() / 3) * torch.exp(-t) + _MEAN
    return covariance + jitter * torch.eye(len(a), len(b), dtype=a.dtype)


def _missing(weights: Tensor, nm: Tensor, at: Tensor, length: float) -> Tensor:
    """Return the variance that weights leave, 1 − 2wᵀk + wᵀKw + m (1 − Σw)², m that of the mean.

    k(λ, λ) − kᵀK⁻¹k is the same for the weights that are best. In numbers it is not: 100 of the
    mean cancel there, and on some processors no digit is left. Here errors of w count squared.
    """
    within = _covariance(nm, nm, length, _JITTER) - _MEAN
    shared = _covariance(at, nm, length) - _MEAN
    explained = (weights * (2 * shared - weights @ within)).sum(1)
    return (1 - explained + _MEAN * (1 - weights.sum(1)).square()).clamp_min(0)


@torch.no_grad()
def _find_length(cube: Tensor, nm: Tensor, inner: slice) -> tuple[float, Tensor]:
    """Return the length that predicts bands best, and K⁻¹ of it."""
    lengths = LENGTHS if len(nm) >= _LEAST else (_FEW * float(nm[-1] - nm[0]),)
    inverses = {length: _covariance(nm, nm, length, _JITTER).inverse() for length in lengths}
    pixels = cube.flatten(1).double().cpu()
    moment = pixels @ pixels.T / pixels.shape[1]
    misses = {}
    for length, inverse in inverses.items():
        error = (inverse @ moment @ inverse).diagonal() / inverse.diagonal().square()
        misses[length] = float(error[inner].mean())
    best = min(misses, key=lambda length: misses[length])
    return best, inverses[best]


def _error_size(cube: Tensor, inverse: Tensor, inner: slice) -> Tensor:
    """Return s² `(H, W)`: the mean square error of bands left out over its expected size."""
    left = _combine(inverse[inner], cube)  # the errors, times their precision
    precision = inverse.diagonal()[inner].to(left).view(-1, 1, 1)
    return (left.square() / precision).mean(0)


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
