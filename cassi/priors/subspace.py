"""Spectral subspaces: the few directions that hold the spectra of a scene."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cassi import ops
from cassi.checks import not_negative, whole_number
from cassi.prior_protocols import Keeping, Prior, is_proximal
from cassi.priors.memory import begin, count_call, kept, turn, uncounted
from cassi.priors.tv import TV

SETTLED = 0.4
"""σ from which on components are given up, in the units of the cube."""
PRIOR = TV(norm="nuclear", warm=True)
ENOUGH = 16
"""Steps to the eigenvalues of moments of components. These are nearly diagonal: few are enough."""
READ_EVERY = 8
"""On a GPU the host looks at the ranks once in so many bases: it waits for each look."""
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

    prior: Prior = PRIOR
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
        return _Run(self, begin(self.prior))


@dataclass(frozen=True, eq=False)
class Basis:
    """Directions E with a scale S; see `cassi.solvers.components.Basis`."""

    synthesis: Tensor
    """E S⁻¹, `(B, C, R)`."""
    analysis: Tensor
    """E S, `(B, C, R)`."""
    lengths: Tensor
    """Of the columns of E S⁻¹, `(B, R)`, float64."""
    frame: Tensor
    """The leading eigenvectors, those that were given up as well, `(B, C, R₀)`, float64."""
    ranks: Tensor
    """Of each sample, `(B,)`; columns behind are 0."""

    def narrowed(self, count: int) -> Basis:
        """Return the basis without the columns from `count` on."""
        some = self.synthesis[..., :count], self.analysis[..., :count], self.lengths[:, :count]
        return Basis(*some, self.frame, self.ranks)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of it, in the order of the fields."""
        return self.synthesis, self.analysis, self.lengths, self.frame, self.ranks


class _Run:
    """One run of a Subspace."""

    def __init__(self, of: Subspace, prior: Prior) -> None:
        self.of, self.prior, self.energy, self.rank = of, prior, of.energy, of.rank
        self.basis: Any = None
        self.last: tuple[Tensor, ...] = ()  # components of the last call, lengths of their spectra
        self.calls = 0
        self.is_due, self.settled, self.unread = True, False, 0

    def keep(self, share: float, rank: int = 1) -> None:
        """Give up components below 1/share of the energy, and start with at least so many."""
        self.energy, self.rank = self.energy / share, max(self.rank, rank)

    def means(self, x: Tensor) -> Tensor:
        bands = x.shape[1] if self.basis is None else self.basis.synthesis.shape[1]
        return block_means(x, self.of.pool, bands)

    def start(self, x: Tensor) -> bool:
        """Find the first basis, of a cube; False where it is not finite.

        Eigenvectors of so few bands are found by the host, in the one look that it takes.
        """
        moments = spectral_moments(self.means(x).detach())
        told = moments.cpu()
        if not bool(told.isfinite().all()):
            return False
        values, vectors = decompose(told, told.dtype)
        values, frame = values.to(x.device), vectors[..., : self.rank].to(x.device)
        ranks = torch.full((len(x),), frame.shape[2], device=x.device)
        self.dtype = torch.promote_types(x.dtype, torch.float32)
        self.order = torch.arange(frame.shape[2], device=x.device)
        self.every = torch.eye(frame.shape[2], dtype=frame.dtype, device=x.device)
        half = self.of.balance / 2
        self.powers = torch.linspace(-half, half, 2, dtype=frame.dtype, device=x.device)
        self.take(self._basis(values[:, : self.rank], frame, ranks))
        return True

    def follow(self, means: Tensor, basis: Basis, *last: Tensor) -> Basis:
        """Return the basis of a cube with these `means`, from the one before.

        The host waits for nothing, and nothing is kept.
        """
        values, frame = ops.orthogonal_iteration(_products(means.detach()), basis.frame)
        ranks = basis.ranks
        if last:
            ranks = torch.minimum(ranks, self._strong(*last))
        return self._basis(values[:, : basis.synthesis.shape[2]], frame, ranks)

    def take(self, basis: Basis) -> None:
        """Go on with a basis that was found."""
        self.basis, self.is_due, self.last = basis, False, ()

    def narrow(self) -> int | None:
        """Leave out columns that are 0 in all samples; return how many stay, None for all.

        The host looks at the ranks before the next basis is found: by then a device has them.
        """
        if self.unread < (1 if self.basis.ranks.device.type == "cpu" else READ_EVERY):
            return None
        self.unread = 0
        most, now = int(self.basis.ranks.max()), self.basis.synthesis.shape[2]
        if most == now:
            return None
        like = self.basis.synthesis
        some = torch.eye(now, most, dtype=like.dtype, device=like.device)
        self.turn(some.expand(len(like), -1, -1))
        self.basis = self.basis.narrowed(most)
        self.last = tuple(each[:, :most] for each in self.last)
        return most

    def turn(self, rotation: Tensor) -> None:
        turn(self.prior, rotation)

    @property
    def memory(self) -> Sequence[Tensor] | None:
        return kept(self.prior)

    @memory.setter
    def memory(self, values: Sequence[Tensor]) -> None:
        if values and isinstance(self.prior, Keeping):
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
            self.unread += 1

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        if self.basis is None:
            if not self.start(x):
                return x  # has no eigenvectors; the solver stops at such a cube
        elif self.is_due:
            self.narrow()
            before, basis = self.basis, self.follow(self.means(x), self.basis, *self.last)
            self.take(basis)
            self.turn(before.synthesis.mT @ basis.analysis)
        components = self.apply(to_subspace(x, self.basis.analysis), sigma)
        self.count(components, sigma)
        return from_subspace(components, self.basis.synthesis).to(x.dtype)

    def _basis(self, values: Tensor, frame: Tensor, ranks: Tensor) -> Basis:
        """Return the basis of as many eigenvectors as there are values `(B, R)`."""
        tiny = torch.finfo(values.dtype).tiny
        half = self.of.balance / 2
        least = max(_LEAST ** (1 / half), tiny) if half else 1.0
        relative = (values / values[:, :1].clamp_min(tiny)).clamp_min(least)
        kept = self.order[: values.shape[1]] < ranks[:, None]
        scales = relative ** self.powers[:, None, None] * kept  # S⁻¹ and S
        leading = frame[..., : values.shape[1]]
        both = torch.empty((2, *leading.shape), dtype=self.dtype, device=frame.device)
        torch.mul(leading, scales[:, :, None], out=both)
        return Basis(both[0], both[1], scales[0], frame, ranks)

    def _strong(self, components: Tensor, lengths: Tensor) -> Tensor:
        """Count the components of the last call that were strong, `(B,)`."""
        means = self.means(components) * lengths[..., None, None]
        products, count = _products(means.detach()), components.shape[1]
        every = self.every[:count, :count].expand_as(products)
        values, _ = ops.orthogonal_iteration(products, every, ENOUGH)
        strong = values > self.energy * values.amax(1, keepdim=True)
        return strong.sum(1).clamp_min(2)

    def penalty(self, x: Tensor, sigma: float | Tensor) -> Tensor | None:
        """Return R(S Eᵀx) of each sample, with the basis of the last call."""
        if self.basis is None:
            return None
        return self.penalty_of(to_subspace(x, self.basis.analysis), sigma)

    def penalty_of(self, components: Tensor, sigma: float | Tensor) -> Tensor | None:
        """Return R(c) of each sample, of components c = S Eᵀx."""
        return self.prior.penalty(components, sigma) if is_proximal(self.prior) else None


