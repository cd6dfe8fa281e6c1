"""Check and convert wavelengths of bands; interpolate cubes over wavelength and over pixels."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cassi import ops
from cassi.data.formats import as_numbers

# Units of other quantities that some files list as wavelengths. They are not converted.
_UNITS_OF_NO_LENGTH = {
    "wavenumber",
    "cm-1",
    "cm^-1",
    "1/cm",
    "hz",
    "mhz",
    "ghz",
    "thz",
    "ev",
    "index",
}
BENCHMARK_WAVELENGTHS = (
    *(453.5, 457.5, 462.0, 466.0, 471.5, 476.5, 481.5, 487.0, 492.5, 498.0, 504.0, 510.0, 516.0),
    *(522.5, 529.5, 536.5, 544.0, 551.5, 558.5, 567.5, 575.5, 584.5, 594.5, 604.0, 614.5, 625.0),
    *(636.5, 648.0),
)
"""The 28 bands (nm) that the published networks are trained and compared on (Meng, Ma, Yuan,
"End-to-end low cost compressive spectral imaging with spatial-spectral self-attention", 2020)."""


def checked_wavelengths(values: object, bands: int) -> tuple[float, ...]:
    """Return wavelengths (nm) as a tuple; ValueError unless they rise from >= 10, one per band."""
    nm = _to_array(values)
    if len(nm) != bands:
        raise ValueError(f"expected {bands} wavelengths, one a band, got {len(nm)}")
    if not np.isfinite(nm).all() or nm.min() < 10 or (np.diff(nm) <= 0).any():
        raise ValueError(f"expected rising wavelengths in nm, got {np.round(nm, 4).tolist()}")
    return tuple(nm.tolist())


def checked_widths(values: object, bands: int) -> tuple[float, ...]:
    """Return widths (nm) as a tuple; ValueError unless all are > 0 and there is one per band."""
    nm = _to_array(values)
    if len(nm) != bands or not np.isfinite(nm).all() or not nm.min() > 0:
        raise ValueError(f"fwhm: expected {bands} widths > 0 in nm, got {nm.tolist()}")
    return tuple(nm.tolist())


def _to_array(values: object) -> np.ndarray:
    values = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    return np.asarray(values, dtype=np.float64).ravel()


def to_nanometres(values: object, unit: str = "") -> np.ndarray:
    """Convert numbers or texts to wavelengths in nm, float64 `(C,)`; empty if they are no lengths.

    If the unit is not known, the largest number decides: below 1e-3 the numbers are metres, below
    10 micrometres, else nanometres. The result is also empty if a wavelength is below 10 nm.
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
    elif unit in _UNITS_OF_NO_LENGTH:
        return np.empty(0)
    elif nm.max() < 1e-3:
        factor = 1e9
    else:
        factor = 1e3 if nm.max() < 10 else 1.0
    # 0.4535 µm times 1000 is 453.49999999999994, so the product is rounded.
    nm = nm if factor == 1.0 else np.round(nm * factor, 6)
    return nm if nm.min() >= 10 else np.empty(0)


# Wavelengths that differ by less count as equal. Files round wavelengths to decimal fractions, and
# the bands of a camera are much wider.
_TOLERANCE_NM = 1e-3

CORRELATION_LENGTHS_NM = (15.0, 20.0, 30.0, 45.0, 65.0, 100.0, 150.0, 220.0)
"""Candidates (nm) for the correlation length of spectra. `interpolate_spectra` takes the one that
predicts bands best from the other bands."""
# Prior variance of the mean of a spectrum, relative to the variance of its changes. It is large
# because the mean is not known, so the prior must not pull it towards 0.
_MEAN_VARIANCE = 100.0
# This number is added to the diagonal of the covariance, so that its inverse is accurate for close
# bands. A larger number smooths the interpolation.
_JITTER = 1e-6
# If there are fewer bands than this, too few of them are inner bands by which to choose a length.
# Then the length is `_FALLBACK_LENGTH_RATIO` times the range of the bands. This makes the
# interpolation smooth.
_MIN_BANDS_TO_FIT = 5
_FALLBACK_LENGTH_RATIO = 2.0


