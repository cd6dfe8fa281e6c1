"""Checks of what a solver is given."""

from __future__ import annotations

from typing import Any


def check_iterations(iterations: Any) -> None:
    """Raise unless it is a whole number of at least 1."""
    if isinstance(iterations, bool) or not isinstance(iterations, int):
        raise TypeError(f"iterations: expected an integer, got {iterations!r}")
    if iterations < 1:
        raise ValueError(f"iterations: expected at least 1, got {iterations}")


def check_numbers(tol: Any, noise: Any) -> None:
    """Raise unless the tolerance is >= 0 and the noise "auto" or a number >= 0."""
    if not tol >= 0:
        raise ValueError(f"tol: expected a number >= 0, got {tol}")
    number = isinstance(noise, int | float) and not isinstance(noise, bool)
    if noise != "auto" and not (number and noise >= 0):
        raise ValueError(f"noise: expected auto or a number >= 0, got {noise!r}")
