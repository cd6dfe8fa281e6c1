"""Draw spectra for the materials of synthetic scenes: smooth curves, or mixed measured spectra."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Generator, Tensor

from cassi.data.io import read_mask
from cassi.data.simulation import draw_integer
from cassi.data.wavelengths import resample

Spectra = Callable[[int, int, Generator], Tensor]
"""A function (count, C, generator) that draws spectra of materials, `(count, C)`, not negative."""
OBSERVER = (
    ((1.056, 599.8, 37.9, 31.0), (0.362, 442.0, 16.0, 26.7), (-0.065, 501.1, 20.4, 26.2)),
    ((0.821, 568.8, 46.9, 40.5), (0.286, 530.9, 16.3, 31.1)),
    ((1.217, 437.0, 11.8, 36.0), (0.681, 459.0, 26.0, 13.8)),
)
"""The CIE 1931 observer: for each of x̄, ȳ, z̄, the bell curves whose sum it is. A curve has four
numbers: height; centre (nm); standard deviation below the centre (nm); and above it (nm). Source:
Wyman, Sloan, Shirley, "Simple analytic approximations to the CIE XYZ color matching functions",
2013."""


def smooth_spectra(count: int, bands: int, generator: Generator) -> Tensor:
    """Draw smooth reflectances `(count, C)`: logistic functions of a constant and three cosines."""
    phase = (torch.arange(bands) + 0.5) * (math.pi / bands)
    waves = torch.cos(torch.arange(4)[:, None] * phase)  # (4, C)
    weights = torch.randn(count, 4, generator=generator) * torch.tensor([1.2, 1.5, 1.0, 0.7])
    return torch.sigmoid(weights @ waves)


class MeasuredSpectra:
    """Draws materials with measured reflectances, all under one illuminant: s = l·r + e.

    Each reflectance r is a convex mixture of three measured reflectances. Half of the illuminants l
    are measured, a quarter is white, and a quarter has one to four narrow lines, as lasers have.
    Some materials emit: e is a narrow peak, as in fluorescence.

    In some scenes every second material has the colour of the material before it, but another
    spectrum: it is a random mixture of that material and its `metamer`.

    Args:
        folder: folder of MATLAB files in the form of the Psychtoolbox. Each column of `sur_NAME` is
            a reflectance, and each column of `spd_NAME` the power of an illuminant. `S_NAME` has
            the first wavelength, the step (nm) and the count. Files that do not cover the bands are
            not used.
        wavelengths: wavelengths of the bands, nm, rising.
        metamers: probability that a scene has such pairs of one colour.
        peaks: probability that a material emits.

    Raises:
        ValueError: a probability is out of [0, 1], or no file covers the bands.
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
        self.reflectances = _read_spectra(Path(folder).expanduser(), "sur", self.nm).clamp_(0, 1)
        lights = _read_spectra(Path(folder).expanduser(), "spd", self.nm).clamp_(min=0)
        self.lights = lights / lights.amax(1, keepdim=True)

    def __call__(self, count: int, bands: int, generator: Generator) -> Tensor:
        """Draw the spectra of a scene, `(count, C)`, not negative."""
        if bands != len(self.nm):
            raise ValueError(f"spectra: expected {len(self.nm)} bands, got {bands}")
        light, reflectances = self.draw_light(generator), self.mix(count, generator)
        if _draw_uniform(generator) < self.metamers:
            originals = reflectances[: count - 1 : 2]
            metamers = metamer(originals, self.mix(len(originals), generator), self.nm, light)
            reflectances[1::2] = torch.lerp(originals, metamers, _draw_uniform(generator))
        # An emission has at most 0.7 of the power of the brightest band of the illuminant.
        is_emitting = torch.rand(count, 1, generator=generator) < self.peaks
        return reflectances * light + is_emitting * 0.7 * self._draw_bells(
            count, (4.0, 30.0), generator
        )

    def draw_light(self, generator: Generator) -> Tensor:
        """Draw the power of an illuminant, `(C,)`, with a maximum of 1."""
        kind = draw_integer(4, generator)
        if kind == 0:
            return torch.ones(len(self.nm))
        if kind == 1:
            lines = self._draw_bells(1 + draw_integer(4, generator), (3.0, 12.0), generator).sum(0)
            return lines / lines.amax()
        return self.lights[draw_integer(len(self.lights), generator)]

    def mix(self, count: int, generator: Generator) -> Tensor:
        """Draw reflectances `(count, C)` in [0, 1], each as a mixture of three measured spectra."""
        # Normalised exponential numbers are uniform over all mixtures of three.
        shares = -torch.rand(count, 3, generator=generator).clamp_min(1e-6).log()
        sources = torch.randint(len(self.reflectances), (count, 3), generator=generator)
        shares = shares / shares.sum(1, keepdim=True)
        return torch.einsum("nk,nkc->nc", shares, self.reflectances[sources])

    def _draw_bells(self, count: int, widths: tuple[float, float], generator: Generator) -> Tensor:
        """Draw bell curves `(count, C)`; `widths` is the range of their standard deviation, nm."""
        low, high = self.nm[0], self.nm[-1]
        positions, width_draws, height_draws = torch.rand(3, count, 1, generator=generator)
        width = widths[0] * (widths[1] / widths[0]) ** width_draws
        return (0.2 + 0.8 * height_draws) * torch.exp(
            -0.5 * ((self.nm - low - (high - low) * positions) / width).square()
        )


