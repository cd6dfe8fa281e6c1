"""A model of a sensor: photon counts, noise, saturation, and a converter of a few bits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from cassi.checks import Rules, check_values, is_list, is_number, whole_number
from cassi.data.simulation import generator_on

_POSITIVE = ("a number > 0", lambda v: is_number(v) and v > 0)
_NOT_NEGATIVE = ("a number of at least 0", lambda v: is_number(v) and v >= 0)
_SWITCH = ("true or false", lambda v: isinstance(v, bool))
_VALUES: Rules = {
    **dict.fromkeys(("exposure", "gain"), _POSITIVE),
    "full_well": ("a number > 0, or null", lambda v: v is None or (is_number(v) and v > 0)),
    "qe": ("a quantum efficiency in (0, 1]", lambda v: is_number(v) and 0 < v <= 1),
    **dict.fromkeys(("read", "dark", "prnu", "hot_level", "offset"), _NOT_NEGATIVE),
    "shot": ("poisson, binomial or null", lambda v: v in ("poisson", "binomial", None)),
    "bits": ("1 to 24, or null", lambda v: v is None or (type(v) is int and 1 <= v <= 24)),
    **dict.fromkeys(("saturate", "raw"), _SWITCH),
    "hot": (
        "a fraction in [0, 1) or [[row, column], …]",
        lambda v: (
            all(is_list(pair, 2) for pair in v)
            if isinstance(v, Sequence) and not isinstance(v, str)
            else is_number(v) and 0 <= v < 1
        ),
    ),
}
"""What each value of a sensor must be, in words and as a test."""


@dataclass(frozen=True)
class Sensor:
    r"""A sensor, from the noise-free measurement y to the frame y' that it gives, in the unit of y.

        s  = exposure · 2 / C                                    s·y = 1 makes W electrons
        n  = ρ s y W / qe,  ρ = 1 + prnu · N(0, 1)               photons
        e  = Poisson(qe n), or Binomial(⌊n⌋, qe), or qe n        shot noise
        e' = min(e + Poisson(dark + hot), W)                     electrons of a pixel
        q  = clip(round((e' + read · N(0, 1)) / gain + offset), 0, 2^bits − 1)
        y' = ((q − offset) · gain − dark) / (s W)

    While nothing saturates, the mean of y' is y (hot pixels apart), and its variance is

        (f · e + dark + read² + gain²/12) / (s W)²,  e = s y W

    with f = 1 for Poisson, 1 − qe for Binomial (of a fixed number of photons), and 0 without shot
    noise. The defaults are the sensor with which publications on real captures train: 2^11
    electrons, Binomial, neither read noise nor saturation.

    Args:
        exposure: of the scale s; C / (2 · exposure) is the y that fills the pixel.
        qe: quantum efficiency, electrons per photon, in (0, 1]. It changes nothing with Poisson
            counts, whose mean ⟨e⟩ = qe n is set by the exposure.
        shot: "poisson", "binomial", or None for light without noise.
        full_well: W, electrons; None for gain · 2^bits.
        saturate: clip at the full well and at the converter's range; else neither.
        read: standard deviation of the read noise, electrons.
        dark: mean dark current of an exposure, electrons.
        prnu: relative standard deviation of the pixels' response, fixed.
        hot: fraction of hot pixels, in [0, 1), or their places [[row, column], …].
        hot_level: mean dark current of hot pixels beyond `dark`, in full wells.
        gain: electrons per count.
        offset: of the converter, counts; prevents the clipping of read noise at zero.
        bits: of the converter, 1 to 24; None does not round.
        raw: leave offset and dark current in the frame.
        seed: of the response and of the places of hot pixels, which are the same in every frame
            (and shot) of one size.

    Source: EMVA 1288, "Standard for characterization of image sensors and cameras", linear model,
    for the chain; Meng, Ma, Yuan, "End-to-end low cost compressive spectral imaging with
    spatial-spectral self-attention", 2020, and its public code for the defaults.

    >>> y = torch.full((1, 1, 100, 100), 5.0)
    >>> noisy = Sensor()(y, 28, torch.Generator().manual_seed(0))
    >>> round(noisy.mean().item(), 1)
    5.0
    """

    exposure: float = 1.2
    qe: float = 0.4
    shot: Literal["poisson", "binomial"] | None = "binomial"
    full_well: float | None = None
    saturate: bool = False
    read: float = 0.0
    dark: float = 0.0
    prnu: float = 0.0
    hot: float | Sequence[Sequence[int]] = 0.0
    hot_level: float = 0.5
    gain: float = 1.0
    offset: float = 0.0
    bits: int | None = 11
    raw: bool = False
    seed: int = 0
    _pattern: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_values(self, _VALUES)
        if self.bits is None and self.full_well is None:
            raise ValueError("full_well: expected electrons where bits is null, got none")
        whole_number("seed", self.seed, 0)

    @property
    def electrons(self) -> float:
        """W, the electrons at level 1."""
        return self.full_well if self.full_well is not None else self.gain * 2 ** (self.bits or 0)

    def unit(self, bands: int) -> float:
        """Return s·W, the electrons of y = 1."""
        return self.exposure * 2 / bands * self.electrons

    def __call__(self, y: Tensor, bands: int, generator: torch.Generator) -> Tensor:
        """Expose the sensor to y `(B, K, H', W')`; what is below 0 counts as dark.

        The same state of the generator gives the same shot, dark and read noise. The frame has the
        shape, unit and dtype of y.
        """
        unit, random = self.unit(bands), generator_on(y.device, generator)
        light = y.float().clamp(min=0)
        response, hot = self._fixed((y.shape[-2], y.shape[-1]))
        if self.prnu:
            light = light * response.to(y.device)
        counted = self._count(light, unit, random)
        if self.dark or hot.any():
            current = hot.to(y.device) * (self.hot_level * self.electrons) + self.dark
            current = current.expand_as(counted)
            counted = counted + (current if self.shot is None else torch.poisson(current, random))
        if self.saturate:
            counted = counted.clamp(max=self.electrons)
        if self.read:
            noise = torch.randn(y.shape, generator=random, device=y.device)
            counted = counted + self.read * noise
        return self._convert(counted).div_(unit).to(y.dtype)

    def _count(self, light: Tensor, unit: float, random: torch.Generator) -> Tensor:
        if self.shot == "binomial":
            photons = light.mul(unit / self.qe).floor_()
            chance = torch.full_like(photons, self.qe)
            return torch.binomial(photons, chance, generator=random)
        mean = light * unit
        return mean if self.shot is None else torch.poisson(mean, random)

    def _convert(self, electrons: Tensor) -> Tensor:
        """Electrons to counts, and those to the electrons that they stand for."""
        counts = electrons / self.gain + self.offset
        if self.bits is not None:
            counts = counts.round()
            if self.saturate:
                counts = counts.clamp(0, 2**self.bits - 1)
        if self.raw:
            return counts * self.gain
        return (counts - self.offset) * self.gain - self.dark

    def _fixed(self, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Response and hot pixels (0 or 1), both `(H', W')`, from the sensor's own seed."""
        if shape not in self._pattern:
            # On the CPU, whatever the device: one sensor has one pattern. Of each part alone, so
            # that switching one off leaves the other where it is.
            hot = torch.zeros(shape[0] * shape[1])
            if isinstance(self.hot, int | float):
                count = round(self.hot * len(hot))
                own = torch.Generator().manual_seed(self.seed)
                hot[torch.randperm(len(hot), generator=own)[:count]] = 1
            else:
                for row, column in self.hot:
                    if row >= shape[0] or column >= shape[1]:
                        got = [row, column]
                        raise ValueError(f"hot: expected pixels inside {shape}, got {got}")
                    hot[row * shape[1] + column] = 1
            own = torch.Generator().manual_seed(self.seed)
            response = (1 + self.prnu * torch.randn(shape, generator=own)).clamp_(min=0)
            self._pattern[shape] = response, hot.reshape(shape)
        return self._pattern[shape]
