"""Displacement and blur of a mask: their parameters, their priors, and the moved mask.

On the detector, a point of the mask is displaced from its place in the file by d = Σ_i θ_i·basis_i
pixels, see `DISPLACEMENTS`. Each θ_i has a Gaussian prior with mean 0.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate, pad

from cassi.systems import SDCassi
from cassi.systems.mask_kind import is_design

EDGE_PIXELS = 4
"""Width of the margin around a mask, pixels. It is filled with the values at the mask's border."""
SAMPLES_PER_PIXEL = 3
"""Samples per pixel of a mask, along each axis. More take more time; fewer interpolate worse."""
# Transmission below this becomes 0. Interpolation in single precision leaves 1e-5 in a closed
# element of the mask, and solvers divide by the transmission. Without this limit held-out errors of
# cameras of few bands were 200 times as large.
_MIN_TRANSMISSION = 1e-4

Basis = Callable[[Tensor, Tensor, Tensor], tuple[Tensor | float, Tensor | float]]
"""The displacement that a parameter of value 1 causes.

It takes the row and the column, −1 to 1 from border to border of the mask, and the offset, −1 to 1
from the smallest to the largest one. It returns the displacement across the dispersion, and that
along it, both in units of `Parameter.scale`."""


class Parameter(NamedTuple):
    """A parameter of the displacement of a mask.

    Attributes:
        name: name in tables, with the unit.
        deviation: standard deviation of the Gaussian prior with mean 0, in the parameter's unit.
        scale: takes height and width of a mask, and returns the pixels by which a value of 1 moves
            the border of the mask: first across the dispersion, second along it.
        basis: displacement that a value of 1 causes, relative to `scale`.
    """

    name: str
    deviation: float
    scale: Callable[[float, float], tuple[float, float]]
    basis: Basis


def _pixel_scale(height: float, width: float) -> tuple[float, float]:
    return 1.0, 1.0


def _half_size_scale(height: float, width: float) -> tuple[float, float]:
    return height / 2, width / 2


def _degree_scale(height: float, width: float) -> tuple[float, float]:
    return math.radians(width / 2), math.radians(height / 2)


DISPLACEMENTS: dict[str, Parameter] = {
    # Deviations of the first three: a mask is mounted to one or two pixels, half a degree, and one
    # per cent of its size.
    "across": Parameter("shift across (px)", 1.5, _pixel_scale, lambda u, v, z: (1.0, 0.0)),
    "rotation": Parameter("rotation (degrees)", 0.5, _degree_scale, lambda u, v, z: (-v, u)),
    "magnification": Parameter("magnification − 1", 0.01, _half_size_scale, lambda u, v, z: (u, v)),
    # Lenses and disperser shear and bend an image by some thousandths of its size. Without the
    # quadratic terms the corners of a mask were misplaced by 0.4 to 2.5 pixels, with them by 0.05
    # to 0.5 (docs/development/experiments/evidence.md).
    "stretch": Parameter("stretch", 0.003, _half_size_scale, lambda u, v, z: (u, -v)),
    "shear": Parameter("shear", 0.003, lambda h, w: (w / 2, h / 2), lambda u, v, z: (v, u)),
    "across uu": Parameter(
        "bow across, rows (px)", 0.7, _pixel_scale, lambda u, v, z: (u * u, 0.0)
    ),
    "across uv": Parameter(
        "bow across, both (px)", 0.7, _pixel_scale, lambda u, v, z: (u * v, 0.0)
    ),
    "across vv": Parameter(
        "bow across, columns (px)", 0.7, _pixel_scale, lambda u, v, z: (v * v, 0.0)
    ),
    "along uu": Parameter("smile (px)", 0.7, _pixel_scale, lambda u, v, z: (0.0, u * u)),
    "along uv": Parameter("bow along, both (px)", 0.7, _pixel_scale, lambda u, v, z: (0.0, u * v)),
    "along vv": Parameter(
        "bow along, columns (px)", 0.7, _pixel_scale, lambda u, v, z: (0.0, v * v)
    ),
    # A disperser is rotated by up to a degree, and the images of two wavelengths differ in size by
    # a thousandth. These terms depend on the offset z of the light.
    "tilt": Parameter("tilt of the dispersion (px)", 0.3, _pixel_scale, lambda u, v, z: (z, 0.0)),
    "colour across u": Parameter("colour (px)", 0.2, _pixel_scale, lambda u, v, z: (z * u, 0.0)),
    "colour across v": Parameter("colour (px)", 0.2, _pixel_scale, lambda u, v, z: (z * v, 0.0)),
    "colour along u": Parameter("colour (px)", 0.2, _pixel_scale, lambda u, v, z: (0.0, z * u)),
    "colour along v": Parameter("colour (px)", 0.2, _pixel_scale, lambda u, v, z: (0.0, z * v)),
}
"""Parameters of the displacement d = Σ_i θ_i·basis_i in any light.

A shift along the dispersion is not among them. In broadband light it cannot be told from a shift of
all offsets of the light."""
ALONG_DISPERSION: dict[str, Parameter] = {
    # A camera is mounted with an error of one or two pixels. Its dispersion is nominal to 3 %, and
    # nearly a straight line.
    "along": Parameter("shift along (px)", 1.5, _pixel_scale, lambda u, v, z: (0.0, 1.0)),
    "bands": Parameter("bands alone, along (px)", 0.5, _pixel_scale, lambda u, v, z: (0.0, 1.0)),
    "step": Parameter("step, at the ends (px)", 0.7, _pixel_scale, lambda u, v, z: (0.0, z)),
    "curve": Parameter(
        "curve, at the ends (px)", 0.7, _pixel_scale, lambda u, v, z: (0.0, 1.5 * z * z - 0.5)
    ),
}
"""Parameters that are identifiable only in light with one line per band."""
PARAMETERS = DISPLACEMENTS | ALONG_DISPERSION
PRINTED_PARAMETERS = ("across", "rotation", "magnification", "tilt", *ALONG_DISPERSION)
"""Parameters that a calibration prints as numbers of the camera."""
LIGHT_PARAMETERS = ("width", *(key for key in DISPLACEMENTS if key.startswith(("tilt", "colour"))))
"""Parameters that are fitted but do not change the mask: their effect depends on the offset."""
BAND_PARAMETERS = (*LIGHT_PARAMETERS[1:], "bands", "step", "curve")
"""Parameters that move single bands and leave the mask where it is."""
BLURS = {"blur": (0.1, 0.2), "width": (1.0, 0.5)}
"""Priors of two variances. first: mean; second: standard deviation.

blur: variance of the blur of the mask, pixels².
width: variance of the light of one offset along the dispersion, relative to that of light that is
even from one offset to the next."""


