"""After a network: data steps until its cube is consistent with the measurement."""

from typing import Literal

import torch
from torch import Tensor

from cassi.checks import whole_number
from cassi.solvers.linear_system import LinearSystem, begin_system
from cassi.solvers.statistics import Statistics, noise_damping, relative_noise

VISIBLE = 0.03
"""Noise below this, relative to the root mean square of y (30 dB), is ignored and all of y is
fitted: texture alone can give such an estimate."""


@torch.no_grad()
def refine(
    x: Tensor,
    y: Tensor,
    system: LinearSystem,
    *,
    noise: Tensor | float | Literal["auto"] = "auto",
    residual: float = 1e-3,
    iterations: int = 4,
    visible: float = VISIBLE,
    statistics: Statistics | None = None,
) -> Tensor:
    """Make a cube consistent with the measurement, no closer than the noise.

        x ← x + Aᵀ(AAᵀ + ρI)⁻¹(y − Ax)   until   ‖y − Ax‖ ≤ max(residual, noise)·‖y‖

    ρ is the `noise_damping`: without it, noise behind nearly dark pixels of the mask would be
    amplified. Without noise a step is a projection onto the solutions of Ax = y. The true cube is
    one of these, so the step never increases the distance to it.

    Args:
        x: cube `(B, C, H, W)`.
        y: measurement `(B, K, H', W')`.
        system: the camera.
        noise: relative to the root mean square of y, a number or `(B,)`; "auto" estimates it.
        residual: the wanted ‖y − Ax‖/‖y‖, where the noise is lower.
        iterations: at most this many.
        visible: noise level, relative, below which all of y is fitted.
        statistics: of the whole measurement, where y is a part of it.

    Returns:
        `(B, C, H, W)`; x itself where ‖y − Ax‖ is small enough already.

    Raises:
        ValueError: fewer than one iteration.

    Source: Morozov, "On the solution of functional equations by the method of regularization",
    1966, for the stopping rule (discrepancy principle).
    """
    whole_number("iterations", iterations, 1)
    size = _lengths(y).clamp_min(torch.finfo(torch.float64).tiny)
    share = relative_noise(y, system, noise, statistics)
    rho = noise_damping(y, system, share, statistics)
    # Small enough to lose no digits, large enough for pixels that no light reaches.
    rho = rho.clamp_min(1e-5 * system(system.adjoint(torch.ones_like(y))).mean().to(rho))
    wanted = torch.where(share < visible, residual, share.clamp_min(residual))
    floor = torch.where(share < visible, 0, share)
    running = begin_system(system)
    for _ in range(iterations):
        left = _lengths(y - system(x)) / size
        if bool((left <= wanted).all()):
            break
        stepped = no_closer(x, running.data_step(x, y, rho), y, system, floor)
        x = torch.where((left <= wanted).view(-1, 1, 1, 1), x, stepped)
    return x


def no_closer(x: Tensor, stepped: Tensor, y: Tensor, system: LinearSystem, noise: Tensor) -> Tensor:
    r"""Move from one cube towards another, no closer to the measurement than its noise.

        x + t (x' − x),   the largest t in [0, 1] with ‖y − A(…)‖ ≥ n ‖y‖

    Returns:
        x' where its residual is not below the noise; x where its residual is below it already.
    """
    with torch.no_grad():
        t = _way(y - system(stepped), y - system(x), y, noise).to(x)
    return torch.where(t < 1, torch.lerp(x, stepped, t), stepped)


def _lengths(y: Tensor) -> Tensor:
    """Return the norm of each sample, `(B, …)` → `(B,)`, float64, which holds all squares."""
    return torch.linalg.vector_norm(y.flatten(1), dim=1, dtype=torch.float64)


def _way(near: Tensor, far: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    """Return t of `no_closer`, `(B, 1, 1, 1)`, from the residuals of both cubes."""
    bound = (noise * _lengths(y)).square()

    def inner(a: Tensor, b: Tensor) -> Tensor:
        return (a.double() * b.double()).flatten(1).sum(1)

    # ‖far + t (near − far)‖² = bound: the smaller root, where the way crosses it.
    way = near - far
    a, b, c = inner(way, way), inner(far, way), inner(far, far) - bound
    root = (b.square() - a * c).clamp_min(0).sqrt()
    t = ((-b - root) / a.clamp_min(torch.finfo(torch.float64).tiny)).clamp(0, 1)
    whole = inner(near, near) >= bound
    return torch.where(whole, 1, torch.where(c <= 0, 0, t)).view(-1, 1, 1, 1)
