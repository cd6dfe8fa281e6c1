"""Recover a hyperspectral cube from one coded-aperture snapshot (CASSI)."""

from typing import Any

import lazy_loader

import cassi.threads  # noqa: F401 - first of all, before torch is loaded

_find, _, _names = lazy_loader.attach_stub(__name__, __file__)
_PARTS = (
    *("calibration", "data", "evaluation", "methods", "priors", "solvers", "systems", "training"),
    "viz",
)
"""Parts that are there without an import, and not among the names of `from cassi import *`."""
__all__ = [name for name in _names if name not in _PARTS]


def __getattr__(name: str) -> Any:
    if name == "__version__":  # importlib.metadata searches the whole path
        from importlib.metadata import version

        return version("cassi")
    globals()[name] = value = _find(name)
    return value


def __dir__() -> list[str]:
    return sorted({*_names, *(name for name in globals() if name.startswith("__"))})
