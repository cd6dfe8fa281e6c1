"""Wavelengths of bands: checks and units, and those of the benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def checked_wavelengths(values: Any, bands: int) -> tuple[float, ...]:
    """Wavelengths (nm) to write: one a band, rising.

    Raises:
        ValueError: They are not.
    """
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    nm = np.asarray(values, dtype=np.float64).ravel()
    if len(nm) != bands:
        raise ValueError(f"expected {bands} wavelengths, one a band, got {len(nm)}")
    if not np.isfinite(nm).all() or nm.min() < 10 or (np.diff(nm) <= 0).any():
        raise ValueError(f"expected rising wavelengths in nm, got {np.round(nm, 4).tolist()}")
    return tuple(nm.tolist())


def checked_widths(values: Any, bands: int) -> tuple[float, ...]:
    """Widths (nm) of bands to write: one a band, positive.

    Raises:
        ValueError: They are not.
    """
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    nm = np.asarray(values, dtype=np.float64).ravel()
    if len(nm) != bands or not np.isfinite(nm).all() or not nm.min() > 0:
        raise ValueError(f"fwhm: expected {bands} widths > 0 in nm, got {nm.tolist()}")
    return tuple(nm.tolist())


def to_nanometres(values: Any, unit: str = "") -> np.ndarray:
    """Wavelengths in nm out of numbers or texts in a stated or guessed unit.

    Without a stated unit numbers below 1e-3 are metres, below 10 micrometres, else nanometres.

    Returns:
        float64 array, shape (C,); empty if the values cannot be wavelengths.
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
    place = find_places(cube, source_nm, target_nm)
    if place is None:
        return cube.clone()
    left = np.minimum(place.astype(np.int64), len(cube) - 2)
    weight = torch.from_numpy(place - left).to(cube.dtype).view(-1, 1, 1)
    first = torch.from_numpy(left)
    return torch.lerp(cube[first], cube[first + 1], weight)


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


def _check_cube(cube: Any) -> None:
    if not isinstance(cube, Tensor) or not cube.is_floating_point():
        raise TypeError(f"cube: expected a floating tensor, got {getattr(cube, 'dtype', cube)}")
    if cube.ndim != 3:
        raise ValueError(f"cube: expected (C, H, W), got shape {tuple(cube.shape)}")


def find_places(
    cube: Tensor, source_nm: Sequence[float], target_nm: Sequence[float]
) -> np.ndarray | None:
    """Return where wanted bands lie among those of a cube, in bands; None: they are the same.

    Raises:
        TypeError: the cube is not a floating tensor.
        ValueError: as `resample`.
    """
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
    place = np.interp(target, source, np.arange(len(source)))
    whole = place.round()
    return np.where(np.abs(source[whole.astype(np.int64)] - target) <= _SAME_NM, whole, place)
