"""Low rank: the spectra of a scene lie near a subspace of few dimensions."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cassi.checks import not_negative, whole_number
from cassi.priors.subspace import decompose_cube, from_subspace, to_subspace


@dataclass(frozen=True)
class LowRank:
    """Projection of all spectra onto their leading subspace. Every call estimates the subspace.

        prior(x, σ) = E Eᵀx,   E the r eigenvectors of Σ s sᵀ with the largest eigenvalues

    With `rank="auto"`, r is the number of eigenvalues λ of the second moment Σ s sᵀ/HW above the
    eigenvalues of noise. Their limit is the upper edge of the Marchenko–Pastur law:

        λ > (weight·σ)²·(1 + √(C/HW))²

    Each sample has its own r, at least 1. With a fixed rank σ has no influence.

    Args:
        rank: r >= 1, or "auto"; at most C are used.
        weight: noise level per unit of σ, >= 0.

    Raises:
        ValueError: a rank that is neither "auto" nor at least 1, or a negative weight.

    Source: Bioucas-Dias, Nascimento, "Hyperspectral subspace identification", IEEE TGRS 46(8),
    2008; the threshold: Johnstone, "On the distribution of the largest eigenvalue in principal
    components analysis", Annals of Statistics 29(2), 2001.
    """

    rank: int | Literal["auto"] = "auto"
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.rank != "auto":
            whole_number("LowRank rank", self.rank, 1)
        not_negative("LowRank weight", self.weight)

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Project a cube `(B, C, H, W)`; σ, a number or `(B,)`, is in the unit of the cube."""
        if not x.isfinite().all():
            return x  # not finite, so no eigenvectors; the solver stops at such a cube
        values, vectors = decompose_cube(x)
        bands, pixels = x.shape[1], x.shape[2] * x.shape[3]
        if self.rank == "auto":
            noise = self.weight * torch.as_tensor(sigma, dtype=values.dtype, device=x.device)
            edge = (noise * (1 + math.sqrt(bands / pixels))).square().reshape(-1, 1)
            is_kept = values > edge
            is_kept[:, 0] = True  # r >= 1, also for a cube of noise alone
        else:
            is_kept = (torch.arange(bands, device=x.device) < self.rank).expand_as(values)
        basis = vectors * is_kept[:, None]
        return from_subspace(to_subspace(x, basis), basis).to(x.dtype)
