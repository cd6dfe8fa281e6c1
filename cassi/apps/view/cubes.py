"""A cube that is looked at, and the spectra of its regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cassi.apps.pipeline import Result
from cassi.apps.settings import Reconstruct
from cassi.viz.checks import white_level

_MOST = 2**21
"""Values that a brightness is taken from."""


@dataclass(frozen=True)
class Shown:
    """A cube with what is known of it.

    Attributes:
        name: of the scene and the method.
        cube: `(C, H, W)`, float32.
        wavelengths: nm, one per band, if known.
        truth: `(C, H, W)`, if known.
        deviation: standard deviation of every value, `(C, H, W)`, if known.
        numbers: of metrics.json.
        made: settings, options and result, of a cube that was reconstructed here.
    """

    name: str
    cube: np.ndarray
    wavelengths: tuple[float, ...] | None = None
    truth: np.ndarray | None = None
    deviation: np.ndarray | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    made: tuple[Reconstruct, list[str], Result] | None = None

    def called(self, name: str) -> Shown:
        """Return the same under another name."""
        return replace(self, name=name)

    def band_name(self, band: int) -> str:
        """Return what a band is called."""
        if self.wavelengths is None:
            return f"band {band + 1} of {len(self.cube)}"
        return f"{self.wavelengths[band]:g} nm"

    def axis(self) -> np.ndarray:
        """Return wavelengths in nm, or numbers of bands, `(C,)`."""
        if self.wavelengths is None:
            return np.arange(1.0, len(self.cube) + 1)
        return np.asarray(self.wavelengths)

    def white(self) -> float:
        """Return the value that all bands show as white."""
        every = max(1, round((self.cube.size / _MOST) ** 0.5))
        return white_level(self.cube[:, ::every, ::every])


@dataclass(frozen=True)
class Region:
    """Pixels of a picture: a rectangle, or what an outline encloses.

    Attributes:
        top: first row.
        left: first column.
        height: rows.
        width: columns.
        outline: (row, column) of its corners, edges of pixels being whole; None for a rectangle.
    """

    top: int
    left: int
    height: int
    width: int
    outline: tuple[tuple[float, float], ...] | None = None

    @classmethod
    def box(
        cls, first: tuple[float, float], last: tuple[float, float], size: tuple[int, int]
    ) -> Region:
        """Return the pixels between two corners (row, column), cut at the border of a picture.

        Raises:
            ValueError: they lie beside the picture.
        """
        (top, bottom), (left, right) = (sorted(pair) for pair in zip(first, last, strict=True))
        rows, columns = _within(top, bottom, size[0]), _within(left, right, size[1])
        if rows is None or columns is None:
            raise ValueError(
                f"region: expected pixels inside {size[0]} × {size[1]}, got rows {top:.4g} to "
                f"{bottom:.4g}, columns {left:.4g} to {right:.4g}"
            )
        return cls(rows[0], columns[0], rows[1] - rows[0], columns[1] - columns[0])

    @classmethod
    def inside(cls, corners: Sequence[tuple[float, float]], size: tuple[int, int]) -> Region:
        """Return the pixels whose middle lies inside an outline (row, column).

        Raises:
            ValueError: there is none.
        """
        rows, columns = zip(*corners, strict=True)
        found = replace(
            cls.box((min(rows), min(columns)), (max(rows), max(columns)), size),
            outline=tuple(corners),
        )
        if not found.mask().any():
            raise ValueError("region: expected an outline with at least one pixel inside")
        return found

    @property
    def label(self) -> str:
        """Where it is, counted from 0."""
        kind = "pixel" if self.height == self.width == 1 else "rows"
        if kind == "pixel":
            return f"pixel ({self.top}, {self.left})"
        rows = f"rows {self.top}–{self.top + self.height - 1}"
        columns = f"columns {self.left}–{self.left + self.width - 1}"
        return f"{rows}, {columns}" + (" (outline)" if self.outline else "")

    def mask(self) -> np.ndarray:
        """Return which pixels of the rectangle around it belong to it, bool `(height, width)`."""
        inside = np.ones((self.height, self.width), bool)
        if self.outline is None:
            return inside
        inside[:] = False
        row = np.arange(self.height)[:, None] + self.top + 0.5
        column = np.arange(self.width)[None] + self.left + 0.5
        ends = zip(self.outline, (*self.outline[1:], self.outline[0]), strict=True)
        for (r0, c0), (r1, c1) in ends:  # a ray to the left crosses the edge: Shimrat 1962
            if r0 != r1:
                crosses = (r0 > row) != (r1 > row)
                inside ^= crosses & (column > c0 + (row - r0) * (c1 - c0) / (r1 - r0))
        return inside

    def values(self, cube: np.ndarray) -> np.ndarray:
        """Return the spectra of its pixels, `(C, N)`, of a cube `(C, H, W)`."""
        rows = slice(self.top, self.top + self.height)
        columns = slice(self.left, self.left + self.width)
        return cube[:, rows, columns][:, self.mask()]


@dataclass(frozen=True)
class Spectrum:
    """Of a region.

    Attributes:
        mean: `(C,)`.
        spread: standard deviation over the pixels, `(C,)`.
        error: root mean square of the standard deviations that the cube says of these pixels,
            `(C,)`; None where it says none.
        truth: mean of the truth, `(C,)`, if known.
        pixels: how many.
    """

    mean: np.ndarray
    spread: np.ndarray
    error: np.ndarray | None
    truth: np.ndarray | None
    pixels: int


def spectrum(shown: Shown, region: Region) -> Spectrum:
    """Return mean and spread of a region's spectra, and the error bars where there are."""
    values = region.values(shown.cube).astype(np.float64)
    error = truth = None
    if shown.deviation is not None:
        error = np.sqrt(np.square(region.values(shown.deviation).astype(np.float64)).mean(1))
    if shown.truth is not None:
        truth = region.values(shown.truth).mean(1, dtype=np.float64)
    return Spectrum(values.mean(1), values.std(1), error, truth, values.shape[1])


def _within(low: float, high: float, length: int) -> tuple[int, int] | None:
    """Return first and last + 1 of the pixels that a span touches; None where it is outside."""
    first = max(0, int(np.floor(low)))
    last = min(length, max(int(np.ceil(high)), int(np.floor(low)) + 1))
    return (first, last) if first < last else None
