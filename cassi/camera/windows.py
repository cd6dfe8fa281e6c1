"""Small windows of frames, and the Gaussian of their pixels, for `cassi.camera.evidence`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from cassi.systems.coded import CodedSystem

WINDOW_SHAPE = (8, 32)
"""Size of a window, pixels. first: across the dispersion; second: along it. In a window that is
shorter along the dispersion, spectra are harder to tell from the mask."""
MIN_WINDOWS = 8
"""Fewest windows of a fit. The scatter of fewer windows gives no reliable standard errors."""
MAX_WINDOWS = 24
"""Largest number of windows by which a frame is judged. More windows take more time and give
smaller standard errors."""
ROUGHNESS, CORRELATION_PIXELS = 0.15, 30.0
"""Texture of scenes within a window. first: its share r of the variance; second: its correlation
length ℓ, pixels. A larger r or a smaller ℓ allows scenes that change more within a window."""
STRAY_LEVEL = 0.03
"""Standard deviation of stray light, relative to the light of a window."""
TEXTURE_VARIANCE = 1 / 300
"""Variance of texture that changes from pixel to pixel, relative to the variance of a window."""
NOISE_LEVEL = 0.005
"""Standard deviation of the noise, relative to the root mean square of the frame."""
# Least energy of a window, relative to the median of all windows. Darker windows are mostly noise.
_MIN_ENERGY = 0.05


class Windows:
    """Windows of frames, as small matrices on the CPU.

    The choice of the windows does not depend on the bands of the camera. So all cameras are
    compared by one choice of windows.

    Args:
        y: frames `(B, K, H', W')`.
        system: a camera for the direction of the dispersion.
        good_pixels: pixels that count, shaped like one frame or all; None: all.
        count: largest number of windows.
        select: tells which windows may be used, from their corners `(W, 2)` and their shape.
        dtype: dtype of all matrices. D is at least `TEXTURE_VARIANCE` of the light, so errors of
            single precision are about 0.01 nats.

    Attributes:
        shape: rows and columns of a window.
        y: pixels of each window, `(W, N)`; bad pixels are 0.
        good_pixels: bool, `(W, N)`.
        sample: index of the sample of each window, `(W,)`.
        shot: index of the shot of each window, `(W,)`.
        corner: first row and first column of each window, `(W, 2)`.
        power: mean square of all windows with light.
        row_offsets: rows of the pixels within a window, `(N,)`.
        column_offsets: columns of the pixels within a window, `(N,)`.
        roughness_shares: variance of each spatial component, `(N,)`, the largest first.
        roughness_maps: spatial components, `(N, N)`, one per column.

    Raises:
        ValueError: no window is lit, or `select` leaves fewer than `MIN_WINDOWS`.
    """

    def __init__(
        self,
        y: Tensor,
        system: CodedSystem,
        good_pixels: Tensor | None = None,
        count: int = MAX_WINDOWS,
        select: Callable[[Tensor, tuple[int, int]], Tensor] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        frame = system.orient(y).double().cpu()
        is_good = torch.ones_like(frame, dtype=torch.bool)
        if good_pixels is not None:
            is_good = system.orient(good_pixels).cpu().expand_as(frame)
        rows, columns = (
            min(n, length) for n, length in zip(WINDOW_SHAPE, frame.shape[-2:], strict=True)
        )
        self.shape = rows, columns
        windows = torch.where(is_good, frame, 0).unfold(2, rows, rows).unfold(3, columns, columns)
        good_windows = is_good.unfold(2, rows, rows).unfold(3, columns, columns).flatten(-2)
        energy = windows.square().mean((-2, -1))  # (B, K, R, Q)
        is_lit = (energy > _MIN_ENERGY * energy.median()) & (good_windows.double().mean(-1) > 0.5)
        positions = torch.nonzero(is_lit)
        if not len(positions):
            raise ValueError("evidence: expected a frame with light, no window has any")
        corners = positions[:, 2:] * torch.tensor([rows, columns])
        if select is not None:
            is_selected = select(corners, self.shape)
            positions, corners = positions[is_selected], corners[is_selected]
            if len(positions) < MIN_WINDOWS:
                raise ValueError(
                    f"calibration: expected at least {MIN_WINDOWS} lit windows of {rows}×{columns} "
                    "pixels whose light all comes through the mask, "
                    f"got {len(positions)}; take a larger or brighter frame"
                )
        indices = _spread_indices(len(positions), count)
        positions = positions[indices]
        self.y = windows[tuple(positions.T)].flatten(1).to(dtype)  # (W, N)
        self.good_pixels = good_windows[tuple(positions.T)]
        self.sample, self.shot = positions[:, 0], positions[:, 1]
        self.corner = corners[indices]
        self.power = float(energy[is_lit].mean())
        self.row_offsets, self.column_offsets = (
            coordinate.flatten() for coordinate in _pixel_grid(rows, columns)
        )
        self.roughness_shares, self.roughness_maps = (
            value.to(dtype) for value in _decompose_roughness(rows, columns)
        )

    def products(self, factor: Tensor, count: int) -> Products:
        """Return the strongest products of a spatial component and a column of a factor."""
        strength = factor.square().sum(0).to(self.y)
        variance = (self.roughness_shares[:, None] * strength).flatten()
        order = variance.argsort(descending=True)[:count]
        is_column = (
            torch.zeros_like(variance).index_fill(0, order, 1.0).unflatten(0, (-1, len(strength)))
        )
        remaining_shares = (1 - self.roughness_maps.square() @ is_column).clamp_min(0)
        return Products(
            order // len(strength),
            order % len(strength),
            remaining_shares,
        )

    def columns(self, spectral: Tensor, products: Products) -> Tensor:
        """Return the columns of B of each window, without their scales, `(W, N, ·)`.

        Args:
            spectral: spectral components of the pixels of each window, `(W, N, R)`.
            products: products that are columns of B.
        """
        rank = spectral.shape[2]
        columns = spectral.new_empty(*spectral.shape[:2], rank + len(products.spectral) + 1)
        columns[..., :rank] = spectral
        factors = (
            spectral.index_select(2, products.spectral),
            self.roughness_maps[:, products.spatial],
        )
        torch.mul(*factors, out=columns[..., rank:-1])
        columns[..., -1] = self.good_pixels
        return columns

    def gaussian(
        self,
        spectral: Tensor,
        columns: Tensor,
        products: Products,
        roughness: Tensor,
        noise: float | Tensor,
        white_variance: float | Tensor = 0.0,
    ) -> Gaussian:
        """Return the Gaussian of each window.

        Args:
            spectral: spectral components of the pixels of each window, `(W, N, R)`.
            columns: the `columns` of these components and products.
            products: products that are columns of B.
            roughness: share r of the variance within each window, `(W,)`.
            noise: variance of the noise of each window, relative to the nominal one, `(W,)`.
            white_variance: additional variance without correlation between pixels, `(W, N)`.
        """
        # The level of a window without light is 0. The lower limits below keep matrices regular.
        power = spectral.square()
        pixels = self.good_pixels.sum(1)
        level = power.sum((1, 2)) / pixels
        level = level.clamp_min(1e-9 * level.amax().clamp_min(1e-20))
        mean_power = (self.y.square().sum(1) / pixels).clamp_min(1e-9 * self.power)
        noise = noise * (TEXTURE_VARIANCE + NOISE_LEVEL**2 * self.power / mean_power)
        # The components, the products and the stray light have a scale each.
        scales = torch.cat(
            [
                (1 - roughness[:, None]).sqrt().expand(-1, spectral.shape[2]),
                roughness[:, None].sqrt().expand(-1, len(products.spectral)),
                STRAY_LEVEL * level.sqrt()[:, None],
            ],
            1,
        )
        residual_variance = (
            roughness[:, None] * (power * products.remaining_shares).sum(-1)
            + (level * noise)[:, None]
            + white_variance
        )
        residual_variance = torch.where(self.good_pixels, residual_variance, 1.0)
        return Gaussian(columns, scales, residual_variance, level, noise, self.good_pixels)


class Products(NamedTuple):
    """Products of a spatial and a spectral component that are columns of B."""

    spatial: Tensor  # index of the spatial component of each product
    spectral: Tensor  # index of the spectral component of each product
    remaining_shares: Tensor  # (N, R), share of the variance that is in no column


class Gaussian(NamedTuple):
    """The Gaussian of each window: S = B Bᵀ + D, B = U diag(s)."""

    columns: Tensor  # U, (W, N, ·)
    scales: Tensor  # s, (W, ·)
    residual_variance: Tensor  # D, (W, N)
    level: Tensor  # (W,), mean variance
    noise: Tensor  # (W,), variance of the noise, relative to the level
    good_pixels: Tensor  # (W, N)

    def solve(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the Cholesky factor of I + BᵀD⁻¹B, a² `(W, Q)`, BᵀS⁻¹y, S⁻¹y and D⁻¹U.

        y are the pixels of each window in Q frames, `(W, N, Q)`.
        """
        weighted_columns = self.columns / self.residual_variance[..., None]
        # By Woodbury's identity only matrices of the size of B's columns are factorized.
        inner_products = weighted_columns.mT @ self.columns
        inner_products.mul_(self.scales[:, :, None]).mul_(self.scales[:, None])
        inner_products.diagonal(dim1=1, dim2=2).add_(1.0)
        chol = torch.linalg.cholesky_ex(inner_products).L
        scales = self.scales[..., None]
        mean = torch.cholesky_solve(scales * (weighted_columns.mT @ y), chol)
        difference = y - self.columns @ (scales * mean)
        residual = difference / self.residual_variance[..., None]
        # yᵀS⁻¹y as a sum of squares: its terms do not cancel, so single precision suffices.
        square = (difference * residual).sum(1) + mean.square().sum(1)
        amplitude = square / self.good_pixels.sum(1)[:, None]
        return chol, amplitude.clamp_min(1e-30), mean, residual, weighted_columns

    def draw(self, count: int, random: torch.Generator) -> Tensor:
        """Draw `count` frames of each window from its Gaussian, `(W, N, count)`."""
        amplitudes = torch.randn(
            len(self.residual_variance), self.columns.shape[2], count, generator=random
        )
        noise = torch.randn(*self.residual_variance.shape, count, generator=random)
        noise = self.residual_variance.sqrt()[..., None] * noise
        amplitudes = self.scales[..., None] * amplitudes
        return (self.columns @ amplitudes + noise) * self.good_pixels[..., None]

    def nats(self, chol: Tensor, amplitude: Tensor) -> Tensor:
        """Return the log evidence −N/2·log a² − ½·log det S of each window, for the first frame."""
        logs = torch.where(self.good_pixels, self.residual_variance.log(), 0).sum(1) / 2
        logs = logs + chol.diagonal(dim1=1, dim2=2).log().sum(1)
        return (-self.good_pixels.sum(1) / 2 * amplitude[:, 0].log() - logs).double()


