"""Conjugate gradients on the detector, for cameras whose A Aᵀ is not diagonal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from cassi.checks import whole_number
from cassi.ops._recording import Dims, FunctionContext, VmapInfo, is_recorded, is_tracked, unwrapped
from cassi.ops._signal import sum_in_order

Apply = Callable[[Tensor], Tensor]
"""z ↦ AAᵀz, measurement-shaped `(B, K, H', W')`."""

_TINY = 1e-300


@dataclass(frozen=True)
class SolveReport:
    """Iterations and residual of a solve, for each sample `(B,)`."""

    iterations: Tensor
    """Applications of AAᵀ, without the first."""
    residual: Tensor
    """‖r − (AAᵀ + D)z‖/‖r‖, by the recurrence."""
    converged: Tensor
    """Whether a tolerance was met: that of the residual, or of a least-squares solution."""


@dataclass(frozen=True)
class ConjugateGradients:
    """Solve (AAᵀ + D) z = r by conjugate gradients, each sample for itself, with D = diag(ρ).

    The form is that of conjugate residuals. It applies AAᵀ once per iteration, like the common
    form, but its residual never rises. With ρ = 0 it equals conjugate gradients on the normal
    equations of min_x ‖Ax − r‖, with x = Aᵀz. So it converges for a singular AAᵀ too, and for an r
    that no cube gives: noise on pixels without light, or more shots than bands. The limit is the
    least-squares solution z = (AAᵀ)⁺r. Where AAᵀ is nearly singular, few iterations regularise.

    A pixel with infinite ρ is left out: r and AAᵀz are zero there, z stays zero, and the other
    pixels are solved for as if it did not exist. Norms are those of the other pixels.

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
        given: Sequence[Tensor] = (),
        again: Callable[..., Tensor] | None = None,
    ) -> tuple[Tensor, SolveReport]:
        """Solve, with gradients of the exact solution, by implicit differentiation.

        With S = (AAᵀ + D)⁻¹ and w = Sg, dr = w and dρ = −w·z (summed where pixels share one ρ, zero
        where it is infinite). For a parameter θ of A, dθ = −⟨w, ∂(AAᵀ)z⟩. A gradient costs one more
        solve, whatever the number of iterations, and has gradients of its own.

        Args:
            gram: applies AAᵀ, differentiable with respect to z and to the parameters of A.
            r: right-hand side `(B, K, H', W')`.
            rho: ρ >= 0, `(1|B,)` or `(1|B, 1|K, 1|H', 1|W')`.
            start: first z, shaped like r; zero if None. The tolerance stays relative to r.
            precondition: applies a symmetric M⁻¹ ≈ (AAᵀ + D)⁻¹, zero where ρ is infinite. The norm
                of the residual that never rises, and that a least-squares solution minimises, is
                then √(rᵀM⁻¹r). It is called without gradients.
            given: the tensors that A consists of.
            again: `again(g, ρ, *given)` solves for a gradient where A consists of these tensors.
                Nested transforms of `torch.func` need both, where A is differentiated itself.

        Returns:
            z, shaped like r, and the report.
        """
        wide = torch.promote_types(r.dtype, torch.float32)
        damping = rho.to(wide)
        damping = damping.view(-1, 1, 1, 1) if damping.ndim == 1 else damping
        absent = damping == torch.inf
        there = ~absent

        def present(value: Tensor) -> Tensor:
            return torch.where(absent, 0, value.to(wide))

        def seen(z: Tensor) -> Tensor:
            return gram(z) * there  # a product has the layout of its first factor

        def same(g: Tensor, rho: Tensor) -> Tensor:
            return self.solve(gram, g, rho, precondition=precondition)[0]

        right, weight = present(r), present(damping)
        with torch.no_grad(), forward_ad._set_fwd_grad_enabled(False):
            first = None if start is None else present(start)
            z, report = self._iterate(seen, right, weight, first, precondition or _same)
        if is_recorded():
            correct = partial(_correct, again or same, damping, *given)
            z = self._attach(seen, right, weight, z, correct) * there
        return z.to(r.dtype), report

    def _attach(
        self, gram: Apply, r: Tensor, weight: Tensor, z: Tensor, correct: Callable[..., Tensor]
    ) -> Tensor:
        # z + S(r − (AAᵀ + D)z) is z in value and has the derivative of the exact solution, at any
        # z: the bracket is recorded, S is applied to gradients alone. One such correction gives
        # first derivatives, the second one, a Newton step on the first, those of second order.
        q = gram(z) + weight * z
        if not is_tracked(q):  # linear in r, and nothing else to be differentiated
            return correct(r, z) if is_tracked(r) else z
        limit = 10 * self._limit(r.dtype)
        value, z = _Branch.apply(correct(r - q, z), limit)
        return correct(r - gram(z) - weight * z, value)

    def _limit(self, dtype: torch.dtype) -> float:
        if self.tolerance is not None:
            return self.tolerance
        return 1e-13 if dtype == torch.float64 else 1e-6

    def _iterate(
        self, gram: Apply, r: Tensor, weight: Tensor, start: Tensor | None, precondition: Apply
    ) -> tuple[Tensor, SolveReport]:
        tolerance = self._limit(r.dtype)
        norm = _inner(r, r).sqrt()
        z = torch.zeros_like(r)
        if start is not None:
            z = start
            r = r - gram(z) - weight * z
        s = precondition(r)  # M⁻¹ r
        p, image = s, gram(s) + weight * s  # image = (AAᵀ + D) s
        turned = precondition(image)
        q, w = image, turned  # (AAᵀ + D) p, M⁻¹ q
        size = _inner(r, r).sqrt()
        product = _inner(s, image)
        largest = torch.zeros_like(norm)
        # How much of what AAᵀ does not see, which stays in r, has come into p and z.
        unseen_p, unseen_z = torch.ones_like(norm), torch.zeros_like(norm)
        count = torch.zeros_like(norm, dtype=torch.int64)
        solved, least = size <= tolerance * norm, torch.zeros_like(norm, dtype=torch.bool)
        active = ~solved
        for _ in range(self.iterations):
            slope, left = (_inner(a, b).clamp_min(0).sqrt() for a, b in ((image, turned), (r, s)))
            largest = torch.maximum(largest, slope / left.clamp_min(_TINY))
            least = least | (active & (slope <= tolerance * largest * left))
            active = active & ~least & (product > 0)
            if not bool(unwrapped(active).any()):
                break
            alpha = torch.where(active, product / _inner(q, w), 0)
            z, r = z + _expand(alpha, r) * p, r - _expand(alpha, r) * q
            s = precondition(r) if precondition is _same else s - _expand(alpha, r) * w
            unseen_z = unseen_z + alpha * unseen_p
            count = count + active
            size = torch.where(active, _inner(r, r).sqrt(), size)
            solved = solved | (active & (size <= tolerance * norm))
            active = active & ~solved
            image = gram(s) + weight * s
            turned = precondition(image)
            following = _inner(s, image)
            beta = torch.where(active, following / product, 0)
            p, q = s + _expand(beta, r) * p, image + _expand(beta, r) * q
            w = turned + _expand(beta, r) * w
            unseen_p = 1 + beta * unseen_p
            product = torch.where(active, following, product)
        z = z - _expand(torch.where(least, unseen_z, 0), r) * s
        residual = torch.where(norm > 0, size / norm, 0)
        return z, SolveReport(*map(unwrapped, (count, residual, solved | least)))


