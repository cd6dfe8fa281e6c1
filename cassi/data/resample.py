"""Cubes and spectra between what was sampled: at any wavelength, at any point of the picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cassi import ops
from cassi.data.wavelengths import checked_wavelengths

# Wavelengths come out of files as decimal fractions; this is far below any camera's band width.
_SAME_NM = 1e-3
_PIXELS = 1 << 14  # interpolated at once, eight values in float64 for each and each wavelength


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


def to_wavelengths(cube: Tensor, wavelengths: Sequence[float], wanted: Sequence[float]) -> Tensor:
    """Bring a cube on any device to any wavelengths in its range, interpolated linearly in float64.

    Equation, arguments and errors are those of `resample`; this one is `cassi.ops.sample_volume`,
    so that it has a gradient too.

    Returns:
        `(len(wanted), H, W)`, in the cube's dtype.

    >>> to_wavelengths(torch.tensor([1.0, 3.0]).view(2, 1, 1), [400, 500], [425, 500]).flatten()
    tensor([1.5000, 3.0000])
    """
    place = _places(cube, wavelengths, wanted)
    if place is None:
        return cube.clone()
    points = torch.zeros(len(place), 3, dtype=torch.float64, device=cube.device)
    points[:, 0] = torch.from_numpy(place).to(cube.device) * (2 / (len(cube) - 1)) - 1
    parts = [
        ops.sample_volume(pixels.T[..., None, None], points)
        for pixels in cube.flatten(1).split(_PIXELS, 1)
    ]
    return torch.cat(parts, 1).reshape(-1, *cube.shape[1:])


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


def _places(
    cube: Tensor, source_nm: Sequence[float], target_nm: Sequence[float]
) -> np.ndarray | None:
    """Where the wanted bands lie among those of a cube, in bands; None: they are the same."""
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
