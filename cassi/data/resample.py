"""Cubes of one list of wavelengths out of cubes of another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cassi.data.wavelengths import checked_wavelengths

# Wavelengths come out of files as decimal fractions; this is far below any camera's band width.
_SAME_NM = 1e-3


def resample(cube: Tensor, source_nm: Sequence[float], target_nm: Sequence[float]) -> Tensor:
    """Interpolate a cube linearly over wavelength.

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
    if not isinstance(cube, Tensor) or not cube.is_floating_point():
        raise TypeError(f"cube: expected a floating tensor, got {getattr(cube, 'dtype', cube)}")
    if cube.ndim != 3:
        raise ValueError(f"cube: expected (C, H, W), got shape {tuple(cube.shape)}")
    source = np.asarray(checked_wavelengths(source_nm, len(cube)))
    target = np.asarray(checked_wavelengths(target_nm, len(target_nm)))
    if len(source) == len(target) and np.abs(source - target).max() <= _SAME_NM:
        return cube.clone()
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
    left = np.minimum(place.astype(np.int64), len(source) - 2)
    weight = torch.from_numpy(place - left).to(cube.dtype).view(-1, 1, 1)
    first = torch.from_numpy(left)
    return torch.lerp(cube[first], cube[first + 1], weight)
