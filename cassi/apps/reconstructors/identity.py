"""What results depend on: fingerprints of settings, weights and plugins."""

from typing import Any

import torch

from cassi.apps.reconstructors.recipe import adapted, has_start
from cassi.apps.settings import Reconstruct, influence
from cassi.config import Node
from cassi.data.store import fingerprint
from cassi.models.registry import list_models, weight_files
from cassi.plugins import plugin_files
from cassi.precision import resolve


def identity_of(settings: Reconstruct, bands: int, device: torch.device) -> Node:
    """Return what the results of a reconstructor depend on beside camera and measurement.

    "auto" is named by the precision that it stands for on the device: other bits, another result.
    """
    settings, auto = adapted(settings), resolve("auto", device)
    solver = {"solver": settings.solver, "prior": _settle(settings.prior, auto), **_own_files()}
    if settings.model is None:
        return name_weights(solver)
    settled = {"bands": bands, "refine": settings.refine, "precision": settings.precision}
    settled |= {"auto": auto} if settings.model.get("name") in list_models(shipped=True) else {}
    settled |= solver if has_start(settings) else _own_files()
    return name_weights({"model": settings.model, **settled})


def _settle(value: Any, auto: str) -> Any:
    """Write the precision that "auto" stands for into a prior's settings."""
    if isinstance(value, list):
        return [_settle(item, auto) for item in value]
    if not isinstance(value, dict):
        return value
    settled = {key: _settle(item, auto) for key, item in value.items()}
    return settled | ({"precision": auto} if settled.get("precision") == "auto" else {})


def name_weights(value: Any) -> Any:
    """Replace the name of weights that come with the package by their files.

    Other weights under the same name are another method.
    """
    if isinstance(value, dict):
        return {key: name_weights(item) for key, item in value.items()}
    if isinstance(value, list):
        return [name_weights(item) for item in value]
    return [str(file) for file in weight_files(value)] or value


def fingerprint_settings(settings: Any, on: str = "files") -> str:
    """Return a hash of all in settings that the results of every snapshot depend on.

    A file stands for its name, size and time of change.
    """
    return fingerprint(name_weights(influence(settings, on) | _own_files()))


def _own_files() -> dict[str, list[str]]:
    """Return the files of plugins, on which all results may depend; nothing without any."""
    files = plugin_files()
    return {"plugins": files} if files else {}