def block_means(x: Tensor, side: int, bands: int | None = None) -> Tensor:
    """Return the means over blocks of side × side pixels, at least 4·C of them if x has so many.

    Blocks at the border are cut. `bands` is C, where x holds components of such a cube.

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

    Returns:
        Eigenvalues `(B, C)`, >= 0 and descending, in the unit of x², and orthonormal eigenvectors
        `(B, C, C)` as columns; in float32 at least.
    """
    moments = spectral_moments(x)
    values, vectors = decompose(moments.cpu(), x.dtype)  # the host is faster at so small ones
    return values.to(x.device), vectors.to(x.device)


def spectral_moments(x: Tensor) -> Tensor:
    """Return Σ_{h,w} s sᵀ / HW of a cube `(B, C, H, W)`: `(B, C, C)`, float64."""
    return _products(x) / (x.shape[2] * x.shape[3])


def _products(x: Tensor) -> Tensor:
    spectra = x.flatten(2).double()
    if not x.is_cpu:
        return torch.bmm(spectra, spectra.mT)
    # One product per sample: a batched one may sum in another order than that of a single sample.
    each = [sample @ sample.mT for sample in spectra]
    return each[0][None] if len(each) == 1 else torch.stack(each)


def decompose(moments: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, descending, and eigenvectors of `spectral_moments`, float32 at least."""
    dtype = torch.promote_types(dtype, torch.float32)
    values, vectors = torch.linalg.eigh(moments)
    return values.flip(-1).clamp_min(0).to(dtype), vectors.flip(-1).to(dtype)


def spectral_basis(x: Tensor, rank: int) -> Tensor:
    """Return an orthonormal basis of the `rank` leading spectral directions of each sample.

        argmin_{EᵀE = I} Σ_{h,w} ‖s − E Eᵀ s‖²,  s = x[:, :, h, w]

    Returns:
        `(B, C, min(rank, C))`, by descending energy, in float32 at least.
    """
    if rank < 1:
        raise ValueError(f"rank: expected at least 1, got {rank}")
    vectors = decompose(spectral_moments(x).cpu(), x.dtype)[1]
    return vectors[..., :rank].to(x.device)


def to_subspace(x: Tensor, basis: Tensor) -> Tensor:
    """Return the components Eᵀx: `(B, C, H, W)` and `(B, C, R)` → `(B, R, H, W)`."""
    components = torch.bmm(basis.mT, x.to(basis.dtype).flatten(2))
    return components.view(-1, basis.shape[2], *x.shape[2:])


def from_subspace(components: Tensor, basis: Tensor) -> Tensor:
    """Return the cube E a: `(B, R, H, W)` and `(B, C, R)` → `(B, C, H, W)`."""
    cube = torch.bmm(basis, components.flatten(2))
    return cube.view(-1, basis.shape[1], *components.shape[2:])
