"""Total variation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from cassi import ops
from cassi.checks import not_negative, whole_number
from cassi.ops import NORMS, Norm


@dataclass(frozen=True)
class TV:
    """Isotropic total variation, of each band alone or of all bands together.

        prior(x, σ) = argmin_u ½‖u − x‖² + weight·σ·TV(u)
        TV(u) = Σ_{h,w} ‖(∇u_1 … ∇u_C)‖

    The threshold is proportional to σ, as in other shrinkage denoisers. So TV and a learned
    denoiser can share a schedule.

    Args:
        weight: threshold per unit of σ, >= 0.
        iterations: dual iterations per call, >= 1.
        norm: norm of the gradients at a pixel. `band` treats every band alone. With
            `frobenius` bands share the positions of edges, with `nuclear` their directions too;
            see `cassi.ops.tv_prox`.
        warm: within a run, start each call from the dual variable of the last call; 2 iterations
            are then enough.

    Raises:
        ValueError: a negative weight, fewer than one iteration, or an unknown norm.

    Source: Rudin, Osher, Fatemi, 1992; solved on the dual as in Chambolle, 2005;
    Frobenius: Bresson, Chan, 2008; nuclear: Holt, 2014.
    """

    weight: float = 1.0
    iterations: int = 5
    norm: Norm = "band"
    warm: bool = False

    def __post_init__(self) -> None:
        not_negative("TV weight", self.weight)
        whole_number("TV iterations", self.iterations, 1)
        if self.norm not in NORMS:
            raise ValueError(f"TV norm: expected one of {', '.join(NORMS)}, got {self.norm!r}")

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Denoise a cube `(B, C, H, W)`; σ is in the unit of the cube."""
        return ops.tv_prox(x, self.weight * sigma, self.iterations, norm=self.norm)

    def begin(self) -> TV | _WarmRun:
        """Return the prior of one run; a warm one keeps its dual variable from call to call."""
        return _WarmRun(self) if self.warm else self

    def penalty(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Return weight·σ·TV(x) of each sample: `(B,)`."""
        if self.norm == "band":
            # One band at a time, so that the differences of a band stay in the cache.
            norms = torch.cat([_compute_gradient_norm(band) for band in x.split(1, 1)], 1)
            return self.weight * sigma * norms.flatten(1).sum(1)
        down, right = pad(x.diff(dim=-2), (0, 0, 0, 1)), pad(x.diff(dim=-1), (0, 1))
        a, b, c = ((d * e).sum(1) for d, e in ((down, down), (down, right), (right, right)))
        squares = a + c
        if self.norm == "nuclear":
            # (s₁ + s₂)² = s₁² + s₂² + 2s₁s₂ of the 2 × C gradient, where s₁s₂ is the root of the
            # determinant of its 2 × 2 Gram matrix.
            squares = squares + 2 * (a * c - b * b).clamp_min(0).sqrt()
        return self.weight * sigma * squares.sqrt().flatten(1).sum(1)


def _compute_gradient_norm(x: Tensor) -> Tensor:
    """Return |∇x| at every pixel."""
    squares = torch.zeros_like(x)
    squares[..., :-1, :] += x.diff(dim=-2).square()
    squares[..., :-1] += x.diff(dim=-1).square()
    return squares.sqrt()


class _WarmRun:
    """The prior of one run of a warm TV."""

    def __init__(self, tv: TV) -> None:
        self.tv = tv
        self.dual: Tensor | None = None  # (B, 2, C, H, W)

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        tv = self.tv
        u, self.dual = ops.tv_prox(
            x, tv.weight * sigma, tv.iterations, norm=tv.norm, dual=self.dual, return_dual=True
        )
        return u

    @property
    def memory(self) -> Sequence[Tensor]:
        """The dual variable; empty before the first call."""
        return () if self.dual is None else (self.dual,)

    @memory.setter
    def memory(self, values: Sequence[Tensor]) -> None:
        self.dual = values[0] if values else None

    def turn(self, rotation: Tensor) -> None:
        """Follow a change of the basis in which x is given: x ← Rᵀx, R `(B, C, C')`."""
        if self.dual is not None:
            # The same rotation for both directions of the gradient.
            rotations = rotation.mT[:, None].expand(-1, 2, -1, -1).flatten(0, 1)
            dual = torch.bmm(rotations, self.dual.flatten(0, 1).flatten(2))
            self.dual = dual.view(len(rotation), 2, -1, *self.dual.shape[3:])

    def penalty(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Return weight·σ·TV(x) of each sample: `(B,)`."""
        return self.tv.penalty(x, sigma)
