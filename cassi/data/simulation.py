"""Simulate measurements of training cubes, with random masks, dispersion and noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Generator, Tensor

from cassi.checks import whole_number
from cassi.data.atomic import digest_content
from cassi.systems import SDCassi, System, check_mask
from cassi.systems.arguments import as_step

__all__ = [
    "FixedMask",
    "MaskCrops",
    "MixedMasks",
    "Noise",
    "RandomMasks",
    "Simulator",
    "WhiteNoise",
    "scene_generator",
]


class Noise(Protocol):
    """Noise of a sensor, added to a measurement."""

    def __call__(self, y: Tensor, bands: int, generator: torch.Generator) -> Tensor:
        """Return the noisy measurement, shaped like y `(B, K, H', W')`, in the same unit."""


def scene_generator(seed: int, name: str) -> torch.Generator:
    """Return the random generator of one scene, which depends only on the seed and the name."""
    first_bytes = bytes.fromhex(digest_content([f"{seed}/{name}"])[:16])
    return torch.Generator().manual_seed(int.from_bytes(first_bytes, "little") >> 1)


class WhiteNoise:
    """Gaussian noise with the same standard deviation at all pixels; nothing is clipped.

    Args:
        snr_db: signal-to-noise ratio, 10·log10(mean(y²)/σ²), one number, or a range (low, high)
            from which a value is drawn for each sample.
        sigma: σ in the unit of y (a cube in [0, 1] gives y up to the number of bands), one number
            or a range.

    Raises:
        ValueError: neither or both arguments are set, or an argument is neither a number nor a
            range.
    """

    def __init__(
        self,
        snr_db: float | Sequence[float] | None = None,
        sigma: float | Sequence[float] | None = None,
    ) -> None:
        if (snr_db is None) == (sigma is None):
            raise ValueError(f"expected snr_db or sigma, got snr_db={snr_db!r}, sigma={sigma!r}")
        self.snr_db = None if snr_db is None else _check_range("snr_db", snr_db)
        self.sigma = None if sigma is None else _check_range("sigma", sigma)
        if self.sigma is not None and self.sigma[0] < 0:
            raise ValueError(f"sigma: expected at least 0, got {sigma!r}")

    def __call__(self, y: Tensor, bands: int, generator: torch.Generator) -> Tensor:
        """Add noise to y `(B, K, H', W')`."""
        low, high = self.sigma or self.snr_db or (0.0, 0.0)
        noise_generator = generator_on(y.device, generator)
        options: dict[str, Any] = {
            "generator": noise_generator,
            "device": y.device,
            "dtype": y.dtype,
        }
        setting = low + (high - low) * torch.rand((len(y), 1, 1, 1), **options)
        if self.snr_db is None:
            sigma = setting
        else:
            power = y.square().mean((1, 2, 3), keepdim=True)
            sigma = (power * 10 ** (-setting / 10)).sqrt()
        noise = torch.randn(y.shape, **options)
        return torch.addcmul(y, noise, sigma)


class Simulator:
    """Simulates measurements of cubes by cameras whose masks come from a source.

    Args:
        masks: source of masks, or one mask for all.
        step: dispersion in pixels per band, whole or not. If there are several steps, one is drawn
            for each batch.
        axis: -1 disperses along columns, -2 along rows.
        offsets: one shift per band in pixels, instead of the step.
        detector: pixels of the detector along the axis, for cubes of the size of the mask. For
            crops the detector is smaller by as many pixels as the crop is smaller than the mask. So
            a crop loses as much light at its border as a cube of the full size.
        noise: noise of the sensor; none by default.

    Raises:
        TypeError: a step is no number.
        ValueError: no step, an unknown axis, or a detector although the source has no mask of its
            own.

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
        for pixels_per_band in self.steps:
            as_step(pixels_per_band)
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
        self._fixed_systems: dict[object, SDCassi] = {}

    @torch.no_grad()
    def __call__(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, System]:
        """Measure cubes x `(B, C, H, W)` on any device.

        The same state of the generator gives the same bits. A generator on the CPU serves cubes on
        any device.

        Returns:
            y `(B, K, H', W')` and the camera that made it, both on x's device. The camera has a
            mask per sample, `(B, K, 1|C, H, W)`, if the source draws one.
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
            device = generator.device
            index = torch.randint(len(self.steps), (), generator=generator, device=device)
            step = self.steps[int(index)]
        system = self._make_system(x, step, generator)
        y = system(x)
        return (y if self.noise is None else self.noise(y, x.shape[1], generator)), system

    def _make_system(self, x: Tensor, step: float, generator: torch.Generator) -> SDCassi:
        """Return a camera for cubes x; the camera of a fixed mask is made once for each size."""
        batch, bands, height, width = x.shape
        key = (step, bands, height, width, x.dtype, x.device)
        if key in self._fixed_systems:
            return self._fixed_systems[key]
        # The camera of a fixed mask is kept. Validation may make it in inference mode, but training
        # cannot use tensors of inference mode. So that mode is switched off here.
        with torch.inference_mode(False), torch.no_grad():
            # The camera is made on the CPU and then moved, because on a GPU its check of the mask
            # would wait for all queued kernels.
            mask = self.masks.draw(batch, height, width, generator).to(x.dtype)
            mask = mask[0] if len(mask) == 1 else mask
            detector = None if self.margin is None else x.shape[self.axis] + self.margin
            system = SDCassi(mask, bands, step, self.axis, self.offsets, detector).to(x.device)
        if isinstance(self.masks, FixedMask):
            self._fixed_systems[key] = system
        return system


def generator_on(device: torch.device, generator: torch.Generator) -> torch.Generator:
    """Return the generator if it is on the device, else a new one there, seeded by it."""
    if generator.device == device:
        return generator
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    return torch.Generator(device).manual_seed(int(seed))


def _check_range(name: str, value: float | Sequence[float]) -> tuple[float, float]:
    limits = (value, value) if isinstance(value, int | float) else tuple(value)
    if len(limits) != 2 or not limits[0] <= limits[1]:
        raise ValueError(f"{name}: expected a number or (low, high), got {value!r}")
    return float(limits[0]), float(limits[1])


class MaskSource(Protocol):
    """Draws masks; all its random numbers come from the generator."""

    def draw(self, batch: int, height: int, width: int, generator: Generator) -> Tensor:
        """Draw the masks for a batch of B cubes of `height` and `width` pixels.

        Returns:
            Transmission in [0, 1], `(B, K, 1|C, H, W)`, or `(1, K, 1|C, H, W)` for all cubes.
        """


class FixedMask:
    """The same mask for all cubes: the mask of one camera.

    Args:
        mask: transmission in [0, 1], `(H, W)`, `(C, H, W)` or `(K, 1|C, H, W)`.

    Raises:
        ValueError: the mask has another number of axes, or cannot code a scene (see `check_mask`).
    """

    def __init__(self, mask: Tensor) -> None:
        self.mask = _as_shots(mask)

    def draw(self, batch: int, height: int, width: int, generator: Generator) -> Tensor:
        """Return the mask `(1, K, 1|C, H, W)`; the cubes must have its size."""
        if tuple(self.mask.shape[-2:]) != (height, width):
            raise ValueError(
                f"expected cubes of the mask's size {tuple(self.mask.shape[-2:])}, got "
                f"{(height, width)}; take MaskCrops with "
                "data.simulator.masks._target_=cassi.data.simulation.MaskCrops, or change data.crop"
            )
        return self.mask[None]


class MaskCrops:
    """Crops of one mask at random positions, drawn for each sample.

    A mask that is smaller than the cubes is continued by its mirror images.

    Args:
        mask: transmission in [0, 1], shaped as for `FixedMask`.
        flip: mirror the rows with probability 1/2, and independently the columns.

    Raises:
        ValueError: the mask is one that `FixedMask` refuses.
    """

    def __init__(self, mask: Tensor, flip: bool = True) -> None:
        self.mask, self.flip = _as_shots(mask), flip

    def draw(self, batch: int, height: int, width: int, generator: Generator) -> Tensor:
        """Draw a crop for each sample: `(B, K, 1|C, height, width)`."""
        n_rows, n_columns = self.mask.shape[-2:]
        crops = []
        for _ in range(batch):
            rows = self._draw_positions(n_rows, height, generator)
            columns = self._draw_positions(n_columns, width, generator)
            crops.append(self.mask[..., rows, :][..., columns])
        return torch.stack(crops)

    def _draw_positions(self, length: int, count: int, generator: Generator) -> Tensor:
        """Draw `count` successive positions along an axis of the mask, mirrored at its ends."""
        n_starts = length - count + 1 if count <= length else 2 * length
        positions = draw_integer(n_starts, generator) + torch.arange(count)
        # The mask and its mirror image have a period of 2 · length.
        positions = positions.remainder(2 * length)
        positions = torch.where(positions < length, positions, 2 * length - 1 - positions)
        return positions.flip(0) if self.flip and draw_integer(2, generator) else positions


class RandomMasks:
    """Masks of independent random pixels, drawn for each sample.

    Args:
        kinds: "binary" for masks of zeros and ones, "grey" for masks of u^(1/d - 1) with u uniform
            in [0, 1]. One kind is drawn for each sample.
        density: range of the mean transmission d, which is drawn for each sample.
        shots: number K of masks of a sample.
        bands: 1, or C for one mask per band, as for the frames of a video.

    Raises:
        ValueError: an unknown kind, densities outside (0, 1), or counts below 1.
    """

    def __init__(
        self,
        kinds: Sequence[str] = ("binary", "grey"),
        density: Sequence[float] = (0.3, 0.7),
        shots: int = 1,
        bands: int = 1,
    ) -> None:
        kinds, density = ((kinds,) if isinstance(kinds, str) else tuple(kinds)), tuple(density)
        if not kinds or set(kinds) - {"binary", "grey"}:
            raise ValueError(f"kinds: expected 'binary' and 'grey', got {kinds!r}")
        if len(density) != 2 or not 0 < density[0] <= density[1] < 1:
            raise ValueError(f"density: expected (low, high) within (0, 1), got {density!r}")
        if shots < 1 or bands < 1:
            raise ValueError(f"shots, bands: expected at least 1, got {shots} and {bands}")
        self.kinds, self.density = kinds, density
        self.shots, self.bands = shots, bands

    def draw(self, batch: int, height: int, width: int, generator: Generator) -> Tensor:
        """Draw masks for each sample: `(B, K, 1|C, height, width)`."""
        device = generator.device
        shape = (batch, self.shots, self.bands, height, width)
        masks = torch.rand(shape, generator=generator, device=device)
        for mask in masks:
            kind = self.kinds[draw_integer(len(self.kinds), generator)]
            low, high = self.density
            mean = low + (high - low) * float(torch.rand((), generator=generator, device=device))
            # The mean of u^p over [0, 1] is 1 / (p + 1).
            mask.copy_(mask < mean) if kind == "binary" else mask.pow_(1 / mean - 1)
        return masks.cpu()


class MixedMasks:
    """Masks of several sources; one source is drawn for each sample.

    Args:
        sources: sources whose masks have the same numbers of shots and bands.
        weights: probabilities of the sources, up to a common factor; equal by default.

    Raises:
        ValueError: no source, or weights that do not fit.
    """

    def __init__(
        self, sources: Sequence[MaskSource], weights: Sequence[float] | None = None
    ) -> None:
        self.sources = tuple(sources)
        weights = [1.0] * len(self.sources) if weights is None else list(weights)
        if not self.sources:
            raise ValueError("sources: expected at least one, got none")
        if len(weights) != len(self.sources) or min(weights) < 0 or not sum(weights) > 0:
            raise ValueError(
                f"weights: expected {len(self.sources)} numbers >= 0, not all 0, got {weights}"
            )
        self.weights = torch.tensor(weights, dtype=torch.float64)

    def draw(self, batch: int, height: int, width: int, generator: Generator) -> Tensor:
        """Draw a source and then a mask for each sample: `(B, K, 1|C, height, width)`."""
        weights = self.weights.to(generator.device)
        indices = torch.multinomial(weights, batch, replacement=True, generator=generator).tolist()
        masks = [self.sources[i].draw(1, height, width, generator) for i in indices]
        shapes = {tuple(mask.shape[1:3]) for mask in masks}
        if len(shapes) > 1:
            raise ValueError(
                f"sources: expected masks of one number of shots and bands, got {sorted(shapes)}"
            )
        return torch.cat(masks)


def _as_shots(mask: Tensor) -> Tensor:
    """Return a mask of 2 to 4 axes as `(K, 1|C, H, W)`, float32; ValueError if it is no mask."""
    if not isinstance(mask, Tensor) or mask.ndim not in (2, 3, 4):
        shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"mask: expected (H, W), (C, H, W) or (K, 1 or C, H, W), got {shape}")
    mask = mask.detach().cpu().float()
    check_mask(mask)
    return mask[(None,) * (4 - mask.ndim)]


def draw_integer(limit: int, generator: Generator) -> int:
    """Draw an integer from 0 to limit - 1."""
    return int(torch.randint(limit, (), generator=generator, device=generator.device))
