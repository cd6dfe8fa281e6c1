"""Pure-torch reference of cameras that shift and spread each band; see `cassi.ops._taps`.

Shapes are canonical: cubes (B, C, H, W), masks (1|B, K, 1|C, H, W), measurements (B, K, H, D), taps
(1|B, C, T), starts (1|B, C), whole numbers, and grams (1|B, T·K, K, H, D). If `codes_spread`, the
mask codes bands after they are spread, and has W + T - 1 columns.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from cassi.ops._reference import _band, accumulation_dtype, layout

# A pivot below this fraction of its diagonal element belongs to a detector pixel that depends
# linearly on those before it. The fraction is near the relative error of r: 1e-13 for float64, 1e-6
# for the other dtypes.
MIN_PIVOT_FRACTION = {torch.float64: 1e-13}


def _overlaps(
    taps: Tensor, starts: Tensor, width: int, detector: int, codes_spread: bool
) -> Iterator[tuple[slice, int, Tensor, slice, slice, slice]]:
    """Yield samples, band, value and columns of each tap that puts light on the detector.

    The columns are slices of the cube, of the mask, and of the detector.
    """
    # Samples that share taps and starts are handled together.
    for s, row in enumerate(starts.tolist()):
        samples = slice(None) if len(starts) == len(taps) == 1 else slice(s, s + 1)
        for c, start in enumerate(row):
            for t in range(taps.shape[-1]):
                first, last = max(0, -start - t), min(width, detector - start - t)
                if first < last:
                    detector_columns = slice(first + start + t, last + start + t)
                    mask_columns = slice(first + t * codes_spread, last + t * codes_spread)
                    yield (
                        samples,
                        c,
                        taps[s if len(taps) > 1 else 0, c, t],
                        slice(first, last),
                        mask_columns,
                        detector_columns,
                    )


def _expand_starts(taps: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    samples = max(len(taps), len(starts))
    return taps, starts.expand(samples, -1)


def _select_samples(mask: Tensor, samples: slice) -> Tensor:
    return mask if len(mask) == 1 else mask[samples]


def forward_taps(
    x: Tensor, mask: Tensor, taps: Tensor, starts: Tensor, detector: int, codes_spread: bool = False
) -> Tensor:
    """Mask, spread, shift and sum: y[k,h,w'] = Σ_c Σ_t a[c,t] (m·x)[c,h,w'-s(c)-t]."""
    batch, _, height, width = x.shape
    dtype = accumulation_dtype(x, mask)
    y = x.new_zeros((batch, mask.shape[1], height, detector), dtype=dtype)
    taps, starts = _expand_starts(taps.to(dtype), starts)
    for samples, c, tap, columns, mask_columns, detector_columns in _overlaps(
        taps, starts, width, detector, codes_spread
    ):
        band = x[samples, c, :, columns].to(dtype)
        for k in range(mask.shape[1]):
            m = _band(_select_samples(mask, samples), k, c)[..., mask_columns].to(dtype)
            y[samples, k, :, detector_columns].addcmul_(tap * m, band)
    return y.to(x.dtype)


def adjoint_taps(
    y: Tensor,
    mask: Tensor,
    taps: Tensor,
    starts: Tensor,
    channels_last: bool = False,
    codes_spread: bool = False,
) -> Tensor:
    """Apply the transpose: x[c,h,w] = Σ_k m[k,c,h,w] Σ_t a[c,t] y[k,h,w+s(c)+t]."""
    batch, shots, height, detector = y.shape
    width, bands = cube_width(mask, taps, codes_spread), taps.shape[1]
    dtype = accumulation_dtype(y, mask)
    x = torch.zeros((batch, bands, height, width), dtype=dtype, device=y.device)
    x = x.to(memory_format=layout(channels_last))
    taps, starts = _expand_starts(taps.to(dtype), starts)
    for samples, c, tap, columns, mask_columns, detector_columns in _overlaps(
        taps, starts, width, detector, codes_spread
    ):
        for k in range(shots):
            m = _band(_select_samples(mask, samples), k, c)[..., mask_columns].to(dtype)
            x[samples, c, :, columns].addcmul_(
                tap * m, y[samples, k, :, detector_columns].to(dtype)
            )
    return x.to(y.dtype)


def add_adjoint_taps(
    v: Tensor, y: Tensor, mask: Tensor, taps: Tensor, starts: Tensor, codes_spread: bool = False
) -> Tensor:
    """Compute v + Aᵀy, in the strides of v."""
    y = y.to(accumulation_dtype(v, y, mask))
    x = adjoint_taps(y, mask, taps, starts, False, codes_spread)
    return torch.empty_like(v).copy_(x.add_(v))


def cube_width(mask: Tensor, taps: Tensor, codes_spread: bool) -> int:
    """Return the number of columns of a cube that fits a mask."""
    mask_width = mask.shape[-1]
    if codes_spread and mask_width < taps.shape[-1]:
        raise ValueError(
            f"mask: expected W + {taps.shape[-1] - 1} columns after {taps.shape[-1]} taps, "
            f"got {mask_width}"
        )
    return mask_width - codes_spread * (taps.shape[-1] - 1)


def mask_adjoint_taps(
    x: Tensor,
    y: Tensor,
    taps: Tensor,
    starts: Tensor,
    codes_spread: bool,
    per_sample: bool,
    per_band: bool,
) -> Tensor:
    """Compute the mask's gradient: m[k,c,h,w] = Σ_b x[b,c,h,w] Σ_t a[c,t] y[b,k,h,w+s(c)+t]."""
    batch, bands, height, width = x.shape
    shots, detector = y.shape[1], y.shape[-1]
    dtype = accumulation_dtype(x, y)
    mask_width = width + codes_spread * (taps.shape[-1] - 1)
    rows = x.new_zeros((batch, shots, bands if per_band else 1, height, mask_width), dtype=dtype)
    taps, starts = _expand_starts(taps.to(dtype), starts)
    for samples, c, tap, columns, mask_columns, detector_columns in _overlaps(
        taps, starts, width, detector, codes_spread
    ):
        band = tap * x[samples, c, :, columns].to(dtype)
        for k in range(shots):
            m = _band(rows[samples], k, c)[..., mask_columns]
            m.addcmul_(band, y[samples, k, :, detector_columns].to(dtype))
    return rows if per_sample else rows.sum(0, keepdim=True)


