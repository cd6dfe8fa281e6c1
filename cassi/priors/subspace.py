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
from cassi.prior_protocols import Prior, is_proximal
from cassi.priors.memory import (
    apply_uncounted,
    begin,
    count_call,
    get_memory,
    keeps_tensors,
    rotate_memory,
)
from cassi.priors.tv import TV

DEFAULT_PRIOR = TV(norm="nuclear", warm=True)

# Components are dropped once σ has fallen to this, in the unit of the cube. With a larger σ the
# prior smooths components of the scene so much that they look weak.
MAX_DROP_SIGMA = 0.4

# Steps of orthogonal iteration for the eigenvalues of the second moments of components. Components
# are nearly uncorrelated, so the matrix is nearly diagonal and few steps are enough.
EIGENVALUE_STEPS = 16

# On a GPU the host reads the ranks once per this many new bases, because it waits for each read.
READ_INTERVAL = 8

# Least scale (λ_k/λ_1)^(balance/2). Without a limit the weakest components would be smoothed away.
_MIN_SCALE = 0.03


@dataclass(frozen=True)
class Subspace:
    """A prior on the components of a cube in its spectral subspace.

        prior(x, σ) = E p(Eᵀx, σ),   E the leading eigenvectors of Σ s̄ s̄ᵀ

    s̄ are the mean spectra of blocks of `pool` × `pool` pixels. The errors of a snapshot differ
    from pixel to pixel, so the errors average out in a block, while the spectra of materials stay.
    On simulated snapshots this subspace is nearly as good as the true subspace. The first `settle`
    calls of a run estimate the subspace anew; after them, every `renew`-th call does. The first
    estimate is an eigen-decomposition. The others are steps of orthogonal iteration from the last
    estimate.

    The rank follows from the data. A run starts with `rank` components. A component is weak if its
    energy in the block means is below `energy` times that of the first component. Once σ has fallen
    to 0.4, weak components are dropped for the rest of the run. Each sample has its own rank, at
    least 2.

    Weak and strong components have the same noise, so a weak one needs more smoothing. If `balance`
    is above 0, the prior gets scaled components, with the same σ:

        prior(x, σ) = E S⁻¹ p(S Eᵀx, σ),   S = diag (λ_k/λ_1)^(balance/2)

    λ_k are the eigenvalues of Σ s̄ s̄ᵀ. Brightness keeps its edges, and colour is smoothed between
    these edges.

    If the inner prior has a memory of components, such as TV's dual variable, its method `turn`
    gets every change of the basis. If the inner prior counts its calls, it needs two methods:
    `apply`, which does not count, and `count`. Gradients treat the basis as a constant.

    Args:
        prior: p, of components `(B, R, H, W)`.
        rank: number of components, >= 1; at most C are used.
        pool: side of a block, pixels; smaller if an image would have fewer than 4·C blocks.
        energy: relative energy below which a component is dropped, >= 0; 0 keeps all. ADMM divides
            this limit by the squared number of shots.
        balance: exponent >= 0; 0 treats all components alike, 1 makes them equally strong.
        renew: number of calls from one basis to the next, after the first `settle` calls.
        settle: number of first calls of a run, >= 1, that each estimate the basis anew; fewer are
            enough if the first cube is good.

    Raises:
        ValueError: a rank or pool below 1, or a negative number.
        TypeError: the prior is not callable.
    """

    prior: Prior = DEFAULT_PRIOR
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

    def begin(self) -> _SubspaceRun:
        """Return the prior of one run, which stores basis and rank."""
        return _SubspaceRun(self, begin(self.prior))


