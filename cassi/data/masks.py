"""Where the masks of simulated measurements come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Generator, Tensor

from cassi.systems import check_mask

Device = torch.device | str


class MaskSource(Protocol):
    """Draws masks; all its random numbers come from the generator."""

    def draw(
        self, batch: int, height: int, width: int, generator: Generator, device: Device = "cpu"
    ) -> Tensor:
        """Draw the masks of a batch of B cubes of some height and width, pixels.

        Returns:
            Transmission in [0, 1], `(B, K, 1|C, H, W)`, or `(1, K, 1|C, H, W)`, one for all.

        Raises:
            ValueError: the source cannot give masks of this size.
        """
        ...


class FixedMask:
    """The same mask always: that of one camera.

    Args:
        mask: transmission in [0, 1], `(H, W)`, `(C, H, W)` or `(K, 1|C, H, W)`.

    Raises:
        ValueError: it has another number of axes, or cannot code a scene (see `check_mask`).
    """

    def __init__(self, mask: Tensor) -> None:
        self.mask = _canonical(mask)

    def draw(
        self, batch: int, height: int, width: int, generator: Generator, device: Device = "cpu"
    ) -> Tensor:
        """Return the mask `(1, K, 1|C, H, W)`; the cubes must have its size."""
        if tuple(self.mask.shape[-2:]) != (height, width):
            raise ValueError(
                f"expected cubes of the mask's size {tuple(self.mask.shape[-2:])}, got "
                f"{(height, width)}; change the size of the crops, or take MaskCrops"
            )
        return self.mask[None].to(device)


class MaskCrops:
    """Parts of a given mask at random places, another for each sample.

    A mask that is smaller than the cubes is continued by its mirror images.

    Args:
        mask: as for `FixedMask`.
        flip: mirror rows and columns, each half of the time.

    Raises:
        ValueError: as for `FixedMask`.
    """

    def __init__(self, mask: Tensor, flip: bool = True) -> None:
        self.mask, self.flip = _canonical(mask), flip

    def draw(
        self, batch: int, height: int, width: int, generator: Generator, device: Device = "cpu"
    ) -> Tensor:
        """Draw a part for each sample: `(B, K, 1|C, height, width)`."""
        rows, columns = self.mask.shape[-2:]
        parts = [
            self.mask[..., self._places(rows, height, generator), :][
                ..., self._places(columns, width, generator)
            ]
            for _ in range(batch)
        ]
        return torch.stack(parts).to(device)

    def _places(self, length: int, wanted: int, generator: Generator) -> Tensor:  # (wanted,)
        starts = length - wanted + 1 if wanted <= length else 2 * length
        places = draw_integer(starts, generator) + torch.arange(wanted)
        places = places.remainder(2 * length)
        places = torch.where(places < length, places, 2 * length - 1 - places)
        return places.flip(0) if self.flip and draw_integer(2, generator) else places


class RandomMasks:
    """Masks of independent pixels, another for each sample.

    Args:
        kinds: "binary", of zeros and ones, and "grey", u^(1/d - 1) with u uniform; each sample
            draws one.
        density: range of the mean transmission d, of which each sample draws its own.
        shots: number K of masks of a sample.
        bands: 1, or C for a mask of its own for each band, as for the frames of a video.

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

    def draw(
        self, batch: int, height: int, width: int, generator: Generator, device: Device = "cpu"
    ) -> Tensor:
        """Draw masks for each sample: `(B, K, 1|C, height, width)`."""
        where = generator.device
        shape = (batch, self.shots, self.bands, height, width)
        masks = torch.rand(shape, generator=generator, device=where)
        for mask in masks:
            kind = self.kinds[draw_integer(len(self.kinds), generator)]
            low, high = self.density
            mean = low + (high - low) * float(torch.rand((), generator=generator, device=where))
            # The mean of u^p over [0, 1] is 1 / (p + 1).
            mask.copy_(mask < mean) if kind == "binary" else mask.pow_(1 / mean - 1)
        return masks.to(device)


class MixedMasks:
    """Each sample's mask comes from one of several sources.

    Args:
        sources: they must agree in the number of shots and bands.
        weights: their chances, up to a common factor; equal by default.

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

    def draw(
        self, batch: int, height: int, width: int, generator: Generator, device: Device = "cpu"
    ) -> Tensor:
        """Draw a source and then a mask for each sample: `(B, K, 1|C, height, width)`."""
        weights = self.weights.to(generator.device)
        chosen = torch.multinomial(weights, batch, replacement=True, generator=generator).tolist()
        drawn = [self.sources[i].draw(1, height, width, generator, device) for i in chosen]
        shapes = {tuple(mask.shape[1:3]) for mask in drawn}
        if len(shapes) > 1:
            raise ValueError(
                f"sources: expected masks of one number of shots and bands, got {sorted(shapes)}"
            )
        return torch.cat(drawn)


def _canonical(mask: Tensor) -> Tensor:  # (K, 1|C, H, W)
    if not isinstance(mask, Tensor) or mask.ndim not in (2, 3, 4):
        shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"mask: expected (H, W), (C, H, W) or (K, 1 or C, H, W), got {shape}")
    mask = mask.detach().cpu().float()
    check_mask(mask)
    return mask[(None,) * (4 - mask.ndim)]


def draw_integer(limit: int, generator: Generator) -> int:
    """Draw one of 0 to limit - 1."""
    return int(torch.randint(limit, (), generator=generator, device=generator.device))
