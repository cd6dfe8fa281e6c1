"""After a network: data steps until its cube explains the measurement."""

from __future__ import annotations

import torch
from torch import Tensor

from cassi.solvers.base import LinearSystem, Prior, begin_system
from cassi.solvers.checks import check_iterations
from cassi.solvers.noise import noise_level
from cassi.solvers.softening import softening

VISIBLE = 0.03
"""Noise relative to the root mean square of y (30 dB) below which all of y is explained: texture
reads as up to that much noise, and to explain real noise of that size costs 0.02 dB."""


@torch.no_grad()
def refine(
    x: Tensor,
    y: Tensor,
    system: LinearSystem,
    *,
    prior: Prior | None = None,
    sigma: float = 0.0,
    residual: float = 1e-3,
    iterations: int = 4,
) -> Tensor:
    """Take a cube to the nearest that explains the measurement, as far as that is not noise.

        x ← v + Aᵀ(AAᵀ + ρI)⁻¹(y − Av),   v = prior(x, σ) from the second iteration on

    until ‖y − Ax‖ ≤ max(residual, noise)·‖y‖. ρ follows the noise that the measurement shows
    (`softening`), without which noise behind nearly dark pixels of the mask would blow up. Where y
    has no noise such a step never takes a cube away from the true one: it is a projection onto the
    cubes that explain y, and the true one is among them.

    Args:
        x: cube `(B, C, H, W)`.
        y: measurement `(B, K, H', W')`.
        system: the camera.
        prior: the network as a denoiser; None for data steps alone.
        sigma: its strength, in units of x.
        residual: wanted ‖y − Ax‖/‖y‖, where there is less noise.
        iterations: at most so many.

    Returns:
        `(B, C, H, W)`; x itself where it explains y already.

    Raises:
        ValueError: fewer than one iteration.

    Source: for when to stop, Morozov, "On the solution of functional equations by the method of
    regularization", 1966.
    """
    check_iterations(iterations)
    size = y.flatten(1).norm(dim=1).clamp_min(torch.finfo(y.dtype).tiny)
    noise = noise_level(y, system) * (y[0].numel() ** 0.5) / size
    rho = softening(y, system, noise)
    # Small enough to lose no digits, large enough for pixels that no light reaches.
    rho = rho.clamp_min(1e-5 * float(system(system.adjoint(torch.ones_like(y))).mean()))
    wanted = torch.where(noise < VISIBLE, residual, noise.clamp_min(residual))
    running = begin_system(system)
    for k in range(iterations):
        left = (y - system(x)).flatten(1).norm(dim=1) / size
        if bool((left <= wanted).all()):
            break
        v = prior(x, sigma) if prior is not None and k > 0 else x
        stepped = running.data_step(v, y, rho)
        x = torch.where((left <= wanted).view(-1, 1, 1, 1), x, stepped)
    return x
