"""Where the mask shows in a frame: its correlation with the mask, along the dispersion."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import conv1d, conv2d, pad

from cassi.camera.window_model import outer_offsets
from cassi.systems.psf import fast_length

REACH = 16
"""Pixels: how far the mask is looked for in both directions."""
BANDS = 8
"""Masks that are looked for, where every band has its own: more say the same."""
_LOCAL = 4  # half a window: what is coarser than it is scene, not mask
_FLOOR = 0.05  # of the mean contrast, so that plain dark parts are no louder than the others
_ALONE = 6  # pixels across the dispersion, after which a line of the score is chance
_OWN = 8  # pixels, after which a mask forgets itself
_PARTS = 4
_FINE = 4  # places of a pixel at which light may end
_SPECTRA = 10
_PENALTY = 0.003  # on cosine k, times 1 + k: scenes are smooth
_NEAR = 0.05  # of the width, from an end, where light is looked at
_SHIFT = 1 / 16  # pixels, from one to the next of these
_END = 0.1  # pixels, standard error of where bright light ends: a spectrum is not as smooth
_BLURS = (0.0, 0.25, 0.5, 1.0)  # pixels², of the mask in the frame beyond its own


@dataclass(frozen=True)
class Peak:
    """The highest peak of the correlation of a frame with a mask.

    Attributes:
        score: mean correlation over the bands, where it is greatest.
        down: pixels by which the mask lies lower there.
        along: pixels by which it lies further along the dispersion, roughly.
        fraction: of a pixel, to be added to `down`.
        chance: the greatest score where no mask is: more than a few pixels across the dispersion.
    """

    score: float
    down: int
    along: int
    fraction: float
    chance: float


def flatten(image: Tensor, good: Tensor | None = None) -> Tensor:
    """Take away what is coarser than a mask, and make the contrast even.

    Pixels that are not good become 0.

    Returns:
        As many pixels, with zero mean and about unit variance over every 9×9 of them.
    """
    if good is None:
        mean = _smooth(image)
        rest = image - mean
    else:
        share = _smooth(good.to(image)).clamp_min(1e-6)
        rest = torch.where(good, image - _smooth(torch.where(good, image, 0)) / share, 0)
    energy = _smooth(rest.square())
    scale = energy + _FLOOR * energy.mean() + torch.finfo(image.dtype).tiny
    return rest / scale.sqrt()


class Correlation:
    r"""Correlates a frame with masks.

        C(δ) = Σ_p ỹ(p + δ) m̃(p) / Σ_p m̃(p)²

    of local contrast (`flatten`). A frame is a sum of masks, each moved by the offset of its band
    and weighed by light that is nowhere negative: over a whole frame C is the mean spectrum along
    the dispersion, blurred by what the mask resembles itself, and chance everywhere else.
    """

    def __init__(self, y: Tensor, good: Tensor | None = None) -> None:
        self.shape = y.shape[-2:]
        self.y = flatten(y.float(), good).sum(0)  # (K, H, W'); the mask is the same in all samples
        self.size = tuple(fast_length(length + REACH + _OWN) for length in self.shape)
        self.transformed = torch.fft.rfft2(self.y, s=self.size)

    def find(self, mask: Tensor, offsets: Sequence[float]) -> Peak:
        """Look for a camera's mask."""
        shared = mask.shape[1] == 1
        count = len(offsets)
        chosen = range(count) if shared else _spaced(count, BANDS)
        total = self.y.new_zeros(2 * REACH + 1, 2 * REACH + 1)
        found = self._correlate(mask[:, 0]) if shared else None
        for band in chosen:
            image = self._correlate(mask[:, band]) if found is None else found
            start = round(offsets[band])
            rows = torch.arange(-REACH, REACH + 1, device=image.device) % image.shape[0]
            columns = torch.arange(start - REACH, start + REACH + 1, device=image.device)
            total += image[rows][:, columns % image.shape[1]]
        return _peak(total / len(chosen))

    def _correlate(self, mask: Tensor) -> Tensor:
        flat = flatten(mask.float())
        other = torch.fft.rfft2(flat, s=self.size).conj()
        whole = torch.fft.irfft2((self.transformed * other).sum(0), s=self.size)
        return whole / flat.square().sum().clamp_min(1e-30)

    def profile(self, mask: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Correlate along the dispersion only, in parts of the frame.

        Returns:
            Correlation of each part at the offsets first to last `(P, last − first + 1)`, and that
            of the mask with itself at −8 to 8 pixels; both float64.
        """
        flat = flatten(mask.float())
        rows = flat.shape[-2] // _PARTS * _PARTS
        size = fast_length(
            self.shape[1] + max(last - self.shape[1] + flat.shape[-1], 0) + 2 * REACH + _OWN
        )
        a, b = (torch.fft.rfft(value[:, :rows], n=size) for value in (self.y, flat))
        cross, own = (
            torch.fft.irfft(
                (value * b.conj()).unflatten(1, (_PARTS, -1)).sum((0, 2)), n=size
            ).double()
            for value in (a, b)
        )
        at = torch.arange(first, last + 1, device=cross.device) % size
        near = torch.arange(-_OWN, _OWN + 1, device=cross.device) % size
        energy = own[:, :1].clamp_min(1e-30)
        return cross[:, at] / energy, own[:, near].sum(0) / own[:, 0].sum().clamp_min(1e-30)


def find_bright_end(
    correlation: Correlation, mask: Tensor, offsets: Sequence[float], reach: int = 2
) -> tuple[float, float]:
    """Find where light ends at the brighter end of the bands, whose distance is known.

    Both ends are moved alike to where the profile fits best, by least squares:

        C(δ) = ∫_first^last s(o) a(δ − o) do

    with the mask's own correlation a, and a spectrum s of a few cosines between the ends.
    Where light breaks off from its mean level, that is known to a tenth of a pixel, and worse in
    proportion where it has faded.

    Returns:
        Where it ends, half a band beyond the outermost one, and its standard error, pixels.
    """
    first, last = outer_offsets(sorted(offsets))
    low, high = math.floor(first) - REACH - _OWN, math.ceil(last) + REACH + _OWN
    parts, own = correlation.profile(mask, low, high)
    profiles = torch.cat(_means(parts)).mT
    shifts = torch.arange(-reach, reach + _SHIFT, _SHIFT, dtype=own.dtype, device=own.device)
    fits = [_Profile(own, low, high, blur) for blur in _BLURS]
    misfits = [fit.misfits(profiles, first + shifts, last + shifts) for fit in fits]
    fit, misfit = min(zip(fits, misfits, strict=True), key=lambda pair: float(pair[1][:, 0].min()))
    moved, *others = shifts[misfit.argmin(0)].tolist()
    spread = float(torch.tensor(others).std(correction=0)) * (len(others) - 1) ** 0.5
    levels = fit.levels(profiles[:, :1], first + moved, last + moved)
    end = first if levels[0] > levels[1] else last
    return end + moved, math.hypot(spread, _END) / min(max(*levels, 1e-3), 1.0)


def _means(parts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of all parts `(1, D)`, and those without one of them `(P, D)`."""
    mean = parts.mean(0, keepdim=True)
    return mean, (len(parts) * mean - parts) / (len(parts) - 1)


class _Profile:
    """The least-squares fit of a profile between two ends."""

    def __init__(self, own: Tensor, low: int, high: int, blur: float) -> None:
        if blur:
            at = torch.arange(-3, 4).to(own)
            kernel = torch.softmax(-at.square() / (2 * blur), 0)
            own = conv1d(pad(own[None, None], (3, 3)), kernel[None, None])[0, 0]
        self.own = own
        self.offsets = torch.arange(low, high + 1).to(own)
        self.at = torch.arange((high - low) * _FINE + 1).to(own) / _FINE + low
        self.codes = self._mask_at(self.at)
        self.orders = torch.arange(_SPECTRA).to(own)

    def _mask_at(self, offsets: Tensor) -> Tensor:
        """Return the correlation of a mask that lies at an offset: `(…, O)` → `(…, O, D)`."""
        away = self.offsets - offsets[..., None] + _OWN
        left = away.floor().clamp(0, 2 * _OWN - 1).long()
        value = torch.lerp(self.own[left], self.own[left + 1], away - left)
        return torch.where((away >= 0) & (away <= 2 * _OWN), value, 0)

    def misfits(self, profiles: Tensor, first: Tensor, last: Tensor) -> Tensor:
        """Return what is left of profiles `(D, N)` between ends `(E,)`: squares `(E, N)`."""
        right, solved = self._solve(profiles, first, last)
        return profiles.square().sum(0) - (right * solved).sum(1)

    def levels(self, profile: Tensor, first: float, last: float) -> tuple[float, float]:
        """Return the light at both ends, over its mean."""
        ends = self.own.new_tensor([[first], [last]])
        weights = self._solve(profile, *ends)[1][0, :-1, 0]
        near = torch.cos(math.pi * self.orders * _NEAR) * weights
        mean = float(weights[0].clamp_min(1e-30))
        return float(near.sum()) / mean, float((near * (1 - 2 * (self.orders % 2))).sum()) / mean

    def _solve(self, profiles: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        width = (last - first)[:, None]
        inside = ((self.at - first[:, None]) * _FINE + 0.5).clamp(0, 1)
        inside *= ((last[:, None] - self.at) * _FINE + 0.5).clamp(0, 1)
        phase = (self.at - first[:, None]) / width
        spectra = torch.cos(math.pi * self.orders[:, None] * phase[:, None]) * inside[:, None]
        design = spectra @ self.codes  # (E, S, D)
        # What coarse scenes leave is level.
        design = torch.cat([design, torch.ones_like(design[:, :1])], 1)
        size = design[:, 0].square().sum(1)[:, None]
        penalty = torch.zeros_like(design[..., 0])
        penalty[:, :-1] = size * (_PENALTY * (1 + self.orders)).square()
        normal = design @ design.mT + torch.diag_embed(penalty + 1e-9 * size)
        right = design @ profiles
        return right, torch.linalg.solve(normal, right)


def _peak(score: Tensor) -> Peak:
    at = divmod(int(score.argmax()), score.shape[1])
    far = (torch.arange(len(score), device=score.device) - at[0]).abs() > _ALONE
    fraction = 0.0
    if 0 < at[0] < len(score) - 1:
        before, here, after = score[at[0] - 1 : at[0] + 2, at[1]].tolist()
        fraction = (after - before) / (2 * max(2 * here - before - after, 1e-12))
    chance = float(score[far].max())
    return Peak(float(score[at]), at[0] - REACH, at[1] - REACH, fraction, chance)


def _smooth(image: Tensor) -> Tensor:
    shape = image.shape
    wide = pad(image.reshape(-1, 1, *shape[-2:]), (_LOCAL,) * 4, mode="replicate")
    kernel = wide.new_full((1, 1, 2 * _LOCAL + 1, 1), 1 / (2 * _LOCAL + 1))
    return conv2d(conv2d(wide, kernel), kernel.mT).reshape(shape)  # a fifth of avg_pool2d's time


def _spaced(count: int, most: int) -> list[int]:
    if count <= most:
        return list(range(count))
    return [round(k * (count - 1) / (most - 1)) for k in range(most)]
