"""The motion of a picture over a cube: shift, rotation and scale, and how they are found."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import grid_sample, pad

from cassi import ops

REACH = 12
"""Pixels: what lies farther has no influence on a coefficient, but 1e-7."""


def corners(motion: Tensor, height: int, width: int) -> Tensor:
    """Return how far a motion moves the corners, pixels, at most."""
    rows = torch.tensor([0.0, 0.0, height - 1, height - 1], dtype=torch.float64)
    columns = torch.tensor([0.0, width - 1, 0.0, width - 1], dtype=torch.float64)
    there = _moved(motion, rows, columns, height, width)
    return torch.hypot(there[0] - rows, there[1] - columns).max()


def describe_motion(motion: Tensor) -> dict[str, float | list[float]]:
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


def inverse(motion: Tensor) -> Tensor:
    """Return the motion from the picture to the cube."""
    down, right, angle, size = motion
    c, s = torch.cos(angle) * (-size).exp(), torch.sin(angle) * (-size).exp()
    return torch.stack((-c * down - s * right, s * down - c * right, -angle, -size))


class Movable(nn.Module):
    """A picture that is sampled at any place, by cubic B-splines.

    The picture is `(B, G, H, W)`; NaN where it saw nothing.
    """

    picture: Tensor
    splines: Tensor
    there: Tensor

    def __init__(self, g: Tensor) -> None:
        super().__init__()
        there = g.isfinite().all(1, keepdim=True)
        splines = torch.where(there, g, 0)
        for _ in range(2):
            splines = _coefficients(splines).mT
        self.whole = bool(there.all())
        self.register_buffer("picture", g if self.whole else torch.where(there, g, torch.nan))
        self.register_buffer("splines", splines)
        self.register_buffer("there", there.to(g.dtype))

    def forward(self, motion: Tensor) -> Tensor:
        """Sample the picture where the points of the cube lie in it; NaN outside.

        A motion is (down, right, angle in radians, logarithm of the scale), about the centre.
        """
        if not bool(motion.any()):
            return self.picture
        height, width = self.picture.shape[2:]
        like = self.splines
        rows = torch.arange(height, dtype=like.dtype, device=like.device)[:, None]
        columns = torch.arange(width, dtype=like.dtype, device=like.device)[None]
        i, j = _moved(motion, rows, columns, height, width)
        inside = (i >= 0) & (i <= height - 1) & (j >= 0) & (j <= width - 1)
        if not self.whole:
            places = (_place(at, n) for at, n in ((i, height), (j, width)))
            inside = inside & (_sample(self.there, *places) > 0.999)
        # All four weights of a cubic B-spline are positive: two linear samples along an axis.
        down, right = (_pairs(at, n + 2) for at, n in ((i, height), (j, width)))
        found = torch.zeros_like(self.picture)
        for down_weight, row in down:
            for right_weight, column in right:
                found.addcmul_(_sample(like, row, column), down_weight * right_weight)
        return found.masked_fill_(~inside, torch.nan)

    def filled(self, motion: Tensor, predicted: Tensor) -> Tensor:
        """Return p + V (D g − W p): W moves to the picture, V back, both as `forward`; NaN outside.

        It predicts the pixels of the picture, and keeps what these cannot show of p. D are the
        exposures that fit best.
        """
        if not bool(motion.any()):
            return self.picture
        shown = Movable(predicted)(inverse(motion))
        left, _ = exposed(torch.where(shown.isfinite(), self.picture, torch.nan), shown)
        back = Movable(torch.where(self.there > 0, left, torch.nan))(motion)
        return predicted + back


def _coefficients(g: Tensor) -> Tensor:
    # Of the cubic B-splines through the pixels along the last axis, one more on either side.
    at = torch.arange(-REACH, REACH + 1, dtype=torch.float64).abs()
    kernel = (math.sqrt(3) * (math.sqrt(3) - 2) ** at).to(g)
    wide = pad(g, (REACH + 1, REACH + 1, 0, 0), mode="replicate")
    return ops.convolve1d(wide, kernel).narrow(-1, 2 * REACH, g.shape[-1] + 2)


def _pairs(at: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    # Weights and places, in the array of coefficients, of the linear samples that make a spline.
    start = at.floor()
    f = at - start
    square = f * f
    cube = square * f
    outer = 4 - 6 * square + 3 * cube  # of the second coefficient, times 6
    first = outer + (1 - f) ** 3
    return [
        (first / 6, _place(start + outer / first, size)),
        (1 - first / 6, _place(start + 2 + cube / (6 - first), size)),
    ]


def _place(at: Tensor, size: int) -> Tensor:
    return at * (2 / (size - 1)) - 1  # as `grid_sample` counts


def _sample(value: Tensor, row: Tensor, column: Tensor) -> Tensor:
    points = torch.stack((column, row), -1).expand(len(value), -1, -1, -1)
    return grid_sample(value, points, padding_mode="border", align_corners=True)


def exposed(g: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
    """Return D g − p with the exposures D that fit best, 0 where g is NaN, and D, `(B, G, 1, 1)`.

    Both are `(B, G, H, W)`.
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

    Both pictures are `(B, G, H, W)`, the moved one NaN where it shows nothing. The step is `(4,)`,
    float64, on the CPU.
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
