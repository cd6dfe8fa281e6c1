"""ADMM on the components of a cube: where the prior is one on components, no cube is made."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from cassi.prior_protocols import Basis, ComponentPrior
from cassi.solvers.base import Length, State, norm
from cassi.solvers.graphs import Runner, begin_graphs, directly
from cassi.solvers.linear_system import LinearSystem, Rho, SubspaceSystem, is_camera


@dataclass(frozen=True, eq=False)
class Components:
    """Where ADMM stands: x = F c, and what the prior was applied to, t = F a − Aᵀs.

    What of t is neither in the subspace nor in the range of Aᵀ is left out. It has no part in the
    result: the prior does not see it, and there is none as soon as the basis stays.
    """

    components: Tensor
    """c, `(B, R, H, W)`."""
    total: Tensor
    """a, `(B, R, H, W)`."""
    light: Tensor
    """s, `(B, K, H', W')`."""
    left: Tensor
    """y − A t."""
    residual: Tensor
    """y − A x."""
    basis: Basis
    """Has F."""
    dtype: torch.dtype
    """Of the cube."""
    run: Runner
    """Runs what an iteration does on the device; see `cassi.solvers.graphs`."""
    size: Tensor
    """Norms of the components, `(B, R)`."""
    change: Tensor
    """Norms of the change of the components, `(B, R)`."""
    missed: Tensor
    """‖y − A x‖."""
    lost: Tensor | None = None
    """What a new basis leaves out of x', its squared norm, `(B, 1, 1)`."""

    @cached_property
    def x(self) -> Tensor:
        """The cube `(B, C, H, W)`."""
        return make_cube(self.components, self.basis.synthesis).to(self.dtype)

    def misfit(self, y: Tensor, system: LinearSystem) -> Length:
        """Return ‖y − Ax‖."""
        return Length(self.missed)

    def norm(self) -> Length:
        """Return ‖x‖: the columns of F are orthogonal."""
        return Length(self.size, self.basis.lengths)

    def distance(self, other: State | Self) -> Length:
        """Return ‖x − x'‖ from the state before."""
        if not isinstance(other, Components):
            return Length(norm(self.x - other.x))
        return Length(self.change, self.basis.lengths, self.lost)


def _sizes(components: Tensor) -> Tensor:
    return torch.linalg.vector_norm(components, dim=(2, 3))


def begin_components(
    x: Tensor, y: Tensor, system: LinearSystem, prior: ComponentPrior
) -> Components | None:
    """Return the first state of a cube x, `(B, C, H, W)`; None where x is not finite.

    K shots tell more of weak components than one: they are given up where they have 1/K² of the
    energy.
    """
    prior.keep(y.shape[1] ** 2)
    if not prior.start(x):
        return None
    basis, analysis = prior.basis, prior.basis.analysis
    components = make_cube(x.to(analysis.dtype), analysis.mT)
    residual = y - system(x)
    closed = is_camera(system) and system.is_closed  # conjugate gradients look at their residuals
    run = begin_graphs(y.device) if closed else directly
    parts = components, components, torch.zeros_like(y), residual, residual
    unread = basis.lengths  # in the place of norms
    return Components(*parts, basis, x.dtype, run, unread, unread, unread)


def step_components(
    state: Components,
    y: Tensor,
    system: SubspaceSystem,
    prior: ComponentPrior,
    sigma: float | Tensor,
    rho: Rho,
    relaxation: float,
) -> Components:
    """Fit the measurement, apply the prior, update the multiplier; see `ADMM`."""
    # Several shots leave little undecided: more than whole steps, in a basis that is late, swing.
    step = _Step(y, system, prior, relaxation if y.shape[1] == 1 else 1.0)
    if prior.is_due and (count := prior.narrow()):
        components, total = (c[:, :count].contiguous() for c in (state.components, state.total))
        state = replace(state, components=components, total=total, basis=prior.basis)
    parts = state.components, state.total, state.light, state.left, state.residual
    basis, lost, memory = state.basis, None, tuple(prior.memory or ())
    run = directly if prior.memory is None else state.run
    if not prior.is_due:
        found = run(step.stay, *parts, *basis.tensors[:2], sigma, rho, *memory)
    else:
        found = run(step.turn, *parts, *basis.tensors, sigma, rho, *prior.last, *memory)
        count = len(basis.tensors)
        basis, lost, found = type(basis)(*found[:count]), found[count], found[count + 1 :]
        prior.take(basis)
    _remember(prior, found[8:])
    prior.count(found[0], sigma)
    names = "components", "total", "light", "left", "residual", "size", "change", "missed"
    changed: dict[str, Any] = dict(zip(names, found, strict=False))
    return replace(state, **changed, basis=basis, lost=lost)


