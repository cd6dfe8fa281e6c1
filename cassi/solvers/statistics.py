"""Signal level, noise level, gain and largest eigenvalue, and the schedules that noise raises."""

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
from cassi.smooth_windows import SIDE, WINDOWS, fit_windows, linear_maps, smooth_spectra
from cassi.solvers.linear_system import LinearSystem, Rho, good_pixels, is_camera
from cassi.solvers.schedules import AnySchedule, Schedule

T = TypeVar("T")
Parts = Callable[[], Iterable[tuple[Tensor, LinearSystem]]]
"""A function that returns the parts of a measurement along one axis, each with its camera."""

MIN_NOISE = 0.003
"""Noise below this, relative to the root mean square of y (50 dB), counts as no noise."""

# Largest number of pixels from which a quantile is computed, because a quantile sorts its values. A
# larger detector is subsampled: every n-th pixel is taken.
_MAX_SAMPLES = 1 << 20

# The noise level comes from the 2 % of the windows with the least residual: nearly every scene has
# this many smooth windows. The normal quantile of this share corrects for the selection of windows.
_WINDOW_SHARE, _NORMAL_QUANTILE = 0.02, 2.054
# Number of bins of windows by brightness. The line of variance over brightness needs two bins or
# more. With more bins each bin has fewer windows.
_BRIGHTNESS_BINS = 4
_N_SPECTRA = 6  # smooth spectra of a window: cosines over the bands
_MIN_WINDOWS = 20  # with fewer windows the noise counts as 0

# A pixel counts for the signal level if its A1 is above this share of the largest A1. Without this
# limit, dark pixels of the grey mask made the level 2 to 4 times too high at 30 dB
# (docs/development/experiments/pretrained.md).
_MIN_TRANSMISSION = 0.05
_MIN_DARK_TRANSMISSION = 1e-3  # for methods that fit dark pixels exactly

_MIN_VECTOR = 1e-3  # keeps the vector of the power iteration positive where the detector is dark


