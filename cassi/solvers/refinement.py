"""Data steps after a network, until its cube is consistent with the measurement."""

from typing import Literal

import torch
from torch import Tensor

from cassi.checks import whole_number
from cassi.solvers.linear_system import LinearSystem, begin_system
from cassi.solvers.statistics import Statistics, noise_damping, relative_noise

MIN_VISIBLE_NOISE = 0.03
"""Noise level, relative to the root mean square of y (30 dB), below which all of y is fitted.
Texture alone can give such an estimate of the noise."""


@torch.no_grad()
def refine(
    x: Tensor,
    y: Tensor,
    system: LinearSystem,
    *,
    noise: Tensor | float | Literal["auto"] = "auto",
    residual: float = 1e-3,
    iterations: int = 4,
    visible: float = MIN_VISIBLE_NOISE,
    statistics: Statistics | None = None,
) -> Tensor:
    """Make a cube consistent with the measurement, but fit it no closer than the noise.

        x ← x + Aᵀ(AAᵀ + ρI)⁻¹(y − Ax)   until   ‖y − Ax‖ ≤ max(residual, noise)·‖y‖

    ρ is the `noise_damping`. Without this damping, noise behind nearly dark pixels of the mask
    would be amplified. Without noise a step is a projection onto the solutions of Ax = y. The true
    cube is one of these solutions, so the step never increases the distance to it.

    Args:
        x: cube `(B, C, H, W)`.
        y: measurement `(B, K, H', W')`.
        system: the camera.
        noise: noise level relative to the root mean square of y, a number or `(B,)`; "auto"
            estimates it.
        residual: ‖y − Ax‖/‖y‖ at which the steps stop if the noise is lower.
        iterations: at most this many.
        visible: noise level, relative like `noise`, below which all of y is fitted.
        statistics: estimates from the whole measurement, if y is a part of it.

    Returns:
        `(B, C, H, W)`; a sample stays x if its ‖y − Ax‖ is small enough already.

    Raises:
        ValueError: fewer than one iteration.

    Source: Morozov, "On the solution of functional equations by the method of regularization",
    1966, for the stopping rule (discrepancy principle).
    """
    whole_number("iterations", iterations, 1)
    y_norms = _compute_norms(y).clamp_min(torch.finfo(torch.float64).tiny)
    level = relative_noise(y, system, noise, statistics)
    rho = noise_damping(y, system, level, statistics)
    # AAᵀ + ρI must be invertible also at pixels that no light reaches. 1e-5 of the mean of AAᵀ1 is
    # enough for that, and hardly changes the result at the other pixels.
    rho = rho.clamp_min(1e-5 * system(system.adjoint(torch.ones_like(y))).mean().to(rho))
    target_misfit = torch.where(level < visible, residual, level.clamp_min(residual))
    min_misfit = torch.where(level < visible, 0, level)
    run_system = begin_system(system)
    for _ in range(iterations):
        is_consistent = _compute_norms(y - system(x)) / y_norms <= target_misfit
        if bool(is_consistent.all()):
            break
        next_x = limit_to_noise(x, run_system.data_step(x, y, rho), y, system, min_misfit)
        # A consistent sample does not change any more while other samples of its batch do.
        x = torch.where(is_consistent.view(-1, 1, 1, 1), x, next_x)
    return x


def limit_to_noise(
    x: Tensor, next_x: Tensor, y: Tensor, system: LinearSystem, noise: Tensor
) -> Tensor:
    r"""Move from a cube x towards a cube x', but fit the measurement no closer than its noise.

        x + t (x' − x),   the largest t in [0, 1] with ‖y − A(x + t (x' − x))‖ ≥ n ‖y‖

    Args:
        x: cube `(B, C, H, W)`.
        next_x: x', `(B, C, H, W)`.
        y: measurement `(B, K, H', W')`.
        system: the camera.
        noise: n, relative to the root mean square of y, `(B,)`.

    Returns:
        `(B, C, H, W)`: x' if ‖y − Ax'‖ is not below the noise; x if ‖y − Ax‖ is below it already.
    """
    with torch.no_grad():
        t = _compute_step_length(y - system(next_x), y - system(x), y, noise).to(x)
    return torch.where(t < 1, torch.lerp(x, next_x, t), next_x)


def _compute_norms(y: Tensor) -> Tensor:
    """Return the norm of each sample, `(B, …)` → `(B,)`, float64, which holds all squares."""
    return torch.linalg.vector_norm(y.flatten(1), dim=1, dtype=torch.float64)


def _compute_step_length(
    next_residual: Tensor, residual: Tensor, y: Tensor, noise: Tensor
) -> Tensor:
    """Return t of `limit_to_noise`, `(B, 1, 1, 1)`, from the residuals of x' and x."""
    bound = (noise * _compute_norms(y)).square()

    def inner_product(a: Tensor, b: Tensor) -> Tensor:
        return (a.double() * b.double()).flatten(1).sum(1)

    # ‖r + t (r' − r)‖² = bound is a quadratic equation in t. At its smaller root the residual falls
    # below the noise.
    direction = next_residual - residual
    a, b = inner_product(direction, direction), inner_product(residual, direction)
    c = inner_product(residual, residual) - bound
    root = (b.square() - a * c).clamp_min(0).sqrt()
    t = ((-b - root) / a.clamp_min(torch.finfo(torch.float64).tiny)).clamp(0, 1)
    is_full_step = inner_product(next_residual, next_residual) >= bound
    return torch.where(is_full_step, 1, torch.where(c <= 0, 0, t)).view(-1, 1, 1, 1)
