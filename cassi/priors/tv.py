"""Total variation."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real

from torch import Tensor

from cassi import ops


@dataclass(frozen=True)
class TV:
    """Isotropic total variation of each band.

        prior(x, σ) = argmin_u ½‖u − x‖² + weight·σ·Σ_{c,h,w} √((∂_h u)² + (∂_w u)²)

    The threshold grows with σ as that of other shrinkage denoisers does, so that TV and a learned
    denoiser can share a schedule.

    Args:
        weight: threshold per unit of σ, >= 0.
        iterations: dual iterations per call.

    Raises:
        ValueError: a negative weight, or less than one iteration.

    Source: Rudin, Osher, Fatemi, 1992; solved on the dual as in Chambolle, 2005.
    """

    weight: float = 1.0
    iterations: int = 5

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
        return ops.tv_prox(x, self.weight * sigma, self.iterations)