@dataclass(frozen=True, eq=False)
class Statistics:
    """Estimates from a measurement for solvers and networks, each computed on first use.

    A scene that is reconstructed in parts has one `Statistics` for all of them, so that the parts
    fit together. The parts must be independent; see `System.part_axis`.

    Args:
        parts: a function that returns the parts. The size of each part along the axis is a multiple
            of 16 pixels. The last part may have any size.
        axis: -2 or -1, the axis along which the measurement is cut.
    """

    parts: Parts
    axis: int = -2
    _cache: list[tuple[object, Any]] = field(default_factory=list, init=False, repr=False)

    def remember(self, key: object, compute: Callable[[], T]) -> T:
        """Return `compute()`, which is called once for each object `key`."""
        # Keys are compared by identity, because tensors compare element by element.
        for cached_key, value in self._cache:
            if cached_key is key:
                return value
        # Only the last key that is a tensor stays in the cache. Otherwise the frames of a sequence
        # would fill the memory.
        if isinstance(key, Tensor):
            self._cache[:] = [entry for entry in self._cache if not isinstance(entry[0], Tensor)]
        self._cache.append((key, compute()))
        return self._cache[-1][1]

    def estimate(self, *names: str) -> dict[str, Tensor]:
        """Return estimates by name. Missing estimates are computed now."""
        return {name: getattr(self, name) for name in names}

    def take(self, estimates: Mapping[str, Tensor]) -> None:
        """Use the result of `estimate` for the same measurement, perhaps from another process."""
        vars(self).update(estimates)

    def for_camera(self, key: object, change: Callable[[Any], LinearSystem]) -> Statistics:
        """Return the statistics of the same measurement with another camera.

        `change` makes the other camera of a part. The result is made once for each `key`.
        """

        def parts() -> Iterable[tuple[Tensor, LinearSystem]]:
            return [(y, change(system)) for y, system in self.parts()]

        return self.remember(key, lambda: Statistics(parts, self.axis))

    def with_noise(self, noise: Tensor) -> Statistics:
        """Return the statistics of the same measurement, with another noise level, `(B,)`."""
        copy = Statistics(self.parts, self.axis)
        copy.take({"noise": noise})
        return copy

    def for_measurement(self, parts: Parts) -> Statistics:
        """Return the statistics of another measurement with the same camera and the same noise.

        Noise, gain, largest eigenvalue and the results of `remember` are copied, except results
        whose key is a tensor. Level and size are computed anew.
        """
        statistics = Statistics(parts, self.axis)
        statistics.take(self.estimate("noise", "gain", "largest_eigenvalue"))
        statistics._cache.extend(e for e in self._cache if not isinstance(e[0], Tensor))
        return statistics

    def brightest(self) -> tuple[Tensor, LinearSystem]:
        """Return the part with the most light, and its camera."""
        energies = [float(y.double().square().sum()) for y, _ in self.parts()]
        index = max(range(len(energies)), key=energies.__getitem__)
        return next(itertools.islice(iter(self.parts()), index, None))

    @cached_property
    def level(self) -> Tensor:
        """The signal level `(B, 1, 1, 1)`; see `signal_level`."""
        return self._estimate_level(_MIN_TRANSMISSION)

    @cached_property
    def dark_level(self) -> Tensor:
        """The signal level with `dark=True`; see `signal_level`."""
        return self._estimate_level(_MIN_DARK_TRANSMISSION)

    def _estimate_level(self, min_transmission: float) -> Tensor:
        flats = self._join([_measure_ones(y, system) for y, system in self.parts()])
        return _find_brightness(self._join_measurement(), flats, min_transmission)

    def _join_measurement(self) -> Tensor:
        return self._join([y for y, _ in self.parts()])

    def _join(self, parts: list[Tensor]) -> Tensor:
        """Join parts along the axis of the cut."""
        return parts[0] if len(parts) == 1 else torch.cat(parts, self.axis)

    @cached_property
    def size(self) -> Tensor:
        """The root mean square of y, `(B,)`, > 0."""
        return root_mean_square(self._join_measurement())

    @cached_property
    def noise(self) -> Tensor:
        """The noise relative to the root mean square of y, `(B,)`; see `noise_level`."""
        # The fit sums squares in float32. y is divided by its size, so the squares stay in
        # range.
        size = self.size.view(-1, 1, 1, 1)
        parts = [(y / size, system) for y, system in self.parts()]
        return _estimate_noise(parts, self.axis, self._join_measurement().shape)

    @cached_property
    def gain(self) -> Tensor:
        """g, the mean of AAᵀ1 over the detector, `(B,)`; see `noise_damping`."""
        sums, count = [], 0
        for y, system in self.parts():
            sums.append(_sum_gain(y, system))
            count += y[0].numel()
        return torch.stack(sums).sum(0) / count

    @cached_property
    def largest_eigenvalue(self) -> Tensor:
        """Bound of λ_max(AAᵀ), a scalar, the largest of all parts; see `largest_eigenvalue`."""
        return torch.stack([largest_eigenvalue(y, system) for y, system in self.parts()]).amax()


def check_noise(noise: object) -> None:
    """Raise ValueError unless the noise is "auto" or a number >= 0."""
    is_number = isinstance(noise, int | float) and not isinstance(noise, bool) and noise >= 0
    if noise != "auto" and not is_number:
        raise ValueError(f"noise: expected auto or a number >= 0, got {noise!r}")


