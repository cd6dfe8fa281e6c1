"""Spectral subspaces: the few directions in which the spectra of a scene spread."""

from __future__ import annotations

import torch
from torch import Tensor


def spectral_eigen(x: Tensor) -> tuple[Tensor, Tensor]:
    """Decompose the spectral second moment Σ_{h,w} s sᵀ / HW, s = x[:, :, h, w], of each sample.

    Args:
        x: cube `(B, C, H, W)`.

    Returns:
        Eigenvalues `(B, C)`, >= 0 and descending, in the unit of x², and orthonormal eigenvectors
        `(B, C, C)` as columns; in float32 at least.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    spectra = x.flatten(2).to(dtype)
    # One product per sample: a batched one may sum in another order than that of a single sample.
    moments = [sample @ sample.mT / sample.shape[1] for sample in spectra]
    values, vectors = torch.linalg.eigh(torch.stack(moments))
    return values.flip(-1).clamp_min(0), vectors.flip(-1)


def spectral_basis(x: Tensor, rank: int) -> Tensor:
    """Return an orthonormal basis of the `rank` leading spectral directions of each sample.

        argmin_{EᵀE = I} Σ_{h,w} ‖s − E Eᵀ s‖²,  s = x[:, :, h, w]

    Args:
        x: cube `(B, C, H, W)`.
        rank: number of directions, >= 1; at most C are returned.

    Returns:
        `(B, C, min(rank, C))`, by descending energy, in float32 at least.

    Raises:
        ValueError: rank < 1.
    """
    if rank < 1:
        raise ValueError(f"rank: expected at least 1, got {rank}")
    return spectral_eigen(x)[1][..., :rank]


def to_subspace(x: Tensor, basis: Tensor) -> Tensor:
    """Return the components Eᵀx: `(B, C, H, W)` and `(B, C, R)` → `(B, R, H, W)`."""
    return torch.einsum("bcr,bchw->brhw", basis, x.to(basis.dtype))


def from_subspace(components: Tensor, basis: Tensor) -> Tensor:
    """Return the cube E a: `(B, R, H, W)` and `(B, C, R)` → `(B, C, H, W)`."""
    return torch.einsum("bcr,brhw->bchw", basis, components)
