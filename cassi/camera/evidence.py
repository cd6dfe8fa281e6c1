r"""How probable is a frame under a camera? The log evidence of small windows of the detector.

In a window of N pixels, band c of the scene is x_c(p) = a·b_c(p), a Gaussian process over bands and
pixels with the covariance

    ⟨b_c(p) b_d(q)⟩ = K_cd [(1 − r) + r·exp(−|p − q|/ℓ)]

So the window's pixels y = Σ_c T_c b_c + noise are N(0, a² S), with T_c the mask of band c where it
falls on the detector. S = B Bᵀ + D: the columns of B are the strongest products of a spectral and a
spatial component, and stray light; the diagonal D has noise and all weaker products. The amplitude
a of each window is profiled:

    log p(y) = −N/2 · log(yᵀ S⁻¹ y / N) − ½ log det S

The second moment K of the spectra is that of ordinary scenes, K₀, to begin with. Light, sensor and
scene differ, so K is estimated from the frame under each camera by expectation maximisation, with
an inverse Wishart prior that weighs K₀ like `TRUST` windows. A camera is so compared with
another one beside the spectra that suit it, and pays for spectra that no scene has.

Source: O'Hagan and Kingman, "Curve fitting and optimal design for prediction", Journal of the Royal
Statistical Society B 40 (1978), for Gaussian processes; Dempster, Laird and Rubin, "Maximum
likelihood from incomplete data via the EM algorithm", ibid. 39 (1977).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from cassi.systems.coded import CodedSystem

MOMENT = Path(__file__).with_name("moment.json")
"""Second moment of spectra, made by scripts/data/spectra.py of CAVE's training scenes."""
WINDOW = (8, 32)
"""Pixels across and along the dispersion. Shorter ones tell spectra and code apart worse."""
LEAST = 8
"""Windows that errors are estimated from: fewer do not show how much they scatter."""
WINDOWS = 24
"""Windows that a frame is judged by: time rises with them, and standard errors fall."""
ROUGH, LENGTH = 0.15, 30.0
"""Share r of the variance within a window, and its length ℓ, pixels."""
TRUST = 30.0
"""Windows that K₀ weighs."""
UPDATES = 3
"""Steps of expectation maximisation."""
WHITE = 0.05
"""Share of K₀ without any relation between bands: light in lines."""
STRAY, TEXTURE, NOISE = 0.03, 1 / 300, 0.005
"""Light without code and variance that no smooth scene explains, of a window's; noise, of the
frame's root mean square."""
_PAIRS = 24  # products of components beyond the constant ones
_LIT = 0.05  # of the median energy, in a window that is looked at


@dataclass(frozen=True)
class Optics:
    """What falls where, dispersion along the last axis.

    Attributes:
        masks: transmission, `(K, 1|C, H, W)` on the CPU; interpolated linearly between pixels.
        offsets: of the bands, pixels `(C,)`, float64.
        down: pixels by which the masks lie lower than their files.
    """

    masks: Tensor
    offsets: Tensor
    down: float = 0.0

    def moved(self, down: float, right: float) -> Optics:
        """Return the same with the mask lower, and mask and bands farther along the dispersion."""
        return replace(self, down=self.down + down, offsets=self.offsets + right)

    def stretched(self, factor: float) -> Optics:
        """Return the same with the bands so many times as far from the middle of the dispersion."""
        middle = self.offsets[[0, -1]].mean()
        return replace(self, offsets=middle + factor * (self.offsets - middle))


class Verdict(NamedTuple):
    """Log evidence.

    Attributes:
        windows: of each window, nats `(W,)`.
        prior: of the second moment of the spectra, nats.
    """

    windows: Tensor
    prior: float

    @property
    def total(self) -> float:
        """Sum, nats."""
        return float(self.windows.sum()) + self.prior

    def over(self, other: Verdict) -> tuple[float, float]:
        """Return by how many nats this is more, and that over its standard error.

        The standard error is that of a sum of differences between windows. It holds what the model
        misses: a difference that a few windows make is not sure.
        """
        apart = self.windows - other.windows
        total = float(apart.sum()) + self.prior - other.prior
        if len(apart) < 2:  # nothing tells how sure one window is
            return total, 0.0
        error = float(apart.std()) * len(apart) ** 0.5
        return total, total / max(error, 1e-9)


