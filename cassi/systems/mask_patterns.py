"""Patterns that draw masks: random, blue noise, holes, colour filters and complements."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cassi.checks import whole_number


def filter_curves(count: int, bands: int, width: float = 1.2) -> Tensor:
    """Return Gaussian filters with evenly spaced middles: R, `(G, C)`, float32, in [0, 1].

    Values below 1 % are 0, since filters block the light far from their middle.

    Args:
        count: number G of filters.
        bands: number C of bands.
        width: full width at half maximum, in units of the distance of two middles.
    """
    spacing = bands / count
    middles = (torch.arange(count) + 0.5) * spacing - 0.5
    distances = (torch.arange(bands) - middles[:, None]) / (width * spacing)
    curves = torch.exp(-4 * math.log(2) * distances.square())
    return torch.where(curves < 0.01, 0, curves)


# Seeds of the masks of one pattern differ by this prime, so that patterns with neighbouring seeds
# share no mask.
_SEED_STRIDE = 7919


class MaskPattern(ABC):
    """A rule that draws a mask of any size.

    Attributes:
        density: mean transmission, in (0, 1).
        shots: number K of masks.
        per_band: whether each band has its own mask, as for the frames of a video snapshot.
        seed: seed of all random numbers; equal seeds give equal masks.
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
            bands: number C of bands; it matters only for a mask per band.
        """
        shape = (self.shots, bands if self.per_band else 1)
        planes = [
            self._draw_plane(height, width, self.seed + _SEED_STRIDE * number)
            for number in range(shape[0] * shape[1])
        ]
        return torch.stack(planes).reshape(*shape, height, width)

    @abstractmethod
    def _draw_plane(self, height: int, width: int, seed: int) -> Tensor: ...  # (H, W)

    def _check(self) -> None:
        for name, value, minimum in (("shots", self.shots, 1), ("seed", self.seed, 0)):
            whole_number(name, value, minimum)
        if not 0 < self.density < 1:
            raise ValueError(f"density: expected a number in (0, 1), got {self.density!r}")


@dataclass(frozen=True)
class RandomMask(MaskPattern):
    """A mask of independent pixels, or of independent squares of pixels.

    Attributes:
        density: mean transmission d.
        shots: number K of masks.
        kind: "binary", of zeros and ones, or "grey", u^(1/d − 1) with u uniform in [0, 1].
        per_band: a mask of its own for each band.
        seed: seed of all random numbers.
        feature: side of a square, pixels: the least that the mask maker can etch.

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
    feature: int = 1

    def __post_init__(self) -> None:
        self._check()
        whole_number("feature", self.feature, 1)
        if self.kind not in ("binary", "grey"):
            raise ValueError(f"kind: expected 'binary' or 'grey', got {self.kind!r}")

    def _draw_plane(self, height: int, width: int, seed: int) -> Tensor:
        squares = [math.ceil(length / self.feature) for length in (height, width)]
        uniform = torch.rand(squares, generator=torch.Generator().manual_seed(seed))
        for axis in (0, 1) if self.feature > 1 else ():
            uniform = uniform.repeat_interleave(self.feature, axis)
        uniform = uniform[:height, :width]
        if self.kind == "binary":
            return (uniform < self.density).float()
        return uniform ** (1 / self.density - 1)  # the mean of u^p over [0, 1] is 1 / (p + 1)


@dataclass(frozen=True)
class BlueNoiseMask(MaskPattern):
    """A binary mask without clusters, holes and low frequencies.

    Attributes:
        density: share of ones, met to within a pixel.
        shots: number K of masks.
        per_band: a mask of its own for each band.
        seed: seed of all random numbers.

    Raises:
        ValueError: numbers out of range.

    Source: see `draw_blue_noise`.

    >>> BlueNoiseMask(0.25).draw(8, 8).mean().item()
    0.25
    """

    density: float = 0.5
    shots: int = 1
    per_band: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        self._check()

    def _draw_plane(self, height: int, width: int, seed: int) -> Tensor:
        return torch.from_numpy(draw_blue_noise(height, width, self.density, seed)).float()


