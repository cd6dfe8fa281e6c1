"""Standard deviations of means over regions.

Errors of neighbouring pixels are correlated. So σ of a mean over n pixels falls more slowly than
1/√n.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cassi.uncertainty.error_model import load_error_model


@dataclass(frozen=True)
class Region:
    """The mean spectrum of a region and its standard deviation.

    Attributes:
        pixels: number n of pixels.
        mean: spectrum s, the mean over the pixels, `(B, C)`, in the unit of the cube.
        std: its standard deviation, `(B, C)`.
        shape: s divided by its mean over the bands, `(B, C)`.
        shape_std: the standard deviation of the shape, `(B, C)`.
    """

    pixels: int
    mean: Tensor
    std: Tensor
    shape: Tensor
    shape_std: Tensor


@torch.no_grad()
def region(result: Any, where: Any) -> Region:
    r"""Return the mean spectrum of a region, its shape, and the standard deviations of both.

    z is an error of the method in units of σ (`Uncertainty.pattern`). It is moved by every shift t:

        Var s_c = k² · mean_t (1/n · Σ_{p ∈ region} σ_c(p) z_c(p + t))²

    The variance of the shape s_c/s̄ follows in the same way, to first order in the error. So both
    variances contain the correlation of the method's errors on this scene, in space and between
    bands. The factor k depends on n. `scripts/release/uncertainty.py` fits k so that 90 % of the
    errors of means are within ±1.645 σ, for scenes with which σ was not trained.

    Args:
        result: a `cassi.Reconstruction`, or anything with `x`, `std` and `pattern`,
            `(B, C, H, W)`.
        where: an image `(H, W)` that is not zero at the pixels of the region; or two slices, the
            first of rows and the second of columns.

    Raises:
        ValueError: the region is empty, or has another size than the cube.

    >>> from types import SimpleNamespace
    >>> ones = torch.ones(1, 3, 8, 8)
    >>> found = region(SimpleNamespace(x=ones, std=ones, pattern=ones), (slice(2, 5), slice(2, 5)))
    >>> found.pixels, found.mean
    (9, tensor([[1., 1., 1.]]))
    """
    x, std, pattern = result.x, result.std, result.pattern
    height, width = x.shape[-2:]
    if isinstance(where, tuple):
        is_inside = torch.zeros(height, width, dtype=torch.bool)
        is_inside[where] = True
    else:
        is_inside = torch.as_tensor(where)
    if tuple(is_inside.shape) != (height, width):
        raise ValueError(
            f"region: expected (H, W) = {(height, width)}, or two slices, "
            f"got {tuple(is_inside.shape)}"
        )
    is_inside = (is_inside != 0).to(x.device)
    count = int(is_inside.sum())
    if count == 0:
        raise ValueError("region: expected some pixels, got none")
    mean, spectrum_std, shape, shape_std = shifted_errors(x, std, pattern, is_inside)
    model = load_error_model()
    return Region(
        count,
        mean,
        spectrum_std * model.factor_of(count),
        shape,
        shape_std * model.factor_of(count, spectra=True),
    )


@torch.no_grad()
def shifted_errors(
    x: Tensor, std: Tensor, pattern: Tensor, is_inside: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return mean, σ of the mean, shape and σ of the shape, without the factor k of `region`.

    Args:
        x: cube `(B, C, H, W)`.
        std: σ of x, of the same shape.
        pattern: an error of the method in units of σ, of the same shape.
        is_inside: bool, pixels of the region, `(H, W)`.

    Returns:
        Four tensors `(B, C)`.
    """
    weights = is_inside.to(x.dtype) / is_inside.sum()
    mean = (x * weights).sum((-2, -1))
    errors = _correlate(std * weights, pattern)  # (B, C, H, W), one for each t
    brightness = mean.mean(1, keepdim=True)
    tiny = torch.finfo(x.dtype).tiny
    nonzero_brightness = torch.where(brightness.abs() > tiny, brightness, tiny)
    shape = mean / nonzero_brightness
    shape_errors = (
        errors - shape[..., None, None] * errors.mean(1, keepdim=True)
    ) / nonzero_brightness[..., None, None]
    return (
        mean,
        errors.square().mean((-2, -1)).sqrt(),
        shape,
        shape_errors.square().mean((-2, -1)).sqrt(),
    )


def _correlate(kernel: Tensor, pattern: Tensor) -> Tensor:
    """Return the periodic correlation Σ_p k(p) z(p + t) for every shift t."""
    spectrum = torch.fft.rfft2(pattern) * torch.fft.rfft2(kernel).conj()
    return torch.fft.irfft2(spectrum, s=pattern.shape[-2:])
