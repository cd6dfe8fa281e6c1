"""How well plain scenes fit small windows of a frame, and which way the camera should move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import torch
from torch import Tensor
from torch.nn.functional import pad

from cassi.calibration.geometry import (
    Geometry,
    code_images,
    moved_mask,
    moved_offsets,
)
from cassi.calibration.parameters import PARAMETERS, place_of
from cassi.ops import linear_taps
from cassi.plain_scenes import SIDE, WINDOWS, cut_windows, linear_maps, smooth_spectra
from cassi.systems import SDCassi, System
from cassi.systems.tilted import LinePart, Shift, line_parts, moved_lines

SPECTRA = 10
"""Cosines over the bands, of which the spectrum of a plain scene is made."""
PENALTY = 0.003
"""On cosine k, times 1 + k, and times 3 where it varies over the window: scenes are smooth. On
CAVE's validation scenes as good as 0.001, and better than 0.01 and 0.03."""
FLOOR = 1e-8
"""Of the mean square of a window: what is left there is rounding."""
LEAST_GOOD = 0.5
"""Share of the pixels of a window that is used."""
STRIPS = 8
"""Rows of windows are taken at least, where a frame has them."""


def has_one_mask(camera: System) -> TypeGuard[SDCassi]:
    """Tell whether a camera is an `SDCassi` with one mask for all bands and samples."""
    return type(camera) is SDCassi and camera.mask.ndim <= 4 and camera.mask.shape[-3] == 1


_MOST_CONDITION = 1e12
"""Of a curvature in units of its diagonal, beyond which rounding alone decides."""


@dataclass(frozen=True)
class Frame:
    """A frame and what its scene may be: combinations of spectra, each varying linearly.

    Args:
        y: `(B, K, H', W')`, several snapshots by one camera.
        points: places in the spectrum, in bands; None for all bands.
        spectra: `(S, P)`, over the points.
        good: bool, shaped like y: the pixels that count; None for all. y is finite everywhere.
        shift: interpolates bands between pixels. Those that a sensor saw keep their contrast:
            `cassi.systems.photographed.sharp_taps`.
    """

    y: Tensor
    points: tuple[float, ...] | None
    spectra: Tensor
    good: Tensor | None = None
    shift: Shift = linear_taps

    @staticmethod
    def snapshot(
        y: Tensor,
        bands: int,
        good: Tensor | None = None,
        shades: int = 1,
        shift: Shift = linear_taps,
    ) -> Frame:
        """Return the frame of an unknown scene, its light in so many lines per band."""
        if shades == 1:
            return Frame(y, None, smooth_spectra(bands, SPECTRA, y), good, shift)
        places = [(k + 0.5) / shades - 0.5 for k in range(bands * shades)]
        points = tuple(min(max(place, 0.0), bands - 1.0) for place in places)
        return Frame(y, points, smooth_spectra(len(points), SPECTRA, y) / shades, good, shift)

    @staticmethod
    def monochromatic(y: Tensor, band: float, good: Tensor | None = None) -> Frame:
        """Return the frame of a scene in the light of one place of the spectrum."""
        return Frame(y, (band,), y.new_ones(1, 1), good)

    @property
    def counts(self) -> Tensor:
        """One at pixels that are good in all snapshots, zero at the others, `(1, K, H', W')`."""
        if self.good is None:
            return torch.ones_like(self.y[:1])
        return self.good.all(0, keepdim=True).to(self.y)


@dataclass(frozen=True)
class Derivatives:
    """The residuals of windows at one geometry, and their derivatives.

    Attributes:
        variance: `(N,)`, of what the best plain scene leaves, over the window's mean square.
        gradient: `(N, T)`, of half its logarithm times pixels, with respect to the geometry.
        curvature: `(T, T)`, Gauss–Newton approximation, summed over windows.
        place: `(N,)`, in which of 4 × 4 parts of which frame a window lies.
    """

    variance: Tensor
    gradient: Tensor
    curvature: Tensor
    place: Tensor

    @property
    def objective(self) -> float:
        """Mean logarithm of the variance."""
        return self.variance.log().mean().item()


