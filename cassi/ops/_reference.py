"""Pure-torch kernels: the specification that every compiled kernel is tested against.

All functions work on canonical shapes, checked by the caller:

=======  ==========================  ==========================================================
cube     ``(B, C, H, W)``            any strides
mask     ``(1|B, K, 1|C, H, W)``     K shots; shared or one per sample, shared or one per band
meas.    ``(B, K, H, W')``           ``W' = W + (C-1)|step|``
gram     ``(1|B, K, K, H, W')``
rho      ``(1|B, 1|K, 1|H, 1|W')``   ρ >= 0; infinite where a detector pixel has no influence
=======  ==========================  ==========================================================

The first three functions are the partial derivatives of one trilinear form

    T(x, m, y) = Σ_{b,k,c,h,w} m[k,c,h,w] x[b,c,h,w] y[b,k,h,w + o(c)]

with respect to y (`forward`), x (`adjoint`) and m (`mask_adjoint`), so the gradient of each follows
from the other two. Sums run in float32 at least. Cubes and measurements are returned in the dtype
of the first argument. Grams and mask gradients are returned in the dtype of the sums. A data step
divides by the gram: if the gram were rounded to bfloat16, the result would lose three digits.
"""

import torch
from torch import Tensor

RATIO_FLOOR = 1e-12  # smallest value of a mask in `ratio_inverse`, which divides by it


def band_offset(band: int, bands: int, step: int) -> int:
    """Return the detector column at which a band starts; the leftmost band starts at column 0."""
    return band * step if step >= 0 else (bands - 1 - band) * -step


def detector_width(width: int, bands: int, step: int) -> int:
    """Return ``W' = W + (C-1)|step|``."""
    return width + (bands - 1) * abs(step)


