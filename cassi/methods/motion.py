"""How a scene moved from one snapshot to the next, found through the camera."""

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from cassi.priors.subspace import spectral_basis, to_subspace
from cassi.solvers.linear_system import Camera
from cassi.solvers.statistics import unit_of

COMPONENTS = 4
"""Spectral components that motion is found with."""
STILL = 0.03
"""Change of a motion, in pixels at the border, that counts as none."""
SHIFTS = (0, -8, 8, -16, 16)
"""Pixels, tried down and right where nothing is known of the motion."""
FIRST = ((8, 5), (4, 5), (2, 4), (0, 5))
"""Radius of the smoothing in pixels, and steps at most, where nothing is known of the motion."""
NEXT = ((2, 2), (0, 3))
"""Alike, from the motion of the snapshot before."""


def find_motion(x: Tensor, y: Tensor, system: Camera, motion: Tensor | None = None) -> Tensor:
    """Find the shift, rotation and scale that turn a cube into the scene of a snapshot.

        argmin_M Σ_i w_i (y − A W_M x)_i²,   w = 1/(1 + (r/s)²),   r = y − A W_M x

    W_M moves the cube, s is twice the median of |r|: what moves by itself counts little. Steps of
    Gauss and Newton begin with a smoothed cube.

    Returns:
        M `(2, 3)`: the scene at (u, v) was at M (u, v, 1) in x; u down, v right, −1 to 1 from the
        first pixel to the last.
    """
    unit = unit_of(y)
    x, y = x / unit, y / unit
    basis = spectral_basis(x, COMPONENTS)
    components, side = to_subspace(x, basis), max(x.shape[-2:])
    found = _guess(components, y, system, basis) if motion is None else motion
    for radius, steps in FIRST if motion is None else NEXT:
        smooth = _smooth(components, radius)
        for _ in range(steps):
            change = _step(smooth, y, system, basis, found)
            found = found + change
            if float(change.abs().max()) * side / 2 < STILL:
                break
    return found


def _guess(x: Tensor, y: Tensor, system: Camera, basis: Tensor) -> Tensor:
    """Return the shift of a coarse grid that fits the snapshot best."""
    smooth, size = _smooth(x, FIRST[0][0]), x.new_tensor(x.shape[-2:])
    found, least = x.new_tensor([[1, 0, 0], [0, 1, 0]]), torch.inf
    for down in SHIFTS:
        for right in SHIFTS:
            shift = 2 * x.new_tensor([down, right]) / (size - 1)
            motion = torch.cat((torch.eye(2).to(x), shift[:, None]), 1)
            moved = move(smooth, motion, "bilinear")
            error = float((y - system.forward_subspace(moved, basis)).abs().mean())
            if error < least:
                found, least = motion, error
    return found


def move(x: Tensor, motion: Tensor, mode: str = "bicubic") -> Tensor:
    """Move a cube `(B, C, H, W)`; see `find_motion`."""
    places = _places(motion, *x.shape[-2:]).flip(-1).expand(len(x), -1, -1, -1)
    return grid_sample(x, places, mode=mode, padding_mode="border", align_corners=True)


def inside(motion: Tensor, height: int, width: int) -> Tensor:
    """Return where a moved cube has values of its own, `(H, W)`: 1 or 0."""
    return (_places(motion, height, width).abs() <= 1).all(-1).to(motion.dtype)


def _places(motion: Tensor, height: int, width: int) -> Tensor:  # (H, W, 2)
    u, v = _coordinates(motion, height, width)
    return torch.stack((u, v, torch.ones_like(u)), -1) @ motion.mT


def _coordinates(like: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    lines = (
        torch.linspace(-1, 1, size, dtype=like.dtype, device=like.device)
        for size in (height, width)
    )
    u, v = torch.meshgrid(*lines, indexing="ij")
    return u, v


def _smooth(x: Tensor, radius: int) -> Tensor:
    size = 2 * radius + 1
    x = pad(x, (radius,) * 4, mode="replicate")
    for axis in (-1, -2):  # sums over windows as differences of running sums
        total = x.cumsum(axis)
        last = total.narrow(axis, size - 1, x.shape[axis] - size + 1)
        before = total.narrow(axis, 0, x.shape[axis] - size)
        side = (1, 0) if axis == -1 else (0, 0, 1, 0)
        x = last - pad(before, side)
    return x / size**2


def _step(x: Tensor, y: Tensor, system: Camera, basis: Tensor, motion: Tensor) -> Tensor:
    height, width = x.shape[-2:]
    u, v = _coordinates(x, height, width)
    moved, ratio = move(x, motion, "bilinear"), (height - 1) / (width - 1)
    residual = (y - system.forward_subspace(moved, basis)).flatten()
    down, right = torch.zeros_like(moved), torch.zeros_like(moved)
    down[..., 1:-1, :] = (moved[..., 2:, :] - moved[..., :-2, :]) * ((height - 1) / 4)
    right[..., 1:-1] = (moved[..., 2:] - moved[..., :-2]) * ((width - 1) / 4)
    turned = down * (v / ratio) - right * (u * ratio)
    slopes = torch.cat((down * u + right * v, turned, down, right))
    slopes = system.forward_subspace(slopes, basis.expand(4, -1, -1)).flatten(1)
    size = 2 * residual.abs().median().clamp_min(torch.finfo(x.dtype).tiny)
    weighted = slopes / (1 + (residual / size).square())
    normal, right_side = (weighted @ slopes.mT).double(), (weighted @ residual).double()
    damping = 1e-4 * normal.diagonal().mean().clamp_min(torch.finfo(torch.double).tiny)
    normal = normal + damping * torch.eye(4, dtype=normal.dtype, device=normal.device)
    scale, turn, a, b = torch.linalg.solve(normal, right_side).to(x.dtype)
    return torch.stack((scale, turn / ratio, a, -turn * ratio, scale, b)).view(2, 3)
