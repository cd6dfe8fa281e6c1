"""Total variation in three dimensions: rows, columns and bands."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from cassi.checks import not_negative, whole_number

# 1/‖∇‖², a step with which the dual gradient method converges: each of the three directions adds at
# most 4 to the squared norm of the differences.
_STEP = 1 / 12


@dataclass(frozen=True)
class SpectralTV:
    """Total variation in three dimensions: isotropic within a band, absolute between bands.

        prior(x, σ) = argmin_u ½‖u − x‖² + weight·σ·Σ_{c,h,w} (|∇u_c| + spectral·|u_{c+1} − u_c|)

    The problem is solved by projected gradient steps on p, q and r, the dual variables of the
    differences down, to the right and to the next band. Then u = x + div(p, q, r), with
    |(p, q)| <= weight·σ and |r| <= spectral·weight·σ. The result converges with more `iterations`,
    or over the calls of a warm run.

    Args:
        weight: threshold per unit of σ, >= 0.
        spectral: weight of the spectral differences relative to the spatial gradient, >= 0.
        iterations: dual iterations per call, >= 1.
        warm: within a run, start each call from the dual variable of the last call; 2 iterations
            are then enough.

    Raises:
        ValueError: a negative weight, or fewer than one iteration.

    Source: Chambolle, "Total variation minimization and a class of binary MRF models", 2005;
    for hyperspectral cubes: Aggarwal, Majumdar, "Hyperspectral image denoising using
    spatio-spectral total variation", IEEE GRSL 13(3), 2016.
    """

    weight: float = 1.0
    spectral: float = 0.5
    iterations: int = 8
    warm: bool = False

    def __post_init__(self) -> None:
        not_negative("SpectralTV weight", self.weight)
        not_negative("SpectralTV spectral", self.spectral)
        whole_number("SpectralTV iterations", self.iterations, 1)

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Denoise a cube `(B, C, H, W)`; σ, a number or `(B,)`, is in the unit of the cube."""
        return self._solve(x, sigma, None)[0]

    def begin(self) -> Callable[[Tensor, float | Tensor], Tensor]:
        """Return the prior of one run, which keeps its dual variable from call to call if warm."""
        if not self.warm:
            return self
        dual: Tensor | None = None

        def denoise(x: Tensor, sigma: float | Tensor) -> Tensor:
            nonlocal dual
            u, dual = self._solve(x, sigma, dual)
            return u

        return denoise

    def penalty(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Return weight·σ·Σ(|∇x_c| + spectral·|x_{c+1} − x_c|) of each sample: `(B,)`."""
        down, right, spectral_diff = _compute_differences(x)
        spatial = (down.square() + right.square()).sqrt()
        total = (spatial + self.spectral * spectral_diff.abs()).flatten(1).sum(1)
        return self.weight * sigma * total

    def _solve(
        self, x: Tensor, sigma: float | Tensor, dual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the denoised cube, and the dual variable `(3, B, C, H, W)`."""
        image = x.to(torch.promote_types(x.dtype, torch.float32))
        limit = self.weight * torch.as_tensor(sigma, dtype=image.dtype, device=x.device)
        limit = limit.reshape(-1, 1, 1, 1)
        floor = torch.finfo(image.dtype).tiny
        p, q, r = (torch.zeros_like(image),) * 3 if dual is None else dual
        for _ in range(self.iterations):
            down, right, spectral_diff = _compute_differences(image + _compute_divergence(p, q, r))
            p, q, r = p + _STEP * down, q + _STEP * right, r + _STEP * spectral_diff
            # Project onto the constraints. `floor` keeps the gradient of the root finite at 0.
            norm = (p.square() + q.square() + floor).sqrt()
            shrink = limit / torch.maximum(norm, limit).clamp_min(floor)
            p, q = p * shrink, q * shrink
            r = torch.maximum(torch.minimum(r, self.spectral * limit), -self.spectral * limit)
        return (image + _compute_divergence(p, q, r)).to(x.dtype), torch.stack((p, q, r))


def _compute_differences(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the differences down, right and to the next band, zero at the border."""
    down, right = pad(u.diff(dim=-2), (0, 0, 0, 1)), pad(u.diff(dim=-1), (0, 1))
    return down, right, pad(u.diff(dim=-3), (0, 0, 0, 0, 0, 1))


def _compute_divergence(p: Tensor, q: Tensor, r: Tensor) -> Tensor:
    """Return div(p, q, r), the negative transpose of the differences."""
    spatial = p - pad(p, (0, 0, 1, -1)) + q - pad(q, (1, -1))
    return spatial + r - pad(r, (0, 0, 0, 0, 1, -1))
