"""Place a guide: about where its picture lies, and whether it is of this scene at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from cassi.methods.auto import auto
from cassi.priors import Subspace
from cassi.solvers import ADMM, Solver
from cassi.solvers.heldout import hold_out
from cassi.solvers.linear_system import seen
from cassi.systems import Guided, System
from cassi.systems.guide import MOST
from cassi.systems.motion import Movable, corners, misfit, step_towards

QUICK = 8
"""Iterations of the reconstruction that predicts the picture."""
JUDGED, LINES = 20, 32
"""Iterations of the two reconstructions that judge a guide, of the lines with the most light."""
BELIEVED = 2.0
"""Times the held-out error without a guide. On training scenes the right guide had at most 1.5 of
it, one of another scene at least 3.5."""
ENOUGH = 0.1
"""Pixels: a step that moves the corners less is the last one; every run comes closer."""
LEVELS = ((8, 8), (4, 8), (2, 8))
"""Pooling of the pictures, and steps of Gauss–Newton with it."""


@dataclass(frozen=True)
class Placement:
    """What was found of a guide.

    Attributes:
        system: the camera with the guide, near its place; the camera alone, where it was refused.
        taken: whether the guide is used.
        misfit: ‖D g − R x‖/‖R x‖ between the picture there and what a quick reconstruction without
            the guide predicts for it.
        without: held-out error without the guide, see `cassi.solvers.heldout`.
        error: held-out error with it.
    """

    system: System
    taken: bool
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
        return f"used; held-out error {self.error:.3g}, without it {self.without:.3g}"


@torch.no_grad()
def place_guide(
    y: Tensor,
    system: System,
    picture: Tensor,
    response: Tensor,
    noise: float = 0.01,
    register: bool = True,
) -> Placement:
    """Find about where a guide's picture lies, and use it if it does not contradict the snapshot.

    A quick reconstruction without the guide predicts the picture, R x. Shift, rotation and scale
    minimise ‖D g − R x‖ by Gauss–Newton, from coarse to fine, to a pixel or two. Every run comes
    closer; see `cassi.systems.guide.Following`. Then the brightest lines are reconstructed with the
    guide and without. The guide is refused where it predicts pixels held out of them far worse. So
    few iterations do not show what it is worth, but one of another scene contradicts the snapshot.

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
    x = auto(iterations=QUICK, heldout=0.0).run(y, system).x
    predicted = guided.guide.to(x.dtype)(x)
    if register:
        guided = guided.moved(find_motion(guided.movable.picture, predicted))
    lines, method = hold_out(y, guided, LINES), auto(iterations=JUDGED, heldout=0.0)
    camera: Any = lines.camera
    without, error = (lines.error(method.run(lines.y, each).x) for each in (camera.system, camera))
    taken = math.isfinite(error) and error < BELIEVED * without
    shown = torch.where(guided.seen > 0, guided.picture, torch.nan)
    return Placement(
        guided if taken else system,
        taken,
        misfit(shown, predicted),
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


def find_motion(picture: Tensor, predicted: Tensor) -> Tensor:
    """Find the motion of a picture by Gauss–Newton, from coarse to fine.

    Args:
        picture: g, `(1|B, G, H, W)`; NaN where it saw nothing.
        predicted: p, `(B, G, H, W)`.

    Returns:
        `(4,)`, float64: down and right in pixels, angle in radians, logarithm of the scale. Zero
        where it does not fit better than the picture as it is.
    """
    motion = torch.zeros(4, dtype=torch.float64)
    size = predicted.square().mean((0, 2, 3), keepdim=True).sqrt().clamp_min(1e-30)
    for pool, steps in LEVELS:
        p, g = (avg_pool2d(v, pool) if pool > 1 else v for v in (predicted / size, picture))
        movable = Movable(g)
        scale = torch.tensor([1 / pool, 1 / pool, 1, 1], dtype=torch.float64)
        for _ in range(steps):
            step = step_towards(movable(motion * scale), p) / scale
            motion = motion - step
            if float(corners(step, *predicted.shape[2:])) < ENOUGH:
                break
        if not float(corners(motion, *predicted.shape[2:])) < MOST * max(predicted.shape[2:]):
            return torch.zeros_like(motion)
    better = misfit(movable(motion * scale), p) < misfit(g, p)
    return motion if better else torch.zeros_like(motion)
