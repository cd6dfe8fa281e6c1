"""Checks of the numbers that priors take."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any


def check_weight(name: str, value: Any) -> None:
    """Raise unless the value is a number >= 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) >= 0:
        raise ValueError(f"{name}: expected a number >= 0, got {value!r}")


def check_count(name: str, value: Any) -> None:
    """Raise unless the value is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}")
