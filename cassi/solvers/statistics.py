"""What is estimated from a measurement: signal level, noise level, gain and largest eigenvalue."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from cassi.checks import not_negative
from cassi.plain_scenes import SIDE, WINDOWS, fit_windows, linear_maps, smooth_spectra
from cassi.solvers.linear_system import LinearSystem, Rho, good_pixels, is_camera
from cassi.solvers.schedules import AnySchedule, Schedule

T = TypeVar("T")
Parts = Callable[[], Iterable[tuple[Tensor, LinearSystem]]]
"""The measurement in parts along one axis, in order, each with the camera of that part."""

UNSEEN = 0.003
"""Noise below this, relative to the root mean square of y (50 dB), counts as no noise."""
_SAMPLES = 1 << 20  # a quantile sorts: of a large detector every n-th pixel is enough
_BINS = 4  # of brightness
_SHARE = 0.02  # of the windows show plain parts of nearly every scene
_SPECTRA = 6  # smooth spectra, cosines
_NORMAL = 2.054  # quantile of the best 2 %
_LIT, _DARK = 0.05, 1e-3  # of the most light, from which on pixels count for the signal level
_FLOOR = 1e-3  # keeps the vector of the power iteration positive where the detector is dark


@dataclass(frozen=True, eq=False)
class Statistics:
    """Estimates from a measurement that solvers and networks use. Each is computed on first use.

    A scene that is reconstructed in parts has one `Statistics` for all of them, so that the parts
    fit together. The parts must be independent; see `System.part_axis`.

    Args:
        parts: returns the parts at every call. Their sizes along the axis are multiples of 16
            pixels, except the last.
        axis: -2 or -1, the axis along which the measurement is cut.
    """

    parts: Parts
    axis: int = -2
    _found: list[tuple[object, Any]] = field(default_factory=list, init=False, repr=False)

    def remember(self, of: object, find: Callable[[], T]) -> T:
        """Return `find()`, called once for each object `of`: a result that a solver keeps.

        Of tensors the last one alone is kept: frames of a sequence would fill the memory.
        """
        for known, value in self._found:
            if known is of:
                return value
        if isinstance(of, Tensor):
            self._found[:] = [each for each in self._found if not isinstance(each[0], Tensor)]
        self._found.append((of, find()))
        return self._found[-1][1]

    def estimate(self, *names: str) -> dict[str, Tensor]:
        """Return estimates by name, computed now where they are not yet."""
        return {name: getattr(self, name) for name in names}

    def take(self, estimates: Mapping[str, Tensor]) -> None:
        """Use what `estimate` has returned for the same measurement, in another process perhaps."""
        vars(self).update(estimates)

    def by(self, key: object, change: Callable[[Any], LinearSystem]) -> Statistics:
        """Return the statistics of the same measurement by another camera; the same for a key."""

        def parts() -> Iterable[tuple[Tensor, LinearSystem]]:
            return [(y, change(system)) for y, system in self.parts()]

        return self.remember(key, lambda: Statistics(parts, self.axis))

    def with_noise(self, noise: Tensor) -> Statistics:
        """Return the statistics of the same measurement, with another noise level, `(B,)`."""
        same = Statistics(self.parts, self.axis)
        same.take({"noise": noise})
        return same

    def of_another(self, parts: Parts) -> Statistics:
        """Return the statistics of another measurement by the same camera.

        Noise, gain, largest eigenvalue and what solvers remember are those of this one; what is
        remembered of a tensor is not.
        """
        other = Statistics(parts, self.axis)
        other.take(self.estimate("noise", "gain", "largest_eigenvalue"))
        other._found.extend(kept for kept in self._found if not isinstance(kept[0], Tensor))
        return other

    def brightest(self) -> tuple[Tensor, LinearSystem]:
        """Return the part with the most light, and its camera."""
        light = [float(y.double().square().sum()) for y, _ in self.parts()]
        best = max(range(len(light)), key=light.__getitem__)
        return next(itertools.islice(iter(self.parts()), best, None))

    @cached_property
    def level(self) -> Tensor:
        """The signal level `(B, 1, 1, 1)`; see `signal_level`."""
        return self._level(_LIT)

    @cached_property
    def dark_level(self) -> Tensor:
        """The same, with dark pixels."""
        return self._level(_DARK)

    def _level(self, lit: float) -> Tensor:
        flats = self._joined([_flat_field(y, system) for y, system in self.parts()])
        return _brightness_level(self._whole(), flats, lit)

    def _whole(self) -> Tensor:
        return self._joined([y for y, _ in self.parts()])

    def _joined(self, parts: list[Tensor]) -> Tensor:
        return parts[0] if len(parts) == 1 else torch.cat(parts, self.axis)

    @cached_property
    def size(self) -> Tensor:
        """The root mean square of y, `(B,)`, > 0."""
        return root_mean_square(self._whole())

    @cached_property
    def noise(self) -> Tensor:
        """The noise relative to the root mean square of y, `(B,)`; see `noise_level`."""
        size = self.size.view(-1, 1, 1, 1)
        scaled = [(y / size, system) for y, system in self.parts()]
        return _noise_of_parts(scaled, self.axis, self._whole().shape)

    @cached_property
    def gain(self) -> Tensor:
        """The mean of AAᵀ1 over the detector, `(B,)`; see `noise_damping`."""
        sums, count = [], 0
        for y, system in self.parts():
            sums.append(_gain_sum(y, system))
            count += y[0].numel()
        return torch.stack(sums).sum(0) / count

    @cached_property
    def largest_eigenvalue(self) -> Tensor:
        """λ_max(AAᵀ), a scalar, the largest of the parts'; see `largest_eigenvalue`."""
        return torch.stack([largest_eigenvalue(y, system) for y, system in self.parts()]).amax()


