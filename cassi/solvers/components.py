"""ADMM on the spectral components of a cube, for priors that work on components.

A cube has many more values than its components, so an iteration makes no cube.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from cassi.prior_protocols import Basis, ComponentPrior
from cassi.solvers.base import Length, State, norm
from cassi.solvers.graphs import Runner, begin_graphs, run_directly
from cassi.solvers.linear_system import LinearSystem, Rho, SubspaceSystem, is_camera


@dataclass(frozen=True, eq=False)
class Components:
    """The state of ADMM: the cube x = F c, and the argument of the prior, t = F a − Aᵀs.

    A is the camera, and F makes cubes of components (`Basis.synthesis`). The part of t that is
    neither in the subspace nor in the range of Aᵀ is not stored. This part has no influence
    on the result: the prior does not see it, and it is zero while the basis stays.
    """

    components: Tensor
    """c, `(B, R, H, W)`."""
    argument: Tensor
    """a, the components in t, `(B, R, H, W)`."""
    detector_image: Tensor
    """s, the detector image in t, `(B, K, H', W')`."""
    argument_residual: Tensor
    """y − A t, `(B, K, H', W')`."""
    residual: Tensor
    """y − A x, `(B, K, H', W')`."""
    basis: Basis
    """The spectral basis, with F; see `cassi.prior_protocols.Basis`."""
    dtype: torch.dtype
    """The dtype of the cube."""
    run: Runner
    """Runs the device's work of an iteration; see `cassi.solvers.graphs`."""
    component_norms: Tensor
    """Norms of the components, `(B, R)`."""
    change_norms: Tensor
    """Norms of the change of the components, `(B, R)`."""
    residual_norm: Tensor
    """‖y − A x‖."""
    dropped_square: Tensor | None = None
    """Squared norm of the part of the previous cube outside a new basis, `(B, 1, 1)`."""

    @cached_property
    def x(self) -> Tensor:
        """The cube `(B, C, H, W)`."""
        return make_cube(self.components, self.basis.synthesis).to(self.dtype)

    def misfit(self, y: Tensor, system: LinearSystem) -> Length:
        """Return ‖y − Ax‖."""
        return Length(self.residual_norm)

    def norm(self) -> Length:
        """Return ‖x‖: the columns of F are orthogonal."""
        return Length(self.component_norms, self.basis.lengths)

    def distance(self, previous: State | Self) -> Length:
        """Return ‖x − x'‖ from the previous state."""
        # The first state of a run may be a state of plain ADMM, which has a cube.
        if not isinstance(previous, Components):
            return Length(norm(self.x - previous.x))
        return Length(self.change_norms, self.basis.lengths, self.dropped_square)


def _compute_norms(components: Tensor) -> Tensor:
    """Return the norm of each component, `(B, R, H, W)` → `(B, R)`."""
    return torch.linalg.vector_norm(components, dim=(2, 3))


def begin_components(
    x: Tensor, y: Tensor, system: LinearSystem, prior: ComponentPrior
) -> Components | None:
    """Return the first state of a cube x, `(B, C, H, W)`; None if x is not finite.

    K shots determine weak components better than one shot does. So a component is dropped only
    below 1/K² of the energy limit that holds for one shot.
    """
    prior.lower_energy_limit(y.shape[1] ** 2)
    if not prior.start(x):
        return None
    basis, analysis = prior.basis, prior.basis.analysis
    components = make_cube(x.to(analysis.dtype), analysis.mT)
    residual = y - system(x)
    # Conjugate gradients read their residuals on the host, which a CUDA graph cannot record.
    is_recordable = is_camera(system) and system.has_closed_form
    # The loop reads norms from the second state on, so the three norms here are placeholders.
    placeholder = basis.lengths
    return Components(
        components=components,
        argument=components,
        detector_image=torch.zeros_like(y),
        argument_residual=residual,
        residual=residual,
        basis=basis,
        dtype=x.dtype,
        run=begin_graphs(y.device) if is_recordable else run_directly,
        component_norms=placeholder,
        change_norms=placeholder,
        residual_norm=placeholder,
    )


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
    # Several shots determine nearly all unknowns. Over-relaxed steps would then oscillate, because
    # the basis is computed only every few iterations and lags behind.
    step = _Step(y, system, prior, relaxation if y.shape[1] == 1 else 1.0)
    if prior.is_due and (count := prior.drop_zero_components()):
        components, argument = (
            c[:, :count].contiguous() for c in (state.components, state.argument)
        )
        state = replace(state, components=components, argument=argument, basis=prior.basis)
    tensors = (
        state.components,
        state.argument,
        state.detector_image,
        state.argument_residual,
        state.residual,
    )
    basis, dropped_square, memory = state.basis, None, tuple(prior.memory or ())
    # If `memory` is None, the prior keeps more than tensors: it changes values on the host in each
    # call. A replayed graph would skip these changes.
    run = run_directly if prior.memory is None else state.run
    if not prior.is_due:
        results = run(step.keep_basis, *tensors, *basis.tensors[:2], sigma, rho, *memory)
    else:
        results = run(step.change_basis, *tensors, *basis.tensors, sigma, rho, *prior.last, *memory)
        count = len(basis.tensors)
        basis, dropped_square = type(basis)(*results[:count]), results[count]
        results = results[count + 1 :]
        prior.take(basis)
    _set_memory(prior, results[len(_RESULTS) :])
    prior.count(results[0], sigma)
    fields: dict[str, Any] = dict(zip(_RESULTS, results, strict=False))
    return replace(state, **fields, basis=basis, dropped_square=dropped_square)


