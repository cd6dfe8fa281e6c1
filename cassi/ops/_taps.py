"""Cameras that shift and spread each band by itself: schemas, shapes, gradients.

With Q(x, m, a, y) = Σ a[c,t] · m·x · (y shifted back by s(c) + t), `forward_taps`, `adjoint_taps`
and `mask_adjoint_taps` are its derivatives with respect to y, x and m. The one with respect to a
is made of adjoints, so that every gradient is made of these three, to any order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cassi.ops import _reference_taps
from cassi.ops._camera import _is_channels_last, _sum_to_batch
from cassi.ops._library import define, kernels
from cassi.ops._reference import accumulation_dtype, layout

# Shapes, dtypes and strides only.


def _fake_forward_taps(
    x: Tensor, mask: Tensor, taps: Tensor, starts: Tensor, detector: int
) -> Tensor:
    return x.new_empty((x.shape[0], mask.shape[1], x.shape[2], detector))


def _fake_adjoint_taps(
    y: Tensor, mask: Tensor, taps: Tensor, starts: Tensor, channels_last: bool = False
) -> Tensor:
    shape = (y.shape[0], taps.shape[1], y.shape[2], mask.shape[-1])
    return torch.empty(shape, dtype=y.dtype, device=y.device, memory_format=layout(channels_last))


def _fake_mask_adjoint_taps(
    x: Tensor, y: Tensor, taps: Tensor, starts: Tensor, per_sample: bool, per_band: bool
) -> Tensor:
    batch, bands, height, width = x.shape
    return x.new_empty(
        (batch if per_sample else 1, y.shape[1], bands if per_band else 1, height, width),
        dtype=accumulation_dtype(x, y),
    )


def _fake_band_solve(r: Tensor, gram: Tensor, rho: Tensor) -> Tensor:
    return r.new_empty(r.shape)


# Gradients: one entry per schema argument.


def _mask_gradient(x: Tensor, y: Tensor, mask: Tensor, taps: Tensor, starts: Tensor) -> Tensor:
    per_sample = mask.shape[0] > 1 or x.shape[0] == 1
    grad = kernels.mask_adjoint_taps(x, y, taps, starts, per_sample, mask.shape[2] > 1)
    return grad.to(mask.dtype)


def _taps_gradient(x: Tensor, mask: Tensor, y: Tensor, taps: Tensor, starts: Tensor) -> Tensor:
    # ∂Q/∂a[c,t]: the adjoint with one tap of 1, against the cube.
    dtype = accumulation_dtype(x, mask, y)
    one = torch.ones_like(taps[..., :1])
    products = []
    for t in range(taps.shape[-1]):
        back = kernels.adjoint_taps(y.to(dtype), mask, one, starts + t, _is_channels_last(x))
        products.append((back * x).sum((-2, -1)))
    return _sum_to_batch(torch.stack(products, -1), taps.shape[0]).to(taps.dtype)


def _backward_forward_taps(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, mask, taps, starts = ctx.saved_tensors
    need_x, need_mask, need_taps = ctx.needs_input_grad[:3]
    return (
        kernels.adjoint_taps(g, mask, taps, starts, _is_channels_last(x)) if need_x else None,
        _mask_gradient(x, g, mask, taps, starts) if need_mask else None,
        _taps_gradient(x, mask, g, taps, starts) if need_taps else None,
        None,
        None,
    )


def _backward_adjoint_taps(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    y, mask, taps, starts = ctx.saved_tensors
    need_y, need_mask, need_taps = ctx.needs_input_grad[:3]
    return (
        kernels.forward_taps(g, mask, taps, starts, y.shape[-1]) if need_y else None,
        _mask_gradient(g, y, mask, taps, starts) if need_mask else None,
        _taps_gradient(g, mask, y, taps, starts) if need_taps else None,
        None,
        None,
    )


def _backward_mask_adjoint_taps(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, y, taps, starts = ctx.saved_tensors
    need_x, need_y, need_taps = ctx.needs_input_grad[:3]
    grad_x = grad_y = grad_taps = None
    if need_x:
        grad_x = kernels.adjoint_taps(y, g, taps, starts, _is_channels_last(x)).to(x.dtype)
    if need_y:
        grad_y = kernels.forward_taps(x, g, taps, starts, y.shape[-1]).to(y.dtype)
    if need_taps:
        grad_taps = _taps_gradient(x, g, y, taps, starts)
    return grad_x, grad_y, grad_taps, None, None, None


def _backward_band_solve(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    # z = S r with S = (G + ρ)⁻¹ symmetric: dz = S dr − S dG z − dρ S z. Coupling d stands twice in
    # G, above and below the diagonal.
    r, gram, rho = ctx.saved_tensors
    w = kernels.band_solve(g, gram, rho)
    grad_gram = grad_rho = None
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
        z = kernels.band_solve(r, gram, rho)
        if ctx.needs_input_grad[1]:
            wide, long = w.to(gram.dtype), z.to(gram.dtype)
            parts = [_coupled(wide, long, 0)]
            for apart in range(1, gram.shape[1] // r.shape[1]):
                parts.append(_coupled(wide, long, apart) + _coupled(long, wide, apart))
            grad_gram = -_sum_to_batch(torch.cat(parts, 1), gram.shape[0])
        if ctx.needs_input_grad[2]:
            grad_rho = -_sum_to_batch((w * z).sum((1, 2, 3)), rho.shape[0]).to(rho.dtype)
    return w, grad_gram, grad_rho


def _coupled(w: Tensor, z: Tensor, apart: int) -> Tensor:  # (B, K, K, H, D)
    # w[k, p] z[l, p + apart], zero where that is outside.
    moved = torch.nn.functional.pad(z[..., apart:], (0, min(apart, z.shape[-1])))
    return w.unsqueeze(2) * moved.unsqueeze(1)


define(
    "forward_taps",
    "(Tensor x, Tensor mask, Tensor taps, Tensor starts, SymInt detector) -> Tensor",
    _reference_taps.forward_taps,
    _fake_forward_taps,
    _backward_forward_taps,
)
define(
    "adjoint_taps",
    "(Tensor y, Tensor mask, Tensor taps, Tensor starts, bool channels_last=False) -> Tensor",
    _reference_taps.adjoint_taps,
    _fake_adjoint_taps,
    _backward_adjoint_taps,
)


def _vmap_mask_adjoint_taps(
    info: Any, in_dims: tuple[int | None, ...], *args: Any
) -> tuple[Tensor, int]:
    # A sum over the inner batch is taken afterwards: the folded batch would mix mapped entries.
    mapped = [
        value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
        for value, dim in zip(args[:4], in_dims[:4], strict=True)
    ]
    batch = mapped[0].shape[1]
    folded = [
        value.expand(-1, batch, *value.shape[2:]).reshape(-1, *value.shape[2:]) for value in mapped
    ]
    per_sample, per_band = args[4:]
    m = kernels.mask_adjoint_taps(*folded, True, per_band)
    m = m.unflatten(0, (info.batch_size, -1))
    return m if per_sample else m.sum(1, keepdim=True), 0


define(
    "mask_adjoint_taps",
    "(Tensor x, Tensor y, Tensor taps, Tensor starts, bool per_sample, bool per_band) -> Tensor",
    _reference_taps.mask_adjoint_taps,
    _fake_mask_adjoint_taps,
    _backward_mask_adjoint_taps,
    vmap=_vmap_mask_adjoint_taps,
)
define(
    "band_solve",
    "(Tensor r, Tensor gram, Tensor rho) -> Tensor",
    _reference_taps.band_solve,
    _fake_band_solve,
    _backward_band_solve,
)
