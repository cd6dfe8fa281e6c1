"""Small windows of a measurement, as combinations of what plain scenes would give."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cassi.solvers.linear_system import LinearSystem

SIDE = 16
"""Of a window, in pixels: enough for the unknowns, few enough for a scene to be simple."""
_SPECTRA = 6  # smooth spectra, cosines
_NORMAL = 2.054  # quantile of the best 2 %


def fit_windows(y: Tensor, system: LinearSystem, at: Tensor) -> tuple[Tensor, Tensor]:
    """Fit the images of plain scenes to windows of a measurement.

    Args:
        y: measurement `(B, K, H, W')`.
        system: the camera.
        at: row and column of each window, counted in windows, `(P, 2)`.

    Returns:
        The variance of what the fit leaves, corrected for being among the best 2 %, and the mean,
        `(P, B)` each; empty where the windows have no more pixels than unknowns.
    """
    data = _cut(y, at)  # (P, B, pixels)
    # (P, B, images, pixels): the camera may have a mask of its own for every sample
    columns = torch.stack([_cut(image, at) for image in _plain_images(y, system)], 2)
    freedom = columns.shape[3] - columns.shape[2]
    if freedom < 32:
        return data.new_zeros(0), data.new_zeros(0)
    q, _ = torch.linalg.qr(columns.mT)
    data = data[..., None]
    rest = data - q @ (q.mT @ data)
    variance = rest.square().sum((2, 3)) / freedom
    # The quantile of a χ² variable over its mean (Wilson, Hilferty, 1931).
    spread = 2 / (9 * freedom)
    best = (1 - spread - _NORMAL * math.sqrt(spread)) ** 3
    return variance / best, data.mean((2, 3))


def _plain_images(y: Tensor, system: LinearSystem) -> list[Tensor]:
    batch, bands, height, width = system.adjoint(y).shape
    at = (torch.arange(bands, device=y.device, dtype=y.dtype) + 0.5) / bands
    down = torch.linspace(-1, 1, height, device=y.device, dtype=y.dtype).view(-1, 1)
    right = torch.linspace(-1, 1, width, device=y.device, dtype=y.dtype)
    maps = [torch.ones_like(down + right), down.expand(-1, width), right.expand(height, -1)]
    spectra = [torch.cos(math.pi * k * at) for k in range(min(_SPECTRA, bands))]
    cubes = (s.view(1, -1, 1, 1) * m for s in spectra for m in maps)
    return [system(cube.expand(batch, -1, -1, -1).contiguous()) for cube in cubes]


def _cut(image: Tensor, at: Tensor) -> Tensor:
    """Cut windows at rows and columns of windows: `(B, K, H, W)`, `(P, 2)` → `(P, B, K·256)`."""
    image = image.to(torch.promote_types(image.dtype, torch.float32))
    batch, shots, height, width = image.shape
    down, across = height // SIDE, width // SIDE
    image = image[..., : down * SIDE, : across * SIDE]
    cut = image.reshape(batch, shots, down, SIDE, across, SIDE).permute(2, 4, 0, 1, 3, 5)
    return cut[at[:, 0], at[:, 1]].reshape(len(at), batch, shots * SIDE**2)