def resample(cube: Tensor, source_nm: Sequence[float], target_nm: Sequence[float]) -> Tensor:
    """Interpolate a cube linearly over wavelength, in its own dtype.

        out[j] = (1 - t) cube[i] + t cube[i+1],  t = (λ_j - λ_i) / (λ_{i+1} - λ_i)

    Scenes are interpolated in this way when they are loaded. A target band that the source has is
    copied.

    Args:
        cube: `(C, H, W)`, floating.
        source_nm: wavelengths of its bands, nm, rising.
        target_nm: wavelengths of the new bands, nm, rising; none is outside the source's range.

    Returns:
        `(len(target_nm), H, W)`, in the cube's dtype.

    Raises:
        TypeError: the cube is not a floating tensor.
        ValueError: wavelengths do not fit the cube, do not rise or would be extrapolated, or the
            cube has fewer than two bands.

    >>> resample(torch.tensor([1.0, 3.0]).view(2, 1, 1), [400, 500], [425, 500]).flatten()
    tensor([1.5000, 3.0000])
    """
    positions = _find_positions(cube, source_nm, target_nm)
    if positions is None:
        return cube.clone()
    left = np.minimum(positions.astype(np.int64), len(cube) - 2)
    weight = torch.from_numpy(positions - left).to(cube.dtype).view(-1, 1, 1)
    left_bands = torch.from_numpy(left)
    return torch.lerp(cube[left_bands], cube[left_bands + 1], weight)


