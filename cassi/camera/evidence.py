r"""Log evidence of a frame under a camera, by small windows of the detector.

In a window of N pixels, band c of the scene is x_c(p) = a·b_c(p). Here b is a Gaussian process over
bands and pixels with the covariance

    ⟨b_c(p) b_d(q)⟩ = K_cd [(1 − r) + r·exp(−|p − q|/ℓ)]

So the N pixels of a window, y = a (Σ_c T_c b_c + noise), are Gaussian with mean 0 and covariance
a² S. T_c is the mask of band c on the pixels of the detector. S = B Bᵀ + D. B has a column for
stray light, and one for each of the strongest products of a spectral and a spatial component. The
diagonal D is the variance of noise and of all weaker components and products. The amplitude a of
each window is the likeliest one, a² = yᵀ S⁻¹ y / N. Up to a constant this gives

    log p(y) = −N/2 · log(yᵀ S⁻¹ y / N) − ½ log det S

The second moment K of the spectra starts as that of ordinary scenes, K₀. But illuminant, sensor and
scene differ from frame to frame. So K is estimated from the frame for each camera, by expectation
maximisation with an inverse Wishart prior. The prior gives K₀ the weight of `PRIOR_WINDOWS`
windows. So each camera is judged with the spectra that fit it best, and spectra unlike those of
scenes lower its evidence.

Source: O'Hagan and Kingman, "Curve fitting and optimal design for prediction", Journal of the Royal
Statistical Society B 40 (1978), for Gaussian processes; Dempster, Laird and Rubin, "Maximum
likelihood from incomplete data via the EM algorithm", ibid. 39 (1977).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cassi.camera.windows import MAX_WINDOWS, ROUGHNESS, Products, Windows
from cassi.systems.coded import CodedSystem

MOMENT = Path(__file__).with_name("moment.json")
"""Second moment of spectra. scripts/data/spectra.py computes it from CAVE's training scenes."""
PRIOR_WINDOWS = 30.0
"""Weight of K₀, as a number of windows. A larger weight keeps the spectra nearer to K₀."""
EM_STEPS = 3
"""Steps of expectation maximisation. More steps fit the spectra better and take more time."""
LINE_FRACTION = 0.05
"""Share of K₀ for light in spectral lines, which is independent from band to band."""
SPECTRAL_COMPONENTS = 8
"""Largest number of spectral components that are columns of B. Weaker components are part of D."""
# Largest number of products of a spectral and a spatial component that are columns of B. Time rises
# with the square of this number. Weaker products are part of the diagonal D.
_MAX_PRODUCTS = 24


@dataclass(frozen=True)
class Optics:
    """Masks and offsets of the bands of a camera with the dispersion along the last axis.

    Attributes:
        masks: transmission, `(K, 1|C, H, W)` on the CPU; interpolated linearly between pixels.
        offsets: offsets of the bands, pixels `(C,)`, float64.
        row_shift: shift of the masks down relative to their files, pixels.
    """

    masks: Tensor
    offsets: Tensor
    row_shift: float = 0.0

    def moved(self, row_shift: float, column_shift: float) -> Optics:
        """Return optics with the mask lower, and with mask and bands farther to the right."""
        return replace(
            self, row_shift=self.row_shift + row_shift, offsets=self.offsets + column_shift
        )

    def stretched(self, factor: float) -> Optics:
        """Return optics whose bands are `factor` times as far from the middle of the dispersion."""
        middle = self.offsets[[0, -1]].mean()
        return replace(self, offsets=middle + factor * (self.offsets - middle))


class LogEvidence(NamedTuple):
    """Log evidence of a frame under a camera.

    Attributes:
        windows: log evidence of each window, nats `(W,)`.
        prior: log prior of the second moment of the spectra, nats.
    """

    windows: Tensor
    prior: float

    @property
    def total(self) -> float:
        """Log evidence of all windows with the prior, nats."""
        return float(self.windows.sum()) + self.prior

    def margin_over(self, reference: LogEvidence) -> tuple[float, float]:
        """Return this log evidence minus that of a reference, in nats and in standard errors.

        The standard error follows from the scatter of the differences over the windows. So it
        includes errors of the model. If only few windows differ, the margin is not significant.
        """
        differences = self.windows - reference.windows
        total = float(differences.sum()) + self.prior - reference.prior
        # The scatter of a single window is unknown, so its difference is never significant.
        if len(differences) < 2:
            return total, 0.0
        error = float(differences.std()) * len(differences) ** 0.5
        return total, total / max(error, 1e-9)


