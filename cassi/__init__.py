"""Recover a hyperspectral cube from one coded-aperture snapshot (CASSI)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import cassi.threads  # noqa: F401 - first of all, before torch is loaded

if TYPE_CHECKING:
    from cassi import adapters, metrics, models, ops, uncertainty
    from cassi.calibration.camera_check import check_camera
    from cassi.data.io import read_cube, read_mask, read_measurement, write_cube
    from cassi.models.load import create_model, load_model, load_published
    from cassi.models.registry import list_models, register_model
    from cassi.plugins import register_dataset, register_loss, register_metric, register_prior
    from cassi.priors import TV
    from cassi.reconstruction import Reconstruction, calibrate, read_camera, reconstruct, simulate
    from cassi.solvers import ADMM, GAP, Solver, solve
    from cassi.systems import (
        BlurredCassi,
        DDCassi,
        Guide,
        MosaicCassi,
        PsfCassi,
        SDCassi,
        Stacked,
        WarpedCassi,
        dot_test,
    )

__all__ = [
    "ADMM",
    "GAP",
    "TV",
    "BlurredCassi",
    "DDCassi",
    "Guide",
    "MosaicCassi",
    "PsfCassi",
    "Reconstruction",
    "SDCassi",
    "Solver",
    "Stacked",
    "WarpedCassi",
    "adapters",
    "calibrate",
    "check_camera",
    "create_model",
    "dot_test",
    "list_models",
    "load_model",
    "load_published",
    "metrics",
    "models",
    "ops",
    "read_camera",
    "read_cube",
    "read_mask",
    "read_measurement",
    "reconstruct",
    "register_dataset",
    "register_loss",
    "register_metric",
    "register_model",
    "register_prior",
    "simulate",
    "solve",
    "uncertainty",
    "write_cube",
]

# Where the public names are that are no modules: each is imported when it is first asked for, as
# torch takes a second.
_HOMES = {
    "calibration.camera_check": ("check_camera",),
    "data.io": ("read_cube", "read_mask", "read_measurement", "write_cube"),
    "models.load": ("create_model", "load_model", "load_published"),
    "models.registry": ("list_models", "register_model"),
    "plugins": ("register_dataset", "register_loss", "register_metric", "register_prior"),
    "priors": ("TV",),
    "reconstruction": ("Reconstruction", "calibrate", "read_camera", "reconstruct", "simulate"),
    "solvers": ("ADMM", "GAP", "Solver", "solve"),
    "systems": (
        *("BlurredCassi", "DDCassi", "Guide", "MosaicCassi", "PsfCassi", "SDCassi", "Stacked"),
        *("WarpedCassi", "dot_test"),
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_PARTS = (
    *("adapters", "calibration", "data", "evaluation", "methods", "metrics", "models", "ops"),
    *("priors", "solvers", "systems", "training", "uncertainty", "viz"),
)


def __getattr__(name: str) -> Any:
    if name == "__version__":  # importlib.metadata searches the whole path
        from importlib.metadata import version

        return version("cassi")
    if name in _HOME:
        value = getattr(import_module(f"cassi.{_HOME[name]}"), name)
    elif name in _PARTS:
        value = import_module(f"cassi.{name}")
    else:
        raise AttributeError(f"module 'cassi' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_PARTS, *(name for name in globals() if name.startswith("__"))})
