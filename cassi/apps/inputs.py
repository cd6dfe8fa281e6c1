"""From a config to the camera, the measurement and, where known, the truth."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import DictConfig
from torch import Tensor

from cassi.apps import settings
from cassi.apps.camera import build_camera, dispersed, is_dual
from cassi.apps.frames import Frames
from cassi.apps.geometry import fit_bands
from cassi.apps.masks import draw_mask, move_back
from cassi.data import io
from cassi.data.bundled import bundled_path
from cassi.data.scenes import scene_name
from cassi.systems import System, check_mask


@dataclass(frozen=True)
class Inputs:
    """Everything a reconstruction starts from, on its device."""

    system: System
    measurement: Tensor
    """(1, K, H', W'), already scaled."""
    truth: Tensor | None
    """(1, C, H, W), on the CPU."""
    wavelengths: tuple[float, ...] | None
    """nm, one per band"""
    notes: list[str]
    """How each file was understood, one line each."""
    preprocessing: dict[str, Any] | None
    """What was done to the frame, by step; None where it was simulated without noise."""


def load_inputs(config: DictConfig, device: torch.device) -> Inputs:
    """Read and check the files that a config names.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: files, camera and wavelengths do not fit; the message says what would.
    """
    files = _choose_files(config)
    given = settings.given_wavelengths(config)
    bands = settings.agreed_bands(config.system.get("bands"), given)
    notes: list[str] = []

    def load(role: str, reader: Callable[..., io.Loaded], **hints: Any) -> io.Loaded | None:
        if role not in files:
            return None
        chosen = {"key": config["keys"][role], "axes": config["axes"][role]}
        try:
            loaded = reader(files[role], **chosen, **hints)
        except ValueError as error:
            # The readers speak of their own arguments, the user of config values.
            message = re.sub(r"\b(key|axes)=", rf"\1.{role}=", str(error))
            raise ValueError(message.replace(f"key.{role}=", f"keys.{role}=")) from error
        notes.append(loaded.note)
        return loaded

    truth = load("truth", io.load_cube, bands=bands)
    if truth is not None:
        bands = bands or truth.data.shape[1]
    frames, measured = Frames(config), load("measurement", io.load_measurement)
    if measured is not None:
        measured = replace(measured, data=frames.preprocess(measured.data))
    wavelengths = given or next((f.wavelengths for f in (truth, measured) if f), None)
    if "mask" in files:
        mask = cast("io.Loaded", load("mask", io.load_mask, bands=bands)).data
    else:
        drawn_for = None if truth is None else truth.data[0]
        mask = draw_mask(config.mask, config.system, drawn_for, wavelengths)
        notes.append(f"mask: drawn, {tuple(mask.shape)}, mean {mask.mean():.3f}")
    axis = config.system.get("axis", -1)
    length = None if truth is None or axis not in (-1, -2) else truth.data.shape[axis]
    detector = None
    if measured is not None and axis in (-1, -2):
        detector = measured.data.shape[axis]
        length = detector if is_dual(config.system) else length
    elif length is not None:
        detector = length + dispersed(config.system, bands or 1, wavelengths)
    mask, more, note = move_back(config.system, mask, detector, wavelengths)
    if note is not None:
        notes.append(note)
    check_mask(mask)
    if measured is not None and not more:
        bands = fit_bands(config.system, mask, measured.data, bands, given)

    bands = bands or mask.shape[1]
    system = build_camera(config.system, mask, bands, wavelengths, length, **more)
    notes.append(f"system: {system}")
    if truth is not None:
        _check_shape("truth", files, "(C, H, W)", truth.data, system.cube_shape)
    if measured is not None:
        measurement = measured.data
    else:
        scene = scene_name(files["truth"])
        measurement = frames.simulate(system, cast("io.Loaded", truth).data, scene)
    _check_shape("measurement", files, "(K, H', W')", measurement, system.measurement_shape)
    return Inputs(
        system.to(device),
        measurement.to(device),
        None if truth is None else truth.data,
        wavelengths,
        [*notes, *frames.notes],
        frames.done,
    )


def _choose_files(config: DictConfig) -> dict[str, Path]:
    roles = ("measurement", "mask", "truth")
    given = {role: config[role] for role in roles if config[role] is not None}
    drawn = isinstance(given.get("mask"), DictConfig)
    files = {role: _path(value) for role, value in given.items() if not (drawn and role == "mask")}
    if not files:
        mask = {} if drawn else {"mask": bundled_path("mask.tif")}
        return mask | {"truth": bundled_path("scene.tif")}
    root = Path(config.paths.data_dir)
    if not root.is_dir() and any(root in file.parents for file in files.values()):
        raise ValueError(f"paths.data_dir: no folder {root}; set paths.data_dir=DIR or $CASSI_DATA")
    if "mask" not in files and not drawn:
        raise ValueError("mask: expected a file, got none; give mask=FILE")
    if "measurement" not in files and "truth" not in files:
        raise ValueError(
            "measurement: expected a file, got none; give measurement=FILE, or truth=FILE to "
            "simulate one"
        )
    return files


def _path(value: Any) -> Path:
    name = str(value)
    return bundled_path(name[8:]) if name.startswith("bundled:") else Path(name)


def _check_shape(
    role: str, files: dict[str, Path], letters: str, data: Tensor, expected: tuple[int, int, int]
) -> None:
    if tuple(data.shape[1:]) != expected:
        raise ValueError(
            f"{role}: expected {letters} = {expected} as the mask and the system say, "
            f"got {tuple(data.shape[1:])} in {files.get(role, 'what was simulated')}"
        )