def interpolate_spectra(
    cube: Tensor,
    wavelengths: Sequence[float],
    target_nm: Sequence[float],
    std: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    r"""Interpolate a cube to any wavelengths in its range, as a Gaussian process over wavelength.

        x(λ) = kᵀ K⁻¹ x,  σ²(λ) = (kᵀ K⁻¹ σ)² + s² (k(λ, λ) − kᵀ K⁻¹ k)

    K is the covariance of the bands, and k the covariance of λ with the bands. Both are Matérn 5/2
    plus the variance of an unknown mean. The correlation length is the one of
    `CORRELATION_LENGTHS_NM` by which bands are predicted best, each from the other bands. At every
    pixel, s² is the mean of the squared errors of these predictions, each divided by its expected
    value. If there are five bands or more, the errors of the first and the last do not count,
    because these two are extrapolated. A target band that the cube has is copied, with its σ.

    Args:
        cube: `(C, H, W)`, floating.
        wavelengths: wavelengths of its bands, nm, rising.
        target_nm: wavelengths of the new bands, nm, rising; none is outside the range of the bands.
        std: σ of every value, `(C, H, W)`. Errors of neighbouring bands count as fully correlated.

    Returns:
        The cube `(len(target_nm), H, W)`, in the cube's dtype; its σ, or None without `std`.

    Raises:
        TypeError: the cube is not a floating tensor.
        ValueError: wavelengths do not fit the cube, do not rise or would be extrapolated, or the
            cube has fewer than two bands.

    Source: Rasmussen, Williams, "Gaussian processes for machine learning", 2006, equations 2.25 and
    2.26, and 5.12 for the errors of bands that are left out.

    >>> cube = torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1)
    >>> interpolate_spectra(cube, [400, 500, 600], [400, 450])[0].flatten().round(decimals=1)
    tensor([1.0000, 1.5000])
    """
    positions = _find_positions(cube, wavelengths, target_nm)
    if positions is None:
        return cube.clone(), None if std is None else std.clone()
    nm = torch.as_tensor(wavelengths, dtype=torch.float64)
    targets = torch.as_tensor(target_nm, dtype=torch.float64)
    scored_bands = slice(1, -1) if len(nm) >= _MIN_BANDS_TO_FIT else slice(None)
    length, inverse = _find_length(cube, nm, scored_bands)
    weights = _compute_covariance(targets, nm, length) @ inverse
    error_variance = _compute_error_variance(weights, nm, targets, length)
    nearest = torch.from_numpy(positions).round().long()
    is_copied = (nm[nearest] - targets).abs() <= _TOLERANCE_NM
    weights[is_copied] = torch.eye(len(nm), dtype=torch.float64)[nearest[is_copied]]
    error_variance[is_copied] = 0
    values = _combine(weights, cube)
    if std is None:
        return values, None
    interpolated_std = _combine(weights, std).clamp_min(0)
    added_variance = error_variance.to(interpolated_std).view(-1, 1, 1)
    added_variance = added_variance * _measure_error_ratio(cube, inverse, scored_bands)
    total_std = (interpolated_std**2 + added_variance).sqrt()
    is_copied = is_copied.to(interpolated_std.device).view(-1, 1, 1)
    return values, torch.where(is_copied, interpolated_std, total_std)


def spectra_at(cube: Tensor, points: Sequence[Sequence[float]]) -> Tensor:
    """Interpolate the spectra of a cube at points between its pixels, linearly in both directions.

    Args:
        cube: `(C, H, W)`, floating.
        points: (row, column), pixels from 0, whole or not.

    Returns:
        `(len(points), C)`, in the cube's dtype.

    Raises:
        TypeError: the cube is not a floating tensor.
        ValueError: the cube is not (C, H, W), or a point is no pair or lies outside the cube.

    >>> spectra_at(torch.tensor([1.0, 3.0]).view(1, 1, 2), [(0, 0.25)])
    tensor([[1.5000]])
    """
    _check_cube(cube)
    size = cube.new_tensor(cube.shape[1:], dtype=torch.float64)
    positions = torch.as_tensor(points, dtype=torch.float64, device=cube.device)
    if positions.ndim != 2 or positions.shape[1:] != (2,):
        raise ValueError(
            f"points: expected pairs (row, column), got shape {tuple(positions.shape)}"
        )
    if not ((positions >= 0) & (positions <= size - 1)).all():
        raise ValueError(f"points: expected (row, column) inside {tuple(cube.shape[1:])} pixels")
    # Only the part of the cube around the points is used, because `sample_volume` reads its whole
    # input in float64.
    top, left = positions.amin(0).floor().long().tolist()
    bottom, right = positions.amax(0).ceil().long().tolist()
    patch = cube[:, top : bottom + 1, left : right + 1]
    extent = patch.new_tensor(patch.shape[1:], dtype=torch.float64) - 1
    # The bands are the features F of `sample_volume`, in a volume of depth 1. Its points are
    # (depth, row, column) from -1 to 1.
    rows_columns = 2 * (positions - positions.new_tensor([top, left])) / extent.clamp(min=1) - 1
    coordinates = torch.cat([torch.zeros_like(rows_columns[:, :1]), rows_columns], 1)
    return ops.sample_volume(patch[:, None], coordinates)


def _check_cube(cube: object) -> None:
    if not isinstance(cube, Tensor) or not cube.is_floating_point():
        description = cube.dtype if isinstance(cube, Tensor | np.ndarray) else cube
        raise TypeError(f"cube: expected a floating tensor, got {description}")
    if cube.ndim != 3:
        raise ValueError(f"cube: expected (C, H, W), got shape {tuple(cube.shape)}")


def _find_positions(
    cube: Tensor, source_nm: Sequence[float], target_nm: Sequence[float]
) -> np.ndarray | None:
    """Return the position of each target band among a cube's bands: an index with a fraction.

    None if the target bands are those of the cube.
    """
    _check_cube(cube)
    source = np.asarray(checked_wavelengths(source_nm, len(cube)))
    target = np.asarray(checked_wavelengths(target_nm, len(target_nm)))
    if len(source) == len(target) and np.abs(source - target).max() <= _TOLERANCE_NM:
        return None
    if len(source) < 2:
        raise ValueError(
            f"too few bands: expected at least 2 to interpolate {len(target)} from, got 1 at "
            f"{source[0]:g} nm"
        )
    targets_outside = target[
        (target < source[0] - _TOLERANCE_NM) | (target > source[-1] + _TOLERANCE_NM)
    ]
    if targets_outside.size:
        examples = ", ".join(f"{nm:g}" for nm in targets_outside[:4]) + (
            ", …" if targets_outside.size > 4 else ""
        )
        raise ValueError(
            f"expected bands that cover the wanted {target[0]:g}-{target[-1]:g} nm, got "
            f"{source[0]:g}-{source[-1]:g} nm; {examples} nm would be extrapolated: choose "
            "wavelengths inside"
        )
    return np.interp(target, source, np.arange(len(source)))


def _compute_covariance(a: Tensor, b: Tensor, length: float, jitter: float = 0.0) -> Tensor:
    """Return the covariance of wavelengths a `(N,)` and b `(M,)`: Matérn 5/2 plus the mean."""
    t = math.sqrt(5) * (a[:, None] - b).abs() / length
    covariance = (1 + t + t.square() / 3) * torch.exp(-t) + _MEAN_VARIANCE
    return covariance + jitter * torch.eye(len(a), len(b), dtype=a.dtype)


def _compute_error_variance(
    weights: Tensor, nm: Tensor, target_nm: Tensor, length: float
) -> Tensor:
    """Return the variance of the interpolation error with weights w: 1 − 2wᵀk + wᵀKw + m (1 − Σw)².

    Here K and k do not contain m, the variance of the mean.
    """
    # For the optimal weights this equals k(λ, λ) − kᵀK⁻¹k. That expression loses digits in float64
    # on some processors, because two numbers of about m = 100 cancel. In the form here, only the
    # square of an error of w counts.
    band_covariance = _compute_covariance(nm, nm, length, _JITTER) - _MEAN_VARIANCE
    cross_covariance = _compute_covariance(target_nm, nm, length) - _MEAN_VARIANCE
    explained_variance = (weights * (2 * cross_covariance - weights @ band_covariance)).sum(1)
    return (1 - explained_variance + _MEAN_VARIANCE * (1 - weights.sum(1)).square()).clamp_min(0)


@torch.no_grad()
def _find_length(cube: Tensor, nm: Tensor, scored_bands: slice) -> tuple[float, Tensor]:
    """Return the correlation length that predicts bands best from the others, and K⁻¹ for it."""
    lengths = (
        CORRELATION_LENGTHS_NM
        if len(nm) >= _MIN_BANDS_TO_FIT
        else (_FALLBACK_LENGTH_RATIO * float(nm[-1] - nm[0]),)
    )
    inverses = {
        length: _compute_covariance(nm, nm, length, _JITTER).inverse() for length in lengths
    }
    pixels = cube.flatten(1).double().cpu()
    # Leave-one-out errors (Rasmussen, Williams, equation 5.12) need only the second moments of
    # the spectra, not the pixels.
    moment = pixels @ pixels.T / pixels.shape[1]
    errors = {}
    for length, inverse in inverses.items():
        error = (inverse @ moment @ inverse).diagonal() / inverse.diagonal().square()
        errors[length] = float(error[scored_bands].mean())
    best = min(errors, key=lambda length: errors[length])
    return best, inverses[best]


def _measure_error_ratio(cube: Tensor, inverse: Tensor, scored_bands: slice) -> Tensor:
    """Return s² `(H, W)`: the mean square leave-one-out error over its expected size."""
    weighted_errors = _combine(inverse[scored_bands], cube)  # the errors times their precision
    precision = inverse.diagonal()[scored_bands].to(weighted_errors).view(-1, 1, 1)
    return (weighted_errors.square() / precision).mean(0)


def _combine(weights: Tensor, cube: Tensor) -> Tensor:
    """Return Σ_c weights[j, c] cube[c]."""
    # A matrix product would sum in an order that depends on the number of threads. This loop gives
    # the same bits for any number.
    sum_dtype = torch.promote_types(cube.dtype, torch.float32)
    rows = []
    for row in weights.tolist():
        total = torch.zeros_like(cube[0], dtype=sum_dtype)
        for weight, band in zip(row, cube, strict=True):
            if weight:
                total = total + weight * band.to(sum_dtype)
        rows.append(total.to(cube.dtype))
    return torch.stack(rows)
