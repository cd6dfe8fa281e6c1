"""Dispersion curves, which give the detector position of each wavelength, and glasses."""

import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from cassi.checks import did_you_mean, read_numbers

# Sellmeier coefficients B1 B2 B3, C1 C2 C3 (µm²), relative to air at 20 °C: SCHOTT optical glass
# catalogue (schott_2017-01-20b.agf). Fused silica: Malitson, J. Opt. Soc. Am. 55, 1205 (1965),
# whose C are squares of resonances.
# fmt: off
_BK7 = (1.03961212, 0.231792344, 1.01046945, 0.00600069867, 0.0200179144, 103.560653)
SELLMEIER: dict[str, tuple[float, float, float, float, float, float]] = {
    "BK7": _BK7,
    "N-BK7": _BK7,
    "N-BAK4": (1.28834642, 0.132817724, 0.945395373, 0.00779980626, 0.0315631177, 105.965875),
    "F2": (1.34533359, 0.209073176, 0.937357162, 0.00997743871, 0.0470450767, 111.886764),
    "N-F2": (1.39757037, 0.159201403, 1.2686543, 0.00995906143, 0.0546931752, 119.248346),
    "SF2": (1.40301821, 0.231767504, 0.939056586, 0.0105795466, 0.0493226978, 112.405955),
    "N-SF2": (1.47343127, 0.163681849, 1.36920899, 0.0109019098, 0.0585683687, 127.404933),
    "SF10": (1.61625977, 0.259229334, 1.07762317, 0.0127534559, 0.0581983954, 116.60768),
    "SF11": (1.73848403, 0.311168974, 1.17490871, 0.0136068604, 0.0615960463, 121.922711),
    "N-SF11": (1.73759695, 0.313747346, 1.89878101, 0.013188707, 0.0623068142, 155.23629),
    "fused silica": (0.6961663, 0.4079426, 0.8974794, 0.0684043**2, 0.1162414**2, 9.896161**2),
}
# fmt: on

# Bands count as evenly spaced if their distances differ by at most this fraction of the mean one.
_MAX_UNEVENNESS = 0.01
_MAX_TABLE_BYTES = 1 << 20
# A table may be extrapolated by this fraction of its length, in a straight line and with a warning.
# Farther out a straight line does not approximate a prism's curve, so a wavelength there is
# refused.
_MAX_EXTRAPOLATION = 0.2


def refractive_index(glass: str, wavelength: float) -> float:
    """Return the refractive index of a glass, relative to air.

    The Sellmeier formula is n² = 1 + Σ_i B_i λ² / (λ² − C_i).

    Args:
        glass: a name of `SELLMEIER`.
        wavelength: λ in nm, 300 to 2500, the range of the formula.

    Raises:
        ValueError: the glass is unknown, or the wavelength is out of range.

    >>> round(refractive_index("N-BK7", 587.5618), 5)
    1.5168
    """
    coefficients = SELLMEIER.get(glass)
    if coefficients is None:
        hint = did_you_mean(glass, SELLMEIER, 1)
        raise ValueError(f"glass: expected one of {', '.join(SELLMEIER)}, got {glass!r}{hint}")
    if not 300 <= wavelength <= 2500:
        raise ValueError(f"wavelengths: expected 300 to 2500 nm for a prism, got {wavelength}")
    square = (wavelength / 1000) ** 2
    terms = zip(coefficients[:3], coefficients[3:], strict=True)
    return math.sqrt(1 + sum(b * square / (square - c) for b, c in terms))


def deviation_from_prism(
    offsets: Sequence[float], wavelengths: Sequence[float] | None
) -> tuple[float, ...] | None:
    """Return the wavelength errors of evenly spaced bands if the disperser is a prism, nm.

    Behind a prism, positions of wavelengths are about linear in the index of its glass, here N-BK7.
    The outermost bands are assumed to be right. Uneven wavelengths or offsets give None: they show
    that the user has entered a curve already.

    Args:
        offsets: offsets of the bands, pixels.
        wavelengths: wavelengths of the bands, nm, 300 to 2500; None if they are unknown.

    Returns:
        A difference >= 0 for each band, nm. None if wavelengths are unknown, wavelengths or offsets
        are not evenly spaced, or all offsets are equal.

    >>> round(max(deviation_from_prism([2.0 * band for band in range(20)], range(450, 650, 10))), 1)
    24.0
    """
    if wavelengths is None or not (is_even(offsets) and is_even(wavelengths)):
        return None
    span = offsets[-1] - offsets[0]
    if span == 0:
        return None
    prism_positions = _compute_prism_positions(wavelengths)
    positions = [(offset - offsets[0]) / span for offset in offsets]
    prism_wavelengths = np.interp(positions, prism_positions, wavelengths)
    return tuple(np.abs(prism_wavelengths - np.asarray(wavelengths)).tolist())


