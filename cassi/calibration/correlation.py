"""Correlation of a frame with a mask: where the mask lies, and where its light ends."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import conv1d, conv2d, pad

from cassi.camera.light_model import outer_offsets
from cassi.systems.psf import fast_length

SEARCH_PIXELS = 16
"""Radius of the search for a mask, pixels."""
MAX_BANDS = 8
"""If every band has its own mask, at most this many masks are correlated. More masks give the same
peak."""
# Half the width of the window whose mean is subtracted. Coarser structures belong to the scene.
_CONTRAST_PIXELS = 4
# An image is divided by its local contrast. This share of the mean squared contrast is added to
# each squared local contrast. Otherwise noise of dark parts would count as much as bright parts.
_MIN_CONTRAST = 0.05
# Rows farther than this from the peak have chance correlation only.
_PEAK_PIXELS = 6
# Lag beyond which a mask has no correlation with itself.
_MASK_PIXELS = 8
# Number of strips of a frame. Fits without one strip each give the standard error (jackknife).
_STRIPS = 4
# Samples per pixel of the offsets at which the spectrum is integrated.
_SAMPLES_PER_PIXEL = 4
# Number of cosines whose sum is the spectrum between the ends. Cosine k has the penalty
# _SMOOTHNESS·(1 + k), because spectra of scenes are smooth.
_COSINES = 10
_SMOOTHNESS = 0.003
# The brightness at an end is evaluated this far inside of the end, relative to the distance between
# the ends.
_EDGE_FRACTION = 0.05
# Distance of neighbouring trial shifts of the ends, pixels.
_SHIFT_STEP = 1 / 16
# Part of the standard error of a bright end, pixels, that the scatter of the strips does not show.
# Its cause is that real spectra are less smooth than the cosines.
_END_ERROR = 0.1
# Trial variances of the blur of the mask in the frame, pixels².
_BLUR_VARIANCES = (0.0, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Peak:
    """The highest peak of the correlation of a frame with a mask.

    Attributes:
        score: mean correlation over the bands at the peak.
        row_shift: shift of the mask down, whole pixels.
        column_shift: approximate shift of the mask along the dispersion, whole pixels.
        row_fraction: fraction of a pixel to be added to `row_shift`.
        chance: the highest score in rows that are too far from the peak to show the mask.
    """

    score: float
    row_shift: int
    column_shift: int
    row_fraction: float
    chance: float


def flatten(image: Tensor, good_pixels: Tensor | None = None) -> Tensor:
    """Return the local contrast of an image: zero mean, about unit variance in every 9×9 pixels.

    Args:
        image: image `(…, H, W)`.
        good_pixels: pixels that count, shaped like the image; the others become 0. None: all.
    """
    if good_pixels is None:
        mean = _box_mean(image)
        contrast = image - mean
    else:
        share = _box_mean(good_pixels.to(image)).clamp_min(1e-6)
        contrast = torch.where(
            good_pixels, image - _box_mean(torch.where(good_pixels, image, 0)) / share, 0
        )
    energy = _box_mean(contrast.square())
    scale = energy + _MIN_CONTRAST * energy.mean() + torch.finfo(image.dtype).tiny
    return contrast / scale.sqrt()


class Correlation:
    r"""The correlation of a frame with masks.

        C(δ) = Σ_p ỹ(p + δ) m̃(p) / Σ_p m̃(p)²

    is computed from the local contrasts ỹ and m̃ (`flatten`). A frame is a sum of masks, each
    shifted by the offset of its band and multiplied by light, which is not negative. So along the
    dispersion C is the mean spectrum, convolved with the correlation of the mask with itself.
    Elsewhere C is chance.

    Args:
        y: frames `(B, K, H', W')`, dispersion along the last axis.
        good_pixels: pixels that count, shaped like y; None: all.
    """

    def __init__(self, y: Tensor, good_pixels: Tensor | None = None) -> None:
        self.shape = y.shape[-2:]
        # All samples have the same mask, so their contrasts are added: (K, H', W').
        self.y = flatten(y.float(), good_pixels).sum(0)
        self.size = tuple(
            fast_length(length + SEARCH_PIXELS + _MASK_PIXELS) for length in self.shape
        )
        self.transformed = torch.fft.rfft2(self.y, s=self.size)

    def find(self, mask: Tensor, offsets: Sequence[float]) -> Peak:
        """Return the highest peak within `SEARCH_PIXELS` of the nominal place of a mask.

        Args:
            mask: mask of the camera, `(K, 1|C, H, W)`.
            offsets: nominal offsets of the bands, pixels.
        """
        is_shared = mask.shape[1] == 1
        count = len(offsets)
        bands = range(count) if is_shared else _choose_evenly(count, MAX_BANDS)
        total = self.y.new_zeros(2 * SEARCH_PIXELS + 1, 2 * SEARCH_PIXELS + 1)
        shared_image = self._correlate(mask[:, 0]) if is_shared else None
        for band in bands:
            image = self._correlate(mask[:, band]) if shared_image is None else shared_image
            start = round(offsets[band])
            rows = (
                torch.arange(-SEARCH_PIXELS, SEARCH_PIXELS + 1, device=image.device)
                % image.shape[0]
            )
            columns = torch.arange(
                start - SEARCH_PIXELS, start + SEARCH_PIXELS + 1, device=image.device
            )
            total += image[rows][:, columns % image.shape[1]]
        return _find_peak(total / len(bands))

    def _correlate(self, mask: Tensor) -> Tensor:
        contrast = flatten(mask.float())
        mask_spectrum = torch.fft.rfft2(contrast, s=self.size).conj()
        correlation = torch.fft.irfft2((self.transformed * mask_spectrum).sum(0), s=self.size)
        return correlation / contrast.square().sum().clamp_min(1e-30)

    def correlate_strips(self, mask: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Correlate strips of the frame with the mask, along the dispersion only.

        Args:
            mask: mask `(K, H, W)`.
            first: first offset, pixels.
            last: last offset, pixels.

        Returns:
            Correlation of each strip at the offsets, `(P, last − first + 1)`, and correlation of
            the mask with itself at −8 to 8 pixels; both float64.
        """
        contrast = flatten(mask.float())
        rows = contrast.shape[-2] // _STRIPS * _STRIPS
        size = fast_length(
            self.shape[1]
            + max(last - self.shape[1] + contrast.shape[-1], 0)
            + 2 * SEARCH_PIXELS
            + _MASK_PIXELS
        )
        transforms = [torch.fft.rfft(value[:, :rows], n=size) for value in (self.y, contrast)]
        mask_transform = transforms[1].conj()
        cross, autocorrelation = (
            torch.fft.irfft(
                (transform * mask_transform).unflatten(1, (_STRIPS, -1)).sum((0, 2)), n=size
            ).double()
            for transform in transforms
        )
        columns = torch.arange(first, last + 1, device=cross.device) % size
        lags = torch.arange(-_MASK_PIXELS, _MASK_PIXELS + 1, device=cross.device) % size
        energy = autocorrelation[:, :1].clamp_min(1e-30)
        total_energy = autocorrelation[:, 0].sum().clamp_min(1e-30)
        return cross[:, columns] / energy, autocorrelation[:, lags].sum(0) / total_energy


