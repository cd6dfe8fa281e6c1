"""Draw cubes that are all consistent with a measurement and spread as far as the truth lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.systems.base import System
from cassi.uncertainty.bootstrap import BootstrapResult
from cassi.uncertainty.error_model import ErrorModel
from cassi.uncertainty.features import Features
from cassi.uncertainty.local_mean import mean_around_pixels

# The damping of a data step, relative to the mean of AAᵀ1. It bounds the noise that comes into a
# sample where the mask lets little light through. The residual changes by a thousandth.
_DAMPING = 1e-3
# Clipping a sample at 0 changes its measurement, and the data step that restores it makes some
# values negative again. After three rounds 1 % of the values are below −0.001 of the signal level.
_ROUNDS = 3
# Least share of the variance of a scale that is left for details finer than the next coarser scale.
# The regressions of two scales are fitted apart, so their difference may be negative.
_MIN_DETAIL_SHARE = 0.04
# Largest number of samples. The random numbers of samples with other seeds differ up to it.
_MAX_COUNT = 10_000


@dataclass(frozen=True)
class Scale:
    """Errors of one range of spatial frequencies.

    Attributes:
        std: standard deviation of these errors, `(1, C, H, W)`, in the unit of the cube.
        pattern: an example of them in units of `std`, `(1, C, H, W)`, with mean square 1.
    """

    std: Tensor
    pattern: Tensor


@dataclass(frozen=True)
class Samples:
    r"""Samples of a cube, computed when they are read.

        x_s = P(x ± Σ_l σ_l ⊙ T_s z_l)

    l is a scale, σ_l the standard deviation of errors of this scale, and z_l their pattern in units
    of it, as `Scale` has them. T_s moves a pattern by a random distance, the same for all scales,
    cyclically. So samples contain the correlation of the method's errors on this scene, in space
    and between bands. The samples 2i and 2i + 1 have the same T and opposite signs, so the mean of
    all samples of an answer that is linear in the cube is the answer of the cube.

    P makes a sample consistent with the measurement: three times, negative values are set to 0, and
    a data step solves A x_s = y − n_s. n_s is white noise of the level that the bootstrap
    estimates, see `cassi.uncertainty.bootstrap.BootstrapResult.noise`.

    A sample depends on the seed and on its index, but not on the count. Memory is taken for one
    sample at a time.

    Attributes:
        count: number of samples, even.
        x: the cube `(1, C, H, W)`.
        scales: errors by scale, the coarsest first.
        y: measurement `(1, K, H', W')` that is consistent with x up to the residual.
        system: the camera.
        noise: standard deviation of the noise, in the unit of y.
        seed: seed of shifts and noise.
        convert: function that converts a cube `(1, C, H, W)` into another unit.
    """

    count: int
    x: Tensor
    scales: tuple[Scale, ...]
    y: Tensor
    system: System
    noise: float
    seed: int = 0
    convert: Callable[[Tensor], Tensor] | None = field(default=None, compare=False)

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.count

    def __iter__(self) -> Iterator[Tensor]:
        """Compute one sample after the other."""
        return (self[index] for index in range(self.count))

    @torch.no_grad()
    def __getitem__(self, index: int) -> Tensor:
        """Compute a sample `(C, H, W)`.

        Raises:
            IndexError: there is no such sample.
        """
        if not 0 <= index < self.count:
            raise IndexError(f"samples: expected an index below {self.count}, got {index}")
        pair, sign = index // 2, 1 - 2 * (index % 2)
        random = torch.Generator().manual_seed(self.seed * _MAX_COUNT + pair)
        shifts = [int(torch.randint(0, n, (), generator=random)) for n in self.x.shape[-2:]]
        x = self.x.clone()
        for scale in self.scales:
            x += sign * scale.std * scale.pattern.roll(shifts, (-2, -1))
        random.manual_seed(-1 - self.seed * _MAX_COUNT - index)
        noise = torch.randn(self.y.shape, generator=random).to(self.y)
        target = self.system.without_bad_pixels(self.y - self.noise * noise)
        for _ in range(_ROUNDS):
            x = self.system.data_step(x.clamp_min(0), target, self._damping)
        return (x if self.convert is None else self.convert(x))[0]

    @cached_property
    def _damping(self) -> float:
        gain = self.system(self.system.adjoint(torch.ones_like(self.y)))
        return _DAMPING * float(gain.mean())

    @property
    def cube(self) -> Tensor:
        """The cube `(1, C, H, W)` in the unit of the samples."""
        return self.x if self.convert is None else self.convert(self.x)

    def converted(self, convert: Callable[[Tensor], Tensor]) -> Samples:
        """Return samples in another unit.

        Args:
            convert: converts a cube `(1, C, H, W)` from the unit of the camera.
        """
        return replace(self, convert=convert)

    def stack(self) -> Tensor:
        """Return all samples, `(S, C, H, W)`."""
        return torch.stack(list(self))


@torch.no_grad()
def draw_samples(
    result: BootstrapResult,
    system: System,
    level: float,
    std: Tensor,
    models: Mapping[int, ErrorModel],
    count: int,
    seed: int = 0,
) -> Samples:
    """Return samples of a cube from the errors that a bootstrap estimated.

    The errors of the repeated reconstruction are divided into details, and means over squares of
    `SIDES`. A regression for each side predicts the standard deviation of such means. Errors of
    means are larger than those of the repeated reconstruction: the cube is smoother than the truth,
    so the repeated reconstruction has less to lose.

    Args:
        result: result of the bootstrap.
        system: the camera.
        level: signal level of the measurement, in the unit of the cube.
        std: standard deviation of every value, `(1, C, H, W)`, in the unit of the cube.
        models: regressions for means over squares, by side > 1; on the device of the cube.
        count: number of samples, even, at least 2.
        seed: seed of the samples.

    Raises:
        ValueError: `count` is odd, too small or too large.
    """
    check_count(count)
    sides = [1, *(side for side in models if side <= min(result.x.shape[-2:]) / 2)]
    scales: list[Scale] = []
    coarse_error, coarse_variance = torch.zeros_like(std), torch.zeros_like(std)
    for side in sorted(sides, reverse=True):
        error = mean_around_pixels(result.repeated_error, side)
        deviation = std if side == 1 else _predict(result, system, level, side, models[side])
        variance = deviation.square()
        detail = (variance - coarse_variance).clamp_min(_MIN_DETAIL_SHARE * variance).sqrt()
        pattern = (error - coarse_error) / detail
        tiny = torch.finfo(pattern.dtype).tiny
        pattern = pattern / pattern.square().mean().sqrt().clamp_min(tiny)
        scales.append(Scale(detail, pattern))
        coarse_error, coarse_variance = error, variance
    y = system(result.x) + result.residual
    return Samples(count, result.x, tuple(scales), y, system, result.noise, seed)


def check_count(count: int) -> None:
    """Refuse a number of samples that is odd, less than 2, or more than 10,000."""
    if not 2 <= count <= _MAX_COUNT or count % 2:
        raise ValueError(f"samples: expected an even number from 2 to {_MAX_COUNT}, got {count}")


def _predict(
    result: BootstrapResult, system: System, level: float, side: int, model: ErrorModel
) -> Tensor:
    """Return σ of means over squares around every pixel, in the unit of the cube."""
    features = Features(result, system, level, side)
    std = (model.predict(features)[0] * model.excess(features) * level).to(result.x.dtype)
    height, width = result.x.shape[-2:]
    size = (std.shape[-2] * side, std.shape[-1] * side)
    return F.interpolate(std, size=size, mode="bilinear")[..., :height, :width]
