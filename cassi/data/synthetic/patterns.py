"""Drawn scenes: drawn images with drawn spectra."""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn import functional

from cassi.data.simulation import draw_integer
from cassi.data.synthetic.spectra import Spectra, smooth_spectra

_GLYPH = (7, 5)  # rows and columns of the dots of a letter


def draw_pattern(
    kind: str,
    bands: int,
    height: int,
    width: int,
    generator: Generator,
    spectra: Spectra = smooth_spectra,
) -> Tensor:
    """Draw a scene of a kind of `PATTERNS`: images a_k with spectra s_k, x = Σ_k a_k s_k.

    Returns float32 `(C, height, width)`, in [0, 1]; the largest value is 1. `spectra` draws the
    s_k.

    >>> draw_pattern("patches", 4, 8, 8, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 8, 8])
    """
    if kind not in PATTERNS:
        raise ValueError(f"pattern: expected one of {', '.join(PATTERNS)}, got {kind!r}")
    cube = PATTERNS[kind](bands, height, width, generator, spectra).clamp_(min=0)
    return cube.div_(cube.amax().clamp_min(1e-6))


def _patches(bands: int, height: int, width: int, generator: Generator, draw: Spectra) -> Tensor:
    # A colour chart: squares of one reflectance each, with dark gaps.
    side = 6 + draw_integer(27, generator)
    rows, columns = height // side + 1, width // side + 1
    spectra = draw(rows * columns, bands, generator)
    cube = spectra.T.reshape(bands, rows, columns)
    cube = cube.repeat_interleave(side, 1).repeat_interleave(side, 2)[:, :height, :width]
    gap = draw_integer(max(1, side // 4), generator)
    inside = [(torch.arange(n) % side >= gap).float() for n in (height, width)]
    return cube * (0.03 + 0.97 * torch.outer(*inside))


def _text(bands: int, height: int, width: int, generator: Generator, draw: Spectra) -> Tensor:
    # Lines of letters of 7x5 dots; a dot is one to four pixels wide.
    dot = 1 + draw_integer(4, generator)
    tall, wide = _GLYPH[0] + 2, _GLYPH[1] + 1
    rows, columns = height // (tall * dot) + 1, width // (wide * dot) + 1
    dots = torch.rand(rows, columns, tall, wide, generator=generator) < 0.5
    dots[:, :, _GLYPH[0] :] = False
    dots[..., _GLYPH[1] :] = False
    dots &= torch.rand(rows, columns, 1, 1, generator=generator) < 0.85  # spaces
    ink = dots.permute(0, 2, 1, 3).reshape(rows * tall, columns * wide).float()
    ink = ink.repeat_interleave(dot, 0).repeat_interleave(dot, 1)[:height, :width]
    paper, colour = draw(2, bands, generator)[:, :, None, None]
    return torch.lerp(paper.expand(-1, height, width), colour, ink)


def _speckle(bands: int, height: int, width: int, generator: Generator, draw: Spectra) -> Tensor:
    # Intensity of a circular Gaussian field, low-pass filtered to grains of some pixels.
    grain = 1 + 3 * _uniform(generator)
    fields = torch.randn(2, height, width, generator=generator)
    grains = _blurred(fields, grain / 2).square().sum(0)
    scene = _gradients(bands, height, width, generator, draw)
    return scene * grains / grains.mean()


def _gradients(bands: int, height: int, width: int, generator: Generator, draw: Spectra) -> Tensor:
    # Even change from one reflectance to another, along two directions at once.
    spectra = draw(4, bands, generator)
    down = torch.linspace(0, 1, height)[:, None]
    right = torch.linspace(0, 1, width)
    parts = [(1 - down) * (1 - right), (1 - down) * right, down * (1 - right), down * right]
    return torch.einsum("kc,khw->chw", spectra, torch.stack(parts))


def _stripes(bands: int, height: int, width: int, generator: Generator, draw: Spectra) -> Tensor:
    # Fine periodic texture; half of the time along the columns, where dispersion mostly is.
    period = 2 + 10 * _uniform(generator) ** 2
    angle = 0.0 if draw_integer(2, generator) else math.pi * _uniform(generator)
    down, right = torch.arange(height)[:, None].float(), torch.arange(width).float()
    phase = (right * math.cos(angle) + down * math.sin(angle)) * (2 * math.pi / period)
    wave = torch.cos(phase + 2 * math.pi * _uniform(generator))
    wave = (wave > 0).float() if draw_integer(2, generator) else (1 + wave) / 2
    first, second = draw(2, bands, generator)[:, :, None, None]
    return torch.lerp(first.expand(-1, height, width), second, wave)


def _lines(bands: int, height: int, width: int, generator: Generator, draw: Spectra) -> Tensor:
    # Lamps: soft spots, each of one narrow spectral line, on a dim ground.
    count, at = 3 + draw_integer(6, generator), torch.arange(bands).float()
    centres = bands * torch.rand(count, 1, generator=generator)
    narrow = torch.exp(-(((at - centres) / (0.02 * bands + 0.5)) ** 2))
    points = torch.rand(2, count, 1, 1, generator=generator)
    size = (0.03 + 0.15 * torch.rand(count, 1, 1, generator=generator)) * min(height, width)
    down = torch.arange(height)[:, None] - height * points[0]
    right = torch.arange(width) - width * points[1]
    spots = torch.exp(-(down.square() + right.square()) / (2 * size.square()))
    ground = 0.1 * _gradients(bands, height, width, generator, draw)
    return torch.einsum("kc,khw->chw", narrow, spots) + ground


def _leaves(bands: int, height: int, width: int, generator: Generator, draw: Spectra) -> Tensor:
    # Discs of all sizes that hide one another, with the statistics of edges in photographs.
    count = 60
    spectra = draw(count, bands, generator)
    spots = torch.rand(2, count, generator=generator)
    shares = torch.rand(count, generator=generator)
    radii = min(height, width) * 0.04 / (0.1 + shares)
    down, right = torch.arange(height)[:, None], torch.arange(width)
    owner = torch.zeros(height, width, dtype=torch.long)
    for k in radii.argsort(descending=True).tolist():
        near = (down - height * spots[0, k]) ** 2 + (right - width * spots[1, k]) ** 2
        owner[near < radii[k] ** 2] = k
    return spectra[owner].permute(2, 0, 1).contiguous()


def _blurred(images: Tensor, sigma: float) -> Tensor:
    # (N, H, W), Gaussian, mirrored at the border.
    reach = max(1, math.ceil(3 * sigma))
    at = torch.arange(-reach, reach + 1).float()
    kernel = torch.exp(-0.5 * (at / sigma) ** 2)
    kernel = (kernel / kernel.sum())[None, None]
    wide = functional.pad(images[:, None], (reach,) * 4, mode="reflect")
    wide = functional.conv2d(wide, kernel[:, :, None])
    return functional.conv2d(wide, kernel[..., None])[:, 0]


def _uniform(generator: Generator) -> float:
    return float(torch.rand((), generator=generator))


PATTERNS: dict[str, Callable[[int, int, int, Generator, Spectra], Tensor]] = {
    "patches": _patches,
    "text": _text,
    "speckle": _speckle,
    "gradients": _gradients,
    "stripes": _stripes,
    "lines": _lines,
    "leaves": _leaves,
}
"""Kinds of scenes, by name."""