def band_solve(r: Tensor, gram: Tensor, rho: Tensor) -> Tensor:
    """Solve (G + diag ρ) z = r along each detector row by L·D·Lᵀ, in float64.

    G couples pixels at most T − 1 apart, so L has K·T − 1 diagonals below the main one. Where ρ is
    infinite, z = 0.
    """
    batch, shots, height, detector = r.shape
    couplings = gram.shape[1] // shots
    threshold = MIN_PIVOT_FRACTION.get(r.dtype, 1e-6)
    size, reach = shots * detector, shots * couplings - 1
    # There is one system per sample and row. Unknown number u is shot u % K of pixel u // K.
    g = gram.double().unflatten(1, (couplings, shots)).permute(1, 2, 3, 5, 0, 4)
    g = g.expand(-1, -1, -1, -1, batch, -1)
    right = r.double().permute(3, 1, 0, 2).reshape(size, batch, height)
    damping = rho.double().expand(-1, shots, -1, detector).permute(3, 1, 0, 2).flatten(0, 1)
    lower = right.new_zeros((size, reach + 1, batch, height))  # [u, d]: L[u, u - d]
    pivots = torch.zeros_like(right)
    inverse = torch.zeros_like(right)
    z = torch.zeros_like(right)
    for u in range(size):
        pixel, k = divmod(u, shots)
        total, value = g[0, k, k, pixel] + damping[u], right[u]
        pivot = total
        for j in range(max(0, u - reach), u):
            earlier_pixel, shot = divmod(j, shots)
            distance = pixel - earlier_pixel
            entry = (
                g[distance, shot, k, earlier_pixel]
                if distance < couplings
                else torch.zeros_like(value)
            )
            for i in range(max(0, u - reach, j - reach), j):
                entry = entry - lower[u, u - i] * lower[j, j - i] * pivots[i]
            lower[u, u - j] = factor = entry * inverse[j]
            pivot = pivot - factor * entry
            value = value - factor * z[j]
        # z = 0 for a pixel without light, for a pixel that depends on earlier pixels, and for an
        # infinite ρ (1 / pivot = 0). The comparison is false for NaN, so NaN reaches the result.
        is_dark = pivot <= threshold * total
        pivots[u] = torch.where(is_dark, 0, pivot)
        inverse[u] = torch.where(is_dark, 0, 1 / pivot)
        z[u] = torch.where(is_dark, 0, value)
    for u in reversed(range(size)):
        value = z[u] * inverse[u]
        for later in range(u + 1, min(size, u + reach + 1)):
            value = value - lower[later, later - u] * z[later]
        z[u] = torch.where(inverse[u] == 0, 0, value)
    return z.view(detector, shots, batch, height).permute(2, 1, 3, 0).to(r.dtype).contiguous()
