"""Place a guide: about where its picture lies, and whether it is of this scene at all."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from cassi.methods.automatic import auto
from cassi.methods.restarts import Restarts
from cassi.methods.sequence import Following
from cassi.methods.started import Started
from cassi.methods.wrapper import Wrapper
from cassi.priors import Subspace
from cassi.solvers import ADMM, Reconstructor, Solver
from cassi.solvers.linear_system import seen
from cassi.systems import Guided, System
from cassi.systems.guide import MOST
from cassi.systems.motion import Movable, corners, misfit, step_towards

QUICK = 8
"""Iterations of the reconstruction that predicts the picture."""
FINE = (2, 9)
"""Pooling of the pictures of which details are compared, and the side of their squares."""
BELIEVED = 0.32
"""Correlation of details. On training scenes the right guide had at least 0.37, with 5 % of noise
in the snapshot too, one of another scene at most 0.28."""
ENOUGH = 0.1
"""Pixels: a step that moves the corners less is the last one; every run comes closer."""
LEVELS = ((8, 8, 0), (4, 8, 17), (2, 6, 17), (1, 2, 17))
"""Pooling of the pictures, steps of Gauss–Newton with it, and the side of the square whose mean is
taken off every pixel: the predicted picture is wrong in large, where its edges are right."""
PROVEN = 0.98
"""Of the misfit where the picture lies: a motion that leaves more is not believed. On training
scenes a picture in its place left at least 0.986, one 7 pixels off at a corner at most 0.967."""


@dataclass(frozen=True)
class Placement:
    """What was found of a guide.

    Attributes:
        system: the camera with the guide, near its place; the camera alone, where it was refused.
        taken: whether the guide is used.
        misfit: ‖D g − R x‖/‖R x‖ between the picture there and what a quick reconstruction without
            the guide predicts for it.
        correlation: of their details.
    """

    system: System
    taken: bool
    misfit: float
    correlation: float

    def __str__(self) -> str:
        """Say it for people."""
        if self.taken:
            return f"used; correlation {self.correlation:.2f} with what the snapshot shows"
        return (
            f"refused: correlation {self.correlation:.2f} with what the snapshot shows, at least "
            f"{BELIEVED} expected; is it of this scene, and its response right?"
        )


@torch.no_grad()
def place_guide(
    y: Tensor,
    system: System,
    picture: Tensor,
    response: Tensor,
    noise: float = 0.01,
    register: bool = True,
) -> Placement:
    """Find about where a guide's picture lies, and use it if it shows the scene of the snapshot.

    A quick reconstruction without the guide predicts the picture, R x. Shift, rotation and scale
    minimise ‖D g − R x‖ by Gauss–Newton, from coarse to fine, to a pixel or two. Every run comes
    closer; see `cassi.systems.guide.Following`. The guide is refused where its details correlate
    little with the predicted ones: those of two scenes do not.

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
    shown = torch.where(guided.seen > 0, guided.picture, torch.nan)
    found = correlation(shown, predicted)
    taken = found > BELIEVED
    return Placement(guided if taken else system, taken, misfit(shown, predicted), found)


def takes_guide(method: Reconstructor) -> bool:
    """Return whether a method follows a guide: ADMM on spectral components, in it or as a whole."""
    if isinstance(method, Solver):
        return isinstance(method.algorithm, ADMM) and isinstance(method.prior, Subspace)
    inside = list(method.passes) if isinstance(method, Restarts) else []
    inside += [method.method] if isinstance(method, Wrapper | Following) else []
    inside += [method.start] if isinstance(method, Started) else []
    return any(map(takes_guide, inside))


def find_motion(picture: Tensor, predicted: Tensor) -> Tensor:
    """Find the motion of a picture by Gauss–Newton, from coarse to fine.

    Args:
        picture: g, `(1|B, G, H, W)`; NaN where it saw nothing.
        predicted: p, `(B, G, H, W)`.

    Returns:
        `(4,)`, float64: down and right in pixels, angle in radians, logarithm of the scale. Zero
        where it does not fit clearly better than the picture as it is.
    """
    motion = torch.zeros(4, dtype=torch.float64)
    size = predicted.square().mean((0, 2, 3), keepdim=True).sqrt().clamp_min(1e-30)
    for pool, steps, width in LEVELS:
        p, g = (details(avg_pool2d(v, pool), width) for v in (predicted / size, picture))
        movable = Movable(g)
        scale = torch.tensor([1 / pool, 1 / pool, 1, 1], dtype=torch.float64)
        for _ in range(steps):
            step = step_towards(movable(motion * scale), p) / scale
            motion = motion - step
            if float(corners(step, *predicted.shape[2:])) < ENOUGH:
                break
        if not float(corners(motion, *predicted.shape[2:])) < MOST * max(predicted.shape[2:]):
            return torch.zeros_like(motion)
    proven = misfit(Movable(picture)(motion), predicted) < PROVEN * misfit(picture, predicted)
    return motion if proven else torch.zeros_like(motion)


def details(g: Tensor, width: int) -> Tensor:
    """Take the mean of a square around it off every pixel: `(B, G, H, W)`, NaN where g is."""
    if not width:
        return g
    there = g.isfinite()

    def around(v: Tensor) -> Tensor:
        rows = avg_pool2d(v, (width, 1), 1, (width // 2, 0))
        return avg_pool2d(rows, (1, width), 1, (0, width // 2))

    return g - around(torch.where(there, g, 0)) / around(there[:, :1].to(g.dtype))


def correlation(g: Tensor, predicted: Tensor) -> float:
    """Return the correlation of the details of two pictures, the mean of the channels.

    Args:
        g: picture in its place, `(1|B, G, H, W)`; NaN where it shows nothing.
        predicted: p, `(B, G, H, W)`.
    """
    pool, width = FINE
    p, g = (details(avg_pool2d(v, pool), width) for v in (predicted, g))
    there = g.isfinite()
    a, b = (torch.where(there, v, 0).flatten(2) for v in (g, p))
    return float(torch.cosine_similarity(a, b, dim=2).mean())