@dataclass(frozen=True)
class OpenMask(MaskPattern):
    """No mask: all light passes. For cameras that code by their sensor or their lens.

    >>> OpenMask().draw(1, 2)
    tensor([[[[1., 1.]]]])
    """

    density = 1.0
    shots = 1
    per_band = False
    seed = 0

    def _draw_plane(self, height: int, width: int, seed: int) -> Tensor:
        return torch.ones(height, width)


@dataclass(frozen=True)
class HoleMask(MaskPattern):
    """A grid of holes, so far apart that their spectra do not overlap (PMVIS).

    Attributes:
        columns: distance of holes along a row, pixels. None: the number of bands plus one, which
            suits a dispersion of one pixel per band along rows.
        rows: distance of the rows of holes, pixels.
        stagger: columns by which each row of holes is shifted against the row above, so that holes
            do not lie below each other. None: 0.382 of `columns`, the golden section.

    Raises:
        ValueError: numbers out of range.

    Source: Cao et al., "A prism-mask system for multispectral video acquisition", IEEE TPAMI
    33(12), 2011.

    >>> HoleMask(columns=3, stagger=1).draw(2, 6)
    tensor([[[[1., 0., 0., 1., 0., 0.],
              [0., 1., 0., 0., 1., 0.]]]])
    """

    columns: int | None = None
    rows: int = 1
    stagger: int | None = None

    shots = 1
    per_band = False
    seed = 0

    def __post_init__(self) -> None:
        for name, value in (("columns", self.columns), ("rows", self.rows)):
            if value is not None:
                whole_number(name, value, 1)
        if self.stagger is not None:
            whole_number("stagger", self.stagger, 0)

    @property
    def density(self) -> float:  # type: ignore[override]
        """Mean transmission; 0 if it depends on the number of bands."""
        return 0.0 if self.columns is None else 1 / (self.columns * self.rows)

    def draw(self, height: int, width: int, bands: int = 1) -> Tensor:
        """Draw the mask `(1, 1, H, W)`, float32; see `MaskPattern.draw`."""
        columns = self.columns or bands + 1
        stagger = round(0.382 * columns) if self.stagger is None else self.stagger
        row = torch.arange(height)[:, None]
        phase = (torch.arange(width) - row // self.rows * stagger) % columns
        return ((phase == 0) & (row % self.rows == 0)).float()[None, None]

    def _draw_plane(self, height: int, width: int, seed: int) -> Tensor:
        return self.draw(height, width)[0, 0]


@dataclass(frozen=True)
class ColourMask(MaskPattern):
    """A colour-coded aperture: every pixel has one of some colour filters, at random.

    Attributes:
        filters: number of filters, Gaussians evenly spaced over the bands; see `filter_curves`.
        width: full width of a filter at half maximum, in units of the distance of two middles.
        shots: number K of masks.
        seed: seed of all random numbers.

    Raises:
        ValueError: numbers out of range.

    Source: Arguello, Arce, "Colored coded aperture design by concentration of measure in
    compressive spectral imaging", IEEE TIP 23(4), 2014.

    >>> ColourMask(filters=4).draw(6, 5, bands=8).shape
    torch.Size([1, 8, 6, 5])
    """

    filters: int = 4
    width: float = 1.2
    shots: int = 1
    seed: int = 0

    per_band = True
    density = 0.0  # unknown: the mean transmission depends on the number of bands

    def __post_init__(self) -> None:
        whole_number("filters", self.filters, 1)
        whole_number("shots", self.shots, 1)
        whole_number("seed", self.seed, 0)
        if not 0 < self.width < math.inf:
            raise ValueError(f"width: expected a number > 0, got {self.width!r}")

    def draw(self, height: int, width: int, bands: int = 1) -> Tensor:
        """Draw the mask `(K, C, H, W)`, float32; see `MaskPattern.draw`."""
        curves = filter_curves(self.filters, bands, self.width)
        planes = [
            self._draw_plane(height, width, self.seed + _SEED_STRIDE * k) for k in range(self.shots)
        ]
        return torch.stack([curves.mT[:, plane] for plane in planes])

    def _draw_plane(self, height: int, width: int, seed: int) -> Tensor:  # numbers of filters
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(self.filters, (height, width), generator=generator)


@dataclass(frozen=True)
class Complementary(MaskPattern):
    """The masks m of a pattern, followed by their complements 1 − m.

    A mirror array can send the light of both to a detector, so that none is lost.

    Attributes:
        of: the pattern of the first K shots; the next K are their complements.

    Raises:
        TypeError: `of` is no `MaskPattern`.

    >>> Complementary(RandomMask(shots=2)).draw(4, 6).sum(0).unique()
    tensor([2.])
    """

    of: MaskPattern = RandomMask()

    def __post_init__(self) -> None:
        if not isinstance(self.of, MaskPattern):
            raise TypeError(f"of: expected a mask to draw, got {type(self.of).__name__}")

    density = 0.5
    seed = 0

    @property
    def shots(self) -> int:  # type: ignore[override]
        """Number of masks: twice the number of the pattern's masks."""
        return 2 * self.of.shots

    @property
    def per_band(self) -> bool:  # type: ignore[override]
        """Whether the pattern has a mask for each band."""
        return self.of.per_band

    def draw(self, height: int, width: int, bands: int = 1) -> Tensor:
        """Draw the masks `(2 K, 1|C, H, W)`, float32; see `MaskPattern.draw`."""
        masks = self.of.draw(height, width, bands)
        return torch.cat((masks, 1 - masks))

    def _draw_plane(self, height: int, width: int, seed: int) -> Tensor:
        return self.of._draw_plane(height, width, seed)


_BLUR_SIGMA_PIXELS = 1.5  # Ulichney's choice
# This fraction of the pixels is set at random. They are then moved until nothing changes.
_START_FRACTION = 0.1


def draw_blue_noise(height: int, width: int, density: float, seed: int) -> np.ndarray:
    """Draw a binary pattern whose spectrum has no low frequencies, periodic in both directions.

    The method is void and cluster. A Gaussian blur (1.5 pixels) shows the tightest cluster and the
    largest void. A pixel is removed from the cluster and set in the void. A tenth of the pixels is
    set at random and moved in this way until nothing changes. Then the largest voids are filled
    until the density is reached. Above a density of 0.5 ones and zeros change roles.

    Args:
        height: rows.
        width: columns.
        density: fraction of ones.
        seed: seed of the random numbers.

    Returns:
        Boolean, `(height, width)`. A pattern of 256×256 takes a few seconds.

    Source: Ulichney, "The void-and-cluster method for dither array generation", SPIE 1913, 1993.
    """
    if density > 0.5:
        return ~draw_blue_noise(height, width, 1 - density, seed)
    n_ones = max(1, round(density * height * width))
    n_random = min(n_ones, max(1, round(_START_FRACTION * height * width)))
    generator = np.random.default_rng(seed)
    ones = np.zeros((height, width), bool)
    ones.flat[generator.choice(height * width, n_random, replace=False)] = True

    kernel_table = _make_periodic_gaussian(height, width)
    density_map = np.fft.ifft2(np.fft.fft2(ones) * np.fft.fft2(kernel_table[:height, :width])).real
    # A constant is added at all ones. It raises them above all zeros, so one array serves both
    # searches: its largest value is the tightest cluster of ones, its smallest the largest void.
    lift = 2 * kernel_table[:height, :width].sum()
    density_map += lift * ones

    # The blur is linear. So a changed pixel adds or subtracts its kernel, without another Fourier
    # transform.
    def change(index: int, sign: int) -> None:
        row, column = divmod(index, width)
        kernel = kernel_table[height - row : 2 * height - row, width - column : 2 * width - column]
        update = np.add if sign > 0 else np.subtract
        update(density_map, kernel, out=density_map)
        density_map[row, column] += sign * lift

    for _ in range(height * width):
        cluster = int(density_map.argmax())
        change(cluster, -1)
        void = int(density_map.argmin())
        change(void, 1)
        if void == cluster:
            break
    for _ in range(n_ones - n_random):
        change(int(density_map.argmin()), 1)
    return density_map > lift / 2


def _make_periodic_gaussian(height: int, width: int) -> np.ndarray:  # (2 H, 2 W): 2 × 2 periods
    rows, columns = (np.minimum(np.arange(n), n - np.arange(n)) for n in (height, width))
    vertical, horizontal = (np.exp(-0.5 * (d / _BLUR_SIGMA_PIXELS) ** 2) for d in (rows, columns))
    return np.tile(np.outer(vertical, horizontal), (2, 2))