def check_noise(noise: object) -> None:
    """Raise ValueError unless the noise is "auto" or a number >= 0."""
    number = isinstance(noise, int | float) and not isinstance(noise, bool) and noise >= 0
    if noise != "auto" and not number:
        raise ValueError(f"noise: expected auto or a number >= 0, got {noise!r}")


def signal_level(
    y: Tensor, system: LinearSystem, statistics: Statistics | None = None, *, dark: bool = False
) -> Tensor:
    """Estimate the brightness of the scene. It makes a solver's parameters independent of units.

        level = 99.9 % quantile over the detector of |y| / A1

    |y| / A1 is the mean radiance of the bands that reach a pixel. Pixels with less than 5 % of the
    most light do not count: behind dark parts of a mask there is noise, divided by almost nothing.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera.
        statistics: of the whole measurement, where y is a part of it.
        dark: count pixels from 0.1 % of the most light on, for a method that divides by the light
            of dark pixels: its strength has to hold their noise.

    Returns:
        `(B, 1, 1, 1)`, in the unit of the cube; 1 where the measurement is all zero.

    Raises:
        TypeError: y is not a tensor.
        ValueError: y is not `(B, K, H', W')`, or holds NaN.
    """
    if not isinstance(y, Tensor):
        raise TypeError(
            f"y: expected a torch.Tensor, got {type(y).__name__}; "
            "give torch.as_tensor(y)[None, None] of an image"
        )
    if y.ndim != 4:
        raise ValueError(f"y: expected (B, K, H', W'), got shape {tuple(y.shape)}")
    known = _known(y, system, statistics)
    if not known.remember(y, lambda: bool(y.isfinite().all())):
        raise ValueError(
            "y: expected finite values, got NaN or infinity; give such pixels as bad_pixels"
        )
    return (known.dark_level if dark else known.level).to(y)


def _known(y: Tensor, system: LinearSystem, statistics: Statistics | None) -> Statistics:
    return Statistics(lambda: [(y, system)]) if statistics is None else statistics


