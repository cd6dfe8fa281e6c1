"""What displaces and blurs a mask, and the mask that comes of it.

A point of the mask's file falls on the detector displaced by d = Σ_i θ_i·basis_i, pixels, see
`DISPLACEMENTS`. Each θ_i has a Gaussian prior about 0.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate, pad

from cassi.systems import SDCassi
from cassi.systems.photographed import is_design

EDGE = 4
"""Pixels around a mask, as bright as its border."""
PARTS = 3
"""Samples of a mask per pixel."""
_ROUNDING = 1e-4  # of an open element: single precision leaves 1e-5 in a closed one

Basis = Callable[[Tensor, Tensor, Tensor], tuple[Tensor | float, Tensor | float]]
"""Rows and columns from the middle, −1 to 1 at the border, and offset, −1 to 1 from the least band
to the farthest → displacement across the dispersion and along it, of a parameter of 1, in units
that `Parameter.scale` makes pixels."""


class Parameter(NamedTuple):
    """A number that a place has.

    Attributes:
        name: for tables, with its unit.
        deviation: standard deviation of its Gaussian prior, about 0, in its unit.
        scale: pixels per unit at the border of a mask of this height and width.
        basis: what it displaces.
    """

    name: str
    deviation: float
    scale: Callable[[float, float], tuple[float, float]]
    basis: Basis


def _pixels(height: float, width: float) -> tuple[float, float]:
    return 1.0, 1.0


def _half(height: float, width: float) -> tuple[float, float]:
    return height / 2, width / 2


def _turned(height: float, width: float) -> tuple[float, float]:
    return math.radians(width / 2), math.radians(height / 2)


DISPLACEMENTS: dict[str, Parameter] = {
    # A mask is mounted to a pixel or two, half a degree and one per cent of its size.
    "across": Parameter("shift across (px)", 1.5, _pixels, lambda u, v, z: (1.0, 0.0)),
    "rotation": Parameter("rotation (degrees)", 0.5, _turned, lambda u, v, z: (-v, u)),
    "magnification": Parameter("magnification − 1", 0.01, _half, lambda u, v, z: (u, v)),
    # Lenses and disperser shear and bend images by a thousandth of their size.
    "stretch": Parameter("stretch", 0.003, _half, lambda u, v, z: (u, -v)),
    "shear": Parameter("shear", 0.003, lambda h, w: (w / 2, h / 2), lambda u, v, z: (v, u)),
    "across uu": Parameter("bow across, rows (px)", 0.7, _pixels, lambda u, v, z: (u * u, 0.0)),
    "across uv": Parameter("bow across, both (px)", 0.7, _pixels, lambda u, v, z: (u * v, 0.0)),
    "across vv": Parameter("bow across, columns (px)", 0.7, _pixels, lambda u, v, z: (v * v, 0.0)),
    "along uu": Parameter("smile (px)", 0.7, _pixels, lambda u, v, z: (0.0, u * u)),
    "along uv": Parameter("bow along, both (px)", 0.7, _pixels, lambda u, v, z: (0.0, u * v)),
    "along vv": Parameter("bow along, columns (px)", 0.7, _pixels, lambda u, v, z: (0.0, v * v)),
    # A disperser is turned by a degree, and images of colours differ by a thousandth.
    "tilt": Parameter("tilt of the dispersion (px)", 0.3, _pixels, lambda u, v, z: (z, 0.0)),
    "colour across u": Parameter("colour (px)", 0.2, _pixels, lambda u, v, z: (z * u, 0.0)),
    "colour across v": Parameter("colour (px)", 0.2, _pixels, lambda u, v, z: (z * v, 0.0)),
    "colour along u": Parameter("colour (px)", 0.2, _pixels, lambda u, v, z: (0.0, z * u)),
    "colour along v": Parameter("colour (px)", 0.2, _pixels, lambda u, v, z: (0.0, z * v)),
}
"""What displaces a mask, its prior and the reason. Linear: d = Σ_i θ_i·basis_i. The first ones are
fitted first. A shift along the dispersion cannot be told from other offsets of the light."""
ALONG: dict[str, Parameter] = {
    # A camera is mounted to a pixel or two; its dispersion is known to 3 %, and nearly straight.
    "along": Parameter("shift along (px)", 1.5, _pixels, lambda u, v, z: (0.0, 1.0)),
    "bands": Parameter("bands alone, along (px)", 0.5, _pixels, lambda u, v, z: (0.0, 1.0)),
    "step": Parameter("step, at the ends (px)", 0.7, _pixels, lambda u, v, z: (0.0, z)),
    "curve": Parameter(
        "curve, at the ends (px)", 0.7, _pixels, lambda u, v, z: (0.0, 1.5 * z * z - 0.5)
    ),
}
"""What light in one line per band tells beside: where along the dispersion it falls."""
PARAMETERS = DISPLACEMENTS | ALONG
IN_TABLE = ("across", "rotation", "magnification", "tilt", *ALONG)
"""Those that a calibration prints as numbers of the camera."""
NUISANCES = ("width", *(key for key in DISPLACEMENTS if key.startswith(("tilt", "colour"))))
"""What differs between offsets: it is fitted, and no mask has it."""
MOVES_BANDS = (*NUISANCES[1:], "bands", "step", "curve")
"""What moves each band by itself, and not the mask."""
BLURS = {"blur": (0.1, 0.2), "width": (1.0, 0.5)}
"""Prior mean and standard deviation of the variance of the blur of a mask, pixels², and of the
variance of the light of one offset along the dispersion, over that of light of all wavelengths."""


def from_middle(row: Tensor, column: Tensor, size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return rows and columns from the middle of a mask, −1 to 1 at its border."""
    height, width = size
    return (row - (height - 1) / 2) / (height / 2), (column - (width - 1) / 2) / (width / 2)


