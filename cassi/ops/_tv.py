"""Total variation: schemas, shapes of the results, gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cassi.ops import _reference_tv
from cassi.ops._library import define, kernels
from cassi.ops._reference import accumulation_dtype


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
    grad: Tensor,
    grad_dual: Tensor | None,
    x: Tensor,
    weight: Tensor,
    dual: Tensor | None,
    iterations: int,
    norm: int,
) -> tuple[Tensor, Tensor, Tensor]:
    sums = accumulation_dtype(x)
    return torch.empty_like(x), x.new_empty(x.shape[0], dtype=sums), _fake_dual(x)


def _save_prox(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, ctx.iterations, ctx.norm = inputs
    ctx.save_for_backward(x, weight)


def _save_prox_dual(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, dual, ctx.iterations, ctx.norm = inputs
    ctx.save_for_backward(x, weight, dual)


def _gradients(
    ctx: Any, grad: Tensor, grad_dual: Tensor | None, x: Tensor, weight: Tensor, dual: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if not torch.is_grad_enabled():
        dx, dlimit, ddual = kernels.tv_prox_backward(
            grad, grad_dual, x, weight, dual, ctx.iterations, ctx.norm
        )
        dlimit = dlimit.sum(0, keepdim=True) if weight.numel() == 1 else dlimit
        return dx, dlimit.to(weight.dtype), None if dual is None else ddual.to(dual.dtype)
    # A second derivative is recorded: differentiate the iterations themselves.
    results = _reference_tv.tv_prox_dual(x, weight, dual, ctx.iterations, ctx.norm)
    upstream = [grad, torch.zeros_like(results[1]) if grad_dual is None else grad_dual]
    inputs = [value for value in (x, weight, dual) if value is not None and value.requires_grad]
    found = iter(
        torch.autograd.grad(results, inputs, upstream, create_graph=True, allow_unused=True)
    )
    dx, dweight, ddual = (
        next(found) if value is not None and value.requires_grad else None
        for value in (x, weight, dual)
    )
    return dx, dweight, ddual


def _backward_prox(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    dx, dweight, _ = _gradients(ctx, grad, None, x, weight, None)
    return dx, dweight, None, None


def _backward_prox_dual(ctx: Any, grad: Tensor, grad_dual: Tensor) -> tuple[Tensor | None, ...]:
    return (*_gradients(ctx, grad, grad_dual, *ctx.saved_tensors), None, None)


define(
    "tv_prox",
    "(Tensor x, Tensor weight, SymInt iterations, int norm) -> Tensor",
    _reference_tv.tv_prox,
    _fake_prox,
    _backward_prox,
    _save_prox,
)
define(
    "tv_prox_dual",
    "(Tensor x, Tensor weight, Tensor? dual, SymInt iterations, int norm) -> (Tensor, Tensor)",
    _reference_tv.tv_prox_dual,
    _fake_prox_dual,
    _backward_prox_dual,
    _save_prox_dual,
)
define(
    "tv_prox_backward",
    "(Tensor grad, Tensor? grad_dual, Tensor x, Tensor weight, Tensor? dual, SymInt iterations,"
    " int norm) -> (Tensor, Tensor, Tensor)",
    _reference_tv.tv_prox_backward,
    _fake_backward,
)
