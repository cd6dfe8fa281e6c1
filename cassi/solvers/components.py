"""ADMM on the components of a cube: where the prior is one on components, no cube is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from cassi.solvers.base import Length
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
        ...

    def keep(self, share: float, rank: int = 1) -> None:
        """Give up components below 1/share of the energy, and start with at least so many."""
        ...

    def means(self, x: Tensor) -> Tensor:
        """Return what the basis is found from, `(B, C, h, w)`, linear in the cube."""
        ...

    def find(self, means: Tensor) -> bool:
        """Find the basis; False, and nothing changes, where the means are not finite."""
        ...

    @property
    def memory(self) -> Sequence[Tensor] | None:
        """What its prior keeps from call to call; None where that is more than tensors."""
        ...

    @memory.setter
    def memory(self, values: Sequence[Tensor]) -> None:
        """Take the place of what is kept."""
        ...

    def apply(self, components: Tensor, sigma: Any) -> Tensor:
        """Apply the prior to components `(B, R, H, W)`: of itself only its memory changes."""
        ...

    def count(self, components: Tensor, sigma: Any) -> None:
        """Note that the prior was applied, and what it returned."""
        ...


class SubspaceSystem(LinearSystem, Protocol):
    """What is needed of a camera besides; see `cassi.systems.System`."""

    def gram_solve(self, r: Tensor, rho: Any = 0.0) -> Tensor:
        """Solve (AAᵀ + ρI) z = r."""
        ...

    def gram_product(self, y: Tensor) -> Tensor:
        """Return AAᵀy."""
        ...

    def forward_subspace(self, components: Tensor, basis: Tensor) -> Tensor:
        """Return A F c."""
        ...

    def adjoint_subspace(self, y: Tensor, basis: Tensor) -> Tensor:
        """Return Gᵀ Aᵀ y."""
        ...


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
    """Runs the iterations between two bases; see `cassi.solvers.graphs`."""

    @cached_property
    def x(self) -> Tensor:
        """The cube `(B, C, H, W)`."""
        return make_cube(self.components, self.basis.synthesis).to(self.dtype)

    def norm(self) -> Length:
        """Return ‖x‖: the columns of F are orthogonal."""
        return Length(_sizes(self.components), self.basis.lengths)

    def distance(self, other: Any) -> Length:
        """Return ‖x − x'‖.

        Where the bases differ, F P c' is the projection of x' onto the directions of x, and
        ‖x − x'‖² = ‖F (c − P c')‖² + ‖F' c'‖² − ‖F P c'‖².
        """
        basis, same = self.basis, isinstance(other, Components)
        if same and other.basis is basis:
            return Length(_sizes(self.components - other.components), basis.lengths)
        if not same or other.basis.synthesis is not basis.before:
            return Length((self.x - other.x).norm())
        flat = other.components.flatten(2)
        there = (basis.rotation.mT @ flat).view_as(self.components)
        lost = (basis.lost * (flat @ flat.mT)).sum((1, 2)).clamp_min(0).sqrt()
        parts = _sizes(self.components - there) * basis.lengths
        return Length(torch.cat((parts, lost[:, None]), 1))


def _sizes(components: Tensor) -> Tensor:
    return torch.linalg.vector_norm(components, dim=(2, 3))


def begin_components(x: Tensor, y: Tensor, system: LinearSystem, prior: ComponentPrior) -> Any:
    """Return the first state of a cube x, `(B, C, H, W)`; None where x is not finite.

    K shots tell more of weak components than one: they are given up where they have 1/K² of the
    energy.
    """
    prior.keep(y.shape[1] ** 2)
    if not prior.find(prior.means(x)):
        return None
    analysis = prior.basis.analysis
    components = analysis.mT @ x.to(analysis.dtype).flatten(2)
    components = components.unflatten(2, x.shape[2:])
    image = system(x)
    light = torch.zeros_like(y)
    closed = getattr(system, "is_closed", False)  # conjugate gradients look at their residuals
    run = begin_graphs(y.device) if closed and prior.memory is not None else directly
    residual, basis = y - image, prior.basis
    return Components(components, components, light, image, image, residual, basis, x.dtype, run)


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
    r = relaxation if y.shape[1] == 1 else 1.0
    if not prior.is_due:
        return _step_in_basis(state, y, system, prior, sigma, rho, r)
    # The data step v = 2x − t + Aᵀz, and t ← t + r (v − x) = (1 − r) t + r x + r Aᵀz.
    z = system.gram_solve(torch.add(y + state.image, state.measured, alpha=-2), rho)
    total = torch.lerp(state.total, state.components, r)
    light = torch.lerp(state.light, z, r)
    means = prior.means(system.adjoint(light))
    means = means + make_cube(prior.means(total), state.basis.synthesis)
    if not prior.find(means):  # there is no basis; the loop stops at such a residual
        return replace(state, residual=torch.full_like(y, torch.nan))
    basis = prior.basis
    total = (basis.rotation.mT @ total.flatten(2)).unflatten(2, total.shape[2:])
    image = system.forward_subspace(total, basis.synthesis) + system.gram_product(light)
    components = prior.apply(total + system.adjoint_subspace(light, basis.analysis), sigma)
    prior.count(components, sigma)
    measured = system.forward_subspace(components, basis.synthesis)
    return Components(
        components, total, light, image, measured, y - measured, basis, state.dtype, state.run
    )


def _step_in_basis(
    state: Components,
    y: Tensor,
    system: SubspaceSystem,
    prior: ComponentPrior,
    sigma: Any,
    rho: Any,
    r: float,
) -> Components:
    """Take a step that keeps the basis: all of it on the device, so that it can be recorded."""

    def body(
        components: Tensor,
        total: Tensor,
        light: Tensor,
        image: Tensor,
        measured: Tensor,
        synthesis: Tensor,
        analysis: Tensor,
        sigma: Any,
        rho: Any,
        *memory: Tensor,
    ) -> tuple[Tensor, ...]:
        z = system.gram_solve(torch.add(y + image, measured, alpha=-2), rho)
        total, light = torch.lerp(total, components, r), torch.lerp(light, z, r)
        image = torch.lerp(image, measured + system.gram_product(z), r)
        if known:
            prior.memory = memory
        components = prior.apply(total + system.adjoint_subspace(light, analysis), sigma)
        measured = system.forward_subspace(components, synthesis)
        after = prior.memory if known else ()
        return components, total, light, image, measured, y - measured, *(after or ())

    basis, memory = state.basis, prior.memory
    known = memory is not None
    components, total, light, image, measured, residual, *after = state.run(
        body,
        *(state.components, state.total, state.light, state.image, state.measured),
        *(basis.synthesis, basis.analysis, sigma, rho, *(memory or ())),
    )
    if known:
        prior.memory = after
    prior.count(components, sigma)
    return Components(
        components, total, light, image, measured, residual, basis, state.dtype, state.run
    )


def make_cube(components: Tensor, synthesis: Tensor) -> Tensor:
    """Return F c: `(B, R, H, W)` and `(B, C, R)` → `(B, C, H, W)`."""
    return (synthesis @ components.flatten(2)).unflatten(2, components.shape[2:])