def noise_level(y: Tensor, system: LinearSystem, statistics: Statistics | None = None) -> Tensor:
    """Estimate the standard deviation of the noise in a measurement.

    In a window of 16×16 pixels without edges or texture, the measurement is a combination of known
    images: A of six smooth spectra, each constant, rising downwards, and rising to the right. The
    residual of such a fit is noise. Windows with edges or texture have a larger residual. So the
    level is that of the best 2 % of the windows, corrected for their selection.

    The level is a mean over the detector. Shot noise differs between dark and bright windows: a
    line of variance over brightness, through the best of dark, middle and bright windows, gives the
    level at the mean brightness. A scene that is textured everywhere gives a few per cent of noise.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera.
        statistics: of the whole measurement, where y is a part of it.

    Returns:
        `(B,)`, in the unit of y; 0 where the measurement has fewer than 20 windows.
    """
    return relative_noise(y, system, statistics=statistics) * root_mean_square(y)


def relative_noise(
    y: Tensor,
    system: LinearSystem,
    noise: Tensor | float | Literal["auto"] = "auto",
    statistics: Statistics | None = None,
) -> Tensor:
    """Return the noise relative to the root mean square of y, `(B,)`: as given, or estimated.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera.
        noise: a number or `(B,)`, or "auto" for `noise_level` divided by the root mean square.
        statistics: of the whole measurement, where y is a part of it.
    """
    if isinstance(noise, str):
        return _known(y, system, statistics).noise.to(y)
    return torch.as_tensor(noise, dtype=y.dtype, device=y.device).expand(len(y))


@torch.no_grad()
def noise_damping(
    y: Tensor, system: LinearSystem, noise: Tensor | float, statistics: Statistics | None = None
) -> Tensor:
    """Return the damping ρ of the data step for a noisy measurement.

        ρ = 0.46·(n − 0.003)₊^0.63·g,   g = mean of AAᵀ1

    The formula is fitted to the best ρ of total nuclear variation at 10, 20, 30 and 40 dB. Half or
    twice as much costs 0.3 dB. Below 0.3 % of noise (50 dB) there is no damping.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera.
        noise: n, standard deviation relative to the root mean square of y, `(B,)` or a number.
        statistics: of the whole measurement, where y is a part of it.

    Returns:
        ρ >= 0, `(B,)`.
    """
    gain = _known(y, system, statistics).gain.to(y)
    n = torch.as_tensor(noise, dtype=y.dtype, device=y.device).expand(len(y))
    return 0.46 * (n - UNSEEN).clamp_min(0) ** 0.63 * gain


def damped_schedule(
    rho: Schedule,
    noise: Tensor | float | Literal["auto"],
    y: Tensor,
    system: LinearSystem,
    statistics: Statistics | None = None,
) -> AnySchedule:
    """Raise ρ to at least the `noise_damping` of y.

    Returns:
        `rho` itself where there is no noise, else a schedule of `(B,)`.
    """
    least = noise_damping(y, system, relative_noise(y, system, noise, statistics), statistics)
    if not bool(least.any()):
        return rho
    raised = functools.lru_cache(1)(least.clamp_min)  # ρ is the same in most iterations
    return lambda i, n: raised(rho(i, n))


@dataclass(frozen=True)
class AboveNoise:
    """A schedule of σ that stays above a share of the noise in the argument of the prior.

        σ >= share·n·s/√ρ,   s the root mean square of y

    The data step weighs ½‖Ax − y‖² against ρ/2‖x − v‖², as for noise of standard deviation ε in y
    and ε/√ρ in v. A denoiser of less leaves noise in the cube. Noise below 0.3 % raises nothing.

    Args:
        schedule: without noise, in the unit of the cube.
        share: >= 0; 0.5 for a denoiser whose σ is that of noise.

    Raises:
        ValueError: a negative share.

    Source: Venkatakrishnan, Bouman, Wohlberg, "Plug-and-play priors for model based
    reconstruction", GlobalSIP 2013.
    """

    schedule: Schedule
    share: float = 0.5

    def __post_init__(self) -> None:
        not_negative("AboveNoise share", self.share)

    def __call__(self, iteration: int, iterations: int) -> float:
        """Return the value without noise."""
        return self.schedule(iteration, iterations)

    def told(self, noise: Tensor, y: Tensor, rho: Rho) -> AnySchedule:
        """Return the schedule for a measurement: of numbers, or of `(B,)`.

        Args:
            noise: n, relative to the root mean square of y, `(B,)`.
            y: measurement `(B, K, H', W')`.
            rho: ρ of the data step, a number > 0 or `(B,)`.
        """
        sigma, seen = self.schedule, torch.where(noise > UNSEEN, noise, 0)
        least = self.share * seen * root_mean_square(y) / torch.as_tensor(rho).sqrt()
        if not bool(least.any()):
            return sigma
        if len(least) == 1:
            number = float(least)
            return lambda i, n: max(sigma(i, n), number)
        return lambda i, n: least.clamp_min(sigma(i, n))


