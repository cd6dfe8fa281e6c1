"""Spectral subspaces: the few directions that hold the spectra of a scene."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from cassi.checks import not_negative, whole_number
from cassi.priors.tv import TV

SETTLED = 0.4
"""σ from which on components are given up, in the units of the cube."""
PRIOR = TV(norm="nuclear", warm=True)
_LEAST = 0.03  # of a scale: what is weaker is not smoothed even more


@dataclass(frozen=True)
class Subspace:
    """A prior on the components of a cube in its spectral subspace.

        prior(x, σ) = E p(Eᵀx, σ),   E the leading eigenvectors of Σ s̄ s̄ᵀ

    s̄ are the mean spectra of blocks of `pool` × `pool` pixels. Errors of a snapshot move light
    between bands from pixel to pixel and average out; the spectra of materials stay. On simulated
    snapshots this subspace is nearly as good as the true one. The first `settle` calls of a run
    estimate it, and then every call number `renew`: the first by an eigen-decomposition, the others
    by steps of orthogonal iteration from the last estimate.

    The rank follows from the data. A run starts with `rank` components. Once σ has fallen to
    0.4, components with less than `energy` times the energy of the first, in the block means,
    are dropped for the rest of the run. Each sample has a rank of its own, at least 2.

    A component with little energy has as much noise as one with much, so it needs more smoothing.
    With a `balance` the prior gets scaled components, with the same σ:

        prior(x, σ) = E S⁻¹ p(S Eᵀx, σ),   S = diag (λ_k/λ_1)^(balance/2)

    λ are the eigenvalues of that sum. Brightness keeps its edges; colour is smoothed between them.

    A prior with a memory of components, such as TV's dual variable, gets every change of the basis
    (`turn`). One that counts its calls has `apply`, which does not, and `count`. Gradients treat
    the basis as a constant.

    Args:
        prior: p, of components `(B, R, H, W)`.
        rank: number of components, >= 1; at most C are used.
        pool: side of a block, pixels; smaller where an image has fewer than 4·C blocks.
        energy: relative energy below which a component is dropped, >= 0; 0 keeps all. ADMM divides
            it by the squared number of shots.
        balance: exponent >= 0; 0 treats all components alike, 1 makes them equally strong.
        renew: calls from one basis to the next, after those of `settle`.
        settle: calls at the start of a run, >= 1, that each find the basis anew; fewer where the
            first cube is good.

    Raises:
        ValueError: a rank or pool below 1, or a negative number.
        TypeError: the prior is not callable.
    """

    prior: Any = PRIOR
    rank: int = 6
    pool: int = 16
    energy: float = 1.5e-3
    balance: float = 0.0
    renew: int = 5
    settle: int = 10

    def __post_init__(self) -> None:
        if not callable(self.prior):
            raise TypeError(f"Subspace prior: expected a callable, got {self.prior!r}")
        whole_number("Subspace rank", self.rank, 1)
        whole_number("Subspace pool", self.pool, 1)
        not_negative("Subspace energy", self.energy)
        not_negative("Subspace balance", self.balance)
        whole_number("Subspace renew", self.renew, 1)
        whole_number("Subspace settle", self.settle, 1)

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Apply the prior to a cube `(B, C, H, W)`; σ is in the unit of the cube."""
        return self.begin()(x, sigma)

    def begin(self) -> _Run:
        """Return the prior of one run, which keeps basis and rank."""
        return _Run(self, self.prior.begin() if hasattr(self.prior, "begin") else self.prior)


