"""ADMM on the components of a cube: where the prior is one on components, no cube is made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from cassi.solvers.linear_system import LinearSystem


class ComponentPrior(Protocol):
    """A prior, in one run, whose cubes are F c of few components c; see `cassi.priors.Subspace`.

    With a basis E and a scale S of its directions, F = E S⁻¹ makes the cube, and G = E S takes the
    components of one: Gᵀ F = I.
    """

    synthesis: Tensor
    """F, `(B, C, R)`."""
    analysis: Tensor
    """G, `(B, C, R)`."""
    rotation: Tensor
    """What the old components are in the new basis, `(B, R, R')`, after the second `find`."""

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

    def smooth(self, components: Tensor, sigma: Any) -> Tensor:
        """Apply the prior to components `(B, R, H, W)`."""
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
    synthesis: Tensor
    """F, `(B, C, R)`."""
    dtype: torch.dtype
    """Of the cube."""

    @cached_property
    def x(self) -> Tensor:
        """The cube `(B, C, H, W)`."""
        return make_cube(self.components, self.synthesis).to(self.dtype)

    def norm(self) -> Tensor:
        """Return ‖x‖, a scalar: the columns of F are orthogonal."""
        return _cube_norm(self.components, self.synthesis)

    def distance(self, other: Any) -> Tensor:
        """Return ‖x − x'‖, a scalar.

        Where the bases differ, F P c' is the projection of x' onto the directions of x, and
        ‖x − x'‖² = ‖F (c − P c')‖² + ‖F' c'‖² − ‖F P c'‖².
        """
        if not isinstance(other, Components):
            return (self.x - other.x).norm()
        there = other.components
        if other.synthesis is self.synthesis:
            return _cube_norm(self.components - there, self.synthesis)
        f, f_there = self.synthesis.double(), other.synthesis.double()
        squares = f.square().sum(1).clamp_min(torch.finfo(torch.double).tiny)
        p = (f.mT @ f_there) / squares[..., None]
        flat = there.flatten(2)
        within = _cube_norm(self.components - make_cube(there, p.to(flat.dtype)), self.synthesis)
        outside = f_there.mT @ f_there - p.mT @ (f.mT @ f) @ p
        lost = (outside * (flat @ flat.mT)).sum().clamp_min(0)
        return (within.square() + lost).sqrt().to(within.dtype)


def begin_components(x: Tensor, y: Tensor, system: LinearSystem, prior: ComponentPrior) -> Any:
    """Return the first state of a cube x, `(B, C, H, W)`; None where x is not finite.

    K shots tell more of weak components than one: they are given up where they have 1/K² of the
    energy.
    """
    prior.keep(y.shape[1] ** 2)
    if not prior.find(prior.means(x)):
        return None
    components = prior.analysis.mT @ x.to(prior.analysis.dtype).flatten(2)
    components = components.unflatten(2, x.shape[2:])
    image = system(x)
    light = torch.zeros_like(y)
    residual, synthesis = y - image, prior.synthesis
    return Components(components, components, light, image, image, residual, synthesis, x.dtype)


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
    # The data step v = 2x − t + Aᵀz, and t ← t + r (v − x) = (1 − r) t + r x + r Aᵀz.
    z = system.gram_solve(torch.add(y + state.image, state.measured, alpha=-2), rho)
    total = torch.lerp(state.total, state.components, r)
    light = torch.lerp(state.light, z, r)
    if prior.is_due:
        means = prior.means(system.adjoint(light))
        means = means + make_cube(prior.means(total), state.synthesis)
        if not prior.find(means):  # there is no basis; the loop stops at such a residual
            return replace(state, residual=torch.full_like(y, torch.nan))
        total = (prior.rotation.mT @ total.flatten(2)).unflatten(2, total.shape[2:])
        image = system.forward_subspace(total, prior.synthesis) + system.gram_product(light)
    else:
        image = torch.lerp(state.image, state.measured + system.gram_product(z), r)
    components = prior.smooth(total + system.adjoint_subspace(light, prior.analysis), sigma)
    synthesis, dtype = prior.synthesis, state.dtype
    measured = system.forward_subspace(components, synthesis)
    return Components(components, total, light, image, measured, y - measured, synthesis, dtype)


def _cube_norm(components: Tensor, synthesis: Tensor) -> Tensor:
    """Return ‖F c‖, a scalar, where the columns of F are orthogonal."""
    lengths = torch.linalg.vector_norm(synthesis, dim=1)
    sizes = torch.linalg.vector_norm(components, dim=(2, 3))
    return torch.linalg.vector_norm(sizes * lengths)


def make_cube(components: Tensor, synthesis: Tensor) -> Tensor:
    """Return F c: `(B, R, H, W)` and `(B, C, R)` → `(B, C, H, W)`."""
    return (synthesis @ components.flatten(2)).unflatten(2, components.shape[2:])