@lru_cache(maxsize=16)
def ordinary_spectra(wavelengths: tuple[float, ...]) -> Tensor:
    """Return F with F Fᵀ = `ordinary_moment`, the strongest column first, `(C, C)` float64."""
    return factorize(ordinary_moment(wavelengths))


def ordinary_moment(wavelengths: Sequence[float]) -> Tensor:
    """Return the second moment of ordinary spectra of root mean square 1, `(C, C)` float64.

    Outside of the wavelengths of the statistics, spectra are taken as constant.

    Args:
        wavelengths: nm, one per band.
    """
    values = json.loads(MOMENT.read_text())
    wavelengths_of_factor, factor = values["wavelengths"], np.asarray(values["factor"])
    rows = np.stack([np.interp(wavelengths, wavelengths_of_factor, row) for row in factor])
    moment = torch.from_numpy(rows.T @ rows)
    return moment / moment.diagonal().mean()


def spectra_moment(wavelengths: Sequence[float]) -> Tensor:
    """Return K₀ `(C, C)`: the second moment of ordinary spectra, with a share of spectral lines."""
    moment = ordinary_moment(wavelengths)
    lines = torch.eye(len(moment), dtype=moment.dtype)
    return ((1 - LINE_FRACTION) * moment + LINE_FRACTION * lines).contiguous()