@lru_cache(maxsize=16)
def ordinary_spectra(wavelengths: tuple[float, ...]) -> Tensor:
    """Return F with F Fᵀ = `ordinary_moment`, the strongest column first, `(C, C)` float64."""
    return strongest(ordinary_moment(wavelengths))


def ordinary_moment(wavelengths: Sequence[float]) -> Tensor:
    """Return the second moment of ordinary spectra of root mean square 1, `(C, C)` float64.

    Beyond the wavelengths of the statistics spectra stay as they are.
    """
    values = json.loads(MOMENT.read_text())
    at, factor = values["wavelengths"], np.asarray(values["factor"])
    rows = np.stack([np.interp(wavelengths, at, row) for row in factor])
    moment = torch.from_numpy(rows.T @ rows)
    return moment / moment.diagonal().mean()


def spectra_moment(wavelengths: Sequence[float]) -> Tensor:
    """Return K₀: the second moment of ordinary spectra, and light in lines."""
    moment = ordinary_moment(wavelengths)
    white = torch.eye(len(moment), dtype=moment.dtype)
    return ((1 - WHITE) * moment + WHITE * white).contiguous()


class Windows:
    """Windows of frames, on the CPU: small matrices in float64.

    `wanted` tells of corners `(W, 2)` and the shape of windows which of them may be chosen. Where
    the bands of the camera fall is not looked at.

    Raises:
        ValueError: no window is lit, or fewer than `LEAST` of those that are wanted.
    """

    def __init__(
        self,
        y: Tensor,
        system: CodedSystem,
        good: Tensor | None = None,
        count: int = WINDOWS,
        wanted: Callable[[Tensor, tuple[int, int]], Tensor] | None = None,
    ) -> None:
        turned = system.turn(y).double().cpu()
        lit = torch.ones_like(turned, dtype=torch.bool)
        if good is not None:
            lit = system.turn(good).cpu().expand_as(turned)
        rows, columns = (min(n, have) for n, have in zip(WINDOW, turned.shape[-2:], strict=True))
        self.shape = rows, columns
        cut = torch.where(lit, turned, 0).unfold(2, rows, rows).unfold(3, columns, columns)
        kept = lit.unfold(2, rows, rows).unfold(3, columns, columns).flatten(-2)
        energy = cut.square().mean((-2, -1))  # (B, K, R, Q)
        usable = (energy > _LIT * energy.median()) & (kept.double().mean(-1) > 0.5)
        at = torch.nonzero(usable)
        if not len(at):
            raise ValueError("evidence: expected a frame with light, no window has any")
        corner = at[:, 2:] * torch.tensor([rows, columns])
        if wanted is not None:
            of_use = wanted(corner, self.shape)
            at, corner = at[of_use], corner[of_use]
            if len(at) < LEAST:
                raise ValueError(
                    f"calibration: expected at least {LEAST} lit windows of {rows}×{columns} "
                    f"pixels that all light reaches through the mask, got {len(at)}; take a larger "
                    "or brighter frame"
                )
        chosen = _spread(len(at), count)
        at = at[chosen]
        self.y = cut[tuple(at.T)].flatten(1)  # (W, N)
        self.good = kept[tuple(at.T)]
        self.sample, self.shot = at[:, 0], at[:, 1]
        self.corner = corner[chosen]
        self.power = float(energy[usable].mean())
        self.down, self.along = (each.flatten() for each in _grid(rows, columns))
        self.share, self.maps = _roughness(rows, columns)

    def products(self, factor: Tensor, count: int) -> Products:
        """Return the strongest products of spatial components and the spectral ones of a factor."""
        strength = factor.square().sum(0)
        product = (self.share[:, None] * strength).flatten()
        top = product.argsort(descending=True)[:count]
        kept = torch.zeros_like(product).index_fill(0, top, 1.0).unflatten(0, (-1, len(strength)))
        rest = (1 - self.maps.square() @ kept).clamp_min(0)
        return Products(top // len(strength), top % len(strength), rest)

    def gaussian(
        self,
        spectral: Tensor,
        products: Products,
        rough: Tensor,
        noise: float | Tensor,
        white: float | Tensor = 0.0,
    ) -> Gaussian:
        """Return the Gaussian of each window.

        `spectral` has the spectral components of its pixels `(W, N, R)`, `rough` its share of
        roughness `(W,)`, `noise` that over what is usual, and `white` further variance `(W, N)`.
        """
        power = spectral.square()
        pixels = self.good.sum(1)
        level = power.sum((1, 2)) / pixels
        level = level.clamp_min(1e-9 * level.amax().clamp_min(1e-30))
        seen = (self.y.square().sum(1) / pixels).clamp_min(1e-9 * self.power)
        noise = noise * (TEXTURE + NOISE**2 * self.power / seen)
        share = rough[:, None, None]
        columns = torch.cat(
            [
                (1 - share) ** 0.5 * spectral,
                share**0.5 * spectral[..., products.spectral] * self.maps[:, products.spatial],
                STRAY * level.sqrt()[:, None, None] * self.good[..., None],
            ],
            -1,
        )
        rest = rough[:, None] * (power * products.rest).sum(-1) + (level * noise)[:, None] + white
        rest = torch.where(self.good, rest, 1.0)
        return Gaussian(columns, rest, level, noise, self.good)


class Products(NamedTuple):
    """Products of a spatial and a spectral component that are columns of B."""

    spatial: Tensor
    spectral: Tensor
    rest: Tensor  # (N, R), share of the variance that no column has


class Gaussian(NamedTuple):
    """The Gaussian of each window: S = B Bᵀ + D."""

    columns: Tensor  # B, (W, N, ·)
    rest: Tensor  # D, (W, N)
    level: Tensor  # (W,), mean variance
    noise: Tensor  # (W,), share of it
    good: Tensor

    def solve(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the factor of I + BᵀD⁻¹B, a² `(W, Q)`, BᵀS⁻¹y, S⁻¹y and D⁻¹B."""
        over = self.columns / self.rest[..., None]
        inner = over.mT @ self.columns
        inner.diagonal(dim1=1, dim2=2).add_(1.0)
        chol = torch.linalg.cholesky_ex(inner).L
        mean = torch.cholesky_solve(over.mT @ y, chol)
        residual = (y - self.columns @ mean) / self.rest[..., None]
        amplitude = (y * residual).sum(1) / self.good.sum(1)[:, None]
        return chol, amplitude.clamp_min(1e-30), mean, residual, over

    def draw(self, count: int, random: torch.Generator) -> Tensor:
        """Return windows that are drawn from it, `(W, N, count)`."""
        within = torch.randn(len(self.rest), self.columns.shape[2], count, generator=random)
        noise = torch.randn(*self.rest.shape, count, generator=random).double()
        noise = noise * self.rest.sqrt()[..., None]
        return (self.columns @ within.double() + noise) * self.good[..., None]

    def nats(self, chol: Tensor, amplitude: Tensor) -> Tensor:
        """Return −N/2·log a² − ½·log det S of the frame that was seen."""
        logs = torch.where(self.good, self.rest.log(), 0).sum(1) / 2
        logs = logs + chol.diagonal(dim1=1, dim2=2).log().sum(1)
        return -self.good.sum(1) / 2 * amplitude[:, 0].log() - logs


def _grid(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return the rows and columns of the pixels of a window, `(rows, columns)` each."""
    down, along = (torch.arange(n, dtype=torch.float64) for n in (rows, columns))
    return down[:, None].expand(-1, columns), along.expand(rows, -1)


@cache
def _roughness(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return the components of what is rough within a window of this shape.

    Returns:
        Shares of the variance `(N,)`, the largest first, and maps `(N, N)`, a column each.
    """
    down, along = (each.flatten() for each in _grid(rows, columns))
    apart = torch.hypot(down[:, None] - down, along[:, None] - along)
    share, maps = torch.linalg.eigh(torch.exp(-apart / LENGTH))
    share = share.flip(0).clamp_min(0)
    return share / len(share), maps.flip(1) * share.sqrt()


class Evidence(Windows):
    """Windows of a frame, ready to be asked how probable they are under a camera.

    Raises:
        ValueError: no window is lit.
    """

    def __init__(
        self,
        y: Tensor,
        system: CodedSystem,
        good: Tensor | None = None,
        wavelengths: Sequence[float] | None = None,
        count: int = WINDOWS,
    ) -> None:
        super().__init__(y, system, good, count)
        bands = system.bands
        self.moment = spectra_moment(wavelengths or np.linspace(450, 650, bands).tolist())

    def codes(self, optics: Optics) -> Tensor:
        """Return the mask of each band on the windows' pixels, `(W, C, N)`.

        A mask pixel at (r, c) falls at (r + down, c + offset).
        """
        masks = optics.masks
        height, width = (length - 1 for length in masks.shape[-2:])
        down = (self.corner[:, :1] + self.down)[:, None] - optics.down
        along = (self.corner[:, 1:] + self.along)[:, None] - optics.offsets[:, None]  # (W, C, N)
        place = torch.stack((along * 2 / width - 1, (down * 2 / height - 1).expand_as(along)), -1)
        place = place.transpose(0, 1).to(masks.dtype)  # (C, W, N, 2)
        bands = len(place)
        found = masks.new_zeros(place.shape[:3])
        for shot in self.shot.unique().tolist():
            chosen = self.shot == shot
            image = masks[shot][:, None].expand(bands, -1, -1, -1)
            found[:, chosen] = grid_sample(image, place[:, chosen], align_corners=True)[:, 0]
        return found.transpose(0, 1) * self.good[:, None]

    @torch.no_grad()
    def __call__(self, optics: Optics, updates: int = UPDATES) -> Verdict:
        """Return the log evidence of a camera.

        Without updates the second moment of the spectra is that of ordinary scenes.
        """
        codes = self.codes(optics).double()
        first = strongest(self.moment)
        factor, light = first, torch.ones_like(first[:, :1])
        for _ in range(updates):
            factor, light = self._learn(codes, factor, first)
        windows, *_ = self._evaluate(codes, factor)
        return Verdict(windows, _prior(factor @ factor.mT, light * first))

    def _evaluate(self, codes: Tensor, factor: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return nats of each window, amplitude², inverse and mean of the constant components."""
        spectral = codes.mT @ factor  # (W, N, C)
        rough = self.y.new_full((len(self.y),), ROUGH)
        gaussian = self.gaussian(spectral, self.products(factor, _PAIRS), rough, 1.0)
        chol, amplitude, mean, *_ = gaussian.solve(self.y[..., None])
        dark = gaussian.level <= 1e-9 * gaussian.level.amax()
        nats = torch.where(dark, 0.0, gaussian.nats(chol, amplitude))
        return nats, amplitude[:, 0], chol, mean[..., 0]

    def _learn(self, codes: Tensor, factor: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step of expectation maximisation.

        The light is free: λ_c² = S_cc/K₀_cc, with the mean S of the windows' second moments. Then
        K = (TRUST·λK₀λ + W·S)/(TRUST + W).

        Returns:
            A factor of the second moment of the spectra, and λ `(C, 1)`.
        """
        bands = factor.shape[1]
        _, amplitude, chol, mean = self._evaluate(codes, factor)
        spread = torch.cholesky_inverse(chol)[:, :bands, :bands].sum(0)
        mean = mean[:, :bands] / amplitude.sqrt()[:, None]
        seen = factor @ (spread + mean.mT @ mean) @ factor.mT
        light = (seen.diagonal() / len(codes) / self.moment.diagonal()).sqrt()[:, None]
        known = light * first
        found = (TRUST * known @ known.mT + seen) / (TRUST + len(codes))
        return strongest(found), light


def _spread(many: int, count: int) -> Tensor:
    """Return `count` of `many` numbers, evenly spread and not in step with any period."""
    if many <= count:
        return torch.arange(many)
    gap = many / count
    golden = (torch.arange(count) * 0.618034) % 1
    return ((torch.arange(count) + golden) * gap).long().clamp_max(many - 1)


def strongest(moment: Tensor) -> Tensor:
    """Return F with F Fᵀ = K, the strongest column first."""
    values, vectors = torch.linalg.eigh(moment)
    return vectors.flip(1) * values.flip(0).clamp_min(0).sqrt()


def _prior(moment: Tensor, first: Tensor) -> float:
    """Return the log of the inverse Wishart prior, over that of its mode, nats."""
    inverse = torch.linalg.inv(first)
    ratio = inverse @ moment @ inverse.mT
    bands = len(ratio)
    value = torch.linalg.inv(ratio).trace() + torch.logdet(ratio) - bands
    return float(-TRUST / 2 * value)
