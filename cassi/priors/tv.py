"""Total variation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real

from torch import Tensor

from cassi import ops


@dataclass(frozen=True)
class TV:
    """Isotropic total variation, of each band or coupled across bands.

        prior(x, σ) = argmin_u ½‖u − x‖² + weight·σ·TV(u)
        TV(u) = Σ_{c,h,w} |∇u_c|,   or coupled   Σ_{h,w} √(Σ_c |∇u_c|²)

    The threshold grows with σ as that of other shrinkage denoisers does, so that TV and a learned
    denoiser can share a schedule.

    Args:
        weight: threshold per unit of σ, >= 0.
        iterations: dual iterations per call.
        coupled: one gradient norm for all bands of a pixel, so that bands share their edges.
        warm: within a run, start each call from the dual variable of the call before; 2 iterations
            are then enough.

    Raises:
        ValueError: a negative weight, or less than one iteration.

    Source: Rudin, Osher, Fatemi, 1992; solved on the dual as in Chambolle, 2005;
    coupled: Bresson, Chan, 2008.
    """

    weight: float = 1.0
    iterations: int = 5
    coupled: bool = False
    warm: bool = False

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not isinstance(self.weight, Real) or not self.weight >= 0:
            raise ValueError(f"TV weight: expected a number >= 0, got {self.weight!r}")
        if not isinstance(self.iterations, Integral) or self.iterations < 1:
            raise ValueError(
                f"TV iterations: expected a whole number of at least 1, got {self.iterations!r}"
            )

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Denoise a cube `(B, C, H, W)`; σ is in the units of the cube."""
        return ops.tv_prox(x, self.weight * sigma, self.iterations, coupled=self.coupled)

    def begin(self) -> Callable[[Tensor, float | Tensor], Tensor]:
        """Return the prior of one run, which keeps its dual variable from call to call if warm."""
        if not self.warm:
            return self
        dual: Tensor | None = None

        def denoise(x: Tensor, sigma: float | Tensor) -> Tensor:
            nonlocal dual
            u, dual = ops.tv_prox(
                x,
                self.weight * sigma,
                self.iterations,
                coupled=self.coupled,
                dual=dual,
                return_dual=True,
            )
            return u

        return denoise