def signal_level(
    y: Tensor, system: LinearSystem, statistics: Statistics | None = None, *, dark: bool = False
) -> Tensor:
    """Estimate the brightness of the scene, which makes a solver's parameters independent of units.

        level = 99.9 % quantile over the detector of |y| / A1

    |y| / A1 is the mean radiance of the bands that reach a pixel. Pixels where A1 is below 5 % of
    its largest value do not count: behind dark parts of a mask, noise is divided by almost zero.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera.
        statistics: estimates from the whole measurement, if y is a part of it.
        dark: also count darker pixels, down to 0.1 % of the largest A1. A method that fits dark
            pixels exactly divides their noise by their A1, and its prior has to remove this larger
            noise.

    Returns:
        `(B, 1, 1, 1)`, in the unit of the cube; 1 if the measurement is all zero.

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
    statistics = _as_statistics(y, system, statistics)
    # The passes of one run check the same y. The host waits for a device at each check.
    if not statistics.remember(y, lambda: bool(y.isfinite().all())):
        raise ValueError(
            "y: expected finite values, got NaN or infinity; give such pixels as bad_pixels"
        )
    return (statistics.dark_level if dark else statistics.level).to(y)


def _as_statistics(y: Tensor, system: LinearSystem, statistics: Statistics | None) -> Statistics:
    return Statistics(lambda: [(y, system)]) if statistics is None else statistics


def noise_level(y: Tensor, system: LinearSystem, statistics: Statistics | None = None) -> Tensor:
    """Estimate the standard deviation of the noise in a measurement.

    In a smooth window of 16×16 pixels, the measurement is a combination of 18 images. Each image is
    the camera's measurement of one of six smooth spectra, with a brightness that is constant, rises
    downwards or rises to the right. The residual of a fit of these images is noise. Edges and
    texture increase the residual. So the noise level comes from the 2 % of the windows with the
    least residual, corrected for their selection.

    Shot noise grows with brightness. So the windows are sorted into bins by brightness, and a line
    of variance over brightness is laid through the bins. Its value at the mean brightness is the
    result. A scene that is textured everywhere gives a few per cent of noise.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera.
        statistics: estimates from the whole measurement, if y is a part of it.

    Returns:
        `(B,)`, in the unit of y; 0 if the measurement has fewer than 20 windows.
    """
    return relative_noise(y, system, statistics=statistics) * root_mean_square(y)


def relative_noise(
    y: Tensor,
    system: LinearSystem,
    noise: Tensor | float | Literal["auto"] = "auto",
    statistics: Statistics | None = None,
) -> Tensor:
    """Return the noise level relative to the root mean square of y, `(B,)`.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera.
        noise: the noise level itself, a number or `(B,)`; or "auto" for an estimate, which is the
            `noise_level` divided by the root mean square.
        statistics: estimates from the whole measurement, if y is a part of it.
    """
    if isinstance(noise, str):
        return _as_statistics(y, system, statistics).noise.to(y)
    return torch.as_tensor(noise, dtype=y.dtype, device=y.device).expand(len(y))


@torch.no_grad()
def noise_damping(
    y: Tensor, system: LinearSystem, noise: Tensor | float, statistics: Statistics | None = None
) -> Tensor:
    """Return the damping ρ of the data step for a noisy measurement.

        ρ = 0.46·(n − 0.003)₊^0.63·g,   g = mean of AAᵀ1

    The formula is fitted to the best ρ of total nuclear variation at 10, 20, 30 and 40 dB. Half or
    twice this ρ costs 0.3 dB. Below 0.3 % of noise (50 dB) there is no damping.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera.
        noise: n, standard deviation relative to the root mean square of y, `(B,)` or a number.
        statistics: estimates from the whole measurement, if y is a part of it.

    Returns:
        ρ >= 0, `(B,)`.
    """
    gain = _as_statistics(y, system, statistics).gain.to(y)
    n = torch.as_tensor(noise, dtype=y.dtype, device=y.device).expand(len(y))
    return 0.46 * (n - MIN_NOISE).clamp_min(0) ** 0.63 * gain


def damped_schedule(
    rho: Schedule,
    noise: Tensor | float | Literal["auto"],
    y: Tensor,
    system: LinearSystem,
    statistics: Statistics | None = None,
) -> AnySchedule:
    """Raise ρ to at least the `noise_damping` of y.

    Args:
        rho: schedule of ρ without noise.
        noise: noise level relative to the root mean square of y; see `relative_noise`.
        y: measurement `(B, K, H', W')`.
        system: the camera.
        statistics: estimates from the whole measurement, if y is a part of it.

    Returns:
        `rho` itself if there is no noise, else a schedule with values `(B,)`.
    """
    damping = noise_damping(y, system, relative_noise(y, system, noise, statistics), statistics)
    if not bool(damping.any()):
        return rho
    raised_rho = functools.lru_cache(1)(damping.clamp_min)  # ρ is the same in most iterations
    return lambda i, n: raised_rho(rho(i, n))


@dataclass(frozen=True)
class AboveNoise:
    """A schedule of σ that stays above a share of the noise in the argument of the prior.

        σ >= share·n·s/√ρ,   s the root mean square of y, n the noise relative to s

    The data step weighs ½‖Ax − y‖² against ρ/2‖x − v‖². These weights suit noise of standard
    deviation n·s in y and n·s/√ρ in v. A denoiser with a smaller σ leaves noise in the cube. n
    below 0.3 % counts as no noise.

    Args:
        schedule: σ without noise, in the unit of the cube.
        share: least σ as a share of this noise, >= 0; 0.5 suits a denoiser whose σ is the standard
            deviation of the noise.

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

    def for_noise(self, noise: Tensor, y: Tensor, rho: Rho) -> AnySchedule:
        """Return the schedule of σ for a measurement. Its values are numbers, or `(B,)`.

        Args:
            noise: n, `(B,)`.
            y: measurement `(B, K, H', W')`.
            rho: ρ of the data step, a number > 0 or `(B,)`.
        """
        sigma, noise = self.schedule, torch.where(noise > MIN_NOISE, noise, 0)
        min_sigma = self.share * noise * root_mean_square(y) / torch.as_tensor(rho).sqrt()
        if not bool(min_sigma.any()):
            return sigma
        # A number saves a copy to the device in every iteration.
        if len(min_sigma) == 1:
            number = float(min_sigma)
            return lambda i, n: max(sigma(i, n), number)
        return lambda i, n: min_sigma.clamp_min(sigma(i, n))