def metamer(reflectances: Tensor, targets: Tensor, nm: Tensor, light: Tensor) -> Tensor:
    """Change reflectances but not their colours: r' = r + t·(I − A⁺A)(q − r).

    A = observer · diag(light) gives the colours under an illuminant. The step t is the largest one
    with r' in [0, 1].

    Args:
        reflectances: r, `(N, C)`, in [0, 1].
        targets: q, `(N, C)`; r changes towards them as far as the colour allows.
        nm: wavelengths of the bands, `(C,)`.
        light: power of the illuminant in each band, `(C,)`.

    Returns:
        r', `(N, C)`.

    >>> nm, flat = torch.linspace(450, 650, 9), torch.full((1, 9), 0.5)
    >>> other = metamer(flat, torch.linspace(0, 1, 9)[None], nm, torch.ones(9))
    >>> bool(torch.allclose(observer(nm) @ other[0], observer(nm) @ flat[0], atol=1e-4))
    True
    """
    colour_matrix = (observer(nm) * light).double()
    change = (targets - reflectances).double()
    change = change - change @ torch.linalg.pinv(colour_matrix, rtol=1e-6) @ colour_matrix
    max_steps = torch.where(change > 0, 1 - reflectances, reflectances) / change.abs().clamp_min(
        1e-9
    )
    step = max_steps.amin(1, keepdim=True).clamp_(0, 1e6)
    return (reflectances + step * change).clamp_(0, 1).to(reflectances)


def observer(nm: Tensor) -> Tensor:
    """Return the colour matching functions x̄, ȳ, z̄ `(3, C)` at wavelengths (nm), see `OBSERVER`."""

    def bell(height: float, centre: float, below: float, above: float) -> Tensor:
        width = torch.where(nm < centre, below, above)
        return height * torch.exp(-0.5 * ((nm - centre) / width).square())

    return torch.stack([torch.stack([bell(*values) for values in row]).sum(0) for row in OBSERVER])


def _read_spectra(folder: Path, kind: str, nm: Tensor) -> Tensor:
    """Return the spectra of all files of a kind ("sur" or "spd") at the wavelengths, `(N, C)`."""
    spectra = []
    for path in sorted(folder.glob(f"{kind}_*.mat")):
        name = path.stem.removeprefix(f"{kind}_")
        first, step, count = read_mask(path, key=f"S_{name}").flatten().tolist()
        source = [first + step * k for k in range(int(count))]
        if source[0] <= nm[0] and nm[-1] <= source[-1]:
            columns = read_mask(path, key=f"{kind}_{name}").reshape(len(source), -1, 1)
            spectra.append(resample(columns, source, nm.tolist())[..., 0].T)
    if not spectra:
        limits = f"{float(nm[0]):g} to {float(nm[-1]):g} nm"
        raise ValueError(f"{folder}: expected a file {kind}_NAME.mat that covers {limits}")
    return torch.cat(spectra)


def _draw_uniform(generator: Generator) -> float:
    return float(torch.rand((), generator=generator))
