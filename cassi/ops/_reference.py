"""Pure-torch kernels: the specification that every compiled kernel is tested against.

All functions work on canonical shapes, checked by the caller:

=======  =====================  ==========================================================
cube     ``(B, C, H, W)``       any strides
mask     ``(1|B, K, 1|C, H, W)``  K shots; shared or one per sample, shared or one per band
meas.    ``(B, K, H, W')``      ``W' = W + (C-1)|step|``
gram     ``(1|B, K, K, H, W')``
rho      ``(1|B,)``
=======  =====================  ==========================================================

The first three functions are the partial derivatives of one trilinear form

    T(x, m, y) = Σ_{b,k,c,h,w} m[k,c,h,w] x[b,c,h,w] y[b,k,h,w + o(c)]

with respect to y (`forward`), x (`adjoint`) and m (`mask_adjoint`), so the gradient of each is made
of the other two. Sums run in float32 at least. Cubes and measurements come back in the dtype of the
first argument, grams and mask gradients in the dtype of the sums: rounding them to bfloat16 before
they divide would cost three digits.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

RATIO_FLOOR = 1e-12  # what mask zeros are raised to in `ratio_inverse`
_TV_CHUNK = 1 << 16


def band_offset(band: int, bands: int, step: int) -> int:
    """Return the column where a band starts on the detector; the leftmost band starts at 0."""
    return band * step if step >= 0 else (bands - 1 - band) * -step


def detector_width(width: int, bands: int, step: int) -> int:
    """Return ``W' = W + (C-1)|step|``."""
    return width + (bands - 1) * abs(step)


