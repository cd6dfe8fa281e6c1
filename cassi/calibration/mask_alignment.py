"""Where the mask lies, as far as plain scenes tell in a second or two."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cassi.calibration.fit import LEAST_WINDOWS, fit_geometry
from cassi.calibration.geometry import Geometry, moved_camera
from cassi.calibration.windows import Frame, Windows, is_singular
from cassi.plain_scenes import WINDOWS
from cassi.systems import SDCassi, System, WideCassi

KEYS = ("down", "right", "rotation", "magnification", "blur")
"""What moves the mask and leaves the bands on their pixels."""
ASKED = 0.01
"""By what a step of Gauss–Newton expects the mean logarithm of the windows' residuals to fall: less
is texture. On CAVE's validation scenes it is at most 0.0012 where the camera is the nominal one,
with noise and without, and at least 0.016 where it is a tenth of a pixel or of a degree off."""
MANY = 128
"""Windows: where there are fewer, more must be asked for, since each of them has a larger share."""
SHARED = (0.25, 0.5, 0.25)
"""Of a band's light on pixels beside each other along the dispersion, where bands are as wide as
a step of two pixels. Such bands ask for a mask that is moved by half a pixel either way, which
shares light as well: what does not ask for more than that is no motion of the mask."""

Misses = Callable[[System], float]
"""camera → held-out error of a reconstruction through it."""


@dataclass(frozen=True)
class Alignment:
    """Where the mask was found.

    Attributes:
        geometry: how far it is off.
        system: the camera with its mask there.
        before: held-out error through the camera as it was given.
        after: through this one, lower.
    """

    geometry: Geometry
    system: System
    before: float
    after: float

    def __str__(self) -> str:
        """Say it for people."""
        down, right = self.geometry.shift
        return (
            f"the mask moved {down:+.2f} px down and {right:+.2f} px right, turned by "
            f"{self.geometry.rotation:+.3f}°, magnified {self.geometry.magnification:.4f} times, "
            f"blurred by {self.geometry.blur:.2f} px"
        )


@torch.no_grad()
def align(y: Tensor, system: System, misses: Misses) -> Alignment | None:
    """Move the mask to where it lies on the detector, where a measurement is sure of it.

    Plain scenes are asked whether they would fit better with the mask moved, turned, magnified or
    blurred: one evaluation of derivatives, a twelfth of a second for 256 × 256 pixels. If so, and
    with bands that share their light as well, they are fitted, and what is found is taken if a
    reconstruction predicts pixels held out better through it. The bands stay where they are, and
    so does the scene. It finds errors of up to one pixel; `calibrate` finds larger ones, and those
    of the dispersion.

    Args:
        y: measurement `(B, K, H', W')`, all samples by one camera.
        system: the nominal camera.
        misses: tells how badly a reconstruction through a camera predicts pixels held out.

    Returns:
        None where the camera is right as it is, or none of those whose mask can be moved: an
        `SDCassi` or `WideCassi`, its pixels weighted or not, with one mask for all samples.
    """
    given = system.plain if isinstance(system, System) else None
    nominal = given.narrow() if isinstance(given, WideCassi) else given
    if type(nominal) is not SDCassi or nominal.mask.ndim > 4 or nominal.mask.requires_grad:
        return None
    frame = Frame.snapshot(system.without_bad_pixels(y), nominal.bands, system.good_pixels)
    if not (_asks(frame, nominal) and _asks(frame, _wide(nominal))):
        return None
    geometry = fit_geometry([frame], nominal, Geometry(), KEYS).geometry
    moved: System = moved_camera(nominal, geometry)
    if isinstance(given, WideCassi) and isinstance(moved, SDCassi):
        moved = WideCassi.like(moved, given.band_width)
    moved = system.around(moved)
    before, after = misses(system), misses(moved)
    return Alignment(geometry, moved, before, after) if after < before else None


def _asks(frame: Frame, camera: SDCassi) -> bool:
    """Tell whether plain scenes ask for a mask that lies elsewhere than this camera's.

    Few windows are asked first, which takes half the time. Where they ask for less than half of
    `ASKED`, the others are not needed.
    """
    return all(
        _asks_for(share * ASKED, Windows(frame, camera, most=most))
        for most, share in ((MANY, 0.5), (WINDOWS, 1.0))
    )


def _asks_for(least: float, windows: Windows) -> bool:
    if len(windows) < LEAST_WINDOWS:
        return False
    shown = windows.derivatives(Geometry(), KEYS)
    gradient = shown.gradient.sum(0)
    if is_singular(shown.curvature):  # nothing says where a mask of stripes lies along them
        return False
    step = torch.linalg.solve(shown.curvature, gradient)
    asked = least * max(1.0, MANY / len(windows))
    return float(gradient @ step) > asked * len(windows) * windows.freedom


def _wide(system: SDCassi) -> SDCassi:
    """Return a camera whose bands share their light: plain scenes take it for another mask."""
    before, here, after = SHARED
    ahead, behind = (system.mask.roll(by, system.axis) for by in (1, -1))
    mask = before * ahead + here * system.mask + after * behind
    return SDCassi(
        mask, system.bands, offsets=system.offsets, axis=system.axis, detector=system.detector
    )
