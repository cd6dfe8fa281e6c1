"""The motion of a scene from one snapshot to the next, estimated through the camera."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from cassi.priors.subspace import spectral_basis, to_subspace
from cassi.solvers.linear_system import CameraSystem
from cassi.solvers.statistics import unit_of

# Number of spectral components of the cube from which the motion is estimated. More components take
# longer, fewer components lose contrast between colours.
N_COMPONENTS = 4

# The steps of a stage end when a step moves the border by less than this many pixels. A smaller
# limit needs more steps.
MIN_CHANGE_PIXELS = 0.03

# Without an earlier motion, all pairs of these shifts are tried, pixels down and to the right. The
# best pair is the first guess. Shifts are 8 pixels apart, the smoothing radius of the first stage.
TRIAL_SHIFTS = (0, -8, 8, -16, 16)

# Stages of the search, each a pair. First: the smoothing radius, pixels. Second: the largest number
# of steps. The slopes of a smoother cube stay valid over a longer distance, so its steps find
# larger motions. If the motion of the last snapshot is the first guess, less smoothing is enough.
FIRST_STAGES = ((8, 5), (4, 5), (2, 4), (0, 5))
NEXT_STAGES = ((2, 2), (0, 3))


def find_motion(x: Tensor, y: Tensor, system: CameraSystem, motion: Tensor | None = None) -> Tensor:
    """Find the shift, rotation and scale that turn a cube into the scene of a snapshot.

        argmin_M Σ_i w_i (y − A W_M x)_i²,   w = 1/(1 + (r/s)²),   r = y − A W_M x

    W_M moves the cube, and s is twice the median of |r|. Parts of the scene with another motion
    have a large residual r, hence little weight. The first Gauss–Newton steps use a blurred cube.

    Args:
        x: the last cube `(1, C, H, W)`.
        y: the next snapshot `(1, K, H', W')`.
        system: the camera.
        motion: first guess, the M of the snapshot before; None takes the best of several shifts.

    Returns:
        M `(2, 3)`. The point (u, v) of the scene was at M (u, v, 1) in x. u points down and v to
        the right; both run from −1 at the first pixel to 1 at the last.
    """
    unit = unit_of(y)  # squares of y stay within float32
    x, y = x / unit, y / unit
    basis = spectral_basis(x, N_COMPONENTS)
    components, side = to_subspace(x, basis), max(x.shape[-2:])
    stages: Sequence[tuple[int, int]] = NEXT_STAGES
    if motion is None:
        motion, stages = _find_best_shift(components, y, system, basis), FIRST_STAGES
    for radius, steps in stages:
        blurred_x = _blur(components, radius)
        for _ in range(steps):
            change = _compute_step(blurred_x, y, system, basis, motion)
            motion = motion + change
            if float(change.abs().max()) * side / 2 < MIN_CHANGE_PIXELS:
                break
    return motion


def _find_best_shift(x: Tensor, y: Tensor, system: CameraSystem, basis: Tensor) -> Tensor:
    """Return the motion by the trial shift that fits the snapshot best."""
    blurred_x, size = _blur(x, FIRST_STAGES[0][0]), x.new_tensor(x.shape[-2:])
    best_motion, least_error = x.new_tensor([[1, 0, 0], [0, 1, 0]]), torch.inf
    for down in TRIAL_SHIFTS:
        for right in TRIAL_SHIFTS:
            shift = 2 * x.new_tensor([down, right]) / (size - 1)
            motion = torch.cat((torch.eye(2).to(x), shift[:, None]), 1)
            image = system.forward_subspace(move(blurred_x, motion, "bilinear"), basis)
            error = float((y - image).abs().mean())
            if error < least_error:
                best_motion, least_error = motion, error
    return best_motion


def move(x: Tensor, motion: Tensor, mode: str = "bicubic") -> Tensor:
    """Move a cube `(B, C, H, W)` by the motion M `(2, 3)`; see `find_motion`."""
    points = _compute_source_points(motion, *x.shape[-2:]).flip(-1).expand(len(x), -1, -1, -1)
    return grid_sample(x, points, mode=mode, padding_mode="border", align_corners=True)


def is_inside(motion: Tensor, height: int, width: int) -> Tensor:
    """Return 1 for pixels of a moved cube that come from inside the cube, else 0: `(H, W)`."""
    return (_compute_source_points(motion, height, width).abs() <= 1).all(-1).to(motion.dtype)


def _compute_source_points(motion: Tensor, height: int, width: int) -> Tensor:
    """Return the point (u, v) of the unmoved cube for each pixel of the moved cube, `(H, W, 2)`."""
    u, v = _make_coordinates(motion, height, width)
    return torch.stack((u, v, torch.ones_like(u)), -1) @ motion.mT


def _make_coordinates(example: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return u and v of all pixels, `(H, W)` each, with the example's dtype and device."""
    axes = (
        torch.linspace(-1, 1, size, dtype=example.dtype, device=example.device)
        for size in (height, width)
    )
    u, v = torch.meshgrid(*axes, indexing="ij")
    return u, v