def from_middle(row: Tensor, column: Tensor, size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return rows and columns relative to the middle of a mask, −1 to 1 from border to border."""
    height, width = size
    return (row - (height - 1) / 2) / (height / 2), (column - (width - 1) / 2) / (width / 2)


def displacement(
    values: dict[str, float],
    fields: tuple[Tensor, Tensor, Tensor],
    size: tuple[int, ...],
    template: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the displacement d across and along the dispersion, pixels, shaped like a template.

    Args:
        values: values of `PARAMETERS`, by key; a missing one is 0.
        fields: row, column and offset, each −1 to 1, see `Basis`.
        size: height and width of the mask, pixels.
        template: tensor with the shape of the result.
    """
    shifts = [torch.zeros_like(template), torch.zeros_like(template)]
    for key, parameter in PARAMETERS.items():
        if not (value := values.get(key, 0.0)):
            continue
        scale = parameter.scale(*size)
        for k, direction in enumerate(parameter.basis(*fields)):
            shifts[k] = shifts[k] + value * scale[k] * direction
    return shifts[0], shifts[1]


def fine_mask(mask: Tensor, oversampling: int = SAMPLES_PER_PIXEL) -> Tensor:
    """Return a mask `(K, C, H, W)` on an oversampled grid, with a margin around it.

    With an oversampling of 1 the values do not change: simulations interpolate the mask's pixels.
    """
    # A design mask is interpolated linearly. This spreads its edges over a pixel, as a sensor does.
    # A measured mask was averaged by its sensor already. So it is interpolated by cubics, which add
    # no second blur.
    size = [oversampling * (length - 1) + 1 for length in mask.shape[-2:]]
    mode = "bilinear" if is_design(mask) else "bicubic"
    samples = (
        mask if oversampling == 1 else interpolate(mask, size=size, mode=mode, align_corners=True)
    )
    return pad(samples, (EDGE_PIXELS * oversampling,) * 4, mode="replicate")


def blurred_mask(
    samples: Tensor,
    values: dict[str, float],
    pitch: float,
    derivatives: bool = False,
    oversampling: int = SAMPLES_PER_PIXEL,
) -> Tensor:
    """Return an oversampled mask, blurred as in light of one offset, `(K, C, 1|5, H, W)`.

    With `derivatives` the planes 1 to 4 are the derivatives by row and column, pixels⁻¹, and by
    the variances "blur" and "width" of `BLURS`.

    Args:
        samples: the oversampled mask, from `fine_mask` with the same oversampling.
        values: values of `BLURS`.
        pitch: distance of the offsets, pixels. Light between them has the variance pitch²/12.
        derivatives: whether to return the derivatives, too.
        oversampling: samples per pixel along each axis.
    """
    width_variance = pitch**2 / 12
    mask = _gaussian_blur(samples, oversampling**2 * values["blur"], -2)
    mask = _gaussian_blur(
        mask, oversampling**2 * (values["blur"] + width_variance * values["width"]), -1
    )
    if not derivatives:
        return mask[:, :, None]
    bordered_mask = pad(mask, (1, 1, 1, 1), mode="replicate")
    up, down = bordered_mask[..., :-2, 1:-1], bordered_mask[..., 2:, 1:-1]
    left, right = bordered_mask[..., 1:-1, :-2], bordered_mask[..., 1:-1, 2:]
    curvature_across = (up + down - 2 * mask) * (oversampling**2 / 2)
    curvature_along = (left + right - 2 * mask) * (oversampling**2 / 2)
    slopes = ((down - up) * (oversampling / 2), (right - left) * (oversampling / 2))
    return torch.stack(
        [mask, *slopes, curvature_across + curvature_along, width_variance * curvature_along], 2
    )


def sample_grid(
    row: Tensor, column: Tensor, size: tuple[int, ...], margin: int = EDGE_PIXELS
) -> Tensor:
    """Convert pixels of a mask into coordinates −1 to 1 of its `fine_mask`, for `grid_sample`.

    Args:
        row: rows of the mask, pixels.
        column: columns of the mask, pixels; rows and columns are broadcast.
        size: height and width of the mask, pixels.
        margin: width of the margin around the mask, pixels.
    """
    height, width = (length - 1 + 2 * margin for length in size)
    # torch.broadcast_shapes would import sympy, in a fifth of the time of `import torch`.
    row, column = torch.broadcast_tensors(row, column)
    positions = torch.empty(*row.shape, 2, device=row.device)
    for k, (pixels, length) in enumerate(((column, width), (row, height))):
        positions[..., k] = (pixels + margin) * (2 / length) - 1
    return positions if positions.ndim == 4 else positions[None]


def _gaussian_blur(image: Tensor, variance: float, dim: int) -> Tensor:
    """Return an image convolved with the discrete Gaussian along one dimension.

    The weights of this Gaussian are e⁻ᵗ I_k(t), with Bessel functions I. Its variance is exactly t
    samples², also for small t. The weights are computed as the inverse Fourier transform of
    exp(t (cos ω − 1)). The derivative of the image by t is half its second difference.
    """
    # Below this variance the blur is smaller than what single precision resolves.
    if variance < 1e-6:
        return image
    radius, length = math.ceil(1 + 4 * variance**0.5 + variance / 3), image.shape[dim]
    # The transform is periodic. The period is so long that less than 1e-16 of the weights lies
    # outside of it.
    samples = 4 * radius + 64
    response = np.exp(variance * (np.cos(2 * math.pi / samples * np.arange(samples // 2 + 1)) - 1))
    kernel = np.fft.irfft(response, samples)[: radius + 1].tolist()
    total = 2 * sum(kernel) - kernel[0]
    margin = (radius, radius, 0, 0) if dim == -1 else (0, 0, radius, radius)
    extended_image = pad(image, margin, mode="replicate")
    image_sum = extended_image.narrow(dim, radius, length) * (kernel[0] / total)
    # Sums of shifted images are five times as fast as conv2d on a CPU with AVX2.
    for distance in range(1, radius + 1):
        for start in (radius - distance, radius + distance):
            image_sum.add_(
                extended_image.narrow(dim, start, length), alpha=kernel[distance] / total
            )
    return image_sum


def moved_mask(
    system: SDCassi, values: dict[str, float], oversampling: int = SAMPLES_PER_PIXEL
) -> Tensor:
    """Return the mask of a camera, displaced and blurred as in the middle of the dispersion.

    "width" does not blur this mask, because the bands of the camera have that width themselves.

    Returns:
        Transmission, shaped like the camera's mask.
    """
    mask = system.orient(system.mask.detach()).float()
    size = mask.shape[-2:]
    row, column = torch.meshgrid(*(torch.arange(n).float() for n in size), indexing="ij")
    row, column = row.to(mask.device), column.to(mask.device)
    fields = (*from_middle(row, column, size), torch.zeros_like(row))
    shift_across, shift_along = displacement(values, fields, size, template=row)
    values = {**values, "width": 0.0}
    image = blurred_mask(
        fine_mask(mask, oversampling), values, pitch=0.0, oversampling=oversampling
    )[:, :, 0]
    positions = sample_grid(row - shift_across, column - shift_along, size).expand(
        len(image), -1, -1, -1
    )
    transmission = grid_sample(image, positions, align_corners=True).clamp(
        0, max(1.0, float(mask.amax()))
    )
    transmission = torch.where(transmission < _MIN_TRANSMISSION, 0, transmission)
    return system.orient(transmission).to(system.mask).contiguous()
