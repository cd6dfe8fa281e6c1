"""The camera of a file, as Python has it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from cassi.apps.arguments import quoted
from cassi.apps.camera.file import load_camera
from cassi.apps.camera.response import read_unit
from cassi.apps.camera.system import Fitted, make_camera
from cassi.apps.inputs import file_paths, load_shots, load_snapshot, make_preprocessing
from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import Reconstruct, Snapshots
from cassi.config import Node, build
from cassi.data import io
from cassi.data.frames import Preprocessing
from cassi.systems import System

_FRAME = "frame"
"""Stands for the file of a frame."""


@dataclass(frozen=True)
class Camera:
    """A camera that a file describes.

    Attributes:
        system: its optics, A, on the CPU.
        wavelengths: nm, one per band; None where the file has none.
        preprocessing: what its raw frames go through.
        noise: of its sensor, for `cassi.simulate(x, camera.system, noise=camera.noise)`, or None.
        notes: how the file was understood, one line each.
        settings: of cassi-reconstruct, for a frame by this camera.
    """

    system: System
    wavelengths: tuple[float, ...] | None
    preprocessing: Preprocessing
    noise: Any
    notes: list[str]
    settings: Reconstruct = field(repr=False)

    def read(
        self, path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    ) -> tuple[Tensor, System]:
        """Read a raw frame, and make a measurement of it as `cassi-reconstruct` does.

        Args:
            path: of a frame of this camera, or one per shot.

        Returns:
            The measurement `(1, K, H', W')`, and the camera that took it: the system, or one that
            leaves out the pixels of this frame that are bad or saturated. It knows the response
            of the camera's file.

        Raises:
            OSError: there is no such file.
            ValueError: the frame does not fit the camera, or holds no light.
        """
        if isinstance(path, str | os.PathLike):
            files: str | list[str] = os.fspath(path)
        else:
            files = [os.fspath(each) for each in path]
        settings = replace(self.settings, measurement=files)
        snapshot = load_snapshot(settings, torch.device("cpu"), self.system.cube_shape[0])
        if settings.response is not None:
            snapshot.camera.system.unit = read_unit(snapshot, settings)
        return snapshot.y, snapshot.camera.system


def open_camera(path: str | os.PathLike[str]) -> Camera:
    """Read the file of a camera, and the files that it names; see `cassi.read_camera`."""
    values = load_camera(path)
    name = quoted(os.fspath(path))
    settings = compose_settings([f"camera={name}", f"measurement={_FRAME}"])
    found = make_alone(settings)
    noise = None if "noise" not in values else build(values["noise"])
    chain = make_preprocessing(vars(settings), settings.system)
    return Camera(found.system, settings.given_wavelengths, chain, noise, found.notes, settings)


def make_alone(settings: Snapshots) -> Fitted:
    """Make a camera of which no measurement says how many bands it has."""
    mask, wavelengths, notes = settings.mask, settings.given_wavelengths, list[str]()
    if mask is None:
        raise ValueError("mask: expected a file, got none; a camera's file names it, mask: FILE")
    bands = _bands(settings.system, wavelengths)
    if isinstance(mask, str | list):
        hints = {"key": settings.keys.mask, "axes": settings.axes.mask}
        loaded = load_shots("mask", io.load_mask, file_paths(mask), bands=bands, **hints)
        mask, notes = loaded.data, [loaded.note]
        bands = bands or (mask.shape[1] if mask.shape[1] > 1 else None)
    if bands is None:
        raise ValueError(
            "system.bands: expected the number of bands, by system.bands or by wavelengths; there "
            "is no measurement to tell it"
        )
    found = make_camera(settings.system, mask, bands=bands, wavelengths=wavelengths)
    return replace(found, notes=[*notes, *found.notes])


def _bands(node: Node, wavelengths: tuple[float, ...] | None) -> int | None:
    given = node.get("offsets")
    counts = {
        "system.bands": node.get("bands"),
        "wavelengths": None if wavelengths is None else len(wavelengths),
        "system.offsets": len(given) if isinstance(given, list) else None,
    }
    said = {name: count for name, count in counts.items() if count is not None}
    if len(set(said.values())) > 1:
        listed = ", ".join(f"{count} by {name}" for name, count in said.items())
        raise ValueError(f"system.bands: expected one number of bands, got {listed}")
    return next(iter(said.values()), None)
