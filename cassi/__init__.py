"""Recover a hyperspectral cube from one coded-aperture snapshot (CASSI)."""

from importlib import import_module
from typing import Any

import lazy_loader

import cassi.threads  # noqa: F401 - first of all, before torch is loaded

_find, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
_PARTS = (
    *("adapters", "calibration", "data", "evaluation", "methods", "metrics", "models", "ops"),
    *("priors", "solvers", "systems", "training", "uncertainty", "viz"),
)


def __getattr__(name: str) -> Any:
    if name == "__version__":  # importlib.metadata searches the whole path
        from importlib.metadata import version

        return version("cassi")
    value = import_module(f"cassi.{name}") if name in _PARTS else _find(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_PARTS, *(name for name in globals() if name.startswith("__"))})
