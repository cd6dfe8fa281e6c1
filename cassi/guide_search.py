"""Register a guide's picture coarsely, and refuse it if it shows another scene."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from cassi.methods.automatic import auto
from cassi.methods.restarts import Restarts
from cassi.methods.sequence import SequenceReconstructor
from cassi.methods.started import Started
from cassi.methods.wrapper import ReconstructorWrapper
from cassi.priors import Subspace
from cassi.solvers import ADMM, Reconstructor, Solver
from cassi.solvers.linear_system import zero_bad_pixels
from cassi.systems import Guided, System
from cassi.systems.guide import MAX_MOTION_FRACTION
from cassi.systems.motion import Movable, max_corner_shift, misfit, step_towards

QUICK_ITERATIONS = 8
"""Iterations of the reconstruction that predicts the picture. The details of the prediction decide
whether the guide fits: fewer iterations blur them, more take longer."""
DETAIL_SCALE = (2, 9)
"""How the details of two pictures are computed before they are compared.

First: the pictures are pooled over squares of this side, pixels. Second: from each pooled pixel the
mean of a square of this side around it is subtracted, pooled pixels."""
MIN_CORRELATION = 0.32
"""Least correlation of the details of picture and prediction. On training scenes the right guide
had at least 0.37, also with 5 % of noise in the snapshot. A guide of another scene had at most
0.28."""
MIN_STEP_PIXELS = 0.1
"""If a step of Gauss–Newton moves the corners by less than this, it is the last step of its level.
More steps are not needed here, because every run of a solver refines the motion."""
PYRAMID = ((8, 8, 0), (4, 8, 17), (2, 6, 17), (1, 2, 17))
"""Three numbers for each level, from coarse to fine.

First: side of the squares over which the pictures are pooled, pixels. Second: most steps of
Gauss–Newton. Third: side of the square whose mean is subtracted from every pooled pixel (0: none).
The mean is subtracted because only the edges of the predicted picture are reliable."""
MAX_MISFIT_RATIO = 0.98
"""A motion is refused unless the misfit falls below this fraction of the misfit without motion.

