"""Conjugate gradients on the detector, for cameras whose A Aᵀ is not diagonal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from cassi.checks import whole_number
from cassi.ops._recording import Dims, FunctionContext, VmapInfo, is_recorded, is_tracked, unwrap
from cassi.ops._signal import sum_in_order

Apply = Callable[[Tensor], Tensor]
"""z ↦ AAᵀz, measurement-shaped `(B, K, H', W')`."""

# Smallest divisor: it keeps a quotient of norms finite if the residual is zero.
_MIN_DIVISOR = 1e-300


@dataclass(frozen=True)
class SolveReport:
    """Iterations and residual of a solve, for each sample `(B,)`."""

    iterations: Tensor
    """Number of applications of AAᵀ, without the first one."""
    residual: Tensor
    """‖r − (AAᵀ + D)z‖/‖r‖, computed by the recurrence of the iteration."""
    converged: Tensor
    """Whether z solves the equations, or their least-squares problem, to the tolerance."""


@dataclass(frozen=True)
class ConjugateGradients:
    """Solve (AAᵀ + D) z = r, D = diag(ρ), by conjugate gradients, each sample separately.

    The method is the variant named conjugate residuals. It applies AAᵀ once per iteration, like
    common conjugate gradients, but its residual never rises. If ρ = 0, it equals conjugate
    gradients on the normal equations of min_x ‖Ax − r‖, with x = Aᵀz. So it also converges for a
    singular AAᵀ, and for an r outside the range of A: noise on pixels without light, or more shots
    than bands. The limit is the least-squares solution z = (AAᵀ)⁺r. If AAᵀ is nearly singular, a
    small number of iterations regularises.

    A pixel with infinite ρ is left out: r and AAᵀz are zero there, z stays zero, and the other
    pixels are solved for as if it did not exist. Norms are taken over the other pixels.

    Vectors have the dtype of r, float32 at least. Inner products are summed in float64, in an order
    that does not depend on the number of threads. A sample that has converged stays as it is, so
    its result does not depend on the rest of the batch.

    Args:
        tolerance: stop when ‖r − (AAᵀ + D)z‖ <= tolerance·‖r‖, or when a least-squares solution is
            reached to the same tolerance. None is 1e-6, in float64 1e-13.
        iterations: at most this many.

    Raises:
        ValueError: a negative tolerance, or iterations that are no whole number >= 1.

    Source: Hestenes, Stiefel, "Methods of conjugate gradients for solving linear systems", J. Res.
    NBS 49(6), 1952, section 10 (normal equations); Saad, "Iterative methods for sparse linear
    systems", 2003, algorithm 6.20 (conjugate residuals) and section 9.2 (preconditioning); Liu,
    Milzarek, Roosta, "Obtaining pseudo-inverse solutions with MINRES", 2023 (the minimum-norm z).
    """

    tolerance: float | None = None
    iterations: int = 200

    def __post_init__(self) -> None:
        if self.tolerance is not None and not self.tolerance >= 0:
            raise ValueError(f"tolerance: expected a number >= 0, got {self.tolerance}")
        whole_number("iterations", self.iterations, 1)

    def solve(
        self,
        gram: Apply,
        r: Tensor,
        rho: Tensor,
        start: Tensor | None = None,
        precondition: Apply | None = None,
        tensors: Sequence[Tensor] = (),
        solve_again: Callable[..., Tensor] | None = None,
    ) -> tuple[Tensor, SolveReport]:
        """Solve, with gradients of the exact solution, by implicit differentiation.

        Let g be the gradient of z, S = (AAᵀ + D)⁻¹ and w = Sg. Then the gradients are dr = w and
        dρ = −w·z. dρ is summed over pixels that share one ρ, and is zero where ρ is infinite. For a
        parameter θ of A, dθ = −⟨w, ∂(AAᵀ)z⟩. Gradients cost one more solve and have own gradients.

        Args:
            gram: applies AAᵀ, differentiable with respect to z and to the parameters of A.
            r: right-hand side `(B, K, H', W')`.
            rho: ρ >= 0, `(1|B,)` or `(1|B, 1|K, 1|H', 1|W')`.
            start: first z, shaped like r; zero if None. The tolerance stays relative to r.
            precondition: applies a symmetric M⁻¹ ≈ (AAᵀ + D)⁻¹, zero where ρ is infinite. It is
                called without gradients. If it is given, the residual is measured by √(rᵀM⁻¹r):
                this norm never rises, and a least-squares solution minimises it.
            tensors: the tensors of A that need derivatives.
            solve_again: `solve_again(g, ρ, *tensors)` solves with right-hand side g and with these
                tensors in A. Nested transforms of `torch.func` need `tensors` and `solve_again` if
                A itself is differentiated.

        Returns:
            z, shaped like r, and the report.
        """
        dtype = torch.promote_types(r.dtype, torch.float32)
        damping = rho.to(dtype)
        damping = damping.view(-1, 1, 1, 1) if damping.ndim == 1 else damping
        is_excluded = damping == torch.inf
        is_included = ~is_excluded

        def zero_excluded(value: Tensor) -> Tensor:
            return torch.where(is_excluded, 0, value.to(dtype))

        def apply_gram(z: Tensor) -> Tensor:
            # A product keeps the layout of its first factor, which `torch.where` need not.
            return gram(z) * is_included

        def solve_plain(g: Tensor, rho: Tensor) -> Tensor:
            return self.solve(gram, g, rho, precondition=precondition)[0]

        right_side, weight = zero_excluded(r), zero_excluded(damping)
        first = None if start is None else zero_excluded(start)
        # The iterations are not differentiated. The correction in `_attach_gradient` gives the
        # exact derivative for one more solve, without keeping every iteration in memory.
        with torch.no_grad(), forward_ad._set_fwd_grad_enabled(False):
            z, report = self._iterate(
                apply_gram, right_side, weight, first, precondition or _identity
            )
        if is_recorded():
            correct = partial(_correct, solve_again or solve_plain, damping, *tensors)
            z = self._attach_gradient(apply_gram, right_side, weight, z, correct) * is_included
        return z.to(r.dtype), report

    def _attach_gradient(
        self, gram: Apply, r: Tensor, weight: Tensor, z: Tensor, correct: Callable[..., Tensor]
    ) -> Tensor:
        # `correct` returns z + S(r − (AAᵀ + D)z). Its value is z, and its derivative is that of the
        # exact solution: autograd records the bracket, and S is applied to gradients alone. One
        # correction gives first derivatives. A second one, a Newton step on the first, gives second
        # derivatives.
        q = gram(z) + weight * z
        if not is_tracked(q):
            # A has no derivative here, so only r is corrected. z is linear in r, so one correction
            # gives derivatives of any order.
            return correct(r, z) if is_tracked(r) else z
        limit = 10 * self._choose_tolerance(r.dtype)
        value, z = _Branch.apply(correct(r - q, z), limit)
        return correct(r - gram(z) - weight * z, value)

    def _choose_tolerance(self, dtype: torch.dtype) -> float:
        if self.tolerance is not None:
            return self.tolerance
        return 1e-13 if dtype == torch.float64 else 1e-6

    def _iterate(
        self, gram: Apply, r: Tensor, weight: Tensor, start: Tensor | None, precondition: Apply
    ) -> tuple[Tensor, SolveReport]:
        tolerance = self._choose_tolerance(r.dtype)
        norm = _inner_product(r, r).sqrt()
        z = torch.zeros_like(r)
        if start is not None:
            z = start
            r = r - gram(z) - weight * z
        s = precondition(r)  # M⁻¹ r
        p, image = s, gram(s) + weight * s  # image = (AAᵀ + D) s
        conditioned_image = precondition(image)
        q, w = image, conditioned_image  # (AAᵀ + D) p, M⁻¹ q
        residual_norm = _inner_product(r, r).sqrt()
        curvature = _inner_product(s, image)
        max_ratio = torch.zeros_like(norm)
        # If AAᵀ is singular, the part of r in its null space stays in r, and every iteration adds a
        # multiple of this part to p and z. At the end the multiple in z is subtracted. This turns
        # a least-squares solution into the minimum-norm one (Liu, Milzarek, Roosta, 2023).
        null_factor_p, null_factor_z = torch.ones_like(norm), torch.zeros_like(norm)
        iterations = torch.zeros_like(norm, dtype=torch.int64)
        is_solved = residual_norm <= tolerance * norm
        is_least_squares = torch.zeros_like(norm, dtype=torch.bool)
        is_active = ~is_solved
        for _ in range(self.iterations):
            # A least-squares solution is reached when AAᵀ maps the residual (almost) to zero. The
            # largest ratio of both norms so far tells what counts as zero.
            image_norm = _inner_product(image, conditioned_image).clamp_min(0).sqrt()
            conditioned_norm = _inner_product(r, s).clamp_min(0).sqrt()
            max_ratio = torch.maximum(
                max_ratio, image_norm / conditioned_norm.clamp_min(_MIN_DIVISOR)
            )
            is_small = image_norm <= tolerance * max_ratio * conditioned_norm
            is_least_squares = is_least_squares | (is_active & is_small)
            is_active = is_active & ~is_least_squares & (curvature > 0)
            if not bool(unwrap(is_active).any()):
                break
            alpha = torch.where(is_active, curvature / _inner_product(q, w), 0)
            z, r = z + _as_column(alpha, r) * p, r - _as_column(alpha, r) * q
            s = precondition(r) if precondition is _identity else s - _as_column(alpha, r) * w
            null_factor_z = null_factor_z + alpha * null_factor_p
            iterations = iterations + is_active
            residual_norm = torch.where(is_active, _inner_product(r, r).sqrt(), residual_norm)
            is_solved = is_solved | (is_active & (residual_norm <= tolerance * norm))
            is_active = is_active & ~is_solved
            image = gram(s) + weight * s
            conditioned_image = precondition(image)
            next_curvature = _inner_product(s, image)
            beta = torch.where(is_active, next_curvature / curvature, 0)
            p, q = s + _as_column(beta, r) * p, image + _as_column(beta, r) * q
            w = conditioned_image + _as_column(beta, r) * w
            null_factor_p = 1 + beta * null_factor_p
            curvature = torch.where(is_active, next_curvature, curvature)
        z = z - _as_column(torch.where(is_least_squares, null_factor_z, 0), r) * s
        residual = torch.where(norm > 0, residual_norm / norm, 0)
        return z, SolveReport(*map(unwrap, (iterations, residual, is_solved | is_least_squares)))


def _identity(z: Tensor) -> Tensor:
    return z


def _correct(solve: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    *tensors, residual, z = arguments
    return _Correct.apply(solve, residual, z, *tensors)


class _Correct(torch.autograd.Function):
    """Return z + S·residual, where the residual counts as zero but its derivative does not.

    The value is z itself. S = (AAᵀ + D)⁻¹ is applied to gradients and tangents alone.
    """

    @staticmethod
    def forward(
        solve: Callable[..., Tensor], residual: Tensor, z: Tensor, *tensors: Tensor
    ) -> Tensor:
        return z.clone()

    @staticmethod
    def setup_context(ctx: FunctionContext, inputs: tuple[Any, ...], output: Tensor) -> None:
        solve, _, _, *tensors = inputs
        ctx.constants = (solve,)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (solve,), tensors = ctx.constants, ctx.saved_tensors
        return (None, solve(gradients[0], *tensors), gradients[0], *(None for _ in tensors))

    @staticmethod
    def jvp(
        ctx: FunctionContext, _: None, residual: Tensor, z: Tensor, *__: Tensor | None
    ) -> Tensor:
        (solve,) = ctx.constants
        return z + solve(residual, *ctx.saved_tensors)

    @staticmethod
    def vmap(
        info: VmapInfo, in_dims: Dims, solve: Callable[..., Tensor], *arguments: Tensor
    ) -> tuple[Tensor, int]:
        def solve_mapped(g: Tensor, *tensors: Tensor) -> Tensor:
            return torch.vmap(solve, in_dims=(0, *in_dims[3:]))(g, *tensors)

        residual, z = (
            value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
            for value, dim in zip(arguments[:2], in_dims[1:3], strict=True)
        )
        return _Correct.apply(solve_mapped, residual, z, *arguments[2:]), 0


class _Branch(torch.autograd.Function):
    """Return two copies of z: the first is corrected, the second gives the residual.

    A gradient that reaches the first copy reaches the second copy with the opposite sign. If no
    other gradient arrives, their sum is zero up to the error of the solve. Such a sum is dropped,
    which saves a further solve.
    """

    @staticmethod
    def forward(z: Tensor, limit: float) -> tuple[Tensor, Tensor]:
        return z.clone(), z.clone()

    @staticmethod
    def setup_context(ctx: FunctionContext, inputs: tuple[Any, ...], output: object) -> None:
        ctx.constants = inputs[1:]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        value, residual = gradients
        if value is None or residual is None:
            return (residual if value is None else value), None
        correction = value + residual
        if not is_recorded():
            (limit,) = ctx.constants
            is_rounding_error = unwrap(correction.norm() <= limit * value.norm())
            if bool(is_rounding_error.all()):
                return None, None
        return correction, None

    @staticmethod
    def jvp(ctx: FunctionContext, z: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        return z, z

    @staticmethod
    def vmap(
        info: VmapInfo, in_dims: Dims, z: Tensor, limit: float
    ) -> tuple[tuple[Tensor, Tensor], Dims]:
        return _Branch.apply(z, limit), (in_dims[0], in_dims[0])


def _inner_product(a: Tensor, b: Tensor) -> Tensor:  # (B,), float64
    return sum_in_order((a.double() * b.double()).flatten(1))


def _as_column(value: Tensor, reference: Tensor) -> Tensor:
    return value.to(reference.dtype).view(-1, 1, 1, 1)