def is_even(values: Sequence[float]) -> bool:
    """Tell whether at least two values are evenly spaced, to 1 % of their mean distance."""
    gaps = [upper - lower for lower, upper in pairwise(values)]
    return bool(gaps) and max(gaps) - min(gaps) <= _MAX_UNEVENNESS * abs(sum(gaps)) / len(gaps)


def _compute_prism_positions(wavelengths: Sequence[float]) -> list[float]:
    """Return positions of wavelengths behind a prism of N-BK7, the first at 0, the last at 1."""
    indices = [refractive_index("N-BK7", wavelength) for wavelength in wavelengths]
    return [(value - indices[0]) / (indices[-1] - indices[0]) for value in indices]


class Dispersion(ABC):
    """A curve of dispersion: the position of each wavelength, pixels."""

    absolute: bool = False
    """Whether `offsets` are the positions themselves; otherwise the smallest is moved to 0."""

    @abstractmethod
    def positions(self, wavelengths: Sequence[float]) -> tuple[float, ...]:
        """Return the position of each band, pixels, from the origin of the curve.

        Args:
            wavelengths: nm, one per band, increasing.
        """

    def offsets(self, wavelengths: Sequence[float]) -> tuple[float, ...]:
        """Return the offset of each band, pixels; the smallest is 0 unless `absolute`.

        If positions both rise and fall, bands overlap, and a warning says so.

        Args:
            wavelengths: nm, one per band, increasing.

        Raises:
            ValueError: the wavelengths do not increase, or lie outside of the curve.
        """
        values = tuple(float(value) for value in wavelengths)
        if not values or not all(b > a > 0 for a, b in pairwise((*values, math.inf))):
            raise ValueError(f"wavelengths: expected increasing values in nm, got {list(values)}")
        positions = self.positions(values)
        if not all(map(math.isfinite, positions)):
            raise ValueError(f"{type(self).__name__}: expected finite positions, got {positions}")
        gaps = [b - a for a, b in pairwise(positions)]
        if gaps and not (min(gaps) > 0 or max(gaps) < 0):
            warnings.warn(
                f"{type(self).__name__}: the positions rise and fall between {values[0]:g} and "
                f"{values[-1]:g} nm, so that bands overlap; expected one direction",
                stacklevel=2,
            )
        origin = 0.0 if self.absolute else min(positions)
        # Rounding drops the last digits: a length of 54.000000000000007 pixels would need a 55th.
        return tuple(round(position - origin, 9) for position in positions)


@runtime_checkable
class _HasOffsets(Protocol):
    @property
    def offsets(self) -> tuple[float, ...]:
        """Offset of each band, pixels."""


def offsets_of(system: object) -> tuple[float, ...]:
    """Return the offset of each band of a camera, pixels; () if it has none."""
    return system.offsets if isinstance(system, _HasOffsets) else ()


@dataclass(frozen=True)
class Linear(Dispersion):
    """The same step from band to band, for any wavelengths: o(c) = c·step.

    Attributes:
        step: pixels per band, may be fractional; the sign is the direction.
        absolute: whether the positions are the offsets; else the smallest is moved to 0.

    >>> Linear(-1.5).offsets([450, 500, 600])
    (3.0, 1.5, 0.0)
    """

    step: float
    absolute: bool = False

    def positions(self, wavelengths: Sequence[float]) -> tuple[float, ...]:
        """Return c·step."""
        return tuple(band * float(self.step) for band in range(len(wavelengths)))


