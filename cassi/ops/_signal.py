"""One-dimensional convolution and trilinear interpolation: schemas, shapes, gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cassi.ops import _reference_signal
from cassi.ops._library import define, kernels


def _fake_convolve1d(a: Tensor, v: Tensor) -> Tensor:
    return a.new_empty((a.shape[0], a.shape[1] + v.shape[1] - 1))


def _fake_correlate1d(g: Tensor, v: Tensor) -> Tensor:
    return g.new_empty((g.shape[0], g.shape[1] - v.shape[1] + 1))


def _fake_trilinear(features: Tensor, points: Tensor) -> Tensor:
    return features.new_empty((features.shape[0], features.shape[2]))


def _fake_trilinear_backward(
    grad: Tensor, features: Tensor, points: Tensor
) -> tuple[Tensor, Tensor]:
    return features.new_empty(features.shape), points.new_empty(points.shape)


def _correlate(g: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
    # g is widened first: the gradient of a float32 kernel is not rounded to a bfloat16 signal.
    return kernels.correlate1d(g.to(torch.promote_types(g.dtype, dtype)), v).to(dtype)


def _backward_convolve1d(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
    a, v = ctx.saved_tensors
    need_a, need_v = ctx.needs_input_grad
    return (
        _correlate(g, v, a.dtype) if need_a else None,
        _correlate(g, a, v.dtype) if need_v else None,
    )


def _backward_correlate1d(ctx: Any, h: Tensor) -> tuple[Tensor | None, Tensor | None]:
    g, v = ctx.saved_tensors
    need_g, need_v = ctx.needs_input_grad
    return (
        kernels.convolve1d(h, v) if need_g else None,
        _correlate(g, h, v.dtype) if need_v else None,
    )


def _backward_trilinear(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    features, points = ctx.saved_tensors
    # Fused where nothing records a second derivative; torch differentiates the reference otherwise.
    composed = torch.is_grad_enabled()
    backward = _reference_signal.trilinear_backward if composed else kernels.trilinear_backward
    grad_features, grad_points = backward(grad, features, points)
    need_features, need_points = ctx.needs_input_grad
    return grad_features if need_features else None, grad_points if need_points else None


define(
    "convolve1d",
    "(Tensor a, Tensor v) -> Tensor",
    _reference_signal.convolve1d,
    _fake_convolve1d,
    _backward_convolve1d,
)
define(
    "correlate1d",
    "(Tensor g, Tensor v) -> Tensor",
    _reference_signal.correlate1d,
    _fake_correlate1d,
    _backward_correlate1d,
)
define(
    "trilinear",
    "(Tensor features, Tensor points) -> Tensor",
    _reference_signal.trilinear,
    _fake_trilinear,
    _backward_trilinear,
)
define(
    "trilinear_backward",
    "(Tensor grad, Tensor features, Tensor points) -> (Tensor, Tensor)",
    _reference_signal.trilinear_backward,
    _fake_trilinear_backward,
)