@torch.no_grad()
def largest_eigenvalue(
    y: Tensor, system: LinearSystem, statistics: Statistics | None = None, *, steps: int = 8
) -> Tensor:
    """Bound λ_max(AAᵀ) = ‖A‖² from above by power iteration, for the step of gradient methods.

        λ_max <= max_i (AAᵀv)_i / v_i   for every v > 0

    This holds because no entry of AAᵀ is negative. For v = 1 the bound is exact where AAᵀ is
    diagonal (one shot). Power iteration tightens it for several shots.

    Args:
        y: measurement `(B, K, H', W')`; only its shape, dtype and device count.
        system: the camera.
        statistics: of the whole measurement, where y is a part of it.
        steps: power iterations.

    Returns:
        The smallest of the bounds, a scalar > 0; 1 if A = 0.

    Source: Horn, Johnson, "Matrix analysis", 2nd ed., 2013, theorem 8.1.26.
    """
    if statistics is not None:
        return statistics.largest_eigenvalue.to(y)
    vector = torch.ones_like(y[:1])
    bounds = []
    for _ in range(steps):
        image = system(system.adjoint(vector))
        bounds.append((image / vector).amax())
        vector = image / image.amax().clamp_min(torch.finfo(y.dtype).tiny) + _FLOOR
    bound = torch.stack(bounds).amin()
    return torch.where(bound > 0, bound, torch.ones_like(bound))


@torch.no_grad()
def _flat_field(y: Tensor, system: LinearSystem) -> Tensor:
    """Return A1, `(B, K, H, W')`: the measurement of an evenly lit scene, made like y."""
    return system(torch.ones_like(system.adjoint(y)))