def _blur(x: Tensor, radius: int) -> Tensor:
    """Return means over squares of 2·radius + 1 pixels."""
    size = 2 * radius + 1
    x = pad(x, (radius,) * 4, mode="replicate")
    for axis in (-1, -2):  # sums over windows as differences of running sums
        running_sum = x.cumsum(axis)
        upper = running_sum.narrow(axis, size - 1, x.shape[axis] - size + 1)
        lower = running_sum.narrow(axis, 0, x.shape[axis] - size)
        first_zero = (1, 0) if axis == -1 else (0, 0, 1, 0)
        x = upper - pad(lower, first_zero)
    return x / size**2


def _compute_step(
    x: Tensor, y: Tensor, system: CameraSystem, basis: Tensor, motion: Tensor
) -> Tensor:
    """Return the change of a motion by one weighted Gauss–Newton step, `(2, 3)`."""
    height, width = x.shape[-2:]
    u, v = _make_coordinates(x, height, width)
    moved_x, ratio = move(x, motion, "bilinear"), (height - 1) / (width - 1)
    residual = (y - system.forward_subspace(moved_x, basis)).flatten()
    # Central differences per unit of u and v, which run over 2 from the first pixel to the last.
    down, right = torch.zeros_like(moved_x), torch.zeros_like(moved_x)
    down[..., 1:-1, :] = (moved_x[..., 2:, :] - moved_x[..., :-2, :]) * ((height - 1) / 4)
    right[..., 1:-1] = (moved_x[..., 2:] - moved_x[..., :-2]) * ((width - 1) / 4)
    # The derivatives by scale, rotation and both shifts. In an image that is not square, a pixel is
    # not square in (u, v). `ratio` corrects the rotation for this.
    by_rotation = down * (v / ratio) - right * (u * ratio)
    slopes = torch.cat((down * u + right * v, by_rotation, down, right))
    slopes = system.forward_subspace(slopes, basis.expand(4, -1, -1)).flatten(1)
    residual_scale = 2 * residual.abs().median().clamp_min(torch.finfo(x.dtype).tiny)
    weighted_slopes = slopes / (1 + (residual / residual_scale).square())
    # float64: the normal equations square the condition of the slopes.
    normal = (weighted_slopes @ slopes.mT).double()
    right_side = (weighted_slopes @ residual).double()
    # If a scene has no edges in some direction, the matrix is singular. A damping of 1e-4 keeps the
    # motion in that direction, and hardly changes the step in the others.
    damping = 1e-4 * normal.diagonal().mean().clamp_min(torch.finfo(torch.double).tiny)
    normal = normal + damping * torch.eye(4, dtype=normal.dtype, device=normal.device)
    scale, rotation, a, b = torch.linalg.solve(normal, right_side).to(x.dtype)
    return torch.stack((scale, rotation / ratio, a, -rotation * ratio, scale, b)).view(2, 3)
