"""Measurements of training cubes: random masks, dispersions and noise, on the cubes' device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from cassi.checks import whole_number
from cassi.data.masks import FixedMask, MaskCrops, MaskSource, MixedMasks, RandomMasks
from cassi.systems import SDCassi
from cassi.systems.arguments import as_step

__all__ = [
    "FixedMask",
    "MaskCrops",
    "MixedMasks",
    "Noise",
    "RandomMasks",
    "Simulator",
    "WhiteNoise",
]


class Noise(Protocol):
    """Noise of a sensor, added to a measurement."""

    def __call__(self, y: Tensor, bands: int, generator: torch.Generator) -> Tensor:
        """Return the noisy measurement, shaped like y `(B, K, H', W')`, in the same unit."""
        ...


class WhiteNoise:
    """Gaussian noise of one standard deviation at every pixel; nothing is clipped.

    Args:
        snr_db: signal-to-noise ratio, 10·log10(mean(y²)/σ²), one number, or a range (low, high)
            from which each sample draws its own.
        sigma: σ in the unit of y (a cube in [0, 1] gives y up to the number of bands), one number
            or a range.

    Raises:
        ValueError: not exactly one of the two is given, or it is neither a number nor a range.
    """

    def __init__(
        self,
        snr_db: float | Sequence[float] | None = None,
        sigma: float | Sequence[float] | None = None,
    ) -> None:
        if (snr_db is None) == (sigma is None):
            raise ValueError(f"expected snr_db or sigma, got snr_db={snr_db!r}, sigma={sigma!r}")
        self.snr_db = None if snr_db is None else _range("snr_db", snr_db)
        self.sigma = None if sigma is None else _range("sigma", sigma)
        if self.sigma is not None and self.sigma[0] < 0:
            raise ValueError(f"sigma: expected at least 0, got {sigma!r}")

    def __call__(self, y: Tensor, bands: int, generator: torch.Generator) -> Tensor:
        """Add noise to y `(B, K, H', W')`."""
        low, high = self.sigma or self.snr_db or (0.0, 0.0)
        random = generator_on(y.device, generator)
        drawn = torch.rand((len(y), 1, 1, 1), generator=random, device=y.device, dtype=y.dtype)
        sigma = low + (high - low) * drawn
        if self.snr_db is not None:
            power = y.square().mean((1, 2, 3), keepdim=True)
            sigma = (power * 10 ** (-sigma / 10)).sqrt()
        noise = torch.randn(y.shape, generator=random, device=y.device, dtype=y.dtype)
        return torch.addcmul(y, noise, sigma)


class Simulator:
    """Measures cubes with cameras whose masks come from a source.

    Args:
        masks: source of masks, or one mask for all.
        step: dispersion in pixels per band, whole or not; of several, each batch draws one.
        axis: -1 disperses along columns, -2 along rows.
        offsets: one shift per band in pixels, instead of the step.
        detector: pixels of the detector along the axis, for cubes as large as the mask of the
            source. For cubes of another size it differs by the same number of pixels, so that as
            much light is lost at the border of a crop as at the border of the mask.
        noise: of the sensor; none by default.

    Raises:
        TypeError: a step is no number.
        ValueError: no step, an unknown axis, or a detector and no mask that it belongs to.

    >>> simulator = Simulator(torch.ones(4, 6), step=[1, 2])
    >>> y, system = simulator(torch.ones(2, 3, 4, 6), torch.Generator().manual_seed(0))
    >>> y.shape == (2, *system.measurement_shape)
    True
    """

    def __init__(
        self,
        masks: MaskSource | Tensor,
        *,
        step: float | Sequence[float] = 2,
        axis: int = -1,
        offsets: Sequence[float] | None = None,
        detector: int | None = None,
        noise: Noise | None = None,
    ) -> None:
        self.masks: MaskSource = FixedMask(masks) if isinstance(masks, Tensor) else masks
        self.steps: tuple[float, ...] = tuple(step) if isinstance(step, Sequence) else (step,)
        if not self.steps:
            raise ValueError("step: expected at least one, got none")
        for one in self.steps:
            as_step(one)
        if axis not in (-1, -2):
            raise ValueError(f"axis: expected -1 (columns) or -2 (rows), got {axis!r}")
        self.axis, self.noise = axis, noise
        self.offsets = None if offsets is None else tuple(offsets)
        self.margin: int | None = None
        if detector is not None:
            mask = getattr(self.masks, "mask", None)
            if mask is None:
                raise ValueError(
                    "detector: expected a given mask with it, got "
                    f"{type(self.masks).__name__}; leave detector=null"
                )
            self.margin = whole_number("detector", detector, 1) - mask.shape[axis]
        self._kept: dict[object, SDCassi] = {}

    @torch.no_grad()
    def __call__(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, SDCassi]:
        """Measure cubes x `(B, C, H, W)` on any device.

        The same state of the generator gives the same bits; one on the CPU serves every device.

        Returns:
            y `(B, K, H', W')` and the camera that made it, both on x's device. The camera has a
            mask per sample, `(B, K, 1|C, H, W)`, if the source draws one.

        Raises:
            ValueError: the mask does not fit the cubes.
        """
        if x.ndim != 4:
            raise ValueError(f"x: expected cubes (B, C, H, W), got shape {tuple(x.shape)}")
        if self.offsets is not None and len(self.offsets) != x.shape[1]:
            raise ValueError(
                f"offsets: expected {x.shape[1]} values, one per band of the cubes, got "
                f"{len(self.offsets)}"
            )
        step = self.steps[0]
        if len(self.steps) > 1:
            where = generator.device
            chosen = torch.randint(len(self.steps), (), generator=generator, device=where)
            step = self.steps[int(chosen)]
        system = self._system(x, step, generator)
        y = system(x)
        return (y if self.noise is None else self.noise(y, x.shape[1], generator)), system

    def _system(self, x: Tensor, step: float, generator: torch.Generator) -> SDCassi:
        batch, bands, height, width = x.shape
        key = (step, bands, height, width, x.dtype, x.device)
        if key in self._kept:
            return self._kept[key]
        # A camera that validation made in inference mode must serve training too.
        with torch.inference_mode(False), torch.no_grad():
            # Made on the CPU and then moved: the camera's check of its mask would wait for a GPU.
            mask = self.masks.draw(batch, height, width, generator, "cpu").to(x.dtype)
            mask = mask[0] if len(mask) == 1 else mask
            detector = None if self.margin is None else x.shape[self.axis] + self.margin
            system = SDCassi(mask, bands, step, self.axis, self.offsets, detector).to(x.device)
        if isinstance(self.masks, FixedMask):
            self._kept[key] = system
        return system


def generator_on(device: torch.device, generator: torch.Generator) -> torch.Generator:
    """Return the generator on its own device; on another device, one that it seeds."""
    if generator.device == device:
        return generator
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    return torch.Generator(device).manual_seed(int(seed))


def _range(name: str, value: float | Sequence[float]) -> tuple[float, float]:
    limits = (value, value) if isinstance(value, int | float) else tuple(value)
    if len(limits) != 2 or not limits[0] <= limits[1]:
        raise ValueError(f"{name}: expected a number or (low, high), got {value!r}")
    return float(limits[0]), float(limits[1])