@dataclass(frozen=True, eq=False)
class Basis:
    """Directions E with a scale S; see `cassi.solvers.components.Basis`."""

    synthesis: Tensor
    """E S⁻¹, `(B, C, R)`."""
    analysis: Tensor
    """E S, `(B, C, R)`."""
    lengths: Tensor
    """Of the columns of E S⁻¹, `(B, R)`."""
    rotation: Tensor
    """What the components in the basis before are in this one, `(B, R', R)`."""
    lost: Tensor
    """Squared norm of what of those this one has not, as a form, `(B, R', R')`."""
    before: Tensor | None
    """The synthesis of the basis before."""
    scales: list[list[float]]
    """The lengths, on the host."""

    @staticmethod
    def found(
        synthesis: Tensor,
        analysis: Tensor,
        last: Tensor | None,
        before: Tensor | None,
        device: torch.device,
    ) -> Basis:
        """Return a basis on a device, from what the host has of it and of the one before."""
        lengths = torch.linalg.vector_norm(synthesis, dim=1)
        old = synthesis if last is None else last
        rotation, old, squares = old.mT @ analysis, old.double(), lengths.double().square()
        turned = rotation.double()
        lost = old.mT @ old - (turned * squares[:, None]) @ turned.mT
        values = [synthesis, analysis, lengths, rotation, lost.to(synthesis.dtype)]
        synthesis, analysis, there, rotation, lost = _to_device(values, device)
        return Basis(synthesis, analysis, there, rotation, lost, before, lengths.tolist())


class _Run:
    """One run of a Subspace."""

    def __init__(self, of: Subspace, prior: Any) -> None:
        self.of, self.prior, self.energy, self.rank = of, prior, of.energy, of.rank
        self.basis: Any = None
        self.ranks: Tensor | None = None  # (B,), those of the next basis, on the host
        self.known: Tensor | None = None  # the synthesis on the host
        self.frame: Tensor | None = None  # the leading eigenvectors, float64, on the host
        self.last: tuple[Tensor, ...] = ()  # components of the last call, lengths of their spectra
        self.calls = 0
        self.is_due, self.settled = True, False

    def keep(self, share: float, rank: int = 1) -> None:
        """Give up components below 1/share of the energy, and start with at least so many."""
        self.energy, self.rank = self.energy / share, max(self.rank, rank)

    def means(self, x: Tensor) -> Tensor:
        bands = x.shape[1] if self.basis is None else self.basis.synthesis.shape[1]
        return block_means(x, self.of.pool, bands)

    def moments(self, means: Tensor, *last: Tensor) -> Tensor:
        """Return `spectral_moments` of means, and of the components of the last call, `(B, N)`."""
        found = spectral_moments(means.detach()).flatten(1)
        if not last:
            return found
        smooth = self.means(last[0]) * last[1][..., None, None]
        return torch.cat((found, spectral_moments(smooth.detach()).flatten(1)), 1)

    def find(self, moments: Tensor, dtype: torch.dtype) -> bool:
        """Find the basis of a cube from its `moments`; False, and nothing changes, if not finite.

        A basis is small: the host finds it, and looks at a device once.
        """
        told, device = moments.cpu(), moments.device
        sides = [math.isqrt(told.shape[1])]
        if self.last:
            rank = self.last[0].shape[1]
            sides = [math.isqrt(told.shape[1] - rank**2), rank]
        moments, *smoothed = (
            each.unflatten(1, (side, side))
            for each, side in zip(told.split([side**2 for side in sides], 1), sides, strict=True)
        )
        if not bool(moments.isfinite().all()):
            return False
        for each in smoothed:
            self._give_up(each)
        count = self.rank if self.ranks is None else int(self.ranks.max())
        found = None if self.frame is None else follow(moments, self.frame)
        values, vectors = found or decompose(moments, moments.dtype)
        self.frame = vectors[..., : self.rank]
        dtype = torch.promote_types(dtype, torch.float32)
        basis, scale = self.frame[..., :count].to(dtype), self._scale(values[:, :count].to(dtype))
        if self.ranks is not None:
            kept = torch.arange(basis.shape[2]) < self.ranks[:, None]
            basis = basis * kept[:, None]
        last, self.is_due, self.last = self.known, False, ()
        self.known, analysis = basis / scale[:, None], basis * scale[:, None]
        before = None if self.basis is None else self.basis.synthesis
        self.basis = Basis.found(self.known, analysis, last, before, device)
        return True

    def turn(self, rotation: Tensor) -> None:
        if hasattr(self.prior, "turn"):
            self.prior.turn(rotation)

    @property
    def memory(self) -> Sequence[Tensor] | None:
        kept: Sequence[Tensor] | None = getattr(self.prior, "memory", None)
        return kept

    @memory.setter
    def memory(self, values: Sequence[Tensor]) -> None:
        if values:
            self.prior.memory = values

    def apply(self, components: Tensor, sigma: float | Tensor) -> Tensor:
        return uncounted(self.prior, components, sigma)

    def count(self, result: Tensor, sigma: float | Tensor) -> None:
        self.calls += 1
        count_call(self.prior)
        self.is_due = self.calls < self.of.settle or self.calls % self.of.renew == 0
        if not (self.is_due and self.energy > 0):
            return  # and a device need not tell a σ that it has
        self.settled = self.settled or bool(torch.as_tensor(sigma <= SETTLED).all())
        if self.settled:
            self.last = result, self.basis.lengths

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        if self.is_due:
            if not self.find(self.moments(self.means(x), *self.last), x.dtype):
                return x  # has no eigenvectors; the solver stops at such a cube
            if self.basis.before is not None:
                self.turn(self.basis.rotation)
        components = self.apply(to_subspace(x, self.basis.analysis), sigma)
        self.count(components, sigma)
        return from_subspace(components, self.basis.synthesis).to(x.dtype)

    def _scale(self, values: Tensor) -> Tensor:
        relative = values / values[:, :1].clamp_min(torch.finfo(values.dtype).tiny)
        return relative.pow(self.of.balance / 2).clamp_min(_LEAST)

    def _give_up(self, moments: Tensor) -> None:
        """Drop the components of the last call that were weak."""
        if not bool(moments.isfinite().all()) or _exceeds(moments, self.energy):
            return
        values, _ = decompose(moments, cast(Tensor, self.known).dtype)
        kept = (values > self.energy * values[:, :1]).sum(1).clamp_min(2)
        self.ranks = kept if self.ranks is None else torch.minimum(self.ranks, kept)

    def penalty(self, x: Tensor, sigma: float | Tensor) -> Tensor | None:
        """Return R(S Eᵀx) of each sample, with the basis of the last call."""
        if self.basis is None:
            return None
        return self.penalty_of(to_subspace(x, self.basis.analysis), sigma)

    def penalty_of(self, components: Tensor, sigma: float | Tensor) -> Tensor | None:
        """Return R(c) of each sample, of components c = S Eᵀx."""
        if not hasattr(self.prior, "penalty"):
            return None
        value: Tensor | None = self.prior.penalty(components, sigma)
        return value