@dataclass(frozen=True, eq=False)
class Basis:
    """Directions E with a scale S; see `cassi.prior_protocols.Basis`."""

    synthesis: Tensor
    """E S⁻¹, `(B, C, R)`."""
    analysis: Tensor
    """E S, `(B, C, R)`."""
    lengths: Tensor
    """Norms of the columns of E S⁻¹, `(B, R)`, float64."""
    eigenvectors: Tensor
    """The leading eigenvectors, dropped components included, `(B, C, R₀)`, float64."""
    ranks: Tensor
    """Rank of each sample, `(B,)`; the columns of E S⁻¹ and E S beyond it are 0."""

    def select_columns(self, count: int) -> Basis:
        """Return the basis without the columns from `count` on."""
        return Basis(
            self.synthesis[..., :count],
            self.analysis[..., :count],
            self.lengths[:, :count],
            self.eigenvectors,
            self.ranks,
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All fields in their order."""
        return self.synthesis, self.analysis, self.lengths, self.eigenvectors, self.ranks


class _SubspaceRun:
    """The prior of one run of `Subspace`; a `cassi.prior_protocols.ComponentPrior`."""

    def __init__(self, settings: Subspace, prior: Prior) -> None:
        self.settings, self.prior = settings, prior
        self.energy, self.rank = settings.energy, settings.rank
        self.basis: Any = None
        self.last: tuple[Tensor, ...] = ()  # components of the last call, column norms
        self.calls, self.bases_since_read = 0, 0
        self.is_due, self.may_drop = True, False

    def lower_energy_limit(self, divisor: float, min_rank: int = 1) -> None:
        """Divide the energy limit for dropping; start with `min_rank` components or more."""
        self.energy, self.rank = self.energy / divisor, max(self.rank, min_rank)

    def means(self, x: Tensor) -> Tensor:
        bands = x.shape[1] if self.basis is None else self.basis.synthesis.shape[1]
        return block_means(x, self.settings.pool, bands)

    def start(self, x: Tensor) -> bool:
        """Find the first basis from a cube; return False if the cube is not finite."""
        device = x.device
        moments = spectral_moments(self.means(x).detach())
        # The host must read the moments anyway, to see whether they are finite. The host is
        # also faster than a GPU at the eigenvectors of such a small matrix.
        host_moments = moments.cpu()
        if not bool(host_moments.isfinite().all()):
            return False
        values, vectors = decompose(host_moments, host_moments.dtype)
        values, eigenvectors = values.to(device), vectors[..., : self.rank].to(device)
        rank, dtype = eigenvectors.shape[2], eigenvectors.dtype
        # These constants of the run are made once, so that no iteration has to make them.
        self.dtype = torch.promote_types(x.dtype, torch.float32)
        self.column_indices = torch.arange(rank, device=device)
        self.identity = torch.eye(rank, dtype=dtype, device=device)
        half = self.settings.balance / 2
        self.exponents = torch.linspace(-half, half, 2, dtype=dtype, device=device)
        ranks = torch.full((len(x),), rank, device=device)
        self.take(self._make_basis(values[:, : self.rank], eigenvectors, ranks))
        return True

    def follow(self, means: Tensor, basis: Basis, *last: Tensor) -> Basis:
        """Return the basis of a cube with these `means`, from the previous basis.

        The host waits for nothing and nothing is stored, so that a CUDA graph can record the call.
        """
        products = _products(means.detach())
        values, eigenvectors = ops.orthogonal_iteration(products, basis.eigenvectors)
        ranks = basis.ranks
        if last:
            ranks = torch.minimum(ranks, self._count_strong(*last))
        return self._make_basis(values[:, : basis.synthesis.shape[2]], eigenvectors, ranks)

    def take(self, basis: Basis) -> None:
        """Use a basis that `follow` returned from now on."""
        self.basis, self.is_due, self.last = basis, False, ()

    def drop_zero_components(self) -> int | None:
        """Remove columns that are 0 in all samples; return the number left, None if unchanged."""
        # The ranks are read just before the next basis is computed. By then the device has computed
        # the ranks, and the host hardly waits.
        is_cpu = self.basis.ranks.device.type == "cpu"
        if self.bases_since_read < (1 if is_cpu else READ_INTERVAL):
            return None
        self.bases_since_read = 0
        synthesis = self.basis.synthesis
        max_rank, columns = int(self.basis.ranks.max()), synthesis.shape[2]
        if max_rank == columns:
            return None
        selection = torch.eye(columns, max_rank, dtype=synthesis.dtype, device=synthesis.device)
        self.turn(selection.expand(len(synthesis), -1, -1))
        self.basis = self.basis.select_columns(max_rank)
        self.last = tuple(tensor[:, :max_rank] for tensor in self.last)
        return max_rank

    def turn(self, rotation: Tensor) -> None:
        rotate_memory(self.prior, rotation)

    @property
    def memory(self) -> Sequence[Tensor] | None:
        return get_memory(self.prior)

    @memory.setter
    def memory(self, values: Sequence[Tensor]) -> None:
        if values and keeps_tensors(self.prior):
            self.prior.memory = values

    def apply(self, components: Tensor, sigma: float | Tensor) -> Tensor:
        return apply_uncounted(self.prior, components, sigma)

    def count(self, result: Tensor, sigma: float | Tensor) -> None:
        settings = self.settings
        self.calls += 1
        count_call(self.prior)
        self.is_due = self.calls < settings.settle or self.calls % settings.renew == 0
        # σ may be a tensor on a device. The host reads σ only if a component could be dropped.
        if not (self.is_due and self.energy > 0):
            return
        self.may_drop = self.may_drop or bool(torch.as_tensor(sigma <= MAX_DROP_SIGMA).all())
        if self.may_drop:
            self.last = result, self.basis.lengths
            self.bases_since_read += 1

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        if self.basis is None:
            if not self.start(x):
                return x  # not finite, so no eigenvectors; the solver stops at such a cube
        elif self.is_due:
            self.drop_zero_components()
            previous = self.basis
            basis = self.follow(self.means(x), previous, *self.last)
            self.take(basis)
            self.turn(previous.synthesis.mT @ basis.analysis)
        components = self.apply(to_subspace(x, self.basis.analysis), sigma)
        self.count(components, sigma)
        return from_subspace(components, self.basis.synthesis).to(x.dtype)

    def _make_basis(self, values: Tensor, eigenvectors: Tensor, ranks: Tensor) -> Basis:
        """Return the basis of the leading eigenvectors, one for each eigenvalue `(B, R)`."""
        tiny = torch.finfo(values.dtype).tiny
        half = self.settings.balance / 2
        min_ratio = max(_MIN_SCALE ** (1 / half), tiny) if half else 1.0
        ratios = (values / values[:, :1].clamp_min(tiny)).clamp_min(min_ratio)
        is_kept = self.column_indices[: values.shape[1]] < ranks[:, None]
        scales = ratios ** self.exponents[:, None, None] * is_kept  # S⁻¹ and S
        leading = eigenvectors[..., : values.shape[1]]
        # One product makes both matrices, which saves the launch of an operation.
        matrices = torch.empty((2, *leading.shape), dtype=self.dtype, device=leading.device)
        torch.mul(leading, scales[:, :, None], out=matrices)
        return Basis(matrices[0], matrices[1], scales[0], eigenvectors, ranks)

    def _count_strong(self, components: Tensor, lengths: Tensor) -> Tensor:
        """Count the strong components of the last call, `(B,)`, at least 2."""
        means = self.means(components) * lengths[..., None, None]
        products, count = _products(means.detach()), components.shape[1]
        identity = self.identity[:count, :count].expand_as(products)
        values, _ = ops.orthogonal_iteration(products, identity, EIGENVALUE_STEPS)
        is_strong = values > self.energy * values.amax(1, keepdim=True)
        return is_strong.sum(1).clamp_min(2)

    def penalty(self, x: Tensor, sigma: float | Tensor) -> Tensor | None:
        """Return R(S Eᵀx) of each sample, with the basis of the last call."""
        if self.basis is None:
            return None
        return self.penalty_of(to_subspace(x, self.basis.analysis), sigma)

    def penalty_of(self, components: Tensor, sigma: float | Tensor) -> Tensor | None:
        """Return R(c) of each sample, of components c = S Eᵀx."""
        return self.prior.penalty(components, sigma) if is_proximal(self.prior) else None


def block_means(x: Tensor, side: int, bands: int | None = None) -> Tensor:
    """Return the means over blocks of side × side pixels.

    Blocks are smaller if x would have fewer than 4·C of them: second moments of C bands from fewer
    spectra would be unreliable. Blocks at the border are cut. If x holds the components of a cube
    of C bands, `bands` is C.

    Returns:
        `(B, C, ⌈H/side⌉, ⌈W/side⌉)`.
    """
    max_side = math.isqrt(x.shape[-2] * x.shape[-1] // (4 * (bands or x.shape[1])))
    side = max(1, min(side, max_side))
    if side == 1:
        return x
    # Means over rows, then over columns: torch's pooling reads the cube far more slowly. Every
    # block is a rectangle, even if it is cut, so the mean of the row means is the mean of the
    # block.
    return _average_runs(_average_runs(x, side, -2), side, -1)


def _average_runs(x: Tensor, count: int, axis: int) -> Tensor:
    """Return means over runs of `count` values along a negative axis; the last run is shorter."""
    length, dim = x.shape[axis], x.ndim + axis
    cut = length - length % count
    means = x.narrow(dim, 0, cut).unflatten(dim, (cut // count, count)).mean(dim + 1)
    if cut == length:
        return means
    last_mean = x.narrow(dim, cut, length - cut).mean(dim, keepdim=True)
    return torch.cat((means, last_mean), dim)


def decompose_cube(x: Tensor) -> tuple[Tensor, Tensor]:
    """Decompose the spectral second moment Σ_{h,w} s sᵀ / HW, s = x[:, :, h, w], of each sample.

    Returns:
        Eigenvalues `(B, C)`, >= 0 and descending, in the unit of x², and orthonormal eigenvectors
        `(B, C, C)` as columns; in float32 at least.
    """
    moments = spectral_moments(x)
    # The host is faster than a GPU at the decomposition of such a small matrix.
    values, vectors = decompose(moments.cpu(), x.dtype)
    return values.to(x.device), vectors.to(x.device)


def spectral_moments(x: Tensor) -> Tensor:
    """Return Σ_{h,w} s sᵀ / HW of a cube `(B, C, H, W)`: `(B, C, C)`, float64."""
    return _products(x) / (x.shape[2] * x.shape[3])


def _products(x: Tensor) -> Tensor:
    """Return Σ_{h,w} s sᵀ of a cube `(B, C, H, W)`: `(B, C, C)`, float64."""
    spectra = x.flatten(2).double()
    if not x.is_cpu:
        return torch.bmm(spectra, spectra.mT)
    # One product per sample. A batched product may sum in another order than a single product, and
    # a sample would get other bits in a batch.
    products = [sample @ sample.mT for sample in spectra]
    return products[0][None] if len(products) == 1 else torch.stack(products)


def decompose(moments: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, descending, and eigenvectors of `spectral_moments`, float32 at least."""
    # eigh returns eigenvalues in ascending order. Rounding can make an eigenvalue of 0 negative.
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
