"""What public research code does, rewritten: the figures that ours are compared with.

The operators roll every band of a wide cube `(B, C, H, W')`; the NumPy reconstruction keeps its
cube wide as well, in float64 with the bands innermost, and denoises with scikit-image.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from scripts.benchmarks.operator_baselines import Implementation, Problem

Array = NDArray[np.floating]


class ShiftRoll(Implementation):
    """The style of research code: roll every band of a wide cube, multiply by a 3-D shifted mask.

    The shifted mask is prepared once for the problem's mask; a mask in a call is not looked at.
    """

    name = "published shift-roll"
    operators = ("forward", "adjoint", "data_step")

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.extra = (len(self.columns) - 1) * problem.step
        mask = problem.mask.expand(1, len(self.columns), *problem.mask.shape)
        self.shifted_mask = self.shift(mask)  # (1, C, H, W')

    def shift(self, x: Tensor) -> Tensor:  # (B, C, H, W) -> (B, C, H, W')
        """Widen the cube and roll every band to its columns."""
        wide = functional.pad(x, (0, self.extra))
        for c, columns in enumerate(self.columns):
            wide[:, c] = torch.roll(wide[:, c], shifts=columns.start, dims=-1)
        return wide

    def shift_back(self, wide: Tensor) -> Tensor:  # (B, C, H, W') -> (B, C, H, W)
        """Roll every band back, in place, and crop."""
        for c, columns in enumerate(self.columns):
            wide[:, c] = torch.roll(wide[:, c], shifts=-columns.start, dims=-1)
        return wide[..., : wide.shape[-1] - self.extra]

    def spread(self, y: Tensor) -> Tensor:  # (B, 1, H, W') -> (B, C, H, W')
        """Repeat the measurement for every band and multiply by the shifted mask."""
        return y.repeat(1, len(self.columns), 1, 1) * self.shifted_mask

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return (self.shift(x) * self.shifted_mask).sum(1, keepdim=True)

    def adjoint(self, y: Tensor, mask: Tensor) -> Tensor:
        return self.shift_back(self.spread(y))

    def data_step(self, v: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Update the wide cube, then shift it back."""
        wide = self.shift(v)
        simulated = (wide * self.shifted_mask).sum(1, keepdim=True)
        correction = (y - simulated) / (self.problem.gram + self.problem.rho)
        return self.shift_back(wide + self.spread(correction.to(y.dtype)))


class NumpyGap:
    """Accelerated GAP in NumPy on a wide cube `(H, W', C)` in float64.

        t ← t + (y − Ax),   v = x + Aᵀ((t − Ax) / Φs),   x ← shift(denoise(shift_back(v)))

    Args:
        mask: `(H, W)`.
        bands: number of bands C.
        step: dispersion, pixels per band.
        denoise: maps a cube `(H, W, C)` to one.
    """

    def __init__(
        self, mask: Array, bands: int, step: int, denoise: Callable[[Array], Array]
    ) -> None:
        """Shift the mask of every band, and sum their squares."""
        self.step = step
        self.extra = (bands - 1) * step
        self.denoise = denoise
        cube = np.repeat(mask[:, :, None].astype(np.float64), bands, axis=2)
        self.masks = self.shift(cube)
        self.gram = (self.masks**2).sum(2)
        self.gram[self.gram == 0] = 1

    def shift(self, cube: Array) -> Array:  # (H, W, C) -> (H, W', C)
        """Widen the cube and roll every band to its columns."""
        wide = np.zeros((cube.shape[0], cube.shape[1] + self.extra, cube.shape[2]))
        wide[:, : cube.shape[1]] = cube
        for c in range(cube.shape[2]):
            wide[:, :, c] = np.roll(wide[:, :, c], c * self.step, axis=1)
        return wide

    def shift_back(self, wide: Array) -> Array:  # (H, W', C) -> (H, W, C)
        """Roll every band back and crop."""
        for c in range(wide.shape[2]):
            wide[:, :, c] = np.roll(wide[:, :, c], -c * self.step, axis=1)
        return wide[:, : wide.shape[1] - self.extra]

    def iterate(self, wide: Array, y: Array, target: Array) -> tuple[Array, Array]:
        """Run one iteration; return the wide cube and the target `(H, W')`."""
        simulated = (wide * self.masks).sum(2)
        target = target + (y - simulated)
        step = ((target - simulated) / self.gram)[:, :, None] * self.masks
        return self.shift(self.denoise(self.shift_back(wide + step))), target


def denoise_public(cube: Array, weight: float, iterations: int) -> Array:
    """Call scikit-image on `(H, W, C)` as the public codes do: in its dtype, over all channels."""
    from skimage.restoration import denoise_tv_chambolle

    return denoise_tv_chambolle(
        cube, weight=weight, eps=0, max_num_iter=iterations, channel_axis=-1
    )


def denoise_planes(cube: Array, weight: float, iterations: int) -> Array:
    """Call scikit-image on one contiguous band of `(C, H, W)` at a time, its fastest form."""
    from skimage.restoration import denoise_tv_chambolle

    clean = np.empty_like(cube)
    for band, out in zip(cube, clean, strict=True):
        out[:] = denoise_tv_chambolle(band, weight=weight, eps=0, max_num_iter=iterations)
    return clean