On training scenes the fraction was at least 0.986 if the picture lay on the cube already. It was at
most 0.967 if a corner of the picture was 7 pixels off."""


@dataclass(frozen=True)
class Placement:
    """The result of registering a guide.

    Attributes:
        system: the camera with the guide, coarsely registered; the camera alone if it was refused.
        is_used: whether the guide is used.
        misfit: ‖D g − R x‖/‖R x‖. g is the moved picture, D the exposure of each channel that fits
            best, R the response, and x a quick reconstruction without the guide.
        correlation: correlation of the details of g and R x.
    """

    system: System
    is_used: bool
    misfit: float
    correlation: float

    def __str__(self) -> str:
        """Describe the result for users."""
        if self.is_used:
            return f"used; correlation {self.correlation:.2f} with what the snapshot shows"
        return (
            f"refused: correlation {self.correlation:.2f} with what the snapshot shows, at least "
            f"{MIN_CORRELATION} expected; is it of this scene, and its response right?"
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
    """Register a guide's picture, and use it if it shows the scene of the snapshot.

    A quick reconstruction x without the guide predicts the picture, R x. Shift, rotation and scale
    minimise ‖D g − R x‖ by Gauss–Newton, from coarse to fine, with an exposure D for each channel.
    The estimates are right to a pixel or two, and every run of a solver refines them; see
    `cassi.systems.guide.GuidedPrior`. If the details of the picture correlate little with the
    predicted details, the picture shows another scene, and the guide is refused.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera.
        picture: g, `(G, H, W)` or `(1|B, G, H, W)`; see `cassi.systems.Guided`.
        response: R, `(G, C)`.
        noise: standard deviation of the picture's noise relative to its root mean square, > 0.
        register: whether to estimate the motion. If False, the picture is taken to lie on the cube,
            pixel by pixel.

    Raises:
        ValueError: picture, response and camera do not fit.
    """
    y = zero_bad_pixels(y, system)
    guided_camera = Guided(system, picture, response, noise)
    x = auto(iterations=QUICK_ITERATIONS, heldout=0.0).run(y, system).x
    prediction = guided_camera.guide.to(x.dtype)(x)
    if register:
        guided_camera = guided_camera.moved(find_motion(guided_camera.movable.picture, prediction))
    moved_picture = torch.where(guided_camera.is_visible > 0, guided_camera.picture, torch.nan)
    detail_correlation = correlation(moved_picture, prediction)
    is_used = detail_correlation > MIN_CORRELATION
    return Placement(
        guided_camera if is_used else system,
        is_used,
        misfit(moved_picture, prediction),
        detail_correlation,
    )


def takes_guide(method: Reconstructor) -> bool:
    """Tell whether a method uses a guide: it is, or contains, ADMM on spectral components."""
    if isinstance(method, Solver):
        return isinstance(method.algorithm, ADMM) and isinstance(method.prior, Subspace)
    parts = list(method.passes) if isinstance(method, Restarts) else []
    parts += (
        [method.method] if isinstance(method, ReconstructorWrapper | SequenceReconstructor) else []
    )
    parts += [method.start] if isinstance(method, Started) else []
    return any(map(takes_guide, parts))


def find_motion(picture: Tensor, prediction: Tensor) -> Tensor:
    """Estimate the motion of a picture by Gauss–Newton, from coarse to fine.

    Args:
        picture: g, `(1|B, G, H, W)`; NaN where it does not show the scene.
        prediction: p, `(B, G, H, W)`.

    Returns:
        `(4,)`, float64: down and right in pixels, angle in radians, logarithm of the scale. Zero
        unless the moved picture fits clearly better.
    """
    motion, size = torch.zeros(4, dtype=torch.float64), prediction.shape[2:]
    # Dividing by the root mean square gives all channels the same weight, however bright they are.
    rms = prediction.square().mean((0, 2, 3), keepdim=True).sqrt().clamp_min(1e-30)
    for pooling, steps, square_side in PYRAMID:
        p, g = (
            subtract_local_mean(avg_pool2d(v, pooling), square_side)
            for v in (prediction / rms, picture)
        )
        movable = Movable(g)
        # Shifts are in pixels of the full picture; angle and scale are the same at every level.
        level_scale = torch.tensor([1 / pooling, 1 / pooling, 1, 1], dtype=torch.float64)
        for _ in range(steps):
            step = step_towards(movable(motion * level_scale), p) / level_scale
            motion = motion - step
            if float(max_corner_shift(step, *size)) < MIN_STEP_PIXELS:
                break
        # NaN compares as false, so a motion that is not finite is refused too.
        if not float(max_corner_shift(motion, *size)) < MAX_MOTION_FRACTION * max(size):
            return torch.zeros_like(motion)
    moved_picture = Movable(picture)(motion)
    is_better = misfit(moved_picture, prediction) < MAX_MISFIT_RATIO * misfit(picture, prediction)
    return motion if is_better else torch.zeros_like(motion)


def subtract_local_mean(g: Tensor, square_side: int) -> Tensor:
    """Subtract from every pixel the mean of a square around it: `(B, G, H, W)`, NaN where g is.

    A side of 0 subtracts nothing.
    """
    if not square_side:
        return g
    is_finite = g.isfinite()

    # The mean over finite pixels is the pooled sum of these pixels over their pooled number.
    def square_mean(values: Tensor) -> Tensor:
        rows = avg_pool2d(values, (square_side, 1), 1, (square_side // 2, 0))
        return avg_pool2d(rows, (1, square_side), 1, (0, square_side // 2))

    return g - square_mean(torch.where(is_finite, g, 0)) / square_mean(is_finite[:, :1].to(g.dtype))


def correlation(g: Tensor, prediction: Tensor) -> float:
    """Return the correlation of the details of two pictures, averaged over channels.

    Args:
        g: moved picture, `(1|B, G, H, W)`; NaN where it does not show the scene.
        prediction: p, `(B, G, H, W)`.
    """
    pooling, square_side = DETAIL_SCALE
    p, g = (subtract_local_mean(avg_pool2d(v, pooling), square_side) for v in (prediction, g))
    is_finite = g.isfinite()
    picture_details, predicted_details = (torch.where(is_finite, v, 0).flatten(2) for v in (g, p))
    return float(torch.cosine_similarity(picture_details, predicted_details, dim=2).mean())
