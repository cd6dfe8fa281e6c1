"""Simulate a sensor: photon counts, noise, saturation, and an analog-to-digital converter."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from cassi.checks import Rules, check_values, is_list, is_number, whole_number
from cassi.data.simulation import generator_on

_POSITIVE = ("a number > 0", lambda v: is_number(v) and v > 0)
_NON_NEGATIVE = ("a number of at least 0", lambda v: is_number(v) and v >= 0)
_SWITCH = ("true or false", lambda v: isinstance(v, bool))
# The condition of each setting, in words and as a test.
_RULES: Rules = {
    **dict.fromkeys(("exposure", "gain"), _POSITIVE),
    "full_well": ("a number > 0, or null", lambda v: v is None or (is_number(v) and v > 0)),
    "qe": ("a quantum efficiency in (0, 1]", lambda v: is_number(v) and 0 < v <= 1),
    **dict.fromkeys(("read", "dark", "prnu", "hot_level", "offset"), _NON_NEGATIVE),
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


@dataclass(frozen=True)
class Sensor:
    r"""A sensor: it turns the noise-free measurement y into a frame y' in the unit of y.

        s  = exposure · 2 / C                                    s·y = 1 makes W electrons
        n  = ρ s y W / qe,  ρ = 1 + prnu · N(0, 1)               photons
        e  = Poisson(qe n), or Binomial(⌊n⌋, qe), or qe n        shot noise
        e' = min(e + Poisson(dark + hot), W)                     electrons of a pixel
        q  = clip(round((e' + read · N(0, 1)) / gain + offset), 0, 2^bits − 1)
        y' = ((q − offset) · gain − dark) / (s W)

    If nothing saturates, the mean of y' is y except at hot pixels, and its variance is

        (f · e + dark + read² + gain²/12) / (s W)²,  e = s y W

    with f = 1 for Poisson, 1 − qe for Binomial (of a fixed number of photons), and 0 without shot
    noise. The defaults are the sensor with which publications on real captures train: 2^11
    electrons, Binomial, neither read noise nor saturation.

    Args:
        exposure: factor of the scale s. The value y = C / (2 · exposure) fills a pixel.
        qe: quantum efficiency, electrons per photon, in (0, 1]. It has no influence on Poisson
            counts: the exposure sets their mean ⟨e⟩ = qe n.
        shot: "poisson", "binomial", or None for light without noise.
        full_well: W, electrons; None for gain · 2^bits.
        saturate: whether values are clipped at the full well and at the range of the converter.
        read: standard deviation of the read noise, electrons.
        dark: mean dark current of an exposure, electrons.
        prnu: relative standard deviation of the pixels' response, which is the same in all frames.
        hot: fraction of hot pixels, in [0, 1), or their positions [[row, column], …].
        hot_level: mean dark current of hot pixels in addition to `dark`, in full wells.
        gain: electrons per count.
        offset: offset of the converter, counts; prevents the clipping of read noise at zero.
        bits: bits of the converter, 1 to 24; None does not round.
        raw: whether offset and dark current stay in the frame.
        seed: seed of the response and the positions of hot pixels. These are the same in every
            frame and shot of one size.

    Raises:
        ValueError: a setting is out of its range, or neither `full_well` nor `bits` is set.

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
    hot: float | Sequence[Sequence[int]] = 0.0  # name: a setting
    hot_level: float = 0.5
    gain: float = 1.0
    offset: float = 0.0
    bits: int | None = 11
    raw: bool = False
    seed: int = 0
    _fixed_patterns: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_values(self, _RULES)
        if self.bits is None and self.full_well is None:
            raise ValueError("full_well: expected electrons where bits is null, got none")
        whole_number("seed", self.seed, 0)

    @property
    def electrons(self) -> float:
        """W, the electrons of a full pixel."""
        return self.full_well if self.full_well is not None else self.gain * 2 ** (self.bits or 0)

    def unit(self, bands: int) -> float:
        """Return s·W, the electrons of y = 1."""
        return self.exposure * 2 / bands * self.electrons

    def __call__(self, y: Tensor, bands: int, generator: torch.Generator) -> Tensor:
        """Return a frame of y `(B, K, H', W')`, the measurement of a scene with C `bands`.

        Negative values of y count as 0. The same state of the generator gives the same shot, dark
        and read noise. The frame has the shape, unit and dtype of y.
        """
        electrons_per_unit, noise_generator = self.unit(bands), generator_on(y.device, generator)
        light = y.float().clamp(min=0)
        response, hot_pixels = self._draw_fixed_pattern((y.shape[-2], y.shape[-1]))
        if self.prnu:
            light = light * response.to(y.device)
        electrons = self._count_electrons(light, electrons_per_unit, noise_generator)
        if self.dark or hot_pixels.any():
            current = hot_pixels.to(y.device) * (self.hot_level * self.electrons) + self.dark
            current = current.expand_as(electrons)
            if self.shot is not None:
                current = torch.poisson(current, noise_generator)
            electrons = electrons + current
        if self.saturate:
            electrons = electrons.clamp(max=self.electrons)
        if self.read:
            noise = torch.randn(y.shape, generator=noise_generator, device=y.device)
            electrons = electrons + self.read * noise
        return self._digitize(electrons).div_(electrons_per_unit).to(y.dtype)

    def _count_electrons(
        self, light: Tensor, electrons_per_unit: float, noise_generator: torch.Generator
    ) -> Tensor:
        """Return the electrons that light releases, with shot noise."""
        if self.shot == "binomial":
            photons = light.mul(electrons_per_unit / self.qe).floor_()
            efficiency = torch.full_like(photons, self.qe)
            return torch.binomial(photons, efficiency, generator=noise_generator)
        mean = light * electrons_per_unit
        return mean if self.shot is None else torch.poisson(mean, noise_generator)

    def _digitize(self, electrons: Tensor) -> Tensor:
        """Round electrons to counts; return them in electrons, with offset and dark if `raw`."""
        counts = electrons / self.gain + self.offset
        if self.bits is not None:
            counts = counts.round()
            if self.saturate:
                counts = counts.clamp(0, 2**self.bits - 1)
        if self.raw:
            return counts * self.gain
        return (counts - self.offset) * self.gain - self.dark

    def _draw_fixed_pattern(self, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Draw the response and the hot pixels (0 or 1) by the sensor's seed, both `(H', W')`."""
        if shape not in self._fixed_patterns:
            # The pattern is drawn on the CPU, so that it is the same on every device. Response and
            # hot pixels have generators of their own, so that a change of one does not change the
            # other.
            hot_pixels = torch.zeros(shape[0] * shape[1])
            if isinstance(self.hot, int | float):
                count = round(self.hot * len(hot_pixels))
                generator = torch.Generator().manual_seed(self.seed)
                hot_pixels[torch.randperm(len(hot_pixels), generator=generator)[:count]] = 1
            else:
                for row, column in self.hot:
                    if row >= shape[0] or column >= shape[1]:
                        position = [row, column]
                        raise ValueError(f"hot: expected pixels inside {shape}, got {position}")
                    hot_pixels[row * shape[1] + column] = 1
            generator = torch.Generator().manual_seed(self.seed)
            response = (1 + self.prnu * torch.randn(shape, generator=generator)).clamp_(min=0)
            self._fixed_patterns[shape] = response, hot_pixels.reshape(shape)
        return self._fixed_patterns[shape]