def uncounted(prior: Any, x: Tensor, sigma: float | Tensor) -> Tensor:
    """Apply the prior of a run; one that counts its calls does not count this one."""
    result: Tensor = (prior.apply if hasattr(prior, "count") else prior)(x, sigma)
    return result


def count_call(prior: Any) -> None:
    """Let the prior of a run count a call, if it does."""
    if hasattr(prior, "count"):
        prior.count()


def block_means(x: Tensor, side: int, bands: int | None = None) -> Tensor:
    """Return the means over blocks of side × side pixels, at least 4·C of them if x has so many.

    Args:
        x: cube `(B, C, H, W)`.
        side: of a block, in pixels; blocks at the border are cut.
        bands: C, where x holds components of such a cube.

    Returns:
        `(B, C, ⌈H/side⌉, ⌈W/side⌉)`.
    """
    most = math.isqrt(x.shape[-2] * x.shape[-1] // (4 * (bands or x.shape[1])))
    side = max(1, min(side, most))
    if side == 1:
        return x
    # Rows first: torch's pooling reads the cube far more slowly. A block is a rectangle, also where
    # it is cut, so the mean of means is its mean.
    return _run_means(_run_means(x, side, -2), side, -1)


def _run_means(x: Tensor, count: int, axis: int) -> Tensor:
    # Means over runs of `count` along an axis, the last one cut.
    length, where = x.shape[axis], x.ndim + axis
    whole = length - length % count
    means = x.narrow(where, 0, whole).unflatten(where, (whole // count, count)).mean(where + 1)
    if whole == length:
        return means
    rest = x.narrow(where, whole, length - whole).mean(where, keepdim=True)
    return torch.cat((means, rest), where)


def spectral_eigen(x: Tensor) -> tuple[Tensor, Tensor]:
    """Decompose the spectral second moment Σ_{h,w} s sᵀ / HW, s = x[:, :, h, w], of each sample.

    Args:
        x: cube `(B, C, H, W)`.

    Returns:
        Eigenvalues `(B, C)`, >= 0 and descending, in the unit of x², and orthonormal eigenvectors
        `(B, C, C)` as columns; in float32 at least.
    """
    moments = spectral_moments(x)
    values, vectors = decompose(moments.cpu(), x.dtype)  # the host is faster at so small ones
    return values.to(x.device), vectors.to(x.device)


def spectral_moments(x: Tensor) -> Tensor:
    """Return Σ_{h,w} s sᵀ / HW of a cube `(B, C, H, W)`: `(B, C, C)`, float64."""
    spectra = x.flatten(2).double()
    # One product per sample: a batched one may sum in another order than that of a single sample.
    each = [sample @ sample.mT / sample.shape[1] for sample in spectra]
    return each[0][None] if len(each) == 1 else torch.stack(each)


def _exceeds(moments: Tensor, share: float) -> bool:
    """Tell, without eigenvalues, that all are above a share of the greatest; False if in doubt.

    M − s·trace(M)·I is positive definite, and the trace is at least the greatest eigenvalue.
    """
    bound = share * moments.diagonal(dim1=1, dim2=2).sum(1)
    least = moments - torch.diag_embed(bound[:, None].expand(moments.shape[:2]))
    return not bool(torch.linalg.cholesky_ex(least)[1].any())


def _to_device(values: list[Tensor], device: torch.device) -> list[Tensor]:
    """Move tensors of one dtype to a device, in one copy."""
    if device.type == "cpu":
        return values
    sent = torch.cat([value.flatten() for value in values]).to(device)
    parts = sent.split([value.numel() for value in values])
    return [part.view(value.shape) for part, value in zip(parts, values, strict=True)]


def decompose(moments: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, descending, and eigenvectors of `spectral_moments`, float32 at least."""
    dtype = torch.promote_types(dtype, torch.float32)
    values, vectors = torch.linalg.eigh(moments)
    return values.flip(-1).clamp_min(0).to(dtype), vectors.flip(-1).to(dtype)


def follow(moments: Tensor, frame: Tensor) -> tuple[Tensor, Tensor] | None:
    """Take two steps of orthogonal iteration, V ← Q of the QR decomposition of (M + εI) V.

    V is near the leading eigenvectors where those of similar moments are given. Where two
    eigenvalues are nearly equal, V may mix their vectors. ε = 1e-9·trace(M). Their signs change:
    a denoising network errs otherwise on −c than on c, and its errors average out.

    Args:
        moments: `spectral_moments` M, `(B, C, C)`.
        frame: V, orthonormal, `(B, C, R)`.

    Returns:
        Rayleigh quotients `(B, R)`, >= 0, and the next −V; None where the columns of MV are nearly
        dependent, which an M unlike that of V's can do.

    Source: Golub, Van Loan, "Matrix computations", 4th ed., 2013, section 8.2.4.
    """
    shift = 1e-9 * moments.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    for _ in range(2):
        image = torch.baddbmm(shift * frame, moments, frame)
        gram = image.mT @ image  # its Cholesky factor is R: scales of columns do no harm
        factor = torch.linalg.cholesky_ex(gram).L
        pivots, squares = (each.diagonal(dim1=1, dim2=2) for each in (factor, gram))
        if not bool((pivots.square() > 1e-6 * squares).all()):
            return None
        frame = torch.linalg.solve_triangular(factor.mT, image, upper=True, left=False)
    return (frame * (moments @ frame)).sum(1).clamp_min(0), -frame


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
    components = torch.bmm(basis.mT, x.to(basis.dtype).flatten(2))
    return components.view(-1, basis.shape[2], *x.shape[2:])


def from_subspace(components: Tensor, basis: Tensor) -> Tensor:
    """Return the cube E a: `(B, R, H, W)` and `(B, C, R)` → `(B, C, H, W)`."""
    cube = torch.bmm(basis, components.flatten(2))
    return cube.view(-1, basis.shape[1], *components.shape[2:])
