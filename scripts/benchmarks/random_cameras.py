"""Frames of random cameras of two independent generators, with the camera that the user has.

For a camera of `lab.py`, the user's mask is shifted by a whole pixel or two. The user's offsets are
a straight line instead of the true curve, and the shift and step of this line are inexact. For a
camera of `optics.py`, that module draws the errors of the user.
"""

import contextlib
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import cassi
from cassi import metrics
from cassi.systems import SDCassi, System
from scripts.benchmarks.lab import Lab, read_scene
from scripts.benchmarks.optics import draw
from scripts.benchmarks.tables import data_folder

_BORDER = 4  # pixels at each side that are not scored


class Capture(NamedTuple):
    """A frame of a random camera, the camera and the truth.

    Attributes:
        description: the properties of the camera, in words.
        y: the measurement `(1, 1, H', W')`.
        true_camera: the camera with the true offsets.
        user_camera: the camera by the user's files.
        good_pixels: `(1, 1, H', W')`, the good pixels; None if all are good.
        wavelengths: wavelengths of the bands, nm.
        mask_error: shift of the user's mask across the dispersion, pixels. If the shift differs
            between bands, this is the mean of the first and the last band.
        end_offsets: true offsets of the first and the last band in the middle of the field.
        score: returns the PSNR of a cube `(C, H, W)`.
    """

    description: str
    y: Tensor
    true_camera: SDCassi
    user_camera: SDCassi
    good_pixels: Tensor | None
    wavelengths: tuple[float, ...]
    mask_error: float
    end_offsets: tuple[float, float]
    score: Callable[[Tensor], float]

    def system(self, camera: SDCassi) -> System:
        """Return a camera for broadband light, in which bad pixels have no influence."""
        camera.is_broadband = True
        if self.good_pixels is None:
            return camera
        return camera.weighted(bad_pixels=~self.good_pixels)


def write_lab(lab: Lab, folder: Path) -> Tensor:
    """Let a camera of `lab.py` take a scene of CAVE, write its files, and return the scene."""
    scenes = sorted(data_folder("cave_train").glob("*.tif"))
    scene = lab.scene(*read_scene(scenes[lab.seed % len(scenes)]))
    lab.write_files(folder, scene)
    return scene


def draw_lab(seed: int) -> Capture:
    """Draw a camera of `lab.py`, and the errors of its user."""
    lab = Lab.draw(seed)
    # The measurement is read from the files, as a user does: raw frame, dark frame, flat field and
    # bad pixels.
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        folder = Path(name)
        scene = write_lab(lab, folder)
        y, system = cassi.read_camera(folder / "true.yaml").read(folder / "frame.png")
    camera = system.base_camera
    assert isinstance(camera, SDCassi)
    offsets = lab.offsets().double()
    random = torch.Generator().manual_seed(1000 + seed)
    mask_error, shift, step_error = (0.7 * torch.randn(3, generator=random).double()).tolist()
    # The shift is rounded to whole pixels, because interpolation would blur the mask.
    mask_error = round(mask_error)
    line = torch.linspace(float(offsets[0]), float(offsets[-1]), len(offsets)).double()
    nominal = (line - line.mean()) * (1 + step_error * 0.02 / 0.7) + line.mean() - shift
    user_camera = SDCassi(
        camera.mask.roll(-mask_error, -3 - camera.axis),
        camera.bands,
        axis=camera.axis,
        offsets=nominal.tolist(),
        detector=camera.measurement_shape[camera.axis],
    )

    def score(x: Tensor) -> float:
        scale, truth = lab.score(x, scene)
        x = (x.mT if camera.axis == -2 else x)[..., _BORDER:-_BORDER, _BORDER:-_BORDER]
        return float(metrics.psnr((scale * x).clamp(0, 1), truth))

    return Capture(
        description=lab.description,
        y=y,
        true_camera=camera,
        user_camera=user_camera,
        good_pixels=system.good_pixels,
        wavelengths=lab.wavelengths,
        mask_error=float(mask_error),
        end_offsets=(float(offsets[0]), float(offsets[-1])),
        score=score,
    )


def draw_optics(seed: int) -> Capture:
    """Draw a camera of `optics.py`."""
    optics = draw(seed)
    true_camera, user_camera = (
        SDCassi(
            optics.mask,
            len(offsets),
            axis=optics.axis,
            offsets=[float(offset) for offset in offsets],
            detector=optics.detector,
        )
        for offsets in (optics.offsets(), optics.nominal)
    )
    middle = [torch.tensor([(n - 1) / 2]) for n in optics.mask.shape]
    row, column = middle
    end_wavelengths = optics.wavelengths[0], optics.wavelengths[-1]
    positions = [optics.position(row, column, nm) for nm in end_wavelengths]
    # Both axes serve as indices of a pair (row, column): -1 is the column.
    axis, cross_axis = optics.axis, -3 - optics.axis
    first, last = (float(position[axis] - middle[axis]) for position in positions)
    shifts = [float(position[cross_axis] - middle[cross_axis]) for position in positions]

    def score(x: Tensor) -> float:
        interior = (..., slice(_BORDER, -_BORDER), slice(_BORDER, -_BORDER))
        x, truth = x[interior], optics.truth[interior]
        scale = (x * truth).sum() / x.square().sum()
        return float(metrics.psnr(scale * x / truth.amax(), truth / truth.amax()))

    return Capture(
        description=optics.description,
        y=optics.frame[None, None].float(),
        true_camera=true_camera,
        user_camera=user_camera,
        good_pixels=~optics.bad_pixels[None, None],
        wavelengths=optics.wavelengths,
        mask_error=sum(shifts) / 2,
        end_offsets=(first, last),
        score=score,
    )


GENERATORS = {"lab": draw_lab, "optics": draw_optics}
