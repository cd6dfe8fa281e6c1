"""The motion of a picture over a cube: shift, rotation and scale, and how they are found."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, grid_sample, pad

TAPS, SHAPE = 8, 4.0
"""Half the taps of the filter between two pixels, and the shape of its Kaiser window."""


def corners(motion: Tensor, height: int, width: int) -> Tensor:
    """Return how far a motion moves the corners, pixels, at most."""
    rows = torch.tensor([0.0, 0.0, height - 1, height - 1], dtype=torch.float64)
    columns = torch.tensor([0.0, width - 1, 0.0, width - 1], dtype=torch.float64)
    there = _moved(motion, rows, columns, height, width)
    return torch.hypot(there[0] - rows, there[1] - columns).max()


def describe_motion(motion: Tensor) -> dict[str, Any]:
    """Return shift (down, right) in pixels, rotation in degrees and scale of a motion, by name."""
    down, right, angle, size = motion.tolist()
    return {"shift": [down, right], "rotation": math.degrees(angle), "scale": math.exp(size)}


def _moved(
    motion: Tensor, rows: Tensor, columns: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor]:
    # From a point of the cube to that of the picture.
    down, right, angle, size = motion.to(rows)
    i, j = rows - (height - 1) / 2, columns - (width - 1) / 2
    c, s = torch.cos(angle) * size.exp(), torch.sin(angle) * size.exp()
    return c * i - s * j + (height - 1) / 2 + down, s * i + c * j + (width - 1) / 2 + right


class Movable(nn.Module):
    """A picture that is sampled at any place.

    Samples halfway between two pixels come from a sinc filter in a Kaiser window; the others come
    from these and the pixels by bicubic interpolation.

    Args:
        g: the picture, `(B, G, H, W)`; NaN where it saw nothing.
    """

    picture: Tensor
    fine: Tensor
    there: Tensor

    def __init__(self, g: Tensor) -> None:
        super().__init__()
        there = g.isfinite().all(1, keepdim=True)
        fine = torch.where(there, g, 0)
        for axis, length in zip((2, 3), g.shape[2:], strict=True):
            fine = _halved(fine, axis) if length > TAPS else fine
        self.whole = bool(there.all())
        self.register_buffer("picture", g if self.whole else torch.where(there, g, torch.nan))
        self.register_buffer("fine", fine)
        self.register_buffer("there", there.to(g.dtype))

    def forward(self, motion: Tensor) -> Tensor:
        """Sample the picture where the points of the cube lie in it; NaN outside.

        Args:
            motion: (down, right, angle in radians, logarithm of the scale), about the centre.
        """
        if not bool(motion.any()):
            return self.picture
        height, width = self.picture.shape[2:]
        like = self.fine
        rows = torch.arange(height, dtype=like.dtype, device=like.device)[:, None].expand(-1, width)
        columns = torch.arange(width, dtype=like.dtype, device=like.device).expand(height, -1)
        i, j = _moved(motion, rows, columns, height, width)
        inside = (i >= 0) & (i <= height - 1) & (j >= 0) & (j <= width - 1)

        def sample(value: Tensor, mode: str) -> Tensor:
            # The last pixel of the fine grid lies half a pixel beyond that of the picture.
            places = []
            for at, length, count in zip((j, i), (width, height), value.shape[:1:-1], strict=True):
                places.append(2 * at * (count // length) / max(1, count - 1) - 1)
            points = torch.stack(places, -1).expand(len(value), -1, -1, -1)
            return grid_sample(value, points, mode, padding_mode="border", align_corners=True)

        kept = inside if self.whole else inside & (sample(self.there, "bilinear") > 0.999)
        return torch.where(kept, sample(self.fine, "bicubic"), torch.nan)


def _halved(g: Tensor, axis: int) -> Tensor:
    # Twice as many samples along an axis: each pixel, and what is half a pixel behind it.
    at = torch.arange(-TAPS, TAPS, dtype=torch.float64) + 0.5
    window = torch.special.i0(SHAPE * (1 - (at / TAPS).square()).sqrt())
    taps = torch.sinc(at) * window
    kernel = (taps / taps.sum()).to(g).view((1, 1, -1, 1) if axis == 2 else (1, 1, 1, -1))
    around = (0, 0, TAPS - 1, TAPS) if axis == 2 else (TAPS - 1, TAPS, 0, 0)
    between = conv2d(pad(g, around, mode="reflect").flatten(0, 1)[:, None], kernel)
    return torch.stack((g, between.view_as(g)), axis + 1).flatten(axis, axis + 1)


def exposed(g: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
    """Return D g − p with the exposures D that fit best, 0 where g is NaN, and D, `(B, G, 1, 1)`.

    Args:
        g: picture in its place, `(B, G, H, W)`.
        predicted: p, of the same shape.
    """
    there = g.isfinite()
    g, p = torch.where(there, g, 0), torch.where(there, predicted, 0)
    gain = (g * p).sum((2, 3), keepdim=True) / (g * g).sum((2, 3), keepdim=True).clamp_min(1e-30)
    return gain * g - p, gain


def misfit(g: Tensor, predicted: Tensor) -> float:
    """Return ‖D g − p‖/‖p‖ of a picture in its place, where it has values."""
    return float(exposed(g, predicted)[0].norm() / predicted.norm())


def step_towards(moved: Tensor, predicted: Tensor) -> Tensor:
    """Return one step of Gauss–Newton for min ‖Σ_g (D g − p)‖, to be taken from the motion.

    Args:
        moved: picture in its present place, `(B, G, H, W)`; NaN where it shows nothing.
        predicted: p, what it should show.

    Returns:
        `(4,)`, float64, on the CPU.
    """
    height, width = predicted.shape[2:]
    left, gain = exposed(moved, predicted)
    image, left = (moved * gain).sum(1), left.sum(1)
    down, right = torch.gradient(image, dim=(1, 2))
    i = torch.arange(height, dtype=image.dtype, device=image.device)[:, None] - (height - 1) / 2
    j = torch.arange(width, dtype=image.dtype, device=image.device)[None] - (width - 1) / 2
    # Of the position in the picture, with its axes taken as those of the cube.
    parts = torch.stack((down, right, right * i - down * j, down * i + right * j))
    there = down.isfinite() & right.isfinite()
    rows = torch.where(there, parts, 0).flatten(1)
    matrix, side = (rows @ rows.T).double().cpu(), (rows @ left.flatten()).double().cpu()
    matrix = matrix + 1e-9 * matrix.diagonal().diag_embed() + 1e-30 * torch.eye(4).to(matrix)
    return torch.linalg.solve(matrix, side)
