"""Wavelengths of bands: checks and units, and those of the benchmark."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

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
    try:
        if isinstance(values, str):
            values = values.strip("{} ").split(",")
        nm = np.asarray(values).astype(np.float64).ravel()
    except (TypeError, ValueError, OverflowError):
        return np.empty(0)
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
