"""Make fingerprints of everything that results depend on: settings, weights and plugins."""

from typing import Any

import torch

from cassi.apps.reconstructors.recipe import adapted, has_start
from cassi.apps.settings import Reconstruct, influence
from cassi.config import Node
from cassi.data.store import fingerprint
from cassi.models.registry import is_shipped, weight_files
from cassi.plugins import plugin_files
from cassi.precision import resolve


def identity_of(settings: Reconstruct, bands: int, device: torch.device) -> Node:
    """Return everything that the results depend on, except camera and measurement.

    Args:
        settings: settings of the reconstructor.
        bands: number of bands, C.
        device: device of the reconstruction.
    """
    # "auto" stands for a precision that depends on the device. The bits of a result depend on this
    # precision, so it takes the place of "auto".
    settings, auto_precision = adapted(settings), resolve("auto", device)
    solver = {
        "solver": settings.solver,
        "prior": _resolve_precision(settings.prior, auto_precision),
        **_find_plugin_files(),
    }
    if settings.model is None:
        return name_weights(solver)
    network_identity = {"bands": bands, "refine": settings.refine, "precision": settings.precision}
    network_identity |= {"auto": auto_precision} if is_shipped(settings.model.get("name")) else {}
    network_identity |= solver if has_start(settings) else _find_plugin_files()
    return name_weights({"model": settings.model, **network_identity})


def _resolve_precision(value: Any, auto_precision: str) -> Any:
    """Replace `precision: auto` in the settings of a prior by the precision it stands for."""
    if isinstance(value, list):
        return [_resolve_precision(item, auto_precision) for item in value]
    if not isinstance(value, dict):
        return value
    new_values = {key: _resolve_precision(item, auto_precision) for key, item in value.items()}
    if new_values.get("precision") == "auto":
        new_values["precision"] = auto_precision
    return new_values


def name_weights(value: Any) -> Any:
    """Replace the name of weights that come with the package by the paths of their files."""
    # A later release may ship other weights under the same name. Its results differ.
    if isinstance(value, dict):
        return {key: name_weights(item) for key, item in value.items()}
    if isinstance(value, list):
        return [name_weights(item) for item in value]
    return [str(file) for file in weight_files(value)] or value


def fingerprint_settings(settings: Any, on: str = "files") -> str:
    """Return a hash of the settings that the results of every snapshot depend on.

    A file counts by its name, size and time of change. `on` is as for `influence`.
    """
    return fingerprint(name_weights(influence(settings, on) | _find_plugin_files()))


def _find_plugin_files() -> dict[str, list[str]]:
    """Return the files of plugins, on which all results may depend; an empty dict without any."""
    files = plugin_files()
    return {"plugins": files} if files else {}
