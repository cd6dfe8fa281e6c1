"""Sparse wavelet coefficients."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cassi.checks import not_negative, whole_number


@dataclass(frozen=True)
class Wavelet:
    """Soft threshold of the wavelet details of every band.

        prior(x, σ) = argmin_u ½‖u − x‖² + weight·σ·Σ|details of Wu| = Wᵀ soft(Wx, weight·σ)

    W is orthogonal up to the border, with boundary filters; where a side is odd at some level it is
    extended by its last pixel, and the equation holds for the extended cube. With `shifts` > 1 the
    mean over so many circular shifts along the diagonal is taken (cycle spinning), which avoids the
    blocks of a single orthogonal transform but is no proximal map of a simple function.

    Args:
        weight: threshold per unit of σ, >= 0.
        wavelet: an orthogonal wavelet of PyWavelets: haar, db2, sym4, coif1, ….
        levels: of the transform; fewer where a side is shorter than the filters.
        shifts: number of shifts, 1 for the orthogonal transform.

    Raises:
        ValueError: a negative weight, a number below 1, or a wavelet that is not orthogonal.

    Source: Donoho, "De-noising by soft-thresholding", IEEE Trans. Information Theory 41(3), 1995;
    Coifman, Donoho, "Translation-invariant de-noising", 1995; boundary filters: Jensen, la
    Cour-Harbo, "Ripples in mathematics", 2001.
    """

    weight: float = 1.0
    wavelet: str = "db2"
    levels: int = 3
    shifts: int = 1

    def __post_init__(self) -> None:
        """Check the numbers and the name."""
        not_negative("Wavelet weight", self.weight)
        whole_number("Wavelet levels", self.levels, 1)
        whole_number("Wavelet shifts", self.shifts, 1)
        _check_wavelet(self.wavelet)

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Denoise a cube `(B, C, H, W)`; σ, in its units, is a number or one per sample."""
        return self.begin()(x, sigma)

    def penalty(self, x: Tensor, sigma: float | Tensor) -> Tensor | None:
        """Return weight·σ·Σ|details of Wx| of each sample `(B,)`; None with several shifts."""
        return self.begin().penalty(x, sigma)

    def begin(self) -> WaveletRun:
        """Return the prior of one run, which makes the matrices of its transform once."""
        import ptwt

        analysis = ptwt.MatrixWavedec2(self.wavelet, self.levels, odd_coeff_padding_mode="constant")
        return WaveletRun(self, analysis, ptwt.MatrixWaverec2(self.wavelet))


@dataclass(frozen=True)
class WaveletRun:
    """`Wavelet` with the matrices of its transform."""

    parameters: Wavelet
    analysis: Any
    synthesis: Any

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Denoise a cube, see `Wavelet`."""
        image = x.to(torch.promote_types(x.dtype, torch.float32))
        threshold = self.parameters.weight * torch.as_tensor(sigma, dtype=image.dtype)
        threshold = threshold.to(x.device).reshape(-1, 1, 1, 1)
        shifts = self.parameters.shifts
        total = torch.zeros_like(image)
        with _quiet():
            for shift in range(shifts):
                moved = image.roll((shift, shift), (-2, -1))
                total += self._shrink(moved, threshold).roll((-shift, -shift), (-2, -1))
        return (total / shifts).to(x.dtype)

    def penalty(self, x: Tensor, sigma: float | Tensor) -> Tensor | None:
        """Return what `Wavelet.penalty` does."""
        if self.parameters.shifts > 1:
            return None
        with _quiet():
            _, *details = self.analysis(x)
        total = x.new_zeros(len(x))
        for level in details:
            for band in level:
                total = total + band.abs().flatten(1).sum(1)
        return self.parameters.weight * sigma * total

    def _shrink(self, x: Tensor, threshold: Tensor) -> Tensor:
        approximation, *details = self.analysis(x)
        shrunk = [type(level)(*(_soft(band, threshold) for band in level)) for level in details]
        u: Tensor = self.synthesis((approximation, *shrunk))
        return u[..., : x.shape[-2], : x.shape[-1]]  # without what odd sides were extended by


def _soft(values: Tensor, threshold: Tensor) -> Tensor:
    return values - torch.maximum(torch.minimum(values, threshold), -threshold)


def _check_wavelet(name: str) -> None:
    import pywt

    if name not in pywt.wavelist(kind="discrete") or not pywt.Wavelet(name).orthogonal:
        raise ValueError(
            f"Wavelet wavelet: expected an orthogonal one (haar, db2, sym4, coif1, …), got {name!r}"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    # torch announces that its sparse matrices are in beta.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse", category=UserWarning)
        yield
