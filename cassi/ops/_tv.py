"""Denoising by total variation: the public function, fake kernels, gradients."""

from typing import Any, Literal, overload

import torch
from torch import Tensor

from cassi.ops import _checks, _reference_tv
from cassi.ops._library import call, define, differentiable, operators
from cassi.ops._recording import Argument, Context, Gradients, Results, is_recorded, leaf_of_zeros
from cassi.ops._reference import accumulation_dtype

Norm = Literal["band", "frobenius", "nuclear"]
NORMS: tuple[Norm, ...] = ("band", "frobenius", "nuclear")  # as the kernels number them


@overload
def tv_prox(
    x: Tensor,
    weight: float | Tensor,
    iterations: int = 5,
    *,
    norm: Norm = "band",
    dual: Tensor | None = None,
    return_dual: Literal[False] = False,
) -> Tensor: ...


@overload
def tv_prox(
    x: Tensor,
    weight: float | Tensor,
    iterations: int = 5,
    *,
    norm: Norm = "band",
    dual: Tensor | None = None,
    return_dual: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def tv_prox(
    x: Tensor,
    weight: float | Tensor,
    iterations: int = 5,
    *,
    norm: Norm = "band",
    dual: Tensor | None = None,
    return_dual: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Denoise by isotropic total variation: argmin_u ½‖u − x‖² + weight·TV(u).

        TV(u) = Σ_{h,w} ‖J‖,   J = (∇u_1 … ∇u_C), the 2×C Jacobian at a pixel

    `norm` chooses ‖J‖:

    - `band`: Σ_c |∇u_c|. Every band is smoothed by itself.
    - `frobenius`: √(Σ_c |∇u_c|²), vectorial TV. It favours edges at the same positions in all
      bands.
    - `nuclear`: the sum of the two singular values, total nuclear variation. It also favours edges
      of the same direction in all bands.

    The last two do not change if the bands are rotated, u → Ru with RᵀR = I.

    The method is a fixed number of projected-gradient iterations on the dual problem with step 1/8
    (Chambolle, 2005; Frobenius: Bresson and Chan, 2008; nuclear: Holt, 2014). Differences are
    forward, with replicated borders. If an iterative solver starts each call with the dual of the
    call before, two or three iterations suffice.

    Args:
        x: cube `(B, C, H, W)` or `(C, H, W)`.
        weight: in the unit of x, >= 0; a number or one value per sample.
        iterations: number of dual iterations, >= 0.
        norm: `band`, `frobenius` or `nuclear`, see above.
        dual: the dual to start with, `(B, 2, C, H, W)` (without B if x has none), from an earlier
            call. None starts with zero.
        return_dual: whether to return the last dual as well.

    Returns:
        Cube shaped like x; with `return_dual` also the dual, in float32 at least.

    Raises:
        TypeError: x or dual is not a floating tensor, or `iterations` is not an integer.
        ValueError: wrong shape, a negative weight or iteration count, or an unknown norm.
    """
    x, squeeze = _checks.canonical_batch("x", x, "a cube (B, C, H, W) or (C, H, W)")
    limit = _checks.canonical_parameter("weight", weight, x)
    iterations = _checks.check_int("iterations", iterations, minimum=0)
    if norm not in NORMS:
        raise ValueError(f"norm: expected one of {', '.join(NORMS)}, got {norm!r}")
    kind = NORMS.index(norm)
    if dual is None and not return_dual:
        _checks.check_same_device(x=x, weight=limit)
        u = call(operators.tv_prox.default, x, limit, iterations, kind)
        return u[0] if squeeze else u
    start = _checks.canonical_dual(dual, x, squeeze)
    _checks.check_same_device(x=x, weight=limit, dual=x if start is None else start)
    u, last = call(operators.tv_prox_dual.default, x, limit, start, iterations, kind)
    if squeeze:
        u, last = u[0], last[0]
    return (u, last) if return_dual else u


def _fake_prox(x: Tensor, weight: Tensor, iterations: int, norm: int) -> Tensor:
    return torch.empty_like(x)


def _fake_dual(x: Tensor) -> Tensor:
    batch, bands, height, width = x.shape
    return x.new_empty((batch, 2, bands, height, width), dtype=accumulation_dtype(x))


def _fake_prox_dual(
    x: Tensor, weight: Tensor, dual: Tensor | None, iterations: int, norm: int
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), _fake_dual(x)


def _fake_backward(
    grad: Tensor, grad_dual: Tensor | None, x: Tensor, *rest: Argument
) -> tuple[Tensor, Tensor, Tensor]:
    sums = accumulation_dtype(x)
    return torch.empty_like(x), x.new_empty(x.shape[0], dtype=sums), _fake_dual(x)


def _save_prox_dual(ctx: Context, inputs: tuple[Any, ...], output: Results) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.constants = inputs[3:]


def _gradients(
    ctx: Context,
    grad: Tensor,
    grad_dual: Tensor | None,
    x: Tensor,
    weight: Tensor,
    dual: Tensor | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    iterations, norm = ctx.constants
    if not is_recorded():
        dx, dlimit, ddual = operators.tv_prox_backward(
            grad, grad_dual, x, weight, dual, iterations, norm
        )
        dlimit = dlimit.sum(0, keepdim=True) if weight.numel() == 1 else dlimit
        return dx, dlimit.to(weight.dtype), None if dual is None else ddual.to(dual.dtype)
    # If a second derivative may be needed, autograd differentiates the iterations. The saved
    # tensors may not require a gradient, so zeros that require one are added to them.
    inputs = x, weight, dual
    zeros = [
        leaf_of_zeros(value) if is_needed and value is not None else None
        for value, is_needed in zip(inputs, ctx.needs_input_grad, strict=False)
    ]
    image, limit = (v if e is None else v + e for v, e in ((x, zeros[0]), (weight, zeros[1])))
    start = dual if dual is None or zeros[2] is None else dual + zeros[2]
    results = _reference_tv.tv_prox_dual(image, limit, start, iterations, norm)
    upstream = [grad, torch.zeros_like(results[1]) if grad_dual is None else grad_dual]
    leaves = [e for e in zeros if e is not None]
    gradients = iter(
        torch.autograd.grad(results, leaves, upstream, create_graph=True, allow_unused=True)
    )
    dx, dweight, ddual = (None if e is None else next(gradients) for e in zeros)
    return dx, dweight, ddual


@differentiable(
    "tv_prox(Tensor x, Tensor weight, SymInt iterations, int norm) -> Tensor",
    _reference_tv.tv_prox,
    _fake_prox,
)
def _backward_prox(ctx: Context, grad: Tensor) -> Gradients:
    x, weight = ctx.saved_tensors
    dx, dweight, _ = _gradients(ctx, grad, None, x, weight, None)
    return dx, dweight, None, None


@differentiable(
    "tv_prox_dual(Tensor x, Tensor weight, Tensor? dual, SymInt iterations, int norm) ->"
    " (Tensor, Tensor)",
    _reference_tv.tv_prox_dual,
    _fake_prox_dual,
    save=_save_prox_dual,
)
def _backward_prox_dual(ctx: Context, grad: Tensor, grad_dual: Tensor) -> Gradients:
    return (*_gradients(ctx, grad, grad_dual, *ctx.saved_tensors), None, None)


define(
    "tv_prox_backward(Tensor grad, Tensor? grad_dual, Tensor x, Tensor weight, Tensor? dual,"
    " SymInt iterations, int norm) -> (Tensor, Tensor, Tensor)",
    _reference_tv.tv_prox_backward,
    _fake_backward,
)
