"""Values of a config, checked."""

from __future__ import annotations

import difflib
from itertools import pairwise
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from cassi.config import plain
from cassi.data.frames import STEPS

VALUES = {
    *(
        "system",
        "solver",
        "prior",
        "denoiser",
        "output",
        "paths",
        "measurement",
        "mask",
        "truth",
        "keys",
    ),
    *(
        "axes",
        "wavelengths",
        "noise",
        "seed",
        "device",
        "threads",
        "memory_budget",
        "halo",
        "batch",
    ),
    *STEPS,
}
OUTPUT_VALUES = {"cube", "pictures", "report", "illuminant", "points", "progress"}


def check_keys(config: DictConfig) -> None:
    """Raise for a misspelt key of a config file; names of the user's own are welcome."""
    for key in map(str, config):
        near = difflib.get_close_matches(key, VALUES, n=1, cutoff=0.75)
        if key not in VALUES and near:
            raise ValueError(f"no config value {key!r}; did you mean {near[0]}?")
    for key in map(str, config.output):
        if key not in OUTPUT_VALUES:
            listed = ", ".join(sorted(OUTPUT_VALUES))
            raise ValueError(f"no config value 'output.{key}'; there is {listed}")
    for name in ("pictures", "report", "progress"):
        if not isinstance(config.output[name], bool):
            raise ValueError(f"output.{name}: expected true or false, got {config.output[name]!r}")


def check_denoiser(config: DictConfig) -> None:
    """Raise where the prior takes the config's denoiser, and that is not complete."""
    missing = sorted(OmegaConf.missing_keys(config.denoiser)) if config.get("denoiser") else []
    if missing and "${denoiser}" in OmegaConf.to_yaml(config.prior):
        key = f"denoiser.{missing[0].removeprefix('denoiser.')}"
        raise ValueError(f"config: {key} has no value; give it one, {key}=…")


def given_wavelengths(config: DictConfig) -> tuple[float, ...] | None:
    """Return the wavelengths of the config, increasing, in nm."""
    values = plain(config.wavelengths)
    if values is None:
        return None
    if not isinstance(values, list) or not all(isinstance(v, int | float) for v in values):
        raise ValueError(f"wavelengths: expected a list of numbers in nm, got {values!r}")
    if not values or any(not b > a for a, b in pairwise(values)):
        raise ValueError("wavelengths: expected increasing values in nm, one per band")
    if not values[0] >= 10:
        raise ValueError(
            f"wavelengths: expected nm, got {values[0]} to {values[-1]}; are these micrometres?"
        )
    return tuple(float(value) for value in values)


def agreed_bands(bands: Any, wavelengths: tuple[float, ...] | None) -> int | None:
    """Return the number of bands that config and wavelengths state together, if any."""
    if bands is not None and (isinstance(bands, bool) or not isinstance(bands, int) or bands < 1):
        raise ValueError(f"system.bands: expected an integer of at least 1, got {bands!r}")
    if wavelengths is not None and bands not in (None, len(wavelengths)):
        raise ValueError(
            f"wavelengths: expected {bands} values as system.bands says, got {len(wavelengths)}"
        )
    return len(wavelengths) if wavelengths is not None else bands


def choose_device(name: str) -> torch.device:
    """Return the device of that name; `auto` takes a GPU where there is one."""
    if not isinstance(name, str):
        raise ValueError(f"device: expected auto, cpu, cuda or cuda:N, got {name!r}")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device: expected auto, cpu, cuda or cuda:N, got {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device: expected auto, cpu, cuda or cuda:N, got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device: {name} is not there (CUDA devices: {torch.cuda.device_count()}); "
            "use device=auto or device=cpu"
        )
    return device


def whole_number(name: str, value: Any, minimum: int, maximum: int) -> int:
    """Return an integer from a config, between `minimum` and `maximum`."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise ValueError(
            f"{name}: expected a whole number from {minimum} to {maximum}, got {value!r}"
        )
    return value