@dataclass(frozen=True)
class Polynomial(Dispersion):
    """A polynomial of the wavelength: Σ_k a_k (λ − λ₀)^k pixels.

    Attributes:
        coefficients: a_0, a_1, …, pixels per nm^k.
        reference: λ₀ in nm.
        absolute: whether the positions are the offsets; else the smallest is moved to 0.

    Raises:
        ValueError: no coefficient, or one that is not finite.

    >>> Polynomial([3.0, 0.5], reference=500).offsets([450, 500, 600])
    (0.0, 25.0, 75.0)
    """

    coefficients: Sequence[float]
    reference: float = 550.0
    absolute: bool = False

    def __post_init__(self) -> None:
        """Check the coefficients and keep them as a tuple."""
        coefficients = tuple(map(float, self.coefficients))
        if not coefficients or not all(map(math.isfinite, coefficients)):
            raise ValueError(f"coefficients: expected finite numbers, got {list(coefficients)}")
        object.__setattr__(self, "coefficients", coefficients)

    def positions(self, wavelengths: Sequence[float]) -> tuple[float, ...]:
        """Return Σ_k a_k (λ − λ₀)^k."""
        return tuple(
            sum(a * (value - self.reference) ** k for k, a in enumerate(self.coefficients))
            for value in wavelengths
        )


@dataclass(frozen=True)
class Curve(Dispersion):
    """A measured curve, linear between its points, given as a table or a CSV file.

    Attributes:
        points: (wavelength in nm, position in pixels) pairs, wavelengths increasing.
        file: a CSV file of such pairs instead, two columns; the first line may hold names.
        absolute: whether the positions are the offsets; else the smallest is moved to 0.

    Raises:
        OSError: no such file.
        ValueError: neither or both of points and file are given, there are fewer than two points,
            or a line is no pair of numbers.

    >>> Curve([(450, 3.0), (550, 33.0), (650, 53.0)]).offsets([450, 500, 600])
    (0.0, 15.0, 40.0)
    """

    points: Sequence[Sequence[float]] | None = None
    file: str | os.PathLike[str] | None = None
    absolute: bool = False

    def __post_init__(self) -> None:
        """Read the file and check the points."""
        if (self.points is None) == (self.file is None):
            count = "neither" if self.file is None else "both"
            raise ValueError(f"Curve: expected points or a file, got {count}")
        rows = _read_pairs(Path(self.file)) if self.file is not None else self.points or ()
        if any(len(row) != 2 for row in rows):
            raise ValueError("Curve: expected pairs (wavelength in nm, position in pixels)")
        points = tuple((float(a), float(b)) for a, b in rows)
        is_rising = all(b[0] > a[0] for a, b in pairwise(points))
        if len(points) < 2 or not is_rising or not all(math.isfinite(v) for p in points for v in p):
            raise ValueError(
                "Curve: expected at least two finite points of increasing wavelength, got "
                f"{[list(point) for point in points[:4]]}"
            )
        object.__setattr__(self, "points", points)
        # Dataclasses compare all fields. Without `file`, a curve read from a file equals a curve
        # with the same points.
        object.__setattr__(self, "file", None)

    def positions(self, wavelengths: Sequence[float]) -> tuple[float, ...]:
        """Interpolate between the points, and extrapolate a little with a warning.

        The outermost two points are continued in a straight line, by at most a fifth of the
        table's length.

        Raises:
            ValueError: a wavelength is further outside of the table.
        """
        points = self.points or ()
        low, high = points[0][0], points[-1][0]
        first, last = wavelengths[0], wavelengths[-1]
        if max(low - first, last - high) > _MAX_EXTRAPOLATION * (high - low):
            raise ValueError(
                f"Curve: expected wavelengths from {low:g} to {high:g} nm, as the table has them, "
                f"got {first:g} to {last:g}"
            )
        if first < low or last > high:
            warnings.warn(
                f"Curve: extrapolated from {low:g} to {high:g} nm, as the table has them, to "
                f"{first:g} to {last:g} nm; a point measured there is more certain",
                stacklevel=3,
            )
        return tuple(self._interpolate(value) for value in wavelengths)

    def _interpolate(self, wavelength: float) -> float:
        points = self.points or ()
        # Index of the segment's end. The outermost segments continue beyond the table.
        end = 1
        while end < len(points) - 1 and wavelength > points[end][0]:
            end += 1
        (left, left_position), (right, right_position) = points[end - 1], points[end]
        fraction = (wavelength - left) / (right - left)
        return (1 - fraction) * left_position + fraction * right_position


