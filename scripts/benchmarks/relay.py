"""Trace rays from a coded mask to the sensor, through a prism or grating between two lenses.

The lenses are equal, and the beam between them is parallel. Rays are traced through the disperser
in three dimensions, so curved dispersion, smile and anamorphic magnification follow from glass and
geometry. Errors of lenses and alignment are added. Lengths are in pixels of the sensor, wavelengths
in nm.
"""

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Pair: TypeAlias = tuple[float, float]

AXIS_NM = 550.0  # light of this wavelength leaves the disperser along the axis of the second lens
# Sellmeier's coefficients B1 B2 B3 and C1 C2 C3 (µm²), from Schott's catalogue.
GLASSES = {
    "air": ((0, 0, 0), (0, 0, 0)),
    "N-BK7": ((1.03961212, 0.231792344, 1.01046945), (0.00600069867, 0.0200179144, 103.560653)),
    "N-BAK4": ((1.28834642, 0.132817724, 0.945395373), (0.00779980626, 0.0315631177, 105.965875)),
    "F2": ((1.34533359, 0.209073176, 0.937357162), (0.00997743871, 0.0470450767, 111.886764)),
    "N-SF11": ((1.73759695, 0.313747346, 1.89878101), (0.013188707, 0.0623068142, 155.23629)),
}


def refractive_index(glass: str, nm: float) -> float:
    """Return n by Sellmeier's equation, n² = 1 + Σ Bᵢλ²/(λ² − Cᵢ), with λ in µm."""
    (b, c), square = np.array(GLASSES[glass]), (nm / 1000) ** 2
    return math.sqrt(1 + (b * square / (square - c)).sum())


@dataclass(frozen=True)
class Disperser:
    """A grating (no glass), a prism (one glass), or a double Amici prism (outer and inner glass).

    Attributes:
        glasses: none, one or two names of `GLASSES`.
        size: strength of the dispersion; its sign is the direction. For a grating it is the number
            of lines per nm, for a single prism the apex angle (rad), and for a double Amici prism
            half of the apex angle of the inner prism (rad).
        tilt: error of the angle at which the prism stands, rad.
    """

    glasses: tuple[str, ...]
    size: float
    tilt: float = 0.0

    def _refract(self, ray: Array, nm: float) -> Array:
        """Return unit vectors behind the disperser, `(3, …)`: across and along dispersion, z."""
        n = [refractive_index(glass, AXIS_NM) for glass in self.glasses]
        # In the first order of a grating, the component along the dispersion grows by λ/d.
        if not n:
            across_part, along_part = ray[0], ray[1] + self.size * nm
            z_part = np.sqrt(1 - across_part**2 - along_part**2)
            return np.stack((across_part, along_part, z_part))
        # The angles of the surfaces: a single prism stands at minimum deviation. The outer prisms
        # of a double Amici prism have the angle at which three thin prisms would not deviate light.
        if len(n) == 1:
            first_angle = math.asin(n[0] * math.sin(self.size / 2))
            angles = [first_angle, first_angle - self.size]
        else:
            outer_angle = self.size * ((n[1] - 1) / (n[0] - 1) - 1)
            angles = [outer_angle, -self.size, self.size, -outer_angle]
        index = 1.0
        glasses_behind = [*self.glasses, *self.glasses[-2::-1], "air"]
        for angle, glass in zip(angles, glasses_behind, strict=True):
            normal = np.array([0, math.sin(angle + self.tilt), math.cos(angle + self.tilt)])
            ratio, cosine = index / refractive_index(glass, nm), np.tensordot(normal, ray, 1)
            # Snell's law in vector form.
            bend = np.sqrt(1 - ratio**2 * (1 - cosine**2)) - ratio * cosine
            ray, index = ratio * ray + np.multiply.outer(normal, bend), index / ratio
        return ray

    def tangents(self, u: Any, v: Any, nm: float) -> tuple[Array, Array]:
        """Return the tangents of a ray's angles behind the disperser.

        Args:
            u: tangent of the angle before the disperser, across the dispersion.
            v: tangent of the angle along it.
            nm: wavelength.
        """
        ray = np.stack(np.broadcast_arrays(u, v, 1.0))
        x, y, z = self._refract(ray / np.linalg.norm(ray, axis=0), nm)
        # The axis of the second lens is along the ray of `AXIS_NM`, so angles are relative to it.
        _, sine, cosine = self._refract(np.array([0.0, 0.0, 1.0]), AXIS_NM)
        forward = sine * y + cosine * z
        return x / forward, (cosine * y - sine * z) / forward


