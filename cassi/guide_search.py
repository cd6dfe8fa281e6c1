"""Place a guide: where its picture lies on the cube, and whether it is of this scene at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, grid_sample

from cassi.methods.auto import auto
from cassi.priors import Subspace
from cassi.solvers import ADMM, Solver
from cassi.solvers.heldout import Lines, brightest_lines, draw_seen
from cassi.solvers.linear_system import part_axis, seen
from cassi.systems import Guided, System

QUICK = 30
"""Iterations of the two reconstructions that judge a guide."""
LINES = 64
"""The lines with the most light, on which they are compared."""
LEAST = 0.15
"""Pixels: a picture whose corners are less far off is left as it is."""
MOST = 0.12
"""Of the longer side: a motion of the corners beyond it is not believed."""
LEVELS = ((4, 20), (2, 12), (1, 12))
"""Pooling of the pictures, and steps of Gauss–Newton with it."""


@dataclass(frozen=True)
class Placement:
    """What was found of a guide.

    Attributes:
        system: the camera with the guide, in its place; the camera alone, where it was refused.
        taken: whether the guide is used.
        shift: (down, right), pixels, from the centre of the cube to that of the picture.
        rotation: degrees, counter-clockwise.
        scale: of the picture, relative to the cube.
        misfit: ‖D g − R x‖/‖R x‖ between the picture in its place and what a quick reconstruction
            without the guide predicts for it.
        without: held-out error of that reconstruction, see `cassi.solvers.heldout`.
        error: held-out error of a quick reconstruction with the guide.
    """

    system: System
    taken: bool
    shift: tuple[float, float]
    rotation: float
    scale: float
    misfit: float
    without: float
    error: float

    def __str__(self) -> str:
        """Say it for people."""
        if not self.taken:
            return (
                f"refused: the error at pixels held out is {self.error:.3g} with it, "
                f"{self.without:.3g} without; is it of this scene, and its response right?"
            )
        where = "as it lies"
        if (*self.shift, self.rotation, self.scale) != (0.0, 0.0, 0.0, 1.0):
            down, right = self.shift
            where = (
                f"moved {down:+.2f} px down and {right:+.2f} px right, turned by "
                f"{self.rotation:+.3f}°, magnified {self.scale:.4f} times"
            )
        return f"{where}; held-out error {self.error:.3g}, without it {self.without:.3g}"


@torch.no_grad()
def place_guide(
    y: Tensor,
    system: System,
    picture: Tensor,
    response: Tensor,
    noise: float = 0.01,
    register: bool = True,
) -> Placement:
    """Register a guide's picture with the cube, and use it if it predicts the snapshot better.

    A quick reconstruction without the guide predicts the picture, R x. Shift, rotation and scale
    minimise ‖D g − R x‖ by Gauss–Newton, from coarse to fine. Then one more quick reconstruction
    of the brightest lines, with the guide, must predict pixels held out of the snapshot better than
    the first one. Otherwise the guide is refused.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera.
        picture: g, `(G, H, W)` or `(1|B, G, H, W)`; see `cassi.systems.Guided`.
        response: R, `(G, C)`.
        noise: of the picture, relative to its root mean square, > 0.
        register: False: the picture fits the cube pixel by pixel.

    Raises:
        ValueError: picture, response and camera do not fit.
    """
    y = seen(y, system)
    guided = Guided(system, picture, response, noise)
    heldout = draw_seen(y, system)
    method = auto(iterations=QUICK, heldout=0.0)
    x = method.run(y, system.weighted(bad_pixels=heldout)).x
    predicted = guided.guide.to(x.dtype)(x)
    found = torch.zeros(4, dtype=torch.float64)
    g = torch.where(guided.seen > 0, guided.picture, torch.nan)
    if register:
        found = find_motion(guided.picture, predicted)
        if float(corners(found, *g.shape[2:])) < LEAST:
            found = torch.zeros_like(found)
        else:
            g = move(g, found)
            guided = Guided(system, g, response, noise)
    (axis, first, stop) = (part_axis(system), 0, 0)
    cut: Any = guided
    if axis is not None:
        first, stop = brightest_lines(y, system, LINES)
        y, x, heldout = (v.narrow(axis, first, stop - first) for v in (y, x, heldout))
        cut = guided.part(first, stop)
    lines = Lines(y, cut, heldout)
    without, error = lines.error(x), lines.error(method.run(y, lines.camera).x)
    taken = math.isfinite(error) and error < without
    down, right, angle, size = found.tolist()
    return Placement(
        guided if taken else system,
        taken,
        (down, right),
        math.degrees(angle),
        math.exp(size),
        misfit(g, predicted),
        without,
        error,
    )


def takes_guide(method: Any) -> bool:
    """Return whether a method follows a guide: ADMM on spectral components, in it or as a whole."""
    if isinstance(method, Solver):
        return isinstance(method.algorithm, ADMM) and isinstance(method.prior, Subspace)
    inside = [getattr(method, name, None) for name in ("method", "start", "clean", "noisy")]
    inside += list(getattr(method, "passes", None) or ())
    return any(takes_guide(part) for part in inside if part is not None)


def corners(motion: Tensor, height: int, width: int) -> Tensor:
    """Return how far a motion moves the corners, pixels, at most."""
    rows = torch.tensor([0.0, 0.0, height - 1, height - 1], dtype=torch.float64)
    columns = torch.tensor([0.0, width - 1, 0.0, width - 1], dtype=torch.float64)
    there = _moved(motion, rows, columns, height, width)
    return torch.hypot(there[0] - rows, there[1] - columns).max()


def _moved(
    motion: Tensor, rows: Tensor, columns: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor]:
    # From a point of the cube to that of the picture.
    down, right, angle, size = motion.to(rows.dtype)
    i, j = rows - (height - 1) / 2, columns - (width - 1) / 2
    c, s = torch.cos(angle) * size.exp(), torch.sin(angle) * size.exp()
    return c * i - s * j + (height - 1) / 2 + down, s * i + c * j + (width - 1) / 2 + right


def move(g: Tensor, motion: Tensor) -> Tensor:
    """Sample a picture `(B, G, H, W)` where the points of the cube lie in it; NaN outside.

    Args:
        g: the picture; NaN where it saw nothing.
        motion: (down, right, angle in radians, logarithm of the scale).
    """
    height, width = g.shape[2:]
    rows = torch.arange(height, dtype=g.dtype, device=g.device)[:, None].expand(-1, width)
    columns = torch.arange(width, dtype=g.dtype, device=g.device).expand(height, -1)
    i, j = _moved(motion.to(g.device), rows, columns, height, width)
    inside = (i >= 0) & (i <= height - 1) & (j >= 0) & (j <= width - 1)
    at = torch.stack((2 * j / max(1, width - 1) - 1, 2 * i / max(1, height - 1) - 1), -1)
    there = g.isfinite().all(1, keepdim=True)
    at = at.expand(len(g), -1, -1, -1)

    def sample(value: Tensor, mode: str) -> Tensor:
        return grid_sample(value, at, mode, padding_mode="border", align_corners=True)

    moved = sample(torch.where(there, g, 0), "bicubic")
    kept = inside & (sample(there.to(g.dtype), "bilinear") > 0.999)
    return torch.where(kept, moved, torch.nan)


def misfit(g: Tensor, predicted: Tensor) -> float:
    """Return ‖D g − p‖/‖p‖ of a picture whose exposures D fit best, where it has values."""
    return float(_difference(g, predicted)[0].square().sum().sqrt() / predicted.norm())


def _difference(g: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    there = g.isfinite()
    g, p = torch.where(there, g, 0), torch.where(there, p, 0)
    gain = (g * p).sum((2, 3), keepdim=True) / (g * g).sum((2, 3), keepdim=True).clamp_min(1e-30)
    return gain * g - p, gain


def find_motion(picture: Tensor, predicted: Tensor) -> Tensor:
    """Find the motion of a picture by Gauss–Newton, from coarse to fine.

    Args:
        picture: g, `(1|B, G, H, W)`, all values finite.
        predicted: p, `(B, G, H, W)`.

    Returns:
        `(4,)`, float64: down and right in pixels, angle in radians, logarithm of the scale. Zero
        where it does not fit better than the picture as it is.
    """
    motion = torch.zeros(4, dtype=torch.float64)
    size = predicted.square().mean((0, 2, 3), keepdim=True).sqrt().clamp_min(1e-30)
    for pool, steps in LEVELS:
        p, g = (avg_pool2d(v, pool) if pool > 1 else v for v in (predicted / size, picture))
        height, width = p.shape[2:]
        i = torch.arange(height, dtype=p.dtype, device=p.device)[:, None] - (height - 1) / 2
        j = torch.arange(width, dtype=p.dtype, device=p.device)[None] - (width - 1) / 2
        scale = torch.tensor([1 / pool, 1 / pool, 1, 1], dtype=torch.float64)
        for _ in range(steps):
            moved = move(g, motion * scale)
            left, gain = _difference(moved, p)
            slopes = [d * gain for d in torch.gradient(moved, dim=(2, 3))]
            # Of the position in the picture, with its axes taken as those of the cube.
            parts = [slopes[0], slopes[1]]
            parts += [slopes[1] * i - slopes[0] * j, slopes[0] * i + slopes[1] * j]
            there = slopes[0].isfinite() & slopes[1].isfinite()
            rows = torch.stack([torch.where(there, v, 0).flatten() for v in parts]).double()
            matrix = rows @ rows.T
            right = rows @ torch.where(there, left, 0).flatten().double()
            matrix = (
                matrix + 1e-9 * matrix.diagonal().diag_embed() + 1e-30 * torch.eye(4).to(matrix)
            )
            step = torch.linalg.solve(matrix, right).cpu() / scale
            motion = motion - step
            if float(corners(step, *predicted.shape[2:])) < 0.01:
                break
        if not float(corners(motion, *predicted.shape[2:])) < MOST * max(predicted.shape[2:]):
            return torch.zeros_like(motion)
    better = misfit(move(picture, motion), predicted) < misfit(picture, predicted)
    return motion if better else torch.zeros_like(motion)