@dataclass(frozen=True)
class Prism(Dispersion):
    r"""A prism, or several cemented ones, and a lens behind it.

    The normals of the faces have the directions β_0 = 0 and β_j = β_{j−1} + α_j. Snell's law at
    each face turns a ray of direction φ into φ' = β_j + arcsin(n/n' · sin(φ − β_j)). For one prism
    the deviation is δ = φ_in − φ_out = θ₁ + arcsin(n sin(α − arcsin(sin θ₁ / n))) − α. The lens
    converts the deviation into a position:

        position = f / pitch · tan(δ(λ) − δ(λ_reference)).

    A double Amici prism is `glass=["N-BK7", "SF2", "N-BK7"]` with `apex=[a, -b, a]`: two prisms of
    equal glass in one direction, and one between them in the other.

    Attributes:
        glass: name of the glass, or one per prism, see `SELLMEIER`.
        apex: angle α between the faces, degrees, or one per prism with its sign.
        focal_length: f of the lens, mm.
        pitch: distance of the detector's pixels, µm.
        reference: wavelength at position 0, nm.
        incidence: angle θ₁ between ray and normal of the first face, degrees. None takes minimum
            deviation at the reference for one prism. For several prisms it takes a ray along the
            axis of symmetry, at half the sum of the apex angles.
        flip: reverse the sign of the positions.
        absolute: whether the positions are the offsets; else the smallest is moved to 0.

    Raises:
        ValueError: an unknown glass, angles with total reflection, or lengths that are not
            positive.

    Source: Hecht, "Optics", 5th edition, section 5.5.1 (deviation of a prism).

    >>> [round(o, 1) for o in Prism("SF11", 30, 50, 10).offsets([450, 550, 650])]
    [124.1, 42.2, 0.0]
    """

    glass: str | Sequence[str]
    apex: float | Sequence[float]
    focal_length: float
    pitch: float
    reference: float = 550.0
    incidence: float | None = None
    flip: bool = False
    absolute: bool = False

    def __post_init__(self) -> None:
        """Check that the light of the reference passes."""
        if not (self.focal_length > 0 and self.pitch > 0):
            raise ValueError(
                "focal_length, pitch: expected numbers > 0 (mm and µm), got "
                f"{self.focal_length} and {self.pitch}"
            )
        self.deviation(self.reference)

    def deviation(self, wavelength: float) -> float:
        """Return δ of a wavelength (nm), in degrees, towards the base of the first prism.

        Raises:
            ValueError: total reflection.
        """
        glasses = [self.glass] if isinstance(self.glass, str) else list(self.glass)
        angles = [self.apex] if isinstance(self.apex, int | float) else list(self.apex)
        if len(glasses) != len(angles) or not glasses:
            raise ValueError(
                f"apex: expected one angle for each of {len(glasses)} prisms, got {len(angles)}"
            )
        indices = [refractive_index(glass, wavelength) for glass in glasses] + [1.0]
        start = direction = self._compute_incidence_angle(glasses, angles)
        # Snell's law at each face: normals turn by the apex angles, the last medium is air.
        normal, index = 0.0, 1.0
        for apex, next_index in zip([*angles, 0.0], indices, strict=True):
            sine = index / next_index * math.sin(direction - normal)
            if abs(sine) >= 1:
                raise ValueError(
                    f"apex: light of {wavelength:g} nm does not pass {self.glass} with "
                    f"{self.apex}°: total reflection; take a smaller angle or another incidence"
                )
            direction = normal + math.asin(sine)
            normal, index = normal + math.radians(apex), next_index
        return math.degrees(start - direction)

    def positions(self, wavelengths: Sequence[float]) -> tuple[float, ...]:
        """Return f / pitch · tan(δ(λ) − δ(λ_reference))."""
        zero = self.deviation(self.reference)
        scale = (-1000 if self.flip else 1000) * self.focal_length / self.pitch
        angles = [math.radians(self.deviation(value) - zero) for value in wavelengths]
        return tuple(scale * math.tan(angle) for angle in angles)

    def _compute_incidence_angle(self, glasses: list[str], angles: list[float]) -> float:  # radians
        if self.incidence is not None:
            return math.radians(self.incidence)
        if len(angles) > 1:
            return math.radians(sum(angles) / 2)
        # Minimum deviation: the ray inside is symmetric, at α/2 to both normals.
        sine = refractive_index(glasses[0], self.reference) * math.sin(math.radians(angles[0] / 2))
        if abs(sine) >= 1:
            raise ValueError(
                f"apex: no light passes {glasses[0]} with {angles[0]}°; take a smaller angle"
            )
        return math.asin(sine)


def _read_pairs(path: Path) -> list[tuple[float, float]]:
    path = path.expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"Curve: no file {path}")
    rows = read_numbers(path, _MAX_TABLE_BYTES)
    if len(rows[0]) != 2:
        raise ValueError(f"{path}: expected lines of 'wavelength,pixel', got {rows[0]}")
    return [(wavelength, position) for wavelength, position in rows]