def find_bright_end(
    correlation: Correlation, mask: Tensor, offsets: Sequence[float], reach: int = 2
) -> tuple[float, float]:
    """Find the brighter end of the light along the dispersion.

    The model of the correlation along the dispersion is

        C(δ) = ∫_first^last s(o) a(δ − o) do

    a is the correlation of the mask with itself. The spectrum s is a sum of a few cosines between
    the ends. The nominal bands give the distance between the ends. Both ends are shifted together,
    to the least squared misfit.

    Args:
        correlation: correlation of the frame.
        mask: mask `(K, H, W)`.
        offsets: nominal offsets of the bands, pixels.
        reach: largest shift, pixels.

    Returns:
        The offset at which the light ends, half a band beyond the outermost one, and its standard
        error, pixels.
    """
    # Only the brighter end is used. Estimates of the dim end were up to 22 pixels off
    # (docs/development/experiments/calibration.md). The error of an end is larger in weaker light.
    first, last = outer_offsets(sorted(offsets))
    margin = SEARCH_PIXELS + _MASK_PIXELS
    low, high = math.floor(first) - margin, math.ceil(last) + margin
    parts, autocorrelation = correlation.correlate_strips(mask, low, high)
    profiles = torch.cat(_jackknife_means(parts)).mT
    shifts = torch.arange(
        -reach,
        reach + _SHIFT_STEP,
        _SHIFT_STEP,
        dtype=autocorrelation.dtype,
        device=autocorrelation.device,
    )
    fits = [_ProfileFit(autocorrelation, low, high, blur) for blur in _BLUR_VARIANCES]
    misfits = [fit.misfits(profiles, first + shifts, last + shifts) for fit in fits]
    fit, misfit = min(zip(fits, misfits, strict=True), key=lambda pair: float(pair[1][:, 0].min()))
    shift, *strip_shifts = shifts[misfit.argmin(0)].tolist()
    n_strips = len(strip_shifts)
    jackknife_error = float(torch.tensor(strip_shifts).std(correction=0)) * (n_strips - 1) ** 0.5
    levels = fit.levels(profiles[:, :1], first + shift, last + shift)
    end = first if levels[0] > levels[1] else last
    return end + shift, math.hypot(jackknife_error, _END_ERROR) / min(max(*levels, 1e-3), 1.0)


