"""Spectra of the materials of a drawn scene: smooth ones, and mixtures of measured ones."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Generator, Tensor

from cassi.data.io import read_mask
from cassi.data.simulation import draw_integer
from cassi.data.wavelengths import resample

Spectra = Callable[[int, int, Generator], Tensor]
"""Draws so many spectra of so many bands, `(count, C)`, not negative: the materials of a scene."""
OBSERVER = (
    ((1.056, 599.8, 37.9, 31.0), (0.362, 442.0, 16.0, 26.7), (-0.065, 501.1, 20.4, 26.2)),
    ((0.821, 568.8, 46.9, 40.5), (0.286, 530.9, 16.3, 31.1)),
    ((1.217, 437.0, 11.8, 36.0), (0.681, 459.0, 26.0, 13.8)),
)
"""The CIE 1931 observer as sums of bells: height, place, width below and above it, nm (Wyman,
Sloan, Shirley, "Simple analytic approximations to the CIE XYZ color matching functions", 2013)."""


def smooth_spectra(count: int, bands: int, generator: Generator) -> Tensor:
    """Draw reflectances `(count, C)` in (0, 1): the logistic function of three cosines."""
    at = (torch.arange(bands) + 0.5) * (math.pi / bands)
    waves = torch.cos(torch.arange(4)[:, None] * at)  # (4, C)
    weights = torch.randn(count, 4, generator=generator) * torch.tensor([1.2, 1.5, 1.0, 0.7])
    return torch.sigmoid(weights @ waves)


class MeasuredSpectra:
    """Draws materials whose reflectances were measured, all in one light: s = l·r + e.

    Each reflectance r is a convex mixture of three measured ones. Half of the lights l are
    measured, a quarter is white, and a quarter are one to four narrow lines, as of lasers. Some
    materials emit: e is a narrow peak, as of fluorescence.

    In some scenes every second material is a `metamer` of the one before it, by a random share of
    the longest step.

    Args:
        folder: of MATLAB files as of the Psychtoolbox: `sur_NAME` has a reflectance in every
            column, or `spd_NAME` the power of a light, and `S_NAME` is the first wavelength, the
            step (nm) and the count. Files that do not cover the bands are passed over.
        wavelengths: of the bands, nm, rising.
        metamers: probability that a scene has metamers.
        peaks: probability that a material emits.
    """

    def __init__(
        self,
        folder: str | Path,
        wavelengths: Sequence[float],
        metamers: float = 0.3,
        peaks: float = 0.1,
    ) -> None:
        for name, share in (("metamers", metamers), ("peaks", peaks)):
            if not 0 <= share <= 1:
                raise ValueError(f"{name}: expected 0 to 1, got {share!r}")
        self.nm = torch.as_tensor([float(nm) for nm in wavelengths])
        self.metamers, self.peaks = metamers, peaks
        self.reflectances = _read_sets(Path(folder).expanduser(), "sur", self.nm).clamp_(0, 1)
        lights = _read_sets(Path(folder).expanduser(), "spd", self.nm).clamp_(min=0)
        self.lights = lights / lights.amax(1, keepdim=True)

    def __call__(self, count: int, bands: int, generator: Generator) -> Tensor:
        """Draw the spectra of a scene, `(count, C)`, not negative."""
        if bands != len(self.nm):
            raise ValueError(f"spectra: expected {len(self.nm)} bands, got {bands}")
        light, drawn = self.draw_light(generator), self.mix(count, generator)
        if _uniform(generator) < self.metamers:
            first = drawn[: count - 1 : 2]
            other = metamer(first, self.mix(len(first), generator), self.nm, light)
            drawn[1::2] = torch.lerp(first, other, _uniform(generator))
        emits = torch.rand(count, 1, generator=generator) < self.peaks
        return drawn * light + emits * 0.7 * self._bells(count, (4.0, 30.0), generator)

    def draw_light(self, generator: Generator) -> Tensor:
        """Draw the power of a light, `(C,)`, with the maximum 1."""
        kind = draw_integer(4, generator)
        if kind == 0:
            return torch.ones(len(self.nm))
        if kind == 1:
            lines = self._bells(1 + draw_integer(4, generator), (3.0, 12.0), generator).sum(0)
            return lines / lines.amax()
        return self.lights[draw_integer(len(self.lights), generator)]

    def mix(self, count: int, generator: Generator) -> Tensor:
        """Draw reflectances `(count, C)` in [0, 1]; shares of the simplex are drawn evenly."""
        shares = -torch.rand(count, 3, generator=generator).clamp_min(1e-6).log()
        parts = torch.randint(len(self.reflectances), (count, 3), generator=generator)
        shares = shares / shares.sum(1, keepdim=True)
        return torch.einsum("nk,nkc->nc", shares, self.reflectances[parts])

    def _bells(self, count: int, widths: tuple[float, float], generator: Generator) -> Tensor:
        # (count, C): at any wavelength, of any width (standard deviation, nm) and height.
        low, high = self.nm[0], self.nm[-1]
        at, wide, tall = torch.rand(3, count, 1, generator=generator)
        width = widths[0] * (widths[1] / widths[0]) ** wide
        return (0.2 + 0.8 * tall) * torch.exp(
            -0.5 * ((self.nm - low - (high - low) * at) / width).square()
        )


def metamer(reflectances: Tensor, others: Tensor, nm: Tensor, light: Tensor) -> Tensor:
    """Change reflectances such that their colours stay: r' = r + t·(I − A⁺A)(q − r), `(N, C)`.

    A = observer · diag(light). The step t is the largest that leaves r' in [0, 1]. The differences
    to the others q give the directions.

    >>> nm, flat = torch.linspace(450, 650, 9), torch.full((1, 9), 0.5)
    >>> other = metamer(flat, torch.linspace(0, 1, 9)[None], nm, torch.ones(9))
    >>> bool(torch.allclose(observer(nm) @ other[0], observer(nm) @ flat[0], atol=1e-4))
    True
    """
    seen = (observer(nm) * light).double()
    change = (others - reflectances).double()
    change = change - change @ torch.linalg.pinv(seen, rtol=1e-6) @ seen
    room = torch.where(change > 0, 1 - reflectances, reflectances) / change.abs().clamp_min(1e-9)
    longest = room.amin(1, keepdim=True).clamp_(0, 1e6)
    return (reflectances + longest * change).clamp_(0, 1).to(reflectances)


def observer(nm: Tensor) -> Tensor:
    """Return the colour matching functions x̄, ȳ, z̄ `(3, C)` at wavelengths (nm), see `OBSERVER`."""

    def bell(height: float, place: float, below: float, above: float) -> Tensor:
        width = torch.where(nm < place, below, above)
        return height * torch.exp(-0.5 * ((nm - place) / width).square())

    return torch.stack([torch.stack([bell(*values) for values in row]).sum(0) for row in OBSERVER])


def _read_sets(folder: Path, kind: str, nm: Tensor) -> Tensor:
    # All columns of all files of a kind, at the wavelengths: (N, C).
    found = []
    for path in sorted(folder.glob(f"{kind}_*.mat")):
        name = path.stem.removeprefix(f"{kind}_")
        first, step, count = read_mask(path, key=f"S_{name}").flatten().tolist()
        source = [first + step * k for k in range(int(count))]
        if source[0] <= nm[0] and nm[-1] <= source[-1]:
            columns = read_mask(path, key=f"{kind}_{name}").reshape(len(source), -1, 1)
            found.append(resample(columns, source, nm.tolist())[..., 0].T)
    if not found:
        limits = f"{float(nm[0]):g} to {float(nm[-1]):g} nm"
        raise ValueError(f"{folder}: expected a file {kind}_NAME.mat that covers {limits}")
    return torch.cat(found)


def _uniform(generator: Generator) -> float:
    return float(torch.rand((), generator=generator))
