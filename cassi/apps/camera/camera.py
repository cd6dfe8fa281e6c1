"""Open a camera's file in Python: `cassi.read_camera`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from cassi.apps.arguments import quoted
from cassi.apps.camera.file import load_camera
from cassi.apps.camera.response import read_unit
from cassi.apps.camera.system import FittedCamera, make_camera
from cassi.apps.inputs import file_paths, load_shots, load_snapshot, make_preprocessing
from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import Reconstruct, Snapshots
from cassi.config import Node, build
from cassi.data import io
from cassi.data.frames import Preprocessing
from cassi.systems import System

# Settings need a measurement. Its name is replaced when a frame is read.
_FRAME_STAND_IN = "frame"


@dataclass(frozen=True)
class Camera:
    """A camera that a file describes.

    Attributes:
        system: the operator A of its optics, on the CPU.
        wavelengths: wavelengths in nm, one per band; None if the file has none.
        preprocessing: the corrections of its raw frames.
        noise: noise model of its sensor, for
            `cassi.simulate(x, camera.system, noise=camera.noise)`; None if the file has none.
        notes: how the file was understood, one line each.
        settings: settings of cassi-reconstruct for a frame of this camera.
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
        """Read a raw frame, and correct it to a measurement as `cassi-reconstruct` does.

        Args:
            path: file of a frame of this camera, or a list of files, one per shot.

        Returns:
            The measurement `(1, K, H', W')`, and the system that took it. If the frame has bad or
            saturated pixels, the system is a wrapper that leaves them out. The system has the
            response of the camera's file.

        Raises:
            OSError: there is no such file.
            ValueError: the frame does not fit the camera, or holds no light.
        """
        if isinstance(path, str | os.PathLike):
            files: str | list[str] = os.fspath(path)
        else:
            files = [os.fspath(file) for file in path]
        settings = replace(self.settings, measurement=files)
        snapshot = load_snapshot(settings, torch.device("cpu"), self.system.cube_shape[0])
        if settings.response is not None:
            snapshot.camera.system.unit = read_unit(snapshot, settings)
        return snapshot.y, snapshot.camera.system


def open_camera(path: str | os.PathLike[str]) -> Camera:
    """Read the file of a camera, and the files that it names; see `cassi.read_camera`.

    Raises:
        OSError: the file, or one that it names, cannot be read.
        ValueError: a value of the file cannot be used.
    """
    values = load_camera(path)
    name = quoted(os.fspath(path))
    settings = compose_settings([f"camera={name}", f"measurement={_FRAME_STAND_IN}"])
    camera = make_camera_alone(settings)
    noise = None if "noise" not in values else build(values["noise"])
    chain = make_preprocessing(vars(settings), settings.system)
    return Camera(camera.system, settings.given_wavelengths, chain, noise, camera.notes, settings)


def make_camera_alone(settings: Snapshots) -> FittedCamera:
    """Make a camera from settings without a measurement, so the settings must give its bands.

    Raises:
        ValueError: there is no mask, the number of bands is not stated, or two statements differ.
    """
    mask, wavelengths, notes = settings.mask, settings.given_wavelengths, list[str]()
    if mask is None:
        raise ValueError("mask: expected a file, got none; a camera's file names it, mask: FILE")
    bands = _count_bands(settings.system, wavelengths)
    if isinstance(mask, str | list):
        hints = {"key": settings.keys.mask, "axes": settings.axes.mask}
        mask_file = load_shots("mask", io.load_mask, file_paths(mask), bands=bands, **hints)
        mask, notes = mask_file.data, [mask_file.note]
        bands = bands or (mask.shape[1] if mask.shape[1] > 1 else None)
    if bands is None:
        raise ValueError(
            "system.bands: expected the number of bands, by system.bands or by wavelengths; there "
            "is no measurement to tell it"
        )
    camera = make_camera(settings.system, mask, bands=bands, wavelengths=wavelengths)
    return replace(camera, notes=[*notes, *camera.notes])


def _count_bands(node: Node, wavelengths: tuple[float, ...] | None) -> int | None:
    offsets = node.get("offsets")
    counts = {
        "system.bands": node.get("bands"),
        "wavelengths": None if wavelengths is None else len(wavelengths),
        "system.offsets": len(offsets) if isinstance(offsets, list) else None,
    }
    known_counts = {name: count for name, count in counts.items() if count is not None}
    # Without a measurement nothing shows which of two different numbers is right.
    if len(set(known_counts.values())) > 1:
        text = ", ".join(f"{count} by {name}" for name, count in known_counts.items())
        raise ValueError(f"system.bands: expected one number of bands, got {text}")
    return next(iter(known_counts.values()), None)