def displacement(
    values: dict[str, float],
    fields: tuple[Tensor, Tensor, Tensor],
    size: tuple[int, ...],
    like: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return d, pixels across and along the dispersion."""
    moved = [torch.zeros_like(like), torch.zeros_like(like)]
    for key, parameter in PARAMETERS.items():
        if not (value := values.get(key, 0.0)):
            continue
        scale = parameter.scale(*size)
        for k, part in enumerate(parameter.basis(*fields)):
            moved[k] = moved[k] + value * scale[k] * part
    return moved[0], moved[1]


def fine_mask(mask: Tensor, parts: int = PARTS) -> Tensor:
    """Return a mask `(K, C, H, W)` on a grid as many times as fine, with a margin around it.

    A design is averaged over pixels as a sensor does. A photograph is averaged already.

    With one part a simulation interpolates the mask as it is.
    """
    size = [parts * (length - 1) + 1 for length in mask.shape[-2:]]
    mode = "bilinear" if is_design(mask) else "bicubic"
    fine = mask if parts == 1 else interpolate(mask, size=size, mode=mode, align_corners=True)
    return pad(fine, (EDGE * parts,) * 4, mode="replicate")


def blurred_mask(
    fine: Tensor,
    values: dict[str, float],
    pitch: float,
    derivatives: bool = False,
    parts: int = PARTS,
) -> Tensor:
    """Return a fine mask as light of one offset shows it, `(K, C, 1|5, H, W)`."""
    wide = pitch**2 / 12
    mask = _smooth(fine, parts**2 * values["blur"], -2)
    mask = _smooth(mask, parts**2 * (values["blur"] + wide * values["width"]), -1)
    if not derivatives:
        return mask[:, :, None]
    around = pad(mask, (1, 1, 1, 1), mode="replicate")
    up, down = around[..., :-2, 1:-1], around[..., 2:, 1:-1]
    left, right = around[..., 1:-1, :-2], around[..., 1:-1, 2:]
    across = (up + down - 2 * mask) * (parts**2 / 2)
    along = (left + right - 2 * mask) * (parts**2 / 2)
    slopes = ((down - up) * (parts / 2), (right - left) * (parts / 2))
    return torch.stack([mask, *slopes, across + along, wide * along], 2)


def sample_grid(row: Tensor, column: Tensor, size: tuple[int, ...], margin: int = EDGE) -> Tensor:
    """Return where `grid_sample` finds pixels of a mask of this size in its `fine_mask`."""
    height, width = (length - 1 + 2 * margin for length in size)
    at = torch.stack(((column + margin) * 2 / width - 1, (row + margin) * 2 / height - 1), -1)
    return at.float() if at.ndim == 4 else at.float()[None]


def _smooth(image: Tensor, variance: float, dim: int) -> Tensor:
    """Return an image convolved with the discrete Gaussian along one dimension.

    Its weights are e⁻ᵗ I_k(t): the variance is exactly t, samples², however small. They are the
    inverse Fourier transform of exp(t (cos ω − 1)). The derivative by t is half the second
    difference.
    """
    if variance < 1e-6:
        return image
    reach, length = math.ceil(1 + 4 * variance**0.5 + variance / 3), image.shape[dim]
    samples = 4 * reach + 64  # as many as leave less than 1e-16 of the weights beyond
    response = np.exp(variance * (np.cos(2 * math.pi / samples * np.arange(samples // 2 + 1)) - 1))
    kernel = np.fft.irfft(response, samples)[: reach + 1].tolist()
    total = 2 * sum(kernel) - kernel[0]
    margin = (reach, reach, 0, 0) if dim == -1 else (0, 0, reach, reach)
    wide = pad(image, margin, mode="replicate")
    found = wide.narrow(dim, reach, length) * (kernel[0] / total)
    for at in range(1, reach + 1):  # five times as fast as conv2d, AVX2
        for start in (reach - at, reach + at):
            found.add_(wide.narrow(dim, start, length), alpha=kernel[at] / total)
    return found


def moved_mask(system: SDCassi, values: dict[str, float], parts: int = PARTS) -> Tensor:
    """Return the mask of a camera as light in the middle of the dispersion shows it.

    The width of the light is the bands' own.

    Returns:
        Transmission, shaped like the camera's mask.
    """
    mask = system.turn(system.mask.detach()).float()
    size = mask.shape[-2:]
    row, column = torch.meshgrid(*(torch.arange(n).float() for n in size), indexing="ij")
    row, column = row.to(mask.device), column.to(mask.device)
    fields = (*from_middle(row, column, size), torch.zeros_like(row))
    across, along = displacement(values, fields, size, like=row)
    values = {**values, "width": 0.0}
    image = blurred_mask(fine_mask(mask, parts), values, pitch=0.0, parts=parts)[:, :, 0]
    at = sample_grid(row - across, column - along, size).expand(len(image), -1, -1, -1)
    found = grid_sample(image, at, align_corners=True).clamp(0, max(1.0, float(mask.amax())))
    found = torch.where(found < _ROUNDING, 0, found)  # a solver would divide by it
    return system.turn(found).to(system.mask).contiguous()
