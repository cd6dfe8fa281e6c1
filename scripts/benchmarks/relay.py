"""Trace rays from a coded mask to the sensor, through a prism or grating between two lenses.

The lenses are equal, the beam between them is parallel. Rays are traced through the disperser in
three dimensions: curved dispersion, smile and anamorphic magnification follow from glass and
geometry. Errors of lenses and alignment come on top. Lengths are pixels of the sensor,
wavelengths nm.
"""

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Pair: TypeAlias = tuple[float, float]

AXIS_NM = 550.0  # leaves the disperser along the axis of the second lens
# Sellmeier's B1 B2 B3 and C1 C2 C3 (µm²), Schott's catalogue
GLASSES = {
    "air": ((0, 0, 0), (0, 0, 0)),
    "N-BK7": ((1.03961212, 0.231792344, 1.01046945), (0.00600069867, 0.0200179144, 103.560653)),
    "N-BAK4": ((1.28834642, 0.132817724, 0.945395373), (0.00779980626, 0.0315631177, 105.965875)),
    "F2": ((1.34533359, 0.209073176, 0.937357162), (0.00997743871, 0.0470450767, 111.886764)),
    "N-SF11": ((1.73759695, 0.313747346, 1.89878101), (0.013188707, 0.0623068142, 155.23629)),
}


def refractive_index(glass: str, nm: float) -> float:
    """Return n of n² = 1 + Σ Bᵢλ²/(λ² − Cᵢ), λ in µm."""
    (b, c), square = np.array(GLASSES[glass]), (nm / 1000) ** 2
    return math.sqrt(1 + (b * square / (square - c)).sum())


@dataclass(frozen=True)
class Disperser:
    """A grating (no glass), a prism (one glass), or a double Amici prism (outer and inner glass).

    `size` is lines per nm, the prism's apex angle, or half of that of the inner prism (rad); its
    sign is the direction. `tilt` (rad) is the error of the angle at which the prism stands.
    """

    glasses: tuple[str, ...]
    size: float
    tilt: float = 0.0

    def _bend(self, ray: Array, nm: float) -> Array:
        """Return unit vectors behind the disperser: `(3, …)`, across, along the dispersion, z."""
        n = [refractive_index(glass, AXIS_NM) for glass in self.glasses]
        if not n:  # m = 1: the component along the grating's vector grows by λ/d
            across, along = ray[0], ray[1] + self.size * nm
            return np.stack((across, along, np.sqrt(1 - across**2 - along**2)))
        if len(n) == 1:  # at the minimum of its deviation
            first = math.asin(n[0] * math.sin(self.size / 2))
            angles = [first, first - self.size]
        else:  # thin prisms of this ratio do not deviate
            outer = self.size * ((n[1] - 1) / (n[0] - 1) - 1)
            angles = [outer, -self.size, self.size, -outer]
        before = 1.0
        behind = [*self.glasses, *self.glasses[-2::-1], "air"]
        for angle, glass in zip(angles, behind, strict=True):
            normal = np.array([0, math.sin(angle + self.tilt), math.cos(angle + self.tilt)])
            ratio, cosine = before / refractive_index(glass, nm), np.tensordot(normal, ray, 1)
            bend = np.sqrt(1 - ratio**2 * (1 - cosine**2)) - ratio * cosine  # Snell's law
            ray, before = ratio * ray + np.multiply.outer(normal, bend), before / ratio
        return ray

    def tangents(self, across: Any, along: Any, nm: float) -> tuple[Array, Array]:
        """Return tangents of angles behind the disperser from those before it."""
        ray = np.stack(np.broadcast_arrays(across, along, 1.0))
        x, y, z = self._bend(ray / np.linalg.norm(ray, axis=0), nm)
        _, sine, cosine = self._bend(np.array([0.0, 0.0, 1.0]), AXIS_NM)
        forward = sine * y + cosine * z
        return x / forward, (cosine * y - sine * z) / forward


@dataclass(frozen=True)
class Relay:
    """From mask to sensor. `(across, along)` are seen from the dispersion, `axis`."""

    disperser: Disperser
    axis: int
    focal: float  # of both lenses
    middle: Pair  # row and column of the middle of the mask
    half: float  # from there to the farther edge
    lens: Pair  # where the axis of the lenses is, from the middle
    roll: float  # rad, of the disperser about the axis
    colour: Pair  # magnification per 100 nm from AXIS_NM, and per its square
    bulge: float  # radial distortion, relative, at `half` from the axis
    lean: Pair  # change of the magnification over `half`: the sensor is tilted
    pose: Any = ((1.0, 0.0), (0.0, 1.0))  # how the mask lies before the lenses
    base: Pair = (0.0, 0.0)  # where the frame was cut out

    def image(self, row: Any, column: Any, nm: float) -> tuple[Array, Array]:
        """Return row and column on the sensor of points of the mask."""
        order = 1 if self.axis == -1 else -1
        points = np.stack((row - self.middle[0], column - self.middle[1]))
        across, along = np.tensordot(np.array(self.pose), points, 1)[::order]
        across, along = across - self.lens[0], along - self.lens[1]
        cos, sin, red = math.cos(self.roll), math.sin(self.roll), (nm - AXIS_NM) / 100
        turned = (cos * across + sin * along, cos * along - sin * across)
        u, v = self.disperser.tangents(turned[0] / self.focal, turned[1] / self.focal, nm)
        size = self.focal * (1 + self.colour[0] * red + self.colour[1] * red**2)
        across, along = size * (cos * u - sin * v), size * (cos * v + sin * u)
        scale = 1 + self.bulge * (across**2 + along**2) / self.half**2
        scale /= 1 + (self.lean[0] * across + self.lean[1] * along) / self.half
        ends = (across * scale + self.lens[0], along * scale + self.lens[1])[::order]
        return ends[0] + self.middle[0] + self.base[0], ends[1] + self.middle[1] + self.base[1]

    def back(self, row: Any, column: Any, nm: float) -> tuple[Array, Array]:
        """Return the points of the mask whose image is here: the inverse of `image`."""
        start = self.image(*self.middle, nm)
        r, s = row - start[0] + self.middle[0], column - start[1] + self.middle[1]
        for _ in range(6):
            there = self.image(r, s, nm)
            r, s = r + row - there[0], s + column - there[1]
        return r, s
