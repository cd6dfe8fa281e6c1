"""Recover a hyperspectral cube from one coded-aperture snapshot (CASSI)."""

from typing import Any

import lazy_loader

# This comes first: it sets how OpenMP's threads wait, and torch reads that when it is loaded.
import cassi.threads  # noqa: F401

_load_name, _, _stub_names = lazy_loader.attach_stub(__name__, __file__)
# Subpackages are loaded at first use, as in `cassi.viz.save_bands`. `from cassi import *` leaves
# them out: their names would hide a user's own `data` or `systems`.
_PARTS = (
    "calibration",
    "data",
    "evaluation",
    "methods",
    "priors",
    "solvers",
    "systems",
    "training",
    "viz",
)
__all__ = [name for name in _stub_names if name not in _PARTS]


def __getattr__(name: str) -> Any:
    # Looked up only when it is asked for: importlib.metadata searches the whole path.
    if name == "__version__":
        from importlib.metadata import version

        return version("cassi")
    globals()[name] = value = _load_name(name)
    return value


def __dir__() -> list[str]:
    return sorted({*_stub_names, *(name for name in globals() if name.startswith("__"))})