def accumulation_dtype(*tensors: Tensor) -> torch.dtype:
    """Return the dtype sums run in: the promoted dtype, float32 at least."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def _band(mask: Tensor, shot: int, band: int) -> Tensor:  # (1|B, H, W)
    return mask[:, shot, band if mask.shape[2] > 1 else 0]


def _window(y: Tensor, shot: int, offset: int, width: int) -> Tensor:  # (B, H, W)
    return y[:, shot, :, offset : offset + width]


def forward(x: Tensor, mask: Tensor, step: int) -> Tensor:
    """Mask, shift, sum: y[k,h,w'] = Σ_c m[k,c,h,w'-o(c)] x[c,h,w'-o(c)]."""
    batch, bands, height, width = x.shape
    shots = mask.shape[1]
    dtype = accumulation_dtype(x, mask)
    y = x.new_zeros((batch, shots, height, detector_width(width, bands, step)), dtype=dtype)
    for c in range(bands):
        band = x[:, c].to(dtype)
        for k in range(shots):
            m = _band(mask, k, c).to(dtype)
            _window(y, k, band_offset(c, bands, step), width).addcmul_(m, band)
    return y.to(x.dtype)


def adjoint(y: Tensor, mask: Tensor, bands: int, step: int) -> Tensor:
    """Shift every band back and multiply by the mask: x[c,h,w] = Σ_k m[k,c,h,w] y[k,h,w+o(c)]."""
    batch, shots, height, _ = y.shape
    width = mask.shape[-1]
    dtype = accumulation_dtype(y, mask)
    x = y.new_empty((batch, bands, height, width), dtype=dtype)
    for c in range(bands):
        offset = band_offset(c, bands, step)
        for k in range(shots):
            m, window = _band(mask, k, c).to(dtype), _window(y, k, offset, width).to(dtype)
            if k == 0:
                torch.mul(m, window, out=x[:, c])
            else:
                x[:, c].addcmul_(m, window)
    return x.to(y.dtype)


def mask_adjoint(x: Tensor, y: Tensor, step: int, per_sample: bool, per_band: bool) -> Tensor:
    """Shift back, multiply by the cube: m[k,c,h,w] = Σ_b x[b,c,h,w] y[b,k,h,w+o(c)]."""
    batch, bands, height, width = x.shape
    shots = y.shape[1]
    dtype = accumulation_dtype(x, y)
    samples = batch if per_sample else 1
    m = x.new_zeros((samples, shots, bands if per_band else 1, height, width), dtype=dtype)
    for c in range(bands):
        band = x[:, c].to(dtype)
        for k in range(shots):
            product = band * _window(y, k, band_offset(c, bands, step), width).to(dtype)
            _band(m, k, c).add_(product if per_sample else product.sum(0, keepdim=True))
    return m


def ratio_inverse(y: Tensor, mask: Tensor, bands: int, step: int) -> Tensor:
    """Divide y by the number of bands that reach each pixel, and each band's window by the mask."""
    dtype = accumulation_dtype(y, mask)
    share = y.to(dtype) / band_count(mask.shape[-1], bands, step, y.device)
    return adjoint(share, mask.to(dtype).clamp_min(RATIO_FLOOR).reciprocal(), bands, step).to(
        y.dtype
    )


def band_count(width: int, bands: int, step: int, device: torch.device) -> Tensor:  # (W',)
    """Count the bands that reach each detector column; columns that none reaches count 1."""
    count = torch.zeros(detector_width(width, bands, step), device=device)
    for c in range(bands):
        offset = band_offset(c, bands, step)
        count[offset : offset + width] += 1
    return count.clamp_min_(1)


def gram(mask: Tensor, bands: int, step: int) -> Tensor:
    """Compute A Aᵀ, K×K per pixel: G[k,l] = Σ_c m[k,c] m[l,c], shifted."""
    samples, shots, _, height, width = mask.shape
    dtype = accumulation_dtype(mask)
    g = mask.new_zeros(
        (samples, shots, shots, height, detector_width(width, bands, step)), dtype=dtype
    )
    for c in range(bands):
        offset = band_offset(c, bands, step)
        for k in range(shots):
            for j in range(shots):
                product = _band(mask, k, c).to(dtype) * _band(mask, j, c).to(dtype)
                g[:, k, j, :, offset : offset + width] += product
    return g


def gram_solve(r: Tensor, gram: Tensor, rho: Tensor) -> Tensor:
    """Compute (G + ρI)⁺ r at every pixel: the Moore–Penrose inverse where G + ρI is singular."""
    dtype = accumulation_dtype(r, gram, rho)
    g = gram.to(dtype)
    if gram.shape[1] == 1:
        damped = g[:, 0] + rho.to(dtype).view(-1, 1, 1, 1)
        z = torch.where(damped == 0, 0, r.to(dtype) / damped)
        return z.to(r.dtype).contiguous()
    values, vectors = torch.linalg.eigh(g.permute(0, 3, 4, 1, 2))  # (1|B, H, W', K[, K])
    floor = values.amax(-1, keepdim=True) * gram.shape[1] * torch.finfo(gram.dtype).eps
    damped = torch.where(values <= floor, 0, values) + rho.to(dtype).view(-1, 1, 1, 1)
    inverse = torch.where(damped == 0, 0, damped.reciprocal())
    # Sums of products, not matrix products: autocast would run those in bfloat16.
    z = (vectors * r.to(dtype).permute(0, 2, 3, 1).unsqueeze(-1)).sum(-2)
    z = (vectors * (inverse * z).unsqueeze(-2)).sum(-1)
    return z.permute(0, 3, 1, 2).to(r.dtype).contiguous()


def data_step(v: Tensor, y: Tensor, mask: Tensor, gram: Tensor, rho: Tensor, step: int) -> Tensor:
    """Compute v + Aᵀ(AAᵀ + ρI)⁺(y − Av)."""
    dtype = accumulation_dtype(v, y, mask)
    residual = y.to(dtype) - forward(v.to(dtype), mask, step)
    x = adjoint(gram_solve(residual, gram, rho), mask, v.shape[1], step)
    return x.add_(v).to(v.dtype)


def tv_prox(x: Tensor, weight: Tensor, iterations: int) -> Tensor:
    """Take projected-gradient steps on the dual of min_u ½‖u − x‖² + weight·TV(u), per band."""
    if x.numel() == 0:
        return x.clone()
    dtype = accumulation_dtype(x)
    batch, bands, height, width = x.shape
    w = (
        weight.to(dtype)
        .clamp_max(torch.finfo(dtype).max)
        .expand(batch)
        .repeat_interleave(bands)
        .view(-1, 1, 1)
    )
    # A few planes at a time, so that all iterations on them stay in a core's cache.
    chunk = max(1, _TV_CHUNK // (height * width))
    planes = x.reshape(-1, height, width).split(chunk)
    solved = [
        _tv_dual(plane.to(dtype), limit, iterations)
        for plane, limit in zip(planes, w.split(chunk), strict=True)
    ]
    return torch.cat(solved).view(x.shape).to(x.dtype)


def _tv_dual(image: Tensor, limit: Tensor, iterations: int) -> Tensor:
    # The dual (p, q) lives on vertical and horizontal edges, |(p, q)| <= limit; u = x + div(p, q).
    p = q = torch.zeros_like(image)
    u = image
    floor = torch.finfo(image.dtype).tiny
    for _ in range(iterations):
        # 1/8 bounds the inverse Lipschitz constant of the dual gradient in two dimensions.
        p = p + 0.125 * pad(u.diff(dim=-2), (0, 0, 0, 1))
        q = q + 0.125 * pad(u.diff(dim=-1), (0, 1))
        shrink = limit / torch.maximum((p * p + q * q + floor).sqrt(), limit).clamp_min(floor)
        p, q = p * shrink, q * shrink
        u = image + (p - pad(p, (0, 0, 1, -1))) + (q - pad(q, (1, -1)))
    return u
