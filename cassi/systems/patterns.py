"""Masks to simulate a camera with: drawn for a size, the same for the same seed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from cassi.systems.blue_noise import blue_noise

__all__ = ["BlueNoiseMask", "MaskPattern", "RandomMask"]


class MaskPattern(ABC):
    """Draws a mask of any size.

    Attributes:
        density: mean transmission, in (0, 1).
        shots: number K of masks.
        per_band: a mask of its own for each band, as for the frames of a video snapshot.
        seed: of all random numbers; equal seeds give equal masks.
    """

    density: float
    shots: int
    per_band: bool
    seed: int

    def draw(self, height: int, width: int, bands: int = 1) -> Tensor:
        """Draw the mask: transmission in [0, 1], `(K, 1|C, H, W)`, float32.

        Args:
            height: rows H.
            width: columns W.
            bands: C, of masks per band.
        """
        shape = (self.shots, bands if self.per_band else 1)
        planes = [
            self._plane(height, width, self.seed + 7919 * number)
            for number in range(shape[0] * shape[1])
        ]
        return torch.stack(planes).reshape(*shape, height, width)

    @abstractmethod
    def _plane(self, height: int, width: int, seed: int) -> Tensor: ...  # (H, W)

    def _check(self) -> None:
        for name, value, least in (("shots", self.shots, 1), ("seed", self.seed, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name}: expected a whole number from {least}, got {value!r}")
        if not 0 < self.density < 1:
            raise ValueError(f"density: expected a number in (0, 1), got {self.density!r}")


@dataclass(frozen=True)
class RandomMask(MaskPattern):
    """Independent pixels.

    Attributes:
        density: mean transmission d.
        shots: number K of masks.
        kind: "binary", of zeros and ones, or "grey", u^(1/d − 1) with u uniform in [0, 1].
        per_band: a mask of its own for each band.
        seed: of all random numbers.

    Raises:
        ValueError: an unknown kind, or numbers out of range.

    >>> RandomMask(shots=2).draw(4, 6).shape
    torch.Size([2, 1, 4, 6])
    """

    density: float = 0.5
    shots: int = 1
    kind: str = "binary"
    per_band: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the values."""
        self._check()
        if self.kind not in ("binary", "grey"):
            raise ValueError(f"kind: expected 'binary' or 'grey', got {self.kind!r}")

    def _plane(self, height: int, width: int, seed: int) -> Tensor:
        uniform = torch.rand((height, width), generator=torch.Generator().manual_seed(seed))
        if self.kind == "binary":
            return (uniform < self.density).float()
        return uniform ** (1 / self.density - 1)  # the mean of u^p over [0, 1] is 1 / (p + 1)


@dataclass(frozen=True)
class BlueNoiseMask(MaskPattern):
    """Zeros and ones, evenly spread: no clusters, no holes, and no low frequencies.

    Attributes:
        density: share of ones, met to within a pixel.
        shots: number K of masks.
        per_band: a mask of its own for each band.
        seed: of all random numbers.

    Raises:
        ValueError: numbers out of range.

    Source: see `cassi.systems.blue_noise.blue_noise`.

    >>> BlueNoiseMask(0.25).draw(8, 8).mean().item()
    0.25
    """

    density: float = 0.5
    shots: int = 1
    per_band: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the values."""
        self._check()

    def _plane(self, height: int, width: int, seed: int) -> Tensor:
        return torch.from_numpy(blue_noise(height, width, self.density, seed)).float()
