"""Draw synthetic scenes: random images, such as letters or stripes, with random spectra."""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn import functional

from cassi.data.simulation import draw_integer
from cassi.data.synthetic.spectra import Spectra, smooth_spectra

_GLYPH_DOTS = (7, 5)  # rows and columns of the dots of a letter


def draw_pattern(
    kind: str,
    bands: int,
    height: int,
    width: int,
    generator: Generator,
    spectra: Spectra = smooth_spectra,
) -> Tensor:
    """Draw a scene x = Σ_k a_k s_k of images a_k and spectra s_k.

    Args:
        kind: a key of `PATTERNS`.
        bands: C.
        height: pixels.
        width: pixels.
        generator: source of all random numbers.
        spectra: function that draws the s_k.

    Returns:
        float32 `(C, height, width)`, in [0, 1], with a maximum of 1.

    Raises:
        ValueError: an unknown kind.

    >>> draw_pattern("patches", 4, 8, 8, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 8, 8])
    """
    if kind not in PATTERNS:
        raise ValueError(f"pattern: expected one of {', '.join(PATTERNS)}, got {kind!r}")
    cube = PATTERNS[kind](bands, height, width, generator, spectra).clamp_(min=0)
    return cube.div_(cube.amax().clamp_min(1e-6))


def _draw_patches(
    bands: int, height: int, width: int, generator: Generator, draw: Spectra
) -> Tensor:
    """Draw a colour chart: squares with one reflectance each, and dark gaps between them."""
    side = 6 + draw_integer(27, generator)
    rows, columns = height // side + 1, width // side + 1
    spectra = draw(rows * columns, bands, generator)
    cube = spectra.T.reshape(bands, rows, columns)
    cube = cube.repeat_interleave(side, 1).repeat_interleave(side, 2)[:, :height, :width]
    gap = draw_integer(max(1, side // 4), generator)
    is_inside = [(torch.arange(n) % side >= gap).float() for n in (height, width)]
    return cube * (0.03 + 0.97 * torch.outer(*is_inside))


def _draw_text(bands: int, height: int, width: int, generator: Generator, draw: Spectra) -> Tensor:
    """Draw lines of random letters. A letter has 7x5 dots of one to four pixels each."""
    dot = 1 + draw_integer(4, generator)
    line_height, letter_width = _GLYPH_DOTS[0] + 2, _GLYPH_DOTS[1] + 1
    rows, columns = height // (line_height * dot) + 1, width // (letter_width * dot) + 1
    dots = torch.rand(rows, columns, line_height, letter_width, generator=generator) < 0.5
    dots[:, :, _GLYPH_DOTS[0] :] = False
    dots[..., _GLYPH_DOTS[1] :] = False
    # 15 % of the letters are spaces.
    dots &= torch.rand(rows, columns, 1, 1, generator=generator) < 0.85
    ink = dots.permute(0, 2, 1, 3).reshape(rows * line_height, columns * letter_width).float()
    ink = ink.repeat_interleave(dot, 0).repeat_interleave(dot, 1)[:height, :width]
    paper, colour = draw(2, bands, generator)[:, :, None, None]
    return torch.lerp(paper.expand(-1, height, width), colour, ink)


def _draw_speckle(
    bands: int, height: int, width: int, generator: Generator, draw: Spectra
) -> Tensor:
    """Draw speckle: the intensity of a circular Gaussian field with grains of some pixels."""
    grain = 1 + 3 * _draw_uniform(generator)
    fields = torch.randn(2, height, width, generator=generator)
    grains = _blur(fields, grain / 2).square().sum(0)
    scene = _draw_gradients(bands, height, width, generator, draw)
    return scene * grains / grains.mean()


def _draw_gradients(
    bands: int, height: int, width: int, generator: Generator, draw: Spectra
) -> Tensor:
    """Draw a bilinear change between four reflectances in the corners."""
    spectra = draw(4, bands, generator)
    down = torch.linspace(0, 1, height)[:, None]
    right = torch.linspace(0, 1, width)
    corner_weights = [
        (1 - down) * (1 - right),
        (1 - down) * right,
        down * (1 - right),
        down * right,
    ]
    return torch.einsum("kc,khw->chw", spectra, torch.stack(corner_weights))


def _draw_stripes(
    bands: int, height: int, width: int, generator: Generator, draw: Spectra
) -> Tensor:
    """Draw a fine periodic texture."""
    # Half of the time it varies along the columns only, the usual axis of dispersion.
    period = 2 + 10 * _draw_uniform(generator) ** 2
    angle = 0.0 if draw_integer(2, generator) else math.pi * _draw_uniform(generator)
    down, right = torch.arange(height)[:, None].float(), torch.arange(width).float()
    phase = (right * math.cos(angle) + down * math.sin(angle)) * (2 * math.pi / period)
    wave = torch.cos(phase + 2 * math.pi * _draw_uniform(generator))
    wave = (wave > 0).float() if draw_integer(2, generator) else (1 + wave) / 2
    first, second = draw(2, bands, generator)[:, :, None, None]
    return torch.lerp(first.expand(-1, height, width), second, wave)


def _draw_lamps(bands: int, height: int, width: int, generator: Generator, draw: Spectra) -> Tensor:
    """Draw lamps: soft spots, each with one narrow spectral line, on a dim background."""
    count, band_numbers = 3 + draw_integer(6, generator), torch.arange(bands).float()
    centres = bands * torch.rand(count, 1, generator=generator)
    line_spectra = torch.exp(-(((band_numbers - centres) / (0.02 * bands + 0.5)) ** 2))
    spot_centres = torch.rand(2, count, 1, 1, generator=generator)
    size = (0.03 + 0.15 * torch.rand(count, 1, 1, generator=generator)) * min(height, width)
    down = torch.arange(height)[:, None] - height * spot_centres[0]
    right = torch.arange(width) - width * spot_centres[1]
    spots = torch.exp(-(down.square() + right.square()) / (2 * size.square()))
    background = 0.1 * _draw_gradients(bands, height, width, generator, draw)
    return torch.einsum("kc,khw->chw", line_spectra, spots) + background


def _draw_leaves(
    bands: int, height: int, width: int, generator: Generator, draw: Spectra
) -> Tensor:
    """Draw discs of many sizes that hide one another, with the edge statistics of photographs."""
    # More discs give finer detail and leave less of the image to the spectrum of the first disc.
    count = 60
    spectra = draw(count, bands, generator)
    spots = torch.rand(2, count, generator=generator)
    radius_draws = torch.rand(count, generator=generator)
    radii = min(height, width) * 0.04 / (0.1 + radius_draws)
    down, right = torch.arange(height)[:, None], torch.arange(width)
    disc_numbers = torch.zeros(height, width, dtype=torch.long)
    for k in radii.argsort(descending=True).tolist():
        squared_distance = (down - height * spots[0, k]) ** 2 + (right - width * spots[1, k]) ** 2
        disc_numbers[squared_distance < radii[k] ** 2] = k
    return spectra[disc_numbers].permute(2, 0, 1).contiguous()


def _blur(images: Tensor, sigma: float) -> Tensor:
    """Blur images `(N, H, W)` by a Gaussian, mirrored at the border."""
    radius = max(1, math.ceil(3 * sigma))
    offsets = torch.arange(-radius, radius + 1).float()
    kernel = torch.exp(-0.5 * (offsets / sigma) ** 2)
    kernel = (kernel / kernel.sum())[None, None]
    padded = functional.pad(images[:, None], (radius,) * 4, mode="reflect")
    padded = functional.conv2d(padded, kernel[:, :, None])
    return functional.conv2d(padded, kernel[..., None])[:, 0]


def _draw_uniform(generator: Generator) -> float:
    return float(torch.rand((), generator=generator))


PATTERNS: dict[str, Callable[[int, int, int, Generator, Spectra], Tensor]] = {
    "patches": _draw_patches,
    "text": _draw_text,
    "speckle": _draw_speckle,
    "gradients": _draw_gradients,
    "stripes": _draw_stripes,
    "lines": _draw_lamps,
    "leaves": _draw_leaves,
}
"""The functions that draw scenes, by kind."""