class Windows:
    r"""Windows of a frame, in each of which a plain scene is fitted.

        min_a ‖y_b − D_b(θ) a‖² + ‖Λ a‖²

    D_b holds what the camera θ makes of each spectrum, times 1, rows and columns. The scene enters
    linearly and is solved for; the residual is then a sharp function of θ, since the code is as
    fine as the pixels. The objective is Σ_b n/2·log of it, the likelihood where every window has a
    noise of its own: a window with edges or texture, which no plain scene fits, has little
    weight. Derivatives hold a (Kaufman): D_b's are difference quotients.

    Args:
        frame: what was measured.
        system: the nominal camera.
        central: take only windows of the middle of the frame.
        most: number of windows.

    Source: Golub, Pereyra, "Separable nonlinear least squares: the variable projection method",
    Inverse Problems 19(2), 2003.
    """

    def __init__(
        self, frame: Frame, system: SDCassi, *, central: bool = False, most: int = WINDOWS
    ) -> None:
        self.frame, self.system = frame, system
        y = system.turn(frame.y)
        down, across = y.shape[-2] // SIDE, y.shape[-1] // SIDE
        rows, columns = (_chosen(count, central) for count in (down, across))
        # Too many windows: whole strips are left out, for images are made of the others only.
        share = len(rows) * len(columns) // most + 1
        rows = rows[:: max(1, min(share, len(rows) // STRIPS))]
        index = torch.cartesian_prod(torch.arange(len(rows)), columns)
        index = index[:: max(1, round(len(index) / most))]
        self.across = across
        self.lines = (rows[:, None] * SIDE + torch.arange(SIDE)).flatten().to(y.device)
        self.strip, self.column = index.to(y.device).unbind(1)
        place = (4 * rows[index[:, 0]] // max(down, 1)) * 4 + 4 * index[:, 1] // max(across, 1)
        dtype = torch.promote_types(y.dtype, torch.float32)
        self._last: tuple[Geometry, Tensor] | None = None
        # Zero rows of design and data: bad pixels have no influence.
        self.keep = self._cut(system.turn(frame.counts)[..., self.lines, :].to(dtype))
        data = self._cut(y[..., self.lines, :].to(dtype)) * self.keep  # (N, B, pixels)
        # Dark windows would count as much as bright ones.
        light = data.square().mean(2)
        self.lit = (light > 1e-4 * light.mean()) & (self.keep.mean(2) > LEAST_GOOD)
        self.data, self.light = data, light.clamp_min(1e-30)
        batch = torch.arange(len(y), device=y.device)
        self.place = place.to(y.device)[:, None] + 16 * batch
        self.maps = linear_maps(SIDE, SIDE, data).flatten(1).repeat(1, y.shape[1])
        orders = 1 + torch.arange(len(frame.spectra), dtype=torch.float64, device=y.device)
        varies = torch.tensor([1.0, 3.0, 3.0], dtype=torch.float64, device=y.device)
        self.penalty = PENALTY * (orders[:, None] * varies).flatten()

    def __len__(self) -> int:
        return int(self.lit.sum())

    @property
    def freedom(self) -> int:
        """Number of pixels of a window."""
        return self.data.shape[2]

    def objective(self, geometry: Geometry) -> float:
        """Return the mean logarithm of the relative residual variance."""
        return self.variances(geometry)[0].log().mean().item()

    def variances(self, geometry: Geometry) -> tuple[Tensor, Tensor]:
        """Return the relative residual variance of each lit window, and in which part it lies."""
        return self._fit(self._design(self._images(geometry))).variance, self.place[self.lit]

    def shifted_objective(
        self, geometry: Geometry, shifts: Sequence[tuple[int, int]]
    ) -> list[float]:
        """Return the objective with the code moved by whole pixels (down, right), for each."""
        whole = self._all_images(geometry, None)
        found = []
        for shift in shifts:
            images = self._cut(whole.roll(shift, (-2, -1))[..., self.lines, :])
            found.append(self._fit(self._design(images)).variance.log().mean().item())
        return found

    def derivatives(self, geometry: Geometry, keys: Sequence[str] | None = None) -> Derivatives:
        """Return residuals, gradient and curvature at a geometry.

        Args:
            geometry: of the camera.
            keys: of the parameters; those of the place if None.
        """
        design = self._design(self._images(geometry))
        fit = self._fit(design)
        by_map = fit.a.unflatten(1, (-1, len(self.maps))).flatten(2)  # (N, S, 3B)
        slopes = []
        for key in place_of(geometry) if keys is None else keys:
            parameter = PARAMETERS[key]
            value, h = parameter.read(geometry), parameter.step(self.system)
            ends = [parameter.write(geometry, value + way * h) for way in (1, -1)]
            change = self._difference(*ends) * (self.keep / (2 * h))
            parts = (change.mT @ by_map).unflatten(2, (len(self.maps), -1))  # (N, n, 3, B)
            slopes.append(torch.einsum("nimb,mi->nib", parts, self.maps))
        slope = torch.stack(slopes, -1)  # (N, n, B, T)
        flat = slope.flatten(2)
        part = torch.cholesky_solve((design.mT @ flat).double(), fit.factor).to(flat)
        free = (flat - design @ part).unflatten(2, slope.shape[2:])
        variance = fit.variance
        weight = 1 / (self.light[self.lit].double() * variance)
        slope, free, rest = (
            value.movedim(1, -1)[self.lit].double() for value in (slope, free, fit.rest)
        )
        gradient = -torch.einsum("btn,bn->bt", slope, rest) * weight[:, None]
        curvature = torch.einsum("bsn,btn,b->st", slope, free, weight)
        return Derivatives(variance, gradient, curvature, self.place[self.lit])

    def _all_images(self, geometry: Geometry, lines: Tensor | None) -> Tensor:
        codes = code_images(self.system, geometry, self.frame.points, lines, self.frame.shift)
        return torch.einsum("sp,pkhw->skhw", self.frame.spectra, codes)

    def _images(self, geometry: Geometry) -> Tensor:  # (N, S, pixels)
        if self.system.mask.shape[1] > 1:
            return self._cut(self._all_images(geometry, self.lines))
        return self._shear(self._mask(geometry), *self._places(geometry))

    def _difference(self, one: Geometry, other: Geometry) -> Tensor:
        """Return the images of one geometry less those of another, `(N, S, pixels)`."""
        places, there = self._places(one), self._places(other)
        if self.system.mask.shape[1] == 1 and all(map(torch.equal, places, there)):
            return self._shear(self._mask(one) - self._mask(other), *places)
        return self._images(one) - self._images(other)

    def _places(self, geometry: Geometry) -> tuple[Tensor, Tensor]:
        """Return the offsets of the places of the spectrum, along and across the dispersion."""
        offsets = moved_offsets(self.system, geometry, self.frame.points)
        across = geometry.across(self.system.offsets, self.system.axis, self.frame.points)
        return offsets, across

    def _shear(self, mask: Tensor, offsets: Tensor, across: Tensor) -> Tensor:
        # One mask for all bands: a spectrum is a kernel along the lines, the same everywhere, and
        # the columns of a window are a product with its Toeplitz matrix.
        images = [
            self._spread(moved_lines(mask, part.down)[:, self.lines], part)
            for part in line_parts(offsets, across, torch.float64, self.frame.shift)
        ]
        return sum(images[1:], images[0])

    def _spread(self, mask: Tensor, part: LinePart) -> Tensor:
        """Return what the mask's lines show of each spectrum, of some places of it."""
        _, _, taps, starts = part
        first, count = int(starts.min()), int(starts.max()) - int(starts.min()) + taps.shape[1]
        spread = taps.new_zeros(len(taps), count)
        at = (starts - first)[:, None] + torch.arange(taps.shape[1])
        spectra = self.frame.spectra[:, part.bands]
        kernels = spectra @ spread.scatter_add_(1, at, taps).to(mask)  # (S, count)
        reach = SIDE + count - 1
        # Entry (r, i) is kernel entry r − i, counted from the end.
        toeplitz = pad(kernels.flip(1), (SIDE - 1, SIDE - 1)).unfold(1, SIDE, 1).flip(-1)
        toeplitz = toeplitz.transpose(0, 1)  # (reach, S, SIDE)
        left = first + count - 1
        right = self.across * SIDE - first - mask.shape[-1]
        seen = pad(mask, (left, right)).unfold(-1, reach, SIDE)  # (K, lines, across, reach)
        # One product of rows side by side: torch multiplies overlapping ones line by line.
        images = (seen.flatten(0, 2) @ toeplitz.flatten(1)).view(*seen.shape[:3], -1, SIDE)
        images = images.unflatten(1, (-1, SIDE))
        cut = images.permute(1, 3, 4, 0, 2, 5)[self.strip, self.column]  # (N, S, K, 16, 16)
        return cut.flatten(2)

    def _mask(self, geometry: Geometry) -> Tensor:  # (K, H, W)
        """Return the moved mask; the last one is kept, for dispersion does not move it."""
        code = geometry
        if geometry.whole is not None:  # the bands have the shift along them
            across, _ = geometry.split_shift(self.system.axis)
            code = geometry.with_shift(across, 0.0, self.system.axis)
        if geometry.pivot == 0.5 or not geometry.tilt:
            code = replace(code, dispersion=(0.0,), tilt=0.0)
        if self._last is None or self._last[0] != code:
            whole = self.system.turn(moved_mask(self.system, geometry))
            self._last = code, whole[:, 0]
        return self._last[1]

    def _cut(self, image: Tensor) -> Tensor:
        """Cut the chosen lines `(S, K, lines, W)` into the chosen windows `(N, S, K·256)`."""
        return cut_windows(image, self.strip, self.column)

    def _design(self, images: Tensor) -> Tensor:  # (N, S, n) → (N, n, 3S)
        images = images.to(self.keep) * self.keep
        return (images[:, :, None] * self.maps).flatten(1, 2).mT

    def _fit(self, design: Tensor) -> _Scene:
        scale = design[:, :, 0].square().sum(1).sqrt()
        scale = scale.clamp_min(1e-6 * scale.mean().item() + 1e-30)
        ridge = scale[:, None] * self.penalty
        normal = (design.mT @ design).double() + torch.diag_embed(ridge.square())
        factor = torch.linalg.cholesky(normal)
        data = self.data.mT
        a = torch.cholesky_solve((design.mT @ data).double(), factor)
        rest = data - design @ a.to(design)
        # The least penalised sum of squares, in a form that hardly feels the rounding of a.
        least = rest.double().square().sum(1) + (ridge[..., None] * a).square().sum(1)
        variance = least / self.freedom / self.light
        return _Scene(factor, a.to(design), rest, variance[self.lit] + FLOOR)


@dataclass(frozen=True)
class _Scene:
    """The plain scene that fits each window best.

    Attributes:
        factor: of the normal equations (Cholesky), float64.
        a: `(N, 3S, B)`, its coefficients.
        rest: `(N, n, B)`, what it does not fit.
        variance: of that over the window's mean square, of the lit windows, flat, float64.
    """

    factor: Tensor
    a: Tensor
    rest: Tensor
    variance: Tensor


def _chosen(count: int, central: bool) -> Tensor:
    """Return which of so many rows or columns of windows are taken."""
    at = torch.arange(count)
    return at[((at + 0.5) / count - 0.5).abs() < 0.3] if central else at


def is_singular(curvature: Tensor) -> bool:
    """Tell whether a combination of parameters changes nothing, of a curvature `(T, T)`."""
    size = curvature.diagonal().clamp_min(0).sqrt()
    if not bool((size > 0).all()):
        return True
    return float(torch.linalg.cond(curvature / size / size[:, None])) > _MOST_CONDITION