@dataclass(frozen=True)
class _Step:
    """What an iteration does on the device, in parts that can be recorded.

    The data step is v = 2x − t − Aᵀz, and t ← t + r (v − x) = (1 − r) t + r x − r Aᵀz.
    """

    y: Tensor
    system: SubspaceSystem
    prior: ComponentPrior
    r: float

    def stay(self, *values: Any) -> tuple[Tensor, ...]:
        """Take a step that keeps the basis; return what the next state has, and the memory."""
        components, total, light, left, residual, *known, sigma, rho = values[:9]
        _remember(self.prior, values[9:])
        synthesis, analysis = known
        z = self._solve(left, residual, rho)
        beyond = components, z, self.system.add_gram_product(residual, z)
        total, light, left = torch._foreach_lerp((total, light, left), beyond, self.r)
        given = total - self.system.adjoint_subspace(light, analysis)
        found = self.prior.apply(given, sigma)
        return self._all(found, total, light, left, synthesis, found - components)

    def turn(self, *values: Any) -> tuple[Tensor, ...]:
        """Take a step in the basis of F a − Aᵀs; return it, what it leaves out, the rest as `stay`.

        F' Pᵀc is the projection of x = F c onto the directions of x', and
        ‖x' − x‖² = ‖F' (c' − Pᵀc)‖² + ‖(F − F' Pᵀ) c‖².
        """
        components, total, light, left, residual, *known, sigma, rho = values[:12]
        last = values[12 : 12 + len(self.prior.last)]
        _remember(self.prior, values[12 + len(last) :])
        beyond = components, self._solve(left, residual, rho)
        total, light = torch._foreach_lerp((total, light), beyond, self.r)
        before = type(self.prior.basis)(*known)
        means = self.prior.means(self.system.adjoint(light))
        means = _sum(-1, means, 1, before.synthesis, self.prior.means(total))
        basis = self.prior.follow(means, before, *last)
        self.prior.take(basis)  # a prior around it may ask for it
        rotation = torch.bmm(before.synthesis.mT, basis.analysis)
        self.prior.turn(rotation)
        total = make_cube(total, rotation.mT)
        left = self.system.residual_subspace(self.y, total, basis.synthesis)
        left = self.system.add_gram_product(left, light)
        given = total - self.system.adjoint_subspace(light, basis.analysis)
        found = self.prior.apply(given, sigma)
        change = _sum(1, found, -1, rotation.mT, components)
        beside = torch.baddbmm(before.synthesis, basis.synthesis, rotation.mT, alpha=-1)
        flat = components.flatten(2)
        grams = torch.bmm(beside.mT, beside), torch.bmm(flat, flat.mT)
        lost = torch.bmm(grams[0].flatten(1)[:, None], grams[1].flatten(1)[..., None])
        return *basis.tensors, lost, *self._all(found, total, light, left, basis.synthesis, change)

    def _solve(self, left: Tensor, residual: Tensor, rho: Rho) -> Tensor:
        return self.system.gram_solve(torch.add(left, residual, alpha=-2), rho)

    def _all(
        self,
        found: Tensor,
        total: Tensor,
        light: Tensor,
        left: Tensor,
        synthesis: Tensor,
        change: Tensor,
    ) -> tuple[Tensor, ...]:
        residual = self.system.residual_subspace(self.y, found, synthesis)
        sizes = _sizes(found), _sizes(change), norm(residual)
        return found, total, light, left, residual, *sizes, *(self.prior.memory or ())


def _remember(prior: ComponentPrior, memory: Sequence[Tensor]) -> None:
    if prior.memory is not None:
        prior.memory = memory


def make_cube(components: Tensor, synthesis: Tensor) -> Tensor:
    """Return F c: `(B, R, H, W)` and `(B, C, R)` → `(B, C, H, W)`."""
    return torch.bmm(synthesis, components.flatten(2)).unflatten(2, components.shape[2:])


def _sum(beta: int, x: Tensor, alpha: int, synthesis: Tensor, components: Tensor) -> Tensor:
    """Return βx + αF c."""
    flat = x.flatten(2), synthesis, components.flatten(2)
    return torch.baddbmm(*flat, beta=beta, alpha=alpha).view_as(x)