@torch.no_grad()
def largest_eigenvalue(
    y: Tensor, system: LinearSystem, statistics: Statistics | None = None, *, steps: int = 8
) -> Tensor:
    """Bound λ_max(AAᵀ) = ‖A‖² from above by power iteration, for the step of gradient methods.

        λ_max <= max_i (AAᵀv)_i / v_i   for every v > 0

    The bound holds because no entry of AAᵀ is negative. If AAᵀ is diagonal (one shot), the bound is
    exact for v = 1. Power iteration tightens it for several shots.

    Args:
        y: measurement `(B, K, H', W')`; only its shape, dtype and device count.
        system: the camera.
        statistics: estimates from the whole measurement, if y is a part of it.
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
        vector = image / image.amax().clamp_min(torch.finfo(y.dtype).tiny) + _MIN_VECTOR
    bound = torch.stack(bounds).amin()
    return torch.where(bound > 0, bound, torch.ones_like(bound))


@torch.no_grad()
def _measure_ones(y: Tensor, system: LinearSystem) -> Tensor:
    """Return A1, `(B, K, H, W')`: the measurement of a cube of ones in the dtype of y."""
    return system(torch.ones_like(system.adjoint(y)))


@torch.no_grad()
def _find_brightness(y: Tensor, flat: Tensor, min_transmission: float) -> Tensor:
    """Return the 99.9 % quantile of |y| / A1: `(B, K, H, W')` twice → `(B, 1, 1, 1)`."""
    is_bright = flat > flat.amax() * min_transmission
    radiance = torch.where(is_bright, y.abs() / flat, 0).flatten(1).float()
    radiance = radiance[:, :: max(1, radiance.shape[1] // _MAX_SAMPLES)]
    level = upper_quantile(radiance, 0.999).to(y.dtype).view(-1, 1, 1, 1)
    return torch.where(level > 0, level, 1)


def upper_quantile(x: Tensor, share: float) -> Tensor:
    """Return the quantile of each row of `(B, N)`, for a share near 1.

    The result equals that of torch.quantile, which sorts all values. Here only the largest are
    sorted.
    """
    position = share * (x.shape[1] - 1)
    lower_index = math.floor(position)
    largest = x.topk(x.shape[1] - lower_index, dim=1).values
    return torch.lerp(
        largest[:, -1], largest[:, max(0, largest.shape[1] - 2)], position - lower_index
    )


@torch.no_grad()
def _sum_gain(y: Tensor, system: LinearSystem) -> Tensor:
    """Return the sum of AAᵀ1 over the detector, `(B,)`; 1 has the shape and dtype of y."""
    return system(system.adjoint(torch.ones_like(y))).flatten(1).sum(1)


def unit_of(y: Tensor) -> Tensor:
    """Return the largest power of two up to max |y| of each sample, `(B, …)` → `(B, 1, 1, 1)`.

    In this unit the squares of y are in the range of float32. A division by a power of two has no
    rounding error.
    """
    largest = torch.linalg.vector_norm(y.flatten(1), torch.inf, dim=1)
    largest = largest.clamp_min(torch.finfo(y.dtype).tiny)
    return (largest / 2 / largest.frexp().mantissa).view(-1, 1, 1, 1)


def root_mean_square(y: Tensor) -> Tensor:
    """Return the root mean square of each sample, `(B, …)` → `(B,)`, > 0.

    The squares are float64: the squares of 1e20 and of 1e-23 are out of the range of float32.
    """
    length = torch.linalg.vector_norm(y.flatten(1), dim=1, dtype=torch.float64)
    return (length / y[0].numel() ** 0.5).to(y.dtype).clamp_min(torch.finfo(y.dtype).tiny)


@torch.no_grad()
def _estimate_noise(
    parts: Iterable[tuple[Tensor, LinearSystem]], axis: int, shape: Sequence[int]
) -> Tensor:
    """Estimate the noise of a measurement in parts along an axis, `(B,)`, in the unit of y.

    `shape` is the shape of the whole measurement. Squares of y must be in the range of float32.
    """
    n_rows, n_columns = shape[-2] // SIDE, shape[-1] // SIDE
    # Every n-th window of the whole detector is used, in parts as well as without parts.
    indices = torch.arange(0, n_rows * n_columns, n_rows * n_columns // WINDOWS + 1)
    windows = torch.stack((indices // max(1, n_columns), indices % max(1, n_columns)), 1)
    variances, means, first = [], [], 0
    for y, system in parts:
        count = y.shape[axis] // SIDE
        is_in_part = (windows[:, axis] >= first) & (windows[:, axis] < first + count)
        part_windows = windows[is_in_part]
        part_windows[:, axis] -= first
        first += count
        if len(part_windows):
            variance, mean = _fit_smooth_scenes(y, system, part_windows.to(y.device))
            variances.append(variance)
            means.append(mean)
    # Windows with many bad pixels are left out, so the fitted windows are counted too.
    if len(indices) < _MIN_WINDOWS or sum(map(len, variances)) < _MIN_WINDOWS:
        return y.new_zeros(len(y))
    return _interpolate_noise(torch.cat(variances), torch.cat(means)).to(y.dtype)


def _interpolate_noise(variance: Tensor, brightness: Tensor) -> Tensor:
    """Return σ at the mean brightness from values of windows: `(P, B)` twice → `(B,)`."""
    levels = []
    for v, m in zip(variance.T, brightness.T, strict=True):
        bins = m.argsort().chunk(_BRIGHTNESS_BINS)
        low = torch.stack([v[part].quantile(_WINDOW_SHARE) for part in bins])
        mean = torch.stack([m[part].mean() for part in bins])
        # The line begins at the darkest bin. Its slope is the least one to any other bin, but not
        # below 0. Texture only increases a variance, so bins above the line are textured.
        slope = (low - low[0])[1:] / (mean - mean[0])[1:].clamp_min(1e-30)
        level = low[0] + slope.min().clamp_min(0) * (mean.mean() - mean[0])
        levels.append(level.clamp_min(0).sqrt())
    return torch.stack(levels)


def _measure(brightness: Tensor, spectrum: Tensor, system: LinearSystem) -> Tensor:
    """Return the measurement of one spectrum `(C,)` with a brightness `(B, 1, H, W)`."""
    if is_camera(system):
        return system.forward_subspace(brightness, spectrum.view(1, -1, 1))
    return system(spectrum.view(1, -1, 1, 1) * brightness)


def _fit_smooth_scenes(y: Tensor, system: LinearSystem, windows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the residual variance of windows after a fit of smooth scenes.

    `windows` has the row and column of each window in the grid of windows, `(P, 2)`.

    Returns:
        The variance, corrected for the selection of the best 2 %, and the mean, `(P, B)` each.
        Both are empty if the windows have hardly more pixels than unknowns.
    """
    batch, bands, height, width = system.adjoint(y).shape
    maps, spectra = linear_maps(height, width, y), smooth_spectra(bands, _N_SPECTRA, y)
    images = [_measure(m.expand(batch, 1, height, width), s, system) for s in spectra for m in maps]
    residual = fit_windows(y, images, windows, good_pixels(system))
    if residual is None:
        return y.new_zeros(0), y.new_zeros(0)
    # The quantile of a χ² variable over its mean (Wilson, Hilferty, 1931).
    spread = 2 / (9 * residual.freedom)
    root = spread.sqrt() if isinstance(spread, Tensor) else math.sqrt(spread)
    return residual.variance / (1 - spread - _NORMAL_QUANTILE * root) ** 3, residual.mean
