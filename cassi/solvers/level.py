"""How bright a scene is, judged by its measurement."""

from __future__ import annotations

import torch
from torch import Tensor

from cassi.solvers.base import LinearSystem
from cassi.solvers.reading import reading_of

_SAMPLES = 1 << 20  # a quantile sorts: of a large detector every n-th pixel is enough


def signal_level(y: Tensor, system: LinearSystem) -> Tensor:
    """Estimate how bright the scene is, to make a solver's parameters independent of units.

    The level is the 99.9 % quantile of |y| / A1 over the detector, the mean radiance behind a
    pixel.

    Args:
        y: measurement `(B, K, H, W')`.
        system: the camera.

    Returns:
        `(B, 1, 1, 1)`, 1 where the measurement is all zero.

    Raises:
        TypeError: y is not a tensor.
        ValueError: y is not `(B, K, H', W')`, or holds NaN.
    """
    if not isinstance(y, Tensor):
        raise TypeError(f"y: expected a torch.Tensor, got {type(y).__name__}")
    if y.ndim != 4:
        raise ValueError(f"y: expected (B, K, H', W'), got shape {tuple(y.shape)}")
    if not torch.isfinite(y).all():
        raise ValueError("y: expected finite values, got NaN or infinity")
    reading = reading_of(system)
    if reading is not None:
        return reading.level.to(y)
    return brightness_level(y, flat_field(y, system))


@torch.no_grad()
def flat_field(y: Tensor, system: LinearSystem) -> Tensor:
    """Return A1, `(B, K, H, W')`: the measurement of an evenly lit scene, made like y."""
    return system(torch.ones_like(system.adjoint(y)))


@torch.no_grad()
def brightness_level(y: Tensor, flat: Tensor) -> Tensor:
    """Return the 99.9 % quantile of |y| / A1: `(B, K, H, W')` twice → `(B, 1, 1, 1)`."""
    lit = flat > flat.amax() * 1e-3
    mean = torch.where(lit, y.abs() / flat, 0).flatten(1).float()
    mean = mean[:, :: max(1, mean.shape[1] // _SAMPLES)]
    level = torch.quantile(mean, 0.999, dim=1).to(y.dtype).view(-1, 1, 1, 1)
    return torch.where(level > 0, level, 1)
