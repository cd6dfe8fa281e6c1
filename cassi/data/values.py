"""Values out of files: numbers to finite float32, wavelengths to nanometres."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cassi.data.formats import Source

__all__ = [
    "check_finite",
    "checked_wavelengths",
    "scale_integers",
    "to_float32",
    "to_nanometres",
]


def check_finite(name: str, tensor: torch.Tensor) -> None:
    """Refuse values that are not finite.

    Args:
        name: What the tensor is, for the message.
        tensor: Any shape.

    Raises:
        ValueError: There is a NaN or an infinity; says how many and where the first is.
    """
    finite = torch.isfinite(tensor)
    if not finite.all():
        bad = (~finite).nonzero()
        raise ValueError(
            f"{name} of shape {tuple(tensor.shape)} has {len(bad)} values that are NaN or infinite,"
            f" the first at index {tuple(bad[0].tolist())}; replace them first"
        )


def scale_integers(array: np.ndarray, source: Source, role_name: str) -> tuple[np.ndarray, str]:
    """Refuse what is not a number and bring integer grey levels to [0, 1].

    Args:
        array: As it came out of the file.
        source: The file; knows whether integers are grey levels and what their full scale is.
        role_name: What the array is read as. A mask of zeros and ones is never scaled.

    Returns:
        The array, and a remark on what was done to integers ("" if there were none).

    Raises:
        ValueError: Complex or not numeric, or a full scale that is not positive.
    """
    kind, dtype = array.dtype.kind, array.dtype
    if kind == "c":
        raise ValueError(f"complex numbers ({dtype}); save their real part or their magnitude")
    if kind not in "biuf":
        raise ValueError(f"expected numbers, the array is of type {dtype}")
    if source.scale is not None:
        divisor, reason = source.scale
        if not (np.isfinite(divisor) and divisor > 0):
            raise ValueError(f"expected a positive {reason}, got {divisor}")
        return array / np.float32(divisor), f"{dtype} divided by {reason} {divisor:g}"
    if kind not in "iu":
        return array, ""
    if not source.image or (role_name == "mask" and array.max() <= 1 and array.min() >= 0):
        return array, f"{dtype} taken as it is"
    top = np.iinfo(dtype).max
    return array / np.float32(top), f"{dtype} divided by {top}"


def to_float32(array: np.ndarray) -> np.ndarray:
    """A contiguous float32 copy."""
    # Values beyond float32 become infinite and are refused by check_finite.
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(array, dtype=np.float32, order="C")


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
    elif unit in {"wavenumber", "ghz", "mhz", "index"}:
        return np.empty(0)
    else:
        factor = 1e9 if nm.max() < 1e-3 else 1e3 if nm.max() < 10 else 1.0
    # 453.5 nm written as 0.4535 µm is 453.49999999999994 after the product.
    nm = nm if factor == 1.0 else np.round(nm * factor, 6)
    return nm if nm.min() >= 10 else np.empty(0)
