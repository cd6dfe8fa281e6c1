"""A guide's picture from its file to the camera that takes it along."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cassi.apps.printing import marked
from cassi.apps.settings import GuidePicture
from cassi.checks import raised_here
from cassi.data import io
from cassi.data.formats.curves import read_curves
from cassi.guide_search import place_guide
from cassi.pipeline.snapshot import Camera, Snapshot
from cassi.systems import Guided
from cassi.systems.motion import describe_motion


def add_guide(snapshot: Snapshot, settings: GuidePicture) -> Snapshot:
    """Return a snapshot with the guide beside the camera, or without it where it does not fit."""
    loaded = io.load_guide(str(settings.file))
    bands, height, width = snapshot.camera.system.cube_shape
    picture, name = loaded.data[0], settings.response
    if tuple(picture.shape[1:]) != (height, width):
        raise ValueError(
            f"guide: expected a picture of {height} x {width} pixels as the cube, got "
            f"{picture.shape[1]} x {picture.shape[2]} in {loaded.path}; resize it"
        )
    channels = len(picture)
    name = name or ("cie" if channels == 3 else "pan")
    response = read_response(name, channels, bands, snapshot.camera.wavelengths)
    if name == "cie":
        from cassi.viz.color import xyz_of_srgb

        encoded = loaded.path.suffix.lower() == ".png"
        picture = torch.from_numpy(xyz_of_srgb(picture.numpy(), encoded))
    try:
        found = place_guide(
            snapshot.y,
            snapshot.camera.system,
            picture.to(snapshot.y),
            response,
            settings.noise,
            settings.register,
        )
    except ValueError as error:
        if not raised_here(error):
            raise
        raise ValueError(f"{error} ({loaded.path})") from error
    if not found.taken:
        print(f"{marked('warning')} guide: {found}", file=sys.stderr)
    numbers = {
        "taken": found.taken,
        "response": name,
        "misfit": found.misfit,
        "correlation": found.correlation,
    }
    return snapshot.by(loaded.note).by(f"guide: {found}", system=found.system, guide=numbers)


def describe_guide(camera: Camera) -> dict[str, Any]:
    """Return what metrics.json says of a guide, after the reconstruction: where it lies, too."""
    told, system = dict(camera.guide or {}), camera.system
    return told | describe_motion(system.found.motion) if isinstance(system, Guided) else told


def read_response(
    name: str, channels: int, bands: int, wavelengths: tuple[float, ...] | None
) -> Tensor:
    """Return the response `(G, C)` of a guide.

    Args:
        name: "pan", "cie", or a file of comma-separated values: a line per wavelength, nm and the
            response of each channel; or a line per channel with a number per band.
        channels: G, of the picture.
        bands: C.
        wavelengths: of the bands, nm, where known.
    """
    if name in ("pan", "cie"):
        wanted = 1 if name == "pan" else 3
        if channels != wanted:
            raise ValueError(
                f"guide.response: {name} is of {wanted} channel{'s' * (wanted > 1)}, the picture "
                f"has {channels}; give guide.response=FILE.csv"
            )
    if name == "pan":
        return torch.full((1, bands), 1 / bands)
    if name == "cie":
        if wavelengths is None:
            raise ValueError("guide.response: cie needs the bands' wavelengths=[…], nm")
        from cassi.viz.color import cie_response

        return torch.from_numpy(cie_response(np.asarray(wavelengths)))
    curves = read_curves(Path(name), "guide.response", channels, bands, wavelengths)
    return torch.from_numpy(curves)
