"""ADMM on the components of a cube: where the prior is one on components, no cube is made."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from cassi.solvers.base import Length, norm
from cassi.solvers.graphs import begin_graphs, directly
from cassi.solvers.linear_system import LinearSystem


class Basis(Protocol):
    """Directions E of spectra with a scale S: F = E S⁻¹ makes a cube of components, F c.

    G = E S takes the components of a cube: Gᵀ F = I. The columns of F are orthogonal.
    """

    synthesis: Tensor
    """F, `(B, C, R)`."""
    analysis: Tensor
    """G, `(B, C, R)`."""
    lengths: Tensor
    """Of the columns of F, `(B, R)`."""
    scales: Sequence[Sequence[float]]
    """The same, on the host."""
    rotation: Tensor
    """F'ᵀ G, `(B, R', R)`: its transpose takes components in the basis before, F', to this one."""
    lost: Tensor
    """F'ᵀF' − P FᵀF Pᵀ with P that rotation, `(B, R', R')`: ‖F' c‖² = ‖F Pᵀ c‖² + cᵀ lost c."""
    before: Tensor | None
    """F', the synthesis of the basis before; None in the first."""


class ComponentPrior(Protocol):
    """A prior, in one run, whose cubes are F c of few components c; see `cassi.priors.Subspace`."""

    basis: Basis
    """That of the last `find`."""

    @property
    def is_due(self) -> bool:
        """Whether the basis is to be found anew before the next call."""

    def keep(self, share: float, rank: int = 1) -> None:
        """Give up components below 1/share of the energy, and start with at least so many."""

    def means(self, x: Tensor) -> Tensor:
        """Return what the basis is found from, `(B, C, h, w)`, linear in the cube."""

    def moments(self, means: Tensor, *last: Tensor) -> Tensor:
        """Return what of means and of `last` the host looks at, `(B, N)`."""

    def find(self, moments: Tensor, dtype: torch.dtype) -> bool:
        """Find the basis of a cube; False, and nothing changes, where it was not finite."""

    @property
    def last(self) -> Sequence[Tensor]:
        """What the next `moments` need besides, from the call before."""

    def turn(self, rotation: Tensor) -> None:
        """Let the memory of its prior follow a change of the basis, see `Basis.rotation`."""

    @property
    def memory(self) -> Sequence[Tensor] | None:
        """What its prior keeps from call to call; None where that is more than tensors."""

    @memory.setter
    def memory(self, values: Sequence[Tensor]) -> None:
        """Take the place of what is kept."""

    def apply(self, components: Tensor, sigma: Any) -> Tensor:
        """Apply the prior to components `(B, R, H, W)`: of itself only its memory changes."""

    def count(self, components: Tensor, sigma: Any) -> None:
        """Note that the prior was applied, and what it returned."""


class SubspaceSystem(LinearSystem, Protocol):
    """What is needed of a camera besides; see `cassi.systems.System`."""

    def gram_solve(self, r: Tensor, rho: Any = 0.0) -> Tensor:
        """Solve (AAᵀ + ρI) z = r."""

    def add_gram_product(self, v: Tensor, y: Tensor) -> Tensor:
        """Return v + AAᵀy."""

    def forward_subspace(self, components: Tensor, basis: Tensor) -> Tensor:
        """Return A F c."""

    def adjoint_subspace(self, y: Tensor, basis: Tensor) -> Tensor:
        """Return Gᵀ Aᵀ y."""


@dataclass(frozen=True, eq=False)
class Components:
    """Where ADMM stands: x = F c, and what the prior was applied to, t = F a + Aᵀs.

    What of t is neither in the subspace nor in the range of Aᵀ is left out. It has no part in the
    result: the prior does not see it, and there is none as soon as the basis stays.
    """

    components: Tensor
    """c, `(B, R, H, W)`."""
    total: Tensor
    """a, `(B, R, H, W)`."""
    light: Tensor
    """s, `(B, K, H', W')`."""
    image: Tensor
    """A t."""
    measured: Tensor
    """A x."""
    residual: Tensor
    """y − A x."""
    basis: Basis
    """Has F."""
    dtype: torch.dtype
    """Of the cube."""
    run: Any
    """Runs what an iteration does on the device; see `cassi.solvers.graphs`."""
    size: Tensor
    """Norms of the components, `(B, R)`."""
    change: Tensor
    """Those of c − P c', with c' of the state before, and the norm of what of F' c' is lost."""
    missed: Tensor
    """‖y − A x‖."""

    @cached_property
    def x(self) -> Tensor:
        """The cube `(B, C, H, W)`."""
        return make_cube(self.components, self.basis.synthesis).to(self.dtype)

    def misfit(self, y: Tensor, system: LinearSystem) -> Length:
        """Return ‖y − Ax‖."""
        return Length(self.missed)

    def norm(self) -> Length:
        """Return ‖x‖: the columns of F are orthogonal."""
        return self._length(self.size)

    def distance(self, other: Any) -> Length:
        """Return ‖x − x'‖ from the state before."""
        if not isinstance(other, Components):
            return Length(norm(self.x - other.x))
        return self._length(self.change)

    def _length(self, norms: Tensor) -> Length:
        rows = self.basis.scales
        beside = [1.0] * (norms.shape[1] - len(rows[0]))
        return Length(norms, [scale for row in rows for scale in (*row, *beside)])


def _sizes(components: Tensor) -> Tensor:
    return torch.linalg.vector_norm(components, dim=(2, 3))


def begin_components(x: Tensor, y: Tensor, system: LinearSystem, prior: ComponentPrior) -> Any:
    """Return the first state of a cube x, `(B, C, H, W)`; None where x is not finite.

    K shots tell more of weak components than one: they are given up where they have 1/K² of the
    energy.
    """
    prior.keep(y.shape[1] ** 2)
    if not prior.find(prior.moments(prior.means(x)), x.dtype):
        return None
    basis, analysis = prior.basis, prior.basis.analysis
    components = make_cube(x.to(analysis.dtype), analysis.mT)
    image = system(x)
    light = torch.zeros_like(y)
    closed = getattr(system, "is_closed", False)  # conjugate gradients look at their residuals
    run = begin_graphs(y.device) if closed else directly
    parts = components, components, light, image, image, y - image
    unread = basis.lengths  # in the place of norms
    return Components(*parts, basis, x.dtype, run, unread, unread, unread)


def step_components(
    state: Components,
    y: Tensor,
    system: SubspaceSystem,
    prior: ComponentPrior,
    sigma: Any,
    rho: Any,
    relaxation: float,
) -> Components:
    """Fit the measurement, apply the prior, update the multiplier; see `ADMM`."""
    # Several shots leave little undecided: more than whole steps, in a basis that is late, swing.
    step = _Step(y, system, prior, relaxation if y.shape[1] == 1 else 1.0)
    parts = state.components, state.total, state.light, state.image, state.measured
    basis, memory = state.basis, tuple(prior.memory or ())
    run = directly if prior.memory is None else state.run
    if not prior.is_due:
        known = basis.synthesis, basis.analysis
        found = run(step.stay, *parts, *known, sigma, rho, *memory)
    else:
        total, light, moments = run(step.fit, *parts, basis.synthesis, rho, *prior.last)
        if not prior.find(moments, state.dtype):
            # There is no basis; the loop stops at such a residual.
            lost = torch.full_like(y, torch.nan)
            return replace(state, residual=lost, missed=norm(lost))
        basis = prior.basis
        turned = basis.synthesis, basis.analysis, basis.rotation, basis.lost
        found = run(step.turn, state.components, total, light, *turned, sigma, *memory)
    _remember(prior, found[9:])
    prior.count(found[0], sigma)
    names = "components", "total", "light", "image", "measured", "residual", "missed"
    following = dict(zip((*names, "size", "change"), found, strict=False))
    return replace(state, **following, basis=basis)


@dataclass(frozen=True)
class _Step:
    """What an iteration does on the device, in parts that can be recorded.

    The data step is v = 2x − t + Aᵀz, and t ← t + r (v − x) = (1 − r) t + r x + r Aᵀz.
    """

    y: Tensor
    system: SubspaceSystem
    prior: ComponentPrior
    r: float

    def stay(self, *values: Any) -> tuple[Tensor, ...]:
        """Take a step that keeps the basis; return all of the next state, and the memory."""
        components, total, light, image, measured, synthesis, analysis, sigma, rho, *memory = values
        _remember(self.prior, memory)
        z = self._solve(image, measured, rho)
        beyond = components, z, self.system.add_gram_product(measured, z)
        total, light, image = torch._foreach_lerp((total, light, image), beyond, self.r)
        found, *rest = self._apply(total, light, image, synthesis, analysis, sigma)
        return found, *rest[:6], _sizes(found), _sizes(found - components), *rest[6:]

    def fit(self, *values: Any) -> tuple[Tensor, ...]:
        """Take a step up to the basis; return a, s, and the moments of F a + Aᵀs."""
        components, total, light, image, measured, synthesis, rho, *last = values
        beyond = components, self._solve(image, measured, rho)
        total, light = torch._foreach_lerp((total, light), beyond, self.r)
        means = self.prior.means(self.system.adjoint(light))
        means = means + make_cube(self.prior.means(total), synthesis)
        return total, light, self.prior.moments(means, *last)

    def turn(self, *values: Any) -> tuple[Tensor, ...]:
        """Take the rest of a step, in the basis found; return as `stay`.

        F P c' is the projection of x' = F' c' onto the directions of x, and
        ‖x − x'‖² = ‖F (c − P c')‖² + ‖F' c'‖² − ‖F P c'‖².
        """
        components, total, light, synthesis, analysis, rotation, lost, sigma, *memory = values
        _remember(self.prior, memory)
        self.prior.turn(rotation)
        total = make_cube(total, rotation.mT)
        image = self.system.forward_subspace(total, synthesis)
        image = self.system.add_gram_product(image, light)
        found, *rest = self._apply(total, light, image, synthesis, analysis, sigma)
        flat = components.flatten(2)
        beside = (lost * torch.bmm(flat, flat.mT)).sum((1, 2)).clamp_min(0).sqrt()
        there = make_cube(components, rotation.mT)
        change = torch.cat((_sizes(found - there), beside[:, None]), 1)
        return found, *rest[:6], _sizes(found), change, *rest[6:]

    def _solve(self, image: Tensor, measured: Tensor, rho: Any) -> Tensor:
        return self.system.gram_solve(torch.add(self.y + image, measured, alpha=-2), rho)

    def _apply(
        self, total: Any, light: Any, image: Any, synthesis: Any, analysis: Any, sigma: Any
    ) -> tuple[Tensor, ...]:
        given = total + self.system.adjoint_subspace(light, analysis)
        components = self.prior.apply(given, sigma)
        measured = self.system.forward_subspace(components, synthesis)
        residual = self.y - measured
        rest = total, light, image, measured, residual, norm(residual)
        return components, *rest, *(self.prior.memory or ())


def _remember(prior: ComponentPrior, memory: Sequence[Tensor]) -> None:
    if prior.memory is not None:
        prior.memory = memory


def make_cube(components: Tensor, synthesis: Tensor) -> Tensor:
    """Return F c: `(B, R, H, W)` and `(B, C, R)` → `(B, C, H, W)`."""
    return torch.bmm(synthesis, components.flatten(2)).unflatten(2, components.shape[2:])