def _same(z: Tensor) -> Tensor:
    return z


def _correct(solve: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    *given, residual, z = tensors
    return _Correct.apply(solve, residual, z, *given)


class _Correct(torch.autograd.Function):
    """z + S·residual, where the residual is zero but for its derivative."""

    @staticmethod
    def forward(
        solve: Callable[..., Tensor], residual: Tensor, z: Tensor, *given: Tensor
    ) -> Tensor:
        return z.clone()

    @staticmethod
    def setup_context(ctx: FunctionContext, inputs: tuple[Any, ...], output: Tensor) -> None:
        solve, _, _, *given = inputs
        ctx.constants = (solve,)
        ctx.save_for_backward(*given)
        ctx.save_for_forward(*given)

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (solve,), given = ctx.constants, ctx.saved_tensors
        return (None, solve(gradients[0], *given), gradients[0], *(None for _ in given))

    @staticmethod
    def jvp(
        ctx: FunctionContext, _: None, residual: Tensor, z: Tensor, *__: Tensor | None
    ) -> Tensor:
        (solve,) = ctx.constants
        return z + solve(residual, *ctx.saved_tensors)

    @staticmethod
    def vmap(
        info: VmapInfo, in_dims: Dims, solve: Callable[..., Tensor], *tensors: Tensor
    ) -> tuple[Tensor, int]:
        def mapped(g: Tensor, *given: Tensor) -> Tensor:
            return torch.vmap(solve, in_dims=(0, *in_dims[3:]))(g, *given)

        residual, z = (
            value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
            for value, dim in zip(tensors[:2], in_dims[1:3], strict=True)
        )
        return _Correct.apply(mapped, residual, z, *tensors[2:]), 0


class _Branch(torch.autograd.Function):
    """z and z, as the value to be corrected and as what the residual is made of.

    A gradient that reaches the value reaches the residual with the opposite sign. Where nothing
    else came along, as happens for a second derivative, the rest is an error of the solve, and is
    not worth another one.
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
        rest = value + residual
        if not is_recorded():
            (limit,) = ctx.constants
            small = unwrapped(rest.norm() <= limit * value.norm())
            if bool(small.all()):
                return None, None
        return rest, None

    @staticmethod
    def jvp(ctx: FunctionContext, z: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        return z, z

    @staticmethod
    def vmap(
        info: VmapInfo, in_dims: Dims, z: Tensor, limit: float
    ) -> tuple[tuple[Tensor, Tensor], Dims]:
        return _Branch.apply(z, limit), (in_dims[0], in_dims[0])


def _inner(a: Tensor, b: Tensor) -> Tensor:  # (B,), float64
    return sum_in_order((a.double() * b.double()).flatten(1))


def _expand(value: Tensor, like: Tensor) -> Tensor:
    return value.to(like.dtype).view(-1, 1, 1, 1)