@dataclass(frozen=True)
class Relay:
    """The optics from the mask to the sensor, with errors of lenses and alignment.

    Pairs without another meaning are (across, along) the dispersion.

    Attributes:
        disperser: the disperser between the lenses.
        axis: axis of the dispersion, -1 (columns) or -2 (rows).
        focal: focal length of both lenses, pixels.
        middle: row and column of the middle of the mask.
        half: distance from there to the farther edge, pixels.
        lens: position of the axis of the lenses relative to the middle, pixels.
        roll: rotation of the disperser about the axis, rad.
        colour: coefficients (a, b) of lateral colour: the magnification is 1 + a t + b t², with t
            the distance from `AXIS_NM` in units of 100 nm.
        bulge: relative radial distortion at the distance `half` from the axis.
        lean: relative change of the magnification over `half`, because the sensor is tilted.
        pose: matrix that rotates and scales the mask, (row, column).
        base: row and column that are added to a position on the sensor, because the frame is a part
            of the sensor.
    """

    disperser: Disperser
    axis: int
    focal: float
    middle: Pair
    half: float
    lens: Pair
    roll: float
    colour: Pair
    bulge: float
    lean: Pair
    pose: Any = ((1.0, 0.0), (0.0, 1.0))
    base: Pair = (0.0, 0.0)

    def image(self, row: Any, column: Any, nm: float) -> tuple[Array, Array]:
        """Return row and column on the sensor of points of the mask."""
        order = 1 if self.axis == -1 else -1
        points = np.stack((row - self.middle[0], column - self.middle[1]))
        x, y = np.tensordot(np.array(self.pose), points, 1)[::order]
        x, y = x - self.lens[0], y - self.lens[1]
        cos, sin, hundreds = math.cos(self.roll), math.sin(self.roll), (nm - AXIS_NM) / 100
        # Rotate to the directions of the disperser, trace the ray, and rotate back.
        u, v = cos * x + sin * y, cos * y - sin * x
        u, v = self.disperser.tangents(u / self.focal, v / self.focal, nm)
        size = self.focal * (1 + self.colour[0] * hundreds + self.colour[1] * hundreds**2)
        x, y = size * (cos * u - sin * v), size * (cos * v + sin * u)
        scale = 1 + self.bulge * (x**2 + y**2) / self.half**2
        scale /= 1 + (self.lean[0] * x + self.lean[1] * y) / self.half
        image_row, image_column = (x * scale + self.lens[0], y * scale + self.lens[1])[::order]
        image_row, image_column = image_row + self.middle[0], image_column + self.middle[1]
        return image_row + self.base[0], image_column + self.base[1]

    def back(self, row: Any, column: Any, nm: float) -> tuple[Array, Array]:
        """Return the points of the mask that are imaged to these points: the inverse of `image`."""
        start = self.image(*self.middle, nm)
        r, s = row - start[0] + self.middle[0], column - start[1] + self.middle[1]
        # The image is nearly a shift of the mask. So adding the remaining error to the point
        # converges fast: after six rounds it is below 1e-6 pixels (tests/scripts/test_optics.py).
        for _ in range(6):
            image_row, image_column = self.image(r, s, nm)
            r, s = r + row - image_row, s + column - image_column
        return r, s