def accumulation_dtype(*tensors: Tensor) -> torch.dtype:
    """Return the dtype of sums: the promoted dtype of the tensors, float32 at least."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def layout(channels_last: bool) -> torch.memory_format:
    """Return the memory format of a cube that an operator returns."""
    return torch.channels_last if channels_last else torch.contiguous_format


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


def adjoint(y: Tensor, mask: Tensor, bands: int, step: int, channels_last: bool = False) -> Tensor:
    """Shift every band back and multiply by the mask: x[c,h,w] = Σ_k m[k,c,h,w] y[k,h,w+o(c)]."""
    batch, shots, height, _ = y.shape
    width = mask.shape[-1]
    dtype = accumulation_dtype(y, mask)
    x = torch.empty(
        (batch, bands, height, width),
        dtype=dtype,
        device=y.device,
        memory_format=layout(channels_last),
    )
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


def ratio_inverse(
    y: Tensor, mask: Tensor, bands: int, step: int, channels_last: bool = False
) -> Tensor:
    """Divide y by the number of bands at each pixel, cut out each band, and divide by the mask."""
    dtype = accumulation_dtype(y, mask)
    mean_band = y.to(dtype) / band_count(mask.shape[-1], bands, step, y.device)
    inverse = mask.to(dtype).clamp_min(RATIO_FLOOR).reciprocal()
    return adjoint(mean_band, inverse, bands, step, channels_last).to(y.dtype)


def band_count(width: int, bands: int, step: int, device: torch.device) -> Tensor:  # (W',)
    """Count the bands at each detector column; a column without a band counts 1."""
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


def add_adjoint(v: Tensor, y: Tensor, mask: Tensor, step: int) -> Tensor:
    """Compute v + Aᵀy, in the strides of v."""
    x = adjoint(y.to(accumulation_dtype(v, y, mask)), mask, v.shape[1], step)
    return torch.empty_like(v).copy_(x.add_(v))


def forward_subspace(components: Tensor, basis: Tensor, mask: Tensor, step: int) -> Tensor:
    """Compute y = A E a, with the components a and the basis E."""
    dtype = accumulation_dtype(components, basis, mask)
    cube = torch.einsum(
        "bcr,brhw->bchw", _per_sample_basis(basis, components, dtype), components.to(dtype)
    )
    return forward(cube, mask, step).to(components.dtype)


def adjoint_subspace(y: Tensor, basis: Tensor, mask: Tensor, step: int) -> Tensor:
    """Compute the components EᵀAᵀy."""
    dtype = accumulation_dtype(y, basis, mask)
    cube = adjoint(y.to(dtype), mask, basis.shape[1], step)
    components = torch.einsum("bcr,bchw->brhw", _per_sample_basis(basis, y, dtype), cube)
    return components.to(y.dtype).contiguous()


def _per_sample_basis(basis: Tensor, value: Tensor, dtype: torch.dtype) -> Tensor:
    return basis.to(dtype).expand(len(value), -1, -1)


def gram_solve(r: Tensor, gram: Tensor, rho: Tensor) -> Tensor:
    """Compute z = (G + D)⁺ r at every pixel, with D = diag(ρ) and the Moore–Penrose inverse.

    If ρ of a shot is infinite at a pixel, z of this shot is 0 there, and z of the other shots is as
    if this shot did not exist.
    """
    dtype = accumulation_dtype(r, gram, rho)
    g, rho = gram.to(dtype), rho.to(dtype)
    if gram.shape[1] == 1:
        damped_gram = g[:, 0] + rho
        z = torch.where((damped_gram == 0) | (rho == torch.inf), 0, r.to(dtype) / damped_gram)
        return z.to(r.dtype).contiguous()
    g, r_last = g.permute(0, 3, 4, 1, 2), r.to(dtype).permute(0, 2, 3, 1)  # (…, H, W', K[, K])
    d = rho.permute(0, 2, 3, 1).expand(-1, -1, -1, gram.shape[1])
    is_left_out = d == torch.inf
    g = torch.where(is_left_out.unsqueeze(-1) | is_left_out.unsqueeze(-2), 0, g)
    # Eigenvalues below rounding error count as zero, but a small ρ must not count as zero:
    # - If ρ is the same for all shots of a pixel, it is added to the eigenvalues of G.
    # - If ρ differs between shots, it is added to G. G + D is then scaled from both sides by a
    #   diagonal T with T² = 1/diag(G + D), so that the eigenvalues of all shots are comparable.
    #   All shots with ρ = 0 share one scale. A null vector of G + D is zero in all other shots, so
    #   T only multiplies it by a number. Hence T (T (G + D) T)⁺ T is the Moore–Penrose inverse.
    smallest = torch.where(is_left_out, torch.inf, d).amin(-1, keepdim=True)
    is_uniform = ~(~is_left_out & (d > smallest)).any(-1, keepdim=True)
    shift = torch.where(is_uniform & (smallest != torch.inf), smallest, 0)
    extra_rho = torch.where(is_uniform | is_left_out, 0, d)
    diagonal = g.diagonal(0, -2, -1)
    brightest = torch.where(extra_rho > 0, 0, diagonal).amax(-1, keepdim=True)
    scale = torch.where(extra_rho > 0, diagonal + extra_rho, brightest)
    scale = torch.where(is_uniform | (scale == 0), 1, scale).rsqrt()
    g = (g + torch.diag_embed(extra_rho)) * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    values, vectors = torch.linalg.eigh(g)
    shots = gram.shape[1] - is_left_out.sum(-1, keepdim=True)
    threshold = values.amax(-1, keepdim=True) * shots * torch.finfo(gram.dtype).eps
    damped_values = torch.where(values <= threshold, 0, values) + shift
    inverse = torch.where(damped_values == 0, 0, damped_values.reciprocal())
    # Sums of products instead of matrix products, because autocast runs the latter in bfloat16.
    z = (vectors * torch.where(is_left_out, 0, scale * r_last).unsqueeze(-1)).sum(-2)
    z = scale * (vectors * (inverse * z).unsqueeze(-2)).sum(-1)
    return torch.where(is_left_out, 0, z).permute(0, 3, 1, 2).to(r.dtype).contiguous()


def data_step(v: Tensor, y: Tensor, mask: Tensor, gram: Tensor, rho: Tensor, step: int) -> Tensor:
    """Compute v + Aᵀ(AAᵀ + D)⁺(y − Av), D = diag(ρ), in the strides of v."""
    dtype = accumulation_dtype(v, y, mask)
    residual = y.to(dtype) - forward(v.to(dtype), mask, step)
    x = adjoint(gram_solve(residual, gram, rho), mask, v.shape[1], step)
    return torch.empty_like(v).copy_(x.add_(v))


def varies_in_row(rho: Tensor) -> bool:
    """Tell whether ρ varies within a detector row, over shots or columns."""
    return rho.shape[1] != 1 or rho.shape[3] != 1


def rho_gradient(w: Tensor, z: Tensor, rho: Tensor) -> Tensor:
    """Return −w·z, `(B, K, H, W')`; if ρ is constant in each row, its row sums, `(B, 1, H, 1)`."""
    product = w * z
    return -product if varies_in_row(rho) else -product.sum((1, 3), keepdim=True)


def data_step_backward(
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
    """Differentiate `data_step`: gradients of v, y and mask, and the `rho_gradient`.

    With S = (AAᵀ + D)⁺, z = S(y − Av), x = v + Aᵀz and w = S A grad:

        dv = grad − Aᵀw,  dy = w,  dρ = −w·z,  dm = ∂T(dv, ·, z) − ∂T(x, ·, w).

    dm includes the path through the gram, which is a function of the mask. An empty tensor is
    returned for a gradient that is not needed.
    """
    dtype = accumulation_dtype(v, y, mask)
    bands = v.shape[1]
    w = gram_solve(forward(grad.to(dtype), mask, step), gram, rho)
    grad_v = grad - adjoint(w, mask, bands, step)
    grad_mask = grad_rho = v.new_empty(0, dtype=dtype)
    if need_mask or need_rho:
        z = gram_solve(y.to(dtype) - forward(v.to(dtype), mask, step), gram, rho)
        if need_rho:
            grad_rho = rho_gradient(w, z, rho)
        if need_mask:
            x = v + adjoint(z, mask, bands, step)
            flags = (mask.shape[0] > 1 or v.shape[0] == 1, mask.shape[2] > 1)
            grad_mask = mask_adjoint(grad_v, z, step, *flags)
            grad_mask -= mask_adjoint(x, w, step, *flags)
    return torch.empty_like(v).copy_(grad_v), w.to(y.dtype), grad_mask, grad_rho
