"""Schemas, fake kernels and gradients of the operators, under the ``cassi`` namespace of torch.

The pure-torch reference is registered as ``CompositeExplicitAutograd``: it serves every backend
until a compiled kernel is registered for the same op under ``CPU`` or ``CUDA``, which then wins by
dispatch key. Gradients are written once, here, in terms of the ops themselves, so they hold for
every backend and to any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cassi.ops import _reference

NAMESPACE = "cassi"
_SCHEMAS = {
    "forward": "(Tensor x, Tensor mask, SymInt step) -> Tensor",
    "adjoint": "(Tensor y, Tensor mask, SymInt bands, SymInt step) -> Tensor",
    "mask_adjoint": "(Tensor x, Tensor y, SymInt step, bool per_sample, bool per_band) -> Tensor",
    "ratio_inverse": "(Tensor y, Tensor mask, SymInt bands, SymInt step) -> Tensor",
    "gram": "(Tensor mask, SymInt bands, SymInt step) -> Tensor",
    "gram_solve": "(Tensor r, Tensor gram, Tensor rho) -> Tensor",
    "data_step": (
        "(Tensor v, Tensor y, Tensor mask, Tensor gram, Tensor rho, SymInt step) -> Tensor"
    ),
    "tv_prox": "(Tensor x, Tensor weight, SymInt iterations) -> Tensor",
}

_library = torch.library.Library(NAMESPACE, "DEF")
for _name, _schema in _SCHEMAS.items():
    _library.define(_name + _schema, tags=(torch.Tag.pt2_compliant_tag,))
    # The iterations of tv_prox are differentiated step by step, by torch itself; a compiled kernel
    # for it has to bring a backward of its own.
    _key = "CompositeImplicitAutograd" if _name == "tv_prox" else "CompositeExplicitAutograd"
    _library.impl(_name, getattr(_reference, _name), _key)

kernels = getattr(torch.ops, NAMESPACE)


def backend(device: torch.device) -> str:
    """Return which kernel runs on a device: ``"compiled"`` or ``"reference"``."""
    key = {"cpu": "CPU", "cuda": "CUDA"}.get(device.type)
    compiled = key is not None and torch._C._dispatch_has_kernel_for_dispatch_key(
        f"{NAMESPACE}::forward", key
    )
    return "compiled" if compiled else "reference"


# Fake kernels: shapes and dtypes only.


def _fake_forward(x: Tensor, mask: Tensor, step: int) -> Tensor:
    batch, bands, height, width = x.shape
    return x.new_empty(
        (batch, mask.shape[1], height, _reference.detector_width(width, bands, step))
    )


def _fake_adjoint(y: Tensor, mask: Tensor, bands: int, step: int) -> Tensor:
    return y.new_empty((y.shape[0], bands, y.shape[2], mask.shape[-1]))


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
    return v.new_empty(v.shape)


# Gradients. `save` stores what `backward` needs; each returns one entry per schema argument.


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    ctx.constants = [value for value in inputs if not isinstance(value, Tensor)]
    ctx.save_for_backward(*tensors)


def _mask_gradient(x: Tensor, y: Tensor, mask: Tensor, step: int) -> Tensor:
    per_sample = mask.shape[0] > 1 or x.shape[0] == 1
    return kernels.mask_adjoint(x, y, step, per_sample, mask.shape[2] > 1).to(mask.dtype)


def _backward_forward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, mask = ctx.saved_tensors
    (step,) = ctx.constants
    grad_x = kernels.adjoint(g, mask, x.shape[1], step) if ctx.needs_input_grad[0] else None
    grad_mask = _mask_gradient(x, g, mask, step) if ctx.needs_input_grad[1] else None
    return grad_x, grad_mask, None


def _backward_adjoint(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    y, mask = ctx.saved_tensors
    _, step = ctx.constants
    grad_y = kernels.forward(g, mask, step) if ctx.needs_input_grad[0] else None
    grad_mask = _mask_gradient(g, y, mask, step) if ctx.needs_input_grad[1] else None
    return grad_y, grad_mask, None, None


def _backward_mask_adjoint(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, y = ctx.saved_tensors
    step = ctx.constants[0]
    grad_x = kernels.adjoint(y, g, x.shape[1], step) if ctx.needs_input_grad[0] else None
    grad_y = kernels.forward(x, g, step) if ctx.needs_input_grad[1] else None
    return (
        None if grad_x is None else grad_x.to(x.dtype),
        None if grad_y is None else grad_y.to(y.dtype),
        None,
        None,
        None,
    )


def _backward_ratio_inverse(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    # ratio_inverse(y, m) = adjoint(y / n, 1 / m): its gradient follows from the adjoint's.
    y, mask = ctx.saved_tensors
    bands, step = ctx.constants
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
    return grad_y, grad_mask, None, None


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
    # With r = y − Av, z = S r, x = v + Aᵀz and w = S A g:
    #   dv = g − Aᵀw,  dy = w,  dρ = −⟨w, z⟩,  dm = ∂T(dv, ·, z) − ∂T(x, ·, w).
    # The last line already holds the path through the gram, which is a function of the mask and
    # is therefore recomputed where a second derivative may need that path.
    v, y, mask, gram, rho = ctx.saved_tensors
    (step,) = ctx.constants
    _, need_y, need_mask, _, need_rho = ctx.needs_input_grad[:5]
    bands = v.shape[1]
    if need_mask:
        gram = kernels.gram(mask, bands, step)
    w = kernels.gram_solve(kernels.forward(g, mask, step), gram, rho)
    grad_v = g - kernels.adjoint(w, mask, bands, step)
    grad_mask = grad_rho = None
    if need_mask or need_rho:
        z = kernels.gram_solve(y.to(v.dtype) - kernels.forward(v, mask, step), gram, rho)
        if need_rho:
            grad_rho = -_sum_to_batch((w * z).sum((1, 2, 3)), rho.shape[0]).to(rho.dtype)
        if need_mask:
            x = v + kernels.adjoint(z, mask, bands, step)
            grad_mask = _mask_gradient(grad_v, z, mask, step) - _mask_gradient(x, w, mask, step)
    return grad_v, w.to(y.dtype) if need_y else None, grad_mask, None, grad_rho, None


_REGISTRY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "forward": (_fake_forward, _backward_forward),
    "adjoint": (_fake_adjoint, _backward_adjoint),
    "mask_adjoint": (_fake_mask_adjoint, _backward_mask_adjoint),
    "ratio_inverse": (_fake_adjoint, _backward_ratio_inverse),
    "gram": (_fake_gram, _backward_gram),
    "gram_solve": (_fake_gram_solve, _backward_gram_solve),
    "data_step": (_fake_data_step, _backward_data_step),
}
for _name, (_fake, _backward) in _REGISTRY.items():
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _fake, lib=_library)
    torch.library.register_autograd(
        f"{NAMESPACE}::{_name}", _backward, setup_context=_save_inputs, lib=_library
    )