def _jackknife_means(parts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of all strips `(1, D)`, and the means without one of them `(P, D)`."""
    mean = parts.mean(0, keepdim=True)
    return mean, (len(parts) * mean - parts) / (len(parts) - 1)


class _ProfileFit:
    """Fits spectra between two ends to profiles of the correlation, by least squares."""

    def __init__(self, autocorrelation: Tensor, low: int, high: int, blur: float) -> None:
        if blur:
            lags = torch.arange(-3, 4).to(autocorrelation)
            kernel = torch.softmax(-lags.square() / (2 * blur), 0)
            autocorrelation = conv1d(pad(autocorrelation[None, None], (3, 3)), kernel[None, None])[
                0, 0
            ]
        self.autocorrelation = autocorrelation
        self.offsets = torch.arange(low, high + 1).to(autocorrelation)
        self.positions = (
            torch.arange((high - low) * _SAMPLES_PER_PIXEL + 1).to(autocorrelation)
            / _SAMPLES_PER_PIXEL
            + low
        )
        self.codes = self._mask_at(self.positions)
        self.orders = torch.arange(_COSINES).to(autocorrelation)

    def _mask_at(self, offsets: Tensor) -> Tensor:
        """Return the profile of a mask at each offset, by interpolation: `(…, O)` → `(…, O, D)`."""
        lags = self.offsets - offsets[..., None] + _MASK_PIXELS
        left = lags.floor().clamp(0, 2 * _MASK_PIXELS - 1).long()
        value = torch.lerp(self.autocorrelation[left], self.autocorrelation[left + 1], lags - left)
        return torch.where((lags >= 0) & (lags <= 2 * _MASK_PIXELS), value, 0)

    def misfits(self, profiles: Tensor, first: Tensor, last: Tensor) -> Tensor:
        """Return the squared misfits `(E, N)` of profiles `(D, N)` with the ends `(E,)`."""
        right_side, weights = self._solve(profiles, first, last)
        return profiles.square().sum(0) - (right_side * weights).sum(1)

    def levels(self, profile: Tensor, first: float, last: float) -> tuple[float, float]:
        """Return the brightness near both ends, relative to the mean."""
        ends = self.autocorrelation.new_tensor([[first], [last]])
        weights = self._solve(profile, *ends)[1][0, :-1, 0]
        edge_values = torch.cos(math.pi * self.orders * _EDGE_FRACTION) * weights
        mean = float(weights[0].clamp_min(1e-30))
        # Cosines of odd order have the opposite sign at the last end.
        last_values = edge_values * (1 - 2 * (self.orders % 2))
        return float(edge_values.sum()) / mean, float(last_values.sum()) / mean

    def _solve(self, profiles: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        width = (last - first)[:, None]
        is_lit = ((self.positions - first[:, None]) * _SAMPLES_PER_PIXEL + 0.5).clamp(0, 1)
        is_lit *= ((last[:, None] - self.positions) * _SAMPLES_PER_PIXEL + 0.5).clamp(0, 1)
        phase = (self.positions - first[:, None]) / width
        spectra = torch.cos(math.pi * self.orders[:, None] * phase[:, None]) * is_lit[:, None]
        design = spectra @ self.codes  # (E, S, D)
        # The contrast of a coarse scene adds a constant to the profile.
        design = torch.cat([design, torch.ones_like(design[:, :1])], 1)
        size = design[:, 0].square().sum(1)[:, None]
        penalty = torch.zeros_like(design[..., 0])
        penalty[:, :-1] = size * (_SMOOTHNESS * (1 + self.orders)).square()
        normal = design @ design.mT + torch.diag_embed(penalty + 1e-9 * size)
        right_side = design @ profiles
        return right_side, torch.linalg.solve(normal, right_side)


def _find_peak(score: Tensor) -> Peak:
    row, column = divmod(int(score.argmax()), score.shape[1])
    is_far = (torch.arange(len(score), device=score.device) - row).abs() > _PEAK_PIXELS
    fraction = 0.0
    if 0 < row < len(score) - 1:
        value_above, value, value_below = score[row - 1 : row + 2, column].tolist()
        fraction = (value_below - value_above) / (
            2 * max(2 * value - value_above - value_below, 1e-12)
        )
    chance = float(score[is_far].max())
    return Peak(
        float(score[row, column]), row - SEARCH_PIXELS, column - SEARCH_PIXELS, fraction, chance
    )


def _box_mean(image: Tensor) -> Tensor:
    shape = image.shape
    padded_image = pad(image.reshape(-1, 1, *shape[-2:]), (_CONTRAST_PIXELS,) * 4, mode="replicate")
    kernel = padded_image.new_full(
        (1, 1, 2 * _CONTRAST_PIXELS + 1, 1), 1 / (2 * _CONTRAST_PIXELS + 1)
    )
    # Two convolutions take a fifth of the time of avg_pool2d.
    return conv2d(conv2d(padded_image, kernel), kernel.mT).reshape(shape)


def _choose_evenly(count: int, max_count: int) -> list[int]:
    if count <= max_count:
        return list(range(count))
    return [round(k * (count - 1) / (max_count - 1)) for k in range(max_count)]