def _pixel_grid(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return the rows and columns of the pixels of a window, `(rows, columns)` each."""
    row_numbers, column_numbers = (torch.arange(n, dtype=torch.float64) for n in (rows, columns))
    return row_numbers[:, None].expand(-1, columns), column_numbers.expand(rows, -1)


@cache
def _decompose_roughness(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return the principal components of the roughness exp(−|p − q|/ℓ) in a window.

    Returns:
        Shares of the variance `(N,)`, the largest first, and maps `(N, N)`, a column each.
    """
    row_numbers, column_numbers = (
        coordinate.flatten() for coordinate in _pixel_grid(rows, columns)
    )
    distances = torch.hypot(
        row_numbers[:, None] - row_numbers, column_numbers[:, None] - column_numbers
    )
    shares, maps = torch.linalg.eigh(torch.exp(-distances / CORRELATION_PIXELS))
    shares = shares.flip(0).clamp_min(0)
    return shares / len(shares), maps.flip(1) * shares.sqrt()


def _spread_indices(total: int, count: int) -> Tensor:
    """Return `count` of the numbers 0 to `total` − 1, spread evenly."""
    if total <= count:
        return torch.arange(total)
    # If steps of equal length are a multiple of the windows in a row, all windows lie in one column
    # of the frame. The golden ratio adds a different fraction to each step.
    gap = total / count
    golden = (torch.arange(count) * 0.618034) % 1
    return ((torch.arange(count) + golden) * gap).long().clamp_max(total - 1)
