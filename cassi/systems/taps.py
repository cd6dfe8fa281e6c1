"""How the light of a band falls on pixels: bands of a width, and masks that were photographed."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from cassi import ops
from cassi.ops._recording import is_tracked

_SHARP = 0.5
"""A neighbour takes this times f(1 − f), f the fraction of a pixel. Masks drawn on a grid four
times as fine are predicted best by 0.44 to 0.54, and densely sampled ones by 0.25."""

_DARK = 1e-3
"""Of the median of AAᵀ's diagonal: a pixel with less is left out. At the ends of the bands only one
band falls on a pixel. Where that is dark, noise over the code is far more than the scene."""


def band_taps(offsets: Tensor, band_width: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the taps `(C, T)` and starts `(C,)` of bands that are triangles of a width.

        a[c, t] ∝ (1 − |s(c) + t − o(c)|/b)⁺

    With b = 1 it is linear interpolation.

    Offsets o are `(C,)`, pixels, float64; the taps have a gradient with respect to them. The width
    b, in pixels at half the height, is at least 1.
    """
    if band_width == 1:
        taps, starts = ops.linear_taps(offsets)
        is_spread = is_tracked(offsets) or bool(taps[:, 1].any())
        return taps if is_spread else taps[:, :1], starts
    whole = offsets.detach().floor()
    reach = math.ceil(band_width)
    near = torch.arange(1 - reach, reach + 1, device=whole.device, dtype=whole.dtype)
    away = (near - (offsets - whole)[..., None]).abs()
    taps = (1 - away / band_width).clamp_min(0)
    taps = taps / taps.sum(-1, keepdim=True)
    if not offsets.requires_grad:
        lit = (taps > 0).any(0).nonzero().flatten()
        first, last = int(lit[0]), int(lit[-1])
        taps, near = taps[..., first : last + 1], near[first : last + 1]
    return taps, whole.long() + int(near[0])


def sharp_taps(offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the taps `(P, 4)` and starts that shift codes as a sensor sees them.

    A sensor averages a code over its pixels once, wherever that falls. Linear interpolation of a
    mask that was seen on whole pixels blurs it once more, by the fraction: plain scenes then fit
    curves better that put bands on whole pixels. These taps keep the contrast.
    """
    taps, starts = ops.linear_taps(offsets)
    more = _SHARP * taps.prod(-1, keepdim=True)
    return torch.cat((-more, taps + more, -more), -1), starts - 1


def sharp_codes(mask: Tensor, offsets: Tensor, detector: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the codes of a photographed mask on the detector, and taps and starts of bands.

    A pixel that sees less than a thousandth of the light of others is left out: codes are 0 there.

    The photograph is `(1|B, K, 1|C, H, W)`, with dispersion along columns. The codes `(1|B, K, C,
    H, W + 1)`, taps `(C, 2)` and starts `(C,)` are for `after` of `cassi.ops.forward_taps`.
    """
    wide = torch.promote_types(mask.dtype, torch.float32)
    taps, starts = ops.linear_taps(offsets)
    sharp, _ = sharp_taps(offsets - starts)
    columns, near = mask.shape[-1] + 1, _beyond(mask.to(wide))
    seen = [
        tap[:, None, None] * near[..., 3 - k : 3 - k + columns]
        for k, tap in enumerate(sharp.to(wide).unbind(-1))
    ]
    code, taps = sum(seen[1:], seen[0]).clamp_min(0), taps.to(wide)
    lit = _lit(code.detach(), taps.detach(), starts, detector)
    return (code * lit).to(mask.dtype).contiguous(), taps, starts


def _lit(code: Tensor, taps: Tensor, starts: Tensor, detector: int) -> Tensor:
    """Return 1 where a code falls on a pixel that sees light, and 0 on others, as the code."""
    samples, shots, bands, height, columns = code.shape
    white = code.new_ones(samples, bands, height, columns - 1)
    # The diagonal of AAᵀ.
    seen = ops.forward_taps(white, code.square(), taps.square(), starts, detector, after=True)
    lit = (seen > _DARK * seen.median()).to(code.dtype).flatten(0, 1).unsqueeze(1)
    one = code.new_ones(1, 1, height, columns)
    back = ops.adjoint_taps(lit, one, taps.new_ones(bands, 1), starts)
    return back.unflatten(0, (samples, shots))


def _beyond(mask: Tensor) -> Tensor:
    """Return the mask `(B, K, 1|C, H, W)` with two more columns on both sides, like the last."""
    flat = mask.flatten(0, 1)
    return pad(flat, (2, 2, 0, 0), mode="replicate").unflatten(0, mask.shape[:2])
