"""The camera's operators: schemas, shapes of their results, gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cassi.ops import _reference
from cassi.ops._library import define, kernels

# Shapes, dtypes and strides only.


def _fake_forward(x: Tensor, mask: Tensor, step: int) -> Tensor:
    batch, bands, height, width = x.shape
    return x.new_empty(
        (batch, mask.shape[1], height, _reference.detector_width(width, bands, step))
    )


def _fake_adjoint(
    y: Tensor, mask: Tensor, bands: int, step: int, channels_last: bool = False
) -> Tensor:
    shape = (y.shape[0], bands, y.shape[2], mask.shape[-1])
    return torch.empty(
        shape, dtype=y.dtype, device=y.device, memory_format=_reference.layout(channels_last)
    )


def _fake_mask_adjoint(x: Tensor, y: Tensor, step: int, per_sample: bool, per_band: bool) -> Tensor:
    batch, bands, height, width = x.shape
    return x.new_empty(
        (batch if per_sample else 1, y.shape[1], bands if per_band else 1, height, width),
        dtype=_reference.accumulation_dtype(x, y),
    )


def _fake_gram(mask: Tensor, bands: int, step: int) -> Tensor:
    samples, shots, _, height, width = mask.shape
    return mask.new_empty(
        (samples, shots, shots, height, _reference.detector_width(width, bands, step)),
        dtype=_reference.accumulation_dtype(mask),
    )


def _fake_gram_solve(r: Tensor, gram: Tensor, rho: Tensor) -> Tensor:
    return r.new_empty(r.shape)


def _fake_data_step(
    v: Tensor, y: Tensor, mask: Tensor, gram: Tensor, rho: Tensor, step: int
) -> Tensor:
    return torch.empty_like(v)


def _fake_data_step_backward(
    grad: Tensor,
    v: Tensor,
    y: Tensor,
    mask: Tensor,
    gram: Tensor,
    rho: Tensor,
    step: int,
    need_mask: bool,
    need_rho: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sums = _reference.accumulation_dtype(v, y, mask)
    return (
        torch.empty_like(v),
        y.new_empty(y.shape),
        mask.new_empty(mask.shape if need_mask else (0,), dtype=sums),
        v.new_empty((v.shape[0], v.shape[2]) if need_rho else (0,), dtype=sums),
    )


# Gradients: one entry per schema argument.


def _is_channels_last(x: Tensor) -> bool:
    return not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


def _mask_gradient(x: Tensor, y: Tensor, mask: Tensor, step: int) -> Tensor:
    per_sample = mask.shape[0] > 1 or x.shape[0] == 1
    return kernels.mask_adjoint(x, y, step, per_sample, mask.shape[2] > 1).to(mask.dtype)


def _backward_forward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, mask = ctx.saved_tensors
    (step,) = ctx.constants
    grad_x = grad_mask = None
    if ctx.needs_input_grad[0]:
        grad_x = kernels.adjoint(g, mask, x.shape[1], step, _is_channels_last(x))
    if ctx.needs_input_grad[1]:
        grad_mask = _mask_gradient(x, g, mask, step)
    return grad_x, grad_mask, None


def _backward_adjoint(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    y, mask = ctx.saved_tensors
    _, step, _ = ctx.constants
    grad_y = kernels.forward(g, mask, step) if ctx.needs_input_grad[0] else None
    grad_mask = _mask_gradient(g, y, mask, step) if ctx.needs_input_grad[1] else None
    return grad_y, grad_mask, None, None, None


def _backward_mask_adjoint(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, y = ctx.saved_tensors
    step = ctx.constants[0]
    grad_x = grad_y = None
    if ctx.needs_input_grad[0]:
        grad_x = kernels.adjoint(y, g, x.shape[1], step, _is_channels_last(x)).to(x.dtype)
    if ctx.needs_input_grad[1]:
        grad_y = kernels.forward(x, g, step).to(y.dtype)
    return grad_x, grad_y, None, None, None


def _backward_ratio_inverse(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    # ratio_inverse(y, m) = adjoint(y / n, 1 / m): its gradient follows from the adjoint's.
    y, mask = ctx.saved_tensors
    bands, step, _ = ctx.constants
    dtype = _reference.accumulation_dtype(y, mask)  # the floor is zero in half precision
    g, m = g.to(dtype), mask.to(dtype)
    share = 1 / _reference.band_count(mask.shape[-1], bands, step, y.device).to(dtype)
    inverse = m.clamp_min(_reference.RATIO_FLOOR).reciprocal()
    grad_y = grad_mask = None
    if ctx.needs_input_grad[0]:
        grad_y = (kernels.forward(g, inverse, step) * share).to(y.dtype)
    if ctx.needs_input_grad[1]:
        grad = -_mask_gradient(g, y * share, m, step) * inverse.square()
        grad_mask = torch.where(m >= _reference.RATIO_FLOOR, grad, 0).to(mask.dtype)
    return grad_y, grad_mask, None, None, None


def _backward_gram(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    # G[k,l] = Σ_c m_k m_l, hence dm_k = Σ_l (g[k,l] + g[l,k]) m_l: an adjoint with shot k as batch.
    (mask,) = ctx.saved_tensors
    bands, step = ctx.constants
    samples, shots, mask_bands, height, width = mask.shape
    symmetric = (g + g.transpose(1, 2)).reshape(samples * shots, shots, height, g.shape[-1])
    rows = mask.repeat_interleave(shots, 0)
    grad = kernels.adjoint(symmetric, rows, bands, step)
    grad = grad.reshape(samples, shots, bands, height, width).to(mask.dtype)
    return grad.sum(2, keepdim=True) if mask_bands == 1 else grad, None, None


def _sum_to_batch(value: Tensor, batch: int) -> Tensor:
    return value.sum(0, keepdim=True) if batch == 1 else value


def _backward_gram_solve(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    # z = S r with S = (G + ρ)⁻¹ symmetric: dz = S dr − S dG z − dρ S z.
    r, gram, rho = ctx.saved_tensors
    w = kernels.gram_solve(g, gram, rho)
    grad_gram = grad_rho = None
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
        z = kernels.gram_solve(r, gram, rho)
        if ctx.needs_input_grad[1]:
            grad_gram = -_sum_to_batch(w.unsqueeze(2) * z.unsqueeze(1), gram.shape[0])
            grad_gram = grad_gram.to(gram.dtype)
        if ctx.needs_input_grad[2]:
            grad_rho = -_sum_to_batch((w * z).sum((1, 2, 3)), rho.shape[0]).to(rho.dtype)
    return w, grad_gram, grad_rho


def _backward_data_step(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    # Fused where nothing records a second derivative, composed of the other operators where
    # something does.
    v, y, mask, gram, rho = ctx.saved_tensors
    (step,) = ctx.constants
    _, need_y, need_mask, _, need_rho = ctx.needs_input_grad[:5]
    gradient = _composed_gradient if torch.is_grad_enabled() else kernels.data_step_backward
    grad_v, grad_y, grad_mask, grad_rho = gradient(
        g, v, y, mask, gram, rho, step, need_mask, need_rho
    )
    grad_mask = grad_mask.to(mask.dtype) if need_mask else None
    if need_rho:
        grad_rho = _sum_to_batch(grad_rho.sum(1), rho.shape[0]).to(rho.dtype)
    return (
        grad_v,
        grad_y if need_y else None,
        grad_mask,
        None,
        grad_rho if need_rho else None,
        None,
    )


def _composed_gradient(
    g: Tensor,
    v: Tensor,
    y: Tensor,
    mask: Tensor,
    gram: Tensor,
    rho: Tensor,
    step: int,
    need_mask: bool,
    need_rho: bool,
) -> tuple[Tensor, Tensor, Any, Any]:
    # As in the reference of data_step_backward. The gram is a function of the mask and is
    # therefore recomputed where a second derivative may need that path.
    bands = v.shape[1]
    if need_mask:
        gram = kernels.gram(mask, bands, step)
    w = kernels.gram_solve(kernels.forward(g, mask, step), gram, rho)
    grad_v = g - kernels.adjoint(w, mask, bands, step)
    grad_mask = grad_rho = None
    if need_mask or need_rho:
        z = kernels.gram_solve(y.to(v.dtype) - kernels.forward(v, mask, step), gram, rho)
        grad_rho = -(w * z).sum((1, 3))
        if need_mask:
            x = v + kernels.adjoint(z, mask, bands, step)
            grad_mask = _mask_gradient(grad_v, z, mask, step) - _mask_gradient(x, w, mask, step)
    return grad_v, w.to(y.dtype), grad_mask, grad_rho


def _vmap_mask_adjoint(
    info: Any,
    in_dims: tuple[int | None, ...],
    x: Tensor,
    y: Tensor,
    step: int,
    per_sample: bool,
    per_band: bool,
) -> tuple[Tensor, int]:
    # A sum over the inner batch is taken afterwards: the folded batch would mix mapped entries.
    parts = [
        value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
        for value, dim in zip((x, y), in_dims, strict=False)
    ]
    m = kernels.mask_adjoint(*(part.flatten(0, 1) for part in parts), step, True, per_band)
    m = m.unflatten(0, (info.batch_size, -1))
    return m if per_sample else m.sum(1, keepdim=True), 0


define(
    "forward",
    "(Tensor x, Tensor mask, SymInt step) -> Tensor",
    _reference.forward,
    _fake_forward,
    _backward_forward,
)
define(
    "adjoint",
    "(Tensor y, Tensor mask, SymInt bands, SymInt step, bool channels_last=False) -> Tensor",
    _reference.adjoint,
    _fake_adjoint,
    _backward_adjoint,
)
define(
    "mask_adjoint",
    "(Tensor x, Tensor y, SymInt step, bool per_sample, bool per_band) -> Tensor",
    _reference.mask_adjoint,
    _fake_mask_adjoint,
    _backward_mask_adjoint,
    vmap=_vmap_mask_adjoint,
)
define(
    "ratio_inverse",
    "(Tensor y, Tensor mask, SymInt bands, SymInt step, bool channels_last=False) -> Tensor",
    _reference.ratio_inverse,
    _fake_adjoint,
    _backward_ratio_inverse,
)
define(
    "gram",
    "(Tensor mask, SymInt bands, SymInt step) -> Tensor",
    _reference.gram,
    _fake_gram,
    _backward_gram,
)
define(
    "gram_solve",
    "(Tensor r, Tensor gram, Tensor rho) -> Tensor",
    _reference.gram_solve,
    _fake_gram_solve,
    _backward_gram_solve,
)
define(
    "data_step",
    "(Tensor v, Tensor y, Tensor mask, Tensor gram, Tensor rho, SymInt step) -> Tensor",
    _reference.data_step,
    _fake_data_step,
    _backward_data_step,
)
define(
    "data_step_backward",
    "(Tensor grad, Tensor v, Tensor y, Tensor mask, Tensor gram, Tensor rho, SymInt step,"
    " bool need_mask, bool need_rho) -> (Tensor, Tensor, Tensor, Tensor)",
    _reference.data_step_backward,
    _fake_data_step_backward,
)
