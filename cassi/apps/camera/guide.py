"""Read the picture of a guide, register it, and put it beside a camera."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cassi.apps.printing import color_label
from cassi.apps.settings import GuidePicture
from cassi.checks import raised_here
from cassi.data import io
from cassi.data.formats.curves import read_curves
from cassi.guide_search import place_guide
from cassi.pipeline.snapshot import Camera, Snapshot
from cassi.systems import Guided
from cassi.systems.motion import describe_motion


def add_guide(snapshot: Snapshot, settings: GuidePicture) -> Snapshot:
    """Return a snapshot whose camera has the guide.

    If the guide does not fit the measurement, the camera has no guide, and a warning is printed.

    Raises:
        ValueError: the picture does not have the size of the cube, or its response cannot be read.
    """
    guide_file = io.load_guide(str(settings.file))
    bands, height, width = snapshot.camera.system.cube_shape
    picture = guide_file.data[0]
    if tuple(picture.shape[1:]) != (height, width):
        raise ValueError(
            f"guide: expected a picture of {height} x {width} pixels as the cube, got "
            f"{picture.shape[1]} x {picture.shape[2]} in {guide_file.path}; resize it"
        )
    # A picture of three channels counts as colours of a usual camera, any other as panchromatic.
    channels = len(picture)
    response_name = settings.response or ("cie" if channels == 3 else "pan")
    response = read_response(response_name, channels, bands, snapshot.camera.wavelengths)
    if response_name == "cie":
        from cassi.viz.color import xyz_of_srgb

        # A PNG has the gamma of sRGB; arrays are taken to be linear.
        is_srgb_encoded = guide_file.path.suffix.lower() == ".png"
        picture = torch.from_numpy(xyz_of_srgb(picture.numpy(), is_srgb_encoded))
    try:
        placement = place_guide(
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
        raise ValueError(f"{error} ({guide_file.path})") from error
    # A guide that does not fit would pull the cube towards another scene, so it is left out.
    if not placement.is_used:
        print(f"{color_label('warning')} guide: {placement}", file=sys.stderr)
    numbers = {
        "taken": placement.is_used,
        "response": response_name,
        "misfit": placement.misfit,
        "correlation": placement.correlation,
    }
    return snapshot.with_camera(guide_file.note).with_camera(
        f"guide: {placement}", system=placement.system, guide=numbers
    )


def describe_guide(camera: Camera) -> dict[str, Any]:
    """Return the numbers of metrics.json on a guide, with the motion of its registration."""
    numbers = dict(camera.guide or {})
    if isinstance(camera.system, Guided):
        numbers |= describe_motion(camera.system.last_motion.motion)
    return numbers


def read_response(
    name: str, channels: int, bands: int, wavelengths: tuple[float, ...] | None
) -> Tensor:
    """Return the response `(G, C)` of a guide.

    Args:
        name: "pan" for equal weights of all bands, "cie" for the CIE colour matching functions, or
            a file of comma-separated values. A line of the file has a wavelength, nm, and the
            response of each channel; or there is a line per channel, with a number per band.
        channels: number of channels of the picture, G.
        bands: number of bands, C.
        wavelengths: wavelengths of the bands, nm, if known.

    Raises:
        ValueError: the response is for another number of channels or bands, or the wavelengths are
            missing.
    """
    if name in ("pan", "cie"):
        n_channels = 1 if name == "pan" else 3
        if channels != n_channels:
            plural = "s" if n_channels > 1 else ""
            raise ValueError(
                f"guide.response: {name} is for {n_channels} channel{plural}, the picture "
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
