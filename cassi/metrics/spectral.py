"""The angle between spectra."""

from __future__ import annotations

import torch
from torch import Tensor

from cassi.metrics.checks import check_pair, like_input


def _reciprocal_norm(x: Tensor) -> Tensor:  # (B, C, H, W) -> (B, H, W)
    square = torch.zeros_like(x[:, 0], dtype=torch.float64)
    for band in x.unbind(1):
        square = square + band.double().square()
    return torch.where(square > 0, square, 1.0).rsqrt()


def sam(x: Tensor, truth: Tensor) -> Tensor:
    """Spectral angle, the mean over pixels of the angle between two spectra.

    With the unit spectra ``u = x/‖x‖`` and ``t = truth/‖truth‖`` of a pixel::

        angle = 2 atan2(‖u − t‖, ‖u + t‖) · 180/π

    which equals ``acos(uᵀt)`` and stays exact near 0, where the cosine of a small angle rounds
    to 1. A zero spectrum has no direction: against another zero spectrum it counts as 0°, against
    anything else as 90°. A factor > 0 on a pixel's spectrum changes nothing.

    Args:
        x: estimate, ``(B, C, H, W)`` or ``(C, H, W)``, any range; neither clipped nor rounded.
        truth: reference, same shape.

    Returns:
        Degrees in [0, 180], in [0, 90] for cubes without negative values; float64, ``(B,)``, or
        0-d for a single cube.

    Raises:
        TypeError: a cube is not a floating-point tensor.
        ValueError: cubes that do not match or are not finite.

    Source:
        R. Yuhas, A. Goetz, J. Boardman, "Discrimination among semi-arid landscape endmembers using
        the spectral angle mapper (SAM) algorithm", 1992. The angle: W. Kahan, "How futile are
        mindless assessments of roundoff in floating-point computation?", 2006, section 12.

    Example:
        >>> truth = torch.tensor([1.0, 0.0]).reshape(2, 1, 1)
        >>> round(sam(torch.ones(2, 1, 1), truth).item(), 6)
        45.0
    """
    cube, reference = check_pair(x, truth)
    scale_x, scale_t = _reciprocal_norm(cube), _reciprocal_norm(reference)
    apart, along = torch.zeros_like(scale_x), torch.zeros_like(scale_t)
    for a, b in zip(cube.unbind(1), reference.unbind(1), strict=True):
        unit_x, unit_t = a.double() * scale_x, b.double() * scale_t
        apart = apart + (unit_x - unit_t).square()
        along = along + (unit_x + unit_t).square()
    angle = 2 * torch.atan2(apart.sqrt(), along.sqrt())
    return like_input(torch.rad2deg(angle).mean(dim=(-2, -1)), x)