# The fields of `Components` that a step returns, in this order. The prior's memory follows them.
_RESULTS = (
    "components",
    "argument",
    "detector_image",
    "argument_residual",
    "residual",
    "component_norms",
    "change_norms",
    "residual_norm",
)


@dataclass(frozen=True)
class _Step:
    """The device's work of an iteration, as functions of tensors that a CUDA graph can record.

    The data step is v = 2x − t − Aᵀz, and t ← t + r (v − x) = (1 − r) t + r x − r Aᵀz.
    """

    y: Tensor
    system: SubspaceSystem
    prior: ComponentPrior
    r: float

    def keep_basis(self, *values: Any) -> tuple[Tensor, ...]:
        """Take a step in the same basis; return `_RESULTS`, then the prior's memory."""
        components, argument, image, argument_residual, residual = values[:5]
        synthesis, analysis, sigma, rho = values[5:9]
        _set_memory(self.prior, values[9:])
        z = self._solve(argument_residual, residual, rho)
        targets = components, z, self.system.add_gram_product(residual, z)
        # One launch for a, s and y − At: all three follow the same (1 − r)·old + r·target.
        argument, image, argument_residual = torch._foreach_lerp(
            (argument, image, argument_residual), targets, self.r
        )
        prior_input = argument - self.system.adjoint_subspace(image, analysis)
        output = self.prior.apply(prior_input, sigma)
        change = output - components
        return self._collect_results(output, argument, image, argument_residual, synthesis, change)

    def change_basis(self, *values: Any) -> tuple[Tensor, ...]:
        """Take a step in a new basis, which is computed from F a − Aᵀs.

        F and G are the synthesis and analysis matrices of the basis. A prime marks the new basis
        and its cube. P = Fᵀ G' is the rotation between the bases. F' Pᵀc is the projection of
        x = F c onto the directions of the new basis, hence

            ‖x' − x‖² = ‖F' (c' − Pᵀc)‖² + ‖(F − F' Pᵀ) c‖².

        Returns:
            The tensors of the new basis, the second term of ‖x' − x‖², and what `keep_basis`
            returns.
        """
        components, argument, image, argument_residual, residual = values[:5]
        *basis_tensors, sigma, rho = values[5:12]
        last = values[12 : 12 + len(self.prior.last)]
        _set_memory(self.prior, values[12 + len(last) :])
        targets = components, self._solve(argument_residual, residual, rho)
        argument, image = torch._foreach_lerp((argument, image), targets, self.r)
        previous = type(self.prior.basis)(*basis_tensors)
        # Block means are linear: the means of F a follow from the means of a, without a cube F a.
        means = self.prior.means(self.system.adjoint(image))
        means = _combine(-1, means, 1, previous.synthesis, self.prior.means(argument))
        basis = self.prior.follow(means, previous, *last)
        self.prior.take(basis)  # a wrapper of the prior may read the basis
        rotation = torch.bmm(previous.synthesis.mT, basis.analysis)
        self.prior.turn(rotation)
        argument = make_cube(argument, rotation.mT)
        # The rotation drops a part of t, so the residual of t is computed anew.
        argument_residual = self.system.residual_subspace(self.y, argument, basis.synthesis)
        argument_residual = self.system.add_gram_product(argument_residual, image)
        prior_input = argument - self.system.adjoint_subspace(image, basis.analysis)
        output = self.prior.apply(prior_input, sigma)
        change = _combine(1, output, -1, rotation.mT, components)
        # ‖(F − F' Pᵀ) c‖² is the inner product of two small Gram matrices.
        outside_basis = torch.baddbmm(previous.synthesis, basis.synthesis, rotation.mT, alpha=-1)
        flat = components.flatten(2)
        grams = torch.bmm(outside_basis.mT, outside_basis), torch.bmm(flat, flat.mT)
        dropped_square = torch.bmm(grams[0].flatten(1)[:, None], grams[1].flatten(1)[..., None])
        results = self._collect_results(
            output, argument, image, argument_residual, basis.synthesis, change
        )
        return *basis.tensors, dropped_square, *results

    def _solve(self, argument_residual: Tensor, residual: Tensor, rho: Rho) -> Tensor:
        """Return z of the data step: (AAᵀ + ρI) z = (y − At) − 2 (y − Ax)."""
        return self.system.gram_solve(torch.add(argument_residual, residual, alpha=-2), rho)

    def _collect_results(
        self,
        components: Tensor,
        argument: Tensor,
        image: Tensor,
        argument_residual: Tensor,
        synthesis: Tensor,
        change: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return `_RESULTS`, then the memory of the prior."""
        residual = self.system.residual_subspace(self.y, components, synthesis)
        norms = _compute_norms(components), _compute_norms(change), norm(residual)
        memory = self.prior.memory or ()
        return components, argument, image, argument_residual, residual, *norms, *memory


def _set_memory(prior: ComponentPrior, memory: Sequence[Tensor]) -> None:
    """Set the memory of a prior, if the prior keeps tensors only."""
    if prior.memory is not None:
        prior.memory = memory


def make_cube(components: Tensor, synthesis: Tensor) -> Tensor:
    """Return F c: `(B, R, H, W)` and `(B, C, R)` → `(B, C, H, W)`."""
    return torch.bmm(synthesis, components.flatten(2)).unflatten(2, components.shape[2:])


def _combine(beta: int, x: Tensor, alpha: int, synthesis: Tensor, components: Tensor) -> Tensor:
    """Return βx + αF c."""
    flat = x.flatten(2), synthesis, components.flatten(2)
    return torch.baddbmm(*flat, beta=beta, alpha=alpha).view_as(x)