@torch.no_grad()
def _brightness_level(y: Tensor, flat: Tensor, lit: float) -> Tensor:
    """Return the 99.9 % quantile of |y| / A1: `(B, K, H, W')` twice → `(B, 1, 1, 1)`."""
    counts = flat > flat.amax() * lit
    mean = torch.where(counts, y.abs() / flat, 0).flatten(1).float()
    mean = mean[:, :: max(1, mean.shape[1] // _SAMPLES)]
    level = upper_quantile(mean, 0.999).to(y.dtype).view(-1, 1, 1, 1)
    return torch.where(level > 0, level, 1)


def upper_quantile(x: Tensor, share: float) -> Tensor:
    """Return the quantile near 1 of each row of `(B, N)`, as torch.quantile, which sorts all."""
    place = share * (x.shape[1] - 1)
    below = math.floor(place)
    above = x.topk(x.shape[1] - below, dim=1).values
    return torch.lerp(above[:, -1], above[:, max(0, above.shape[1] - 2)], place - below)


@torch.no_grad()
def _gain_sum(y: Tensor, system: LinearSystem) -> Tensor:
    """Return the sum of AAᵀ1 over the detector, `(B,)`; y gives shape and dtype."""
    return system(system.adjoint(torch.ones_like(y))).flatten(1).sum(1)


def unit_of(y: Tensor) -> Tensor:
    """Return the power of two next to the largest |y| of each sample, `(B, …)` → `(B, 1, 1, 1)`.

    Squares of y in this unit stay within float32, and a division by it changes no digit.
    """
    largest = torch.linalg.vector_norm(y.flatten(1), torch.inf, dim=1)
    largest = largest.clamp_min(torch.finfo(y.dtype).tiny)
    return (largest / 2 / largest.frexp().mantissa).view(-1, 1, 1, 1)


def root_mean_square(y: Tensor) -> Tensor:
    """Return the root mean square of each sample, `(B, …)` → `(B,)`, > 0.

    The squares are float64: those of 1e20 or of 1e-23 are beyond float32.
    """
    length = torch.linalg.vector_norm(y.flatten(1), dim=1, dtype=torch.float64)
    return (length / y[0].numel() ** 0.5).to(y.dtype).clamp_min(torch.finfo(y.dtype).tiny)


@torch.no_grad()
def _noise_of_parts(
    parts: Iterable[tuple[Tensor, LinearSystem]], axis: int, shape: Sequence[int]
) -> Tensor:
    """Estimate the noise, `(B,)` in the unit of y, of a measurement of that shape in parts.

    Squares of y must stay within float32.
    """
    down, across = shape[-2] // SIDE, shape[-1] // SIDE
    chosen = torch.arange(0, down * across, down * across // WINDOWS + 1)
    places = torch.stack((chosen // max(1, across), chosen % max(1, across)), 1)
    variances, means, first = [], [], 0
    for y, system in parts:
        count = y.shape[axis] // SIDE
        inside = (places[:, axis] >= first) & (places[:, axis] < first + count)
        at = places[inside]
        at[:, axis] -= first
        first += count
        if len(at):
            variance, mean = _plain_variance(y, system, at.to(y.device))
            variances.append(variance)
            means.append(mean)
    if len(chosen) < 20 or sum(map(len, variances)) < 20:
        return y.new_zeros(len(y))
    return _at_mean_brightness(torch.cat(variances), torch.cat(means)).to(y.dtype)


def _at_mean_brightness(variance: Tensor, brightness: Tensor) -> Tensor:
    """Fit the variance of the best windows over brightness: `(P, B)` twice → `(B,)` of σ."""
    levels = []
    for v, m in zip(variance.T, brightness.T, strict=True):
        bins = m.argsort().chunk(_BINS)
        low = torch.stack([v[part].quantile(_SHARE) for part in bins])
        mean = torch.stack([m[part].mean() for part in bins])
        # A line through the darkest that none of the others is below.
        rise = (low - low[0])[1:] / (mean - mean[0])[1:].clamp_min(1e-30)
        level = low[0] + rise.min().clamp_min(0) * (mean.mean() - mean[0])
        levels.append(level.clamp_min(0).sqrt())
    return torch.stack(levels)


def _image(brightness: Tensor, spectrum: Tensor, system: LinearSystem) -> Tensor:
    """Return the measurement of a scene `(B, 1, H, W)` of one spectrum `(C,)`."""
    if is_camera(system):
        return system.forward_subspace(brightness, spectrum.view(1, -1, 1))
    return system(spectrum.view(1, -1, 1, 1) * brightness)


def _plain_variance(y: Tensor, system: LinearSystem, at: Tensor) -> tuple[Tensor, Tensor]:
    """Return what plain scenes leave of windows of a measurement.

    `at` has row and column of each window, counted in windows, `(P, 2)`.

    Returns:
        The variance, corrected for being among the best 2 %, and the mean, `(P, B)` each; empty
        where the windows have no more pixels than unknowns.
    """
    batch, bands, height, width = system.adjoint(y).shape
    maps, spectra = linear_maps(height, width, y), smooth_spectra(bands, _SPECTRA, y)
    images = [_image(m.expand(batch, 1, height, width), s, system) for s in spectra for m in maps]
    left = fit_windows(y, images, at, good_pixels(system))
    if left is None:
        return y.new_zeros(0), y.new_zeros(0)
    # The quantile of a χ² variable over its mean (Wilson, Hilferty, 1931).
    spread = 2 / (9 * left.freedom)
    root = spread.sqrt() if isinstance(spread, Tensor) else math.sqrt(spread)
    return left.variance / (1 - spread - _NORMAL * root) ** 3, left.mean