class Evidence(Windows):
    """Log evidence of a frame, as a function of the camera.

    Args:
        y: frames `(B, K, H', W')`.
        system: a camera for the direction of the dispersion and the number of bands.
        good_pixels: pixels that count, shaped like one frame or all; None: all.
        wavelengths: nm, one per band; None: even from 450 to 650 nm.
        count: largest number of windows.
        dtype: dtype of all matrices, see `Windows`.

    Raises:
        ValueError: no window is lit.
    """

    def __init__(
        self,
        y: Tensor,
        system: CodedSystem,
        good_pixels: Tensor | None = None,
        wavelengths: Sequence[float] | None = None,
        count: int = MAX_WINDOWS,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(y, system, good_pixels, count, dtype=dtype)
        bands = system.bands
        self.set_wavelengths(wavelengths or np.linspace(450, 650, bands).tolist())
        # The masks of a comparison often lie at one row and at many columns.
        self._latest_strips: tuple[Tensor, float, Tensor] | None = None

    def set_wavelengths(self, wavelengths: Sequence[float]) -> None:
        """Take K₀ at other wavelengths, nm, one per band of the cameras to compare."""
        self.moment = spectra_moment(wavelengths)
        self.ordinary_factor = factorize(self.moment)
        self.ordinary_products = self._products(self.ordinary_factor)

    def codes(self, optics: Optics) -> Tensor:
        """Return the mask of each band on the windows' pixels, `(W, C, N)`.

        A mask pixel at (r, c) falls at (r + row_shift, c + offset).
        """
        strips = self._strips(optics.masks, optics.row_shift)
        bands, count = len(optics.offsets), self.shape[1] + 1
        first = self.corner[:, 1:] - optics.offsets  # (W, C), the column of the mask
        first_whole = first.floor()
        index = first_whole[..., None].long() + torch.arange(count)
        index = (index + 1).clamp(0, strips.shape[-1] - 1)[:, :, None]
        shape = len(strips), bands, self.shape[0]
        columns = strips.expand(*shape, -1).gather(-1, index.expand(*shape, -1))
        weight = (first - first_whole).to(self.y)[..., None, None]
        codes = torch.lerp(columns[..., :-1], columns[..., 1:], weight).flatten(2)
        return codes * self.good_pixels[:, None]

    def _strips(self, masks: Tensor, row_shift: float) -> Tensor:
        """Return the rows of the mask on the rows of each window, `(W, 1|C, rows, width + 2)`.

        There is a column of zeros at both ends.
        """
        if self._latest_strips is not None:
            latest_masks, latest_shift, strips = self._latest_strips
            if latest_masks is masks and latest_shift == row_shift:
                return strips
        padded = torch.nn.functional.pad(masks.to(self.y), (1, 1, 1, 1))
        first = self.corner[:, :1].double() - row_shift
        index = first.floor().long() + torch.arange(self.shape[0] + 1)
        index = (index + 1).clamp(0, padded.shape[-2] - 1)  # (W, rows + 1)
        rows = torch.stack(
            [padded[shot, :, i] for shot, i in zip(self.shot.tolist(), index, strict=True)]
        )
        weight = (first - first.floor()).to(self.y)[:, :, None, None]
        strips = torch.lerp(rows[..., :-1, :], rows[..., 1:, :], weight)
        self._latest_strips = masks, row_shift, strips
        return strips

    @torch.no_grad()
    def __call__(self, optics: Optics, em_steps: int = EM_STEPS) -> LogEvidence:
        """Return the log evidence of the frame under a camera.

        Args:
            optics: masks and offsets of the camera.
            em_steps: steps of expectation maximisation; 0: the spectra of ordinary scenes.
        """
        codes = self.codes(optics)
        factor, prior_factor = self.ordinary_factor, self.ordinary_factor
        for _ in range(em_steps):
            factor, prior_factor = self._update_spectra(codes, factor)
        windows, *_ = self._evaluate(codes, factor)
        prior = _log_prior(factor @ factor.mT, prior_factor) if em_steps else 0.0
        return LogEvidence(windows, prior)

    def _products(self, factor: Tensor) -> Products:
        return self.products(factor[:, :SPECTRAL_COMPONENTS], _MAX_PRODUCTS)

    def _evaluate(self, codes: Tensor, factor: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return nats, a², the Cholesky factor of I + BᵀD⁻¹B and the mean of the components."""
        spectral = codes.mT @ factor.to(self.y)  # (W, N, C)
        weak_variance = spectral[..., SPECTRAL_COMPONENTS:].square().sum(-1)
        spectral = spectral[..., :SPECTRAL_COMPONENTS]
        roughness = self.y.new_full((len(self.y),), ROUGHNESS)
        is_ordinary = factor is self.ordinary_factor
        products = self.ordinary_products if is_ordinary else self._products(factor)
        columns = self.columns(spectral, products)
        gaussian = self.gaussian(spectral, columns, products, roughness, 1.0, weak_variance)
        chol, amplitude, mean, *_ = gaussian.solve(self.y[..., None])
        # If no light of this camera reaches a window, the window counts neither for the camera nor
        # against it.
        is_dark = gaussian.level <= 1e-9 * gaussian.level.amax()
        nats = torch.where(is_dark, 0.0, gaussian.nats(chol, amplitude))
        return nats, amplitude[:, 0], chol, mean[..., 0]

    def _update_spectra(self, codes: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step of expectation maximisation.

        S is the mean of the windows' second moments. The illuminant λ has no prior:
        λ_c² = S_cc/K₀_cc. Then K = (P·λK₀λ + W·S)/(P + W), with P = `PRIOR_WINDOWS`.

        Returns:
            Factors of K and of λK₀λ, `(C, C)`.
        """
        strong_factor, weak_factor = factor.tensor_split([SPECTRAL_COMPONENTS], 1)
        count = strong_factor.shape[1]
        _, amplitude, chol, mean = self._evaluate(codes, factor)
        covariance = torch.cholesky_inverse(chol)[:, :count, :count].sum(0).double()
        mean = (mean[:, :count] / amplitude.sqrt()[:, None]).double()
        # The frame tells nothing of weak components.
        scatter = strong_factor @ (covariance + mean.mT @ mean) @ strong_factor.mT
        scatter = scatter + len(codes) * weak_factor @ weak_factor.mT
        illuminant = (scatter.diagonal() / len(codes) / self.moment.diagonal()).sqrt()[:, None]
        prior_factor = illuminant * self.ordinary_factor
        weights = PRIOR_WINDOWS + len(codes)
        moment = (PRIOR_WINDOWS * prior_factor @ prior_factor.mT + scatter) / weights
        return factorize(moment), prior_factor


def factorize(moment: Tensor) -> Tensor:
    """Return F with F Fᵀ = K, the strongest column first, both `(C, C)`."""
    values, vectors = torch.linalg.eigh(moment)
    return vectors.flip(1) * values.flip(0).clamp_min(0).sqrt()


def _log_prior(moment: Tensor, prior_factor: Tensor) -> float:
    """Return the log of the inverse Wishart prior, relative to that of its mode, nats."""
    inverse = torch.linalg.inv(prior_factor)
    ratio = inverse @ moment @ inverse.mT
    bands = len(ratio)
    value = torch.linalg.inv(ratio).trace() + torch.logdet(ratio) - bands
    return float(-PRIOR_WINDOWS / 2 * value)
