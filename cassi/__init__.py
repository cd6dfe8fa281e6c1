"""Recover a hyperspectral cube from one coded-aperture snapshot (CASSI)."""

from typing import Any

import cassi.threads  # noqa: F401 - first of all, before torch is loaded
from cassi import adapters, metrics, models, ops, uncertainty
from cassi.calibration.camera_check import check_camera
from cassi.data.io import read_cube, read_mask, read_measurement, write_cube
from cassi.models.load import create_model, load_model, load_published
from cassi.models.registry import list_models
from cassi.models.registry import register as register_model
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


def __getattr__(name: str) -> Any:
    if name == "__version__":  # read when asked for: importlib.metadata searches the whole path
        from importlib.metadata import version

        return version("cassi")
    raise AttributeError(f"module 'cassi' has no attribute {name!r}")
