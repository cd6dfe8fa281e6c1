"""Weights (taps) that spread a band over detector pixels, for design masks and measured ones."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from cassi import ops
from cassi.ops._recording import is_tracked

# The outer two taps are −_SHARPENING·f(1 − f), where f is the fractional part of the offset. They
# undo the blur of linear interpolation. For simulated masks, which are drawn on a grid four times
# as fine as the pixels, 0.44 to 0.54 predict best. For densely sampled masks 0.25 predicts best.
_SHARPENING = 0.5

# A pixel whose entry of AAᵀ's diagonal is below this fraction of the median counts as dark: all its
# codes are set to zero. At the ends of the dispersion only one band falls on a pixel. If the code
# of this band is small there, the solver would divide the noise by this code, and noise would be
# far stronger than the scene. A larger fraction loses more pixels, a smaller one lets more noise
# through.
_MIN_LIGHT_FRACTION = 1e-3


def make_band_taps(offsets: Tensor, band_width: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the taps `(C, T)` and starts `(C,)` of bands that are triangles of width b.

        a[c, t] ∝ (1 − |s(c) + t − o(c)|/b)⁺

    If b = 1, the taps are those of linear interpolation.

    Args:
        offsets: o, `(C,)`, pixels, float64; the taps have a gradient with respect to them.
        band_width: b >= 1, pixels at half the height.
    """
    if band_width == 1:
        taps, starts = ops.linear_taps(offsets)
        needs_second_tap = is_tracked(offsets) or bool(taps[:, 1].any())
        return taps if needs_second_tap else taps[:, :1], starts
    first_pixels = offsets.detach().floor()
    reach = math.ceil(band_width)
    pixels = torch.arange(
        1 - reach, reach + 1, device=first_pixels.device, dtype=first_pixels.dtype
    )
    distances = (pixels - (offsets - first_pixels)[..., None]).abs()
    taps = (1 - distances / band_width).clamp_min(0)
    taps = taps / taps.sum(-1, keepdim=True)
    # Taps that are zero for all bands only cost time. If the offsets need a gradient, these taps
    # stay, because a change of the offsets makes them nonzero.
    if not offsets.requires_grad:
        nonzero = (taps > 0).any(0).nonzero().flatten()
        first, last = int(nonzero[0]), int(nonzero[-1])
        taps, pixels = taps[..., first : last + 1], pixels[first : last + 1]
    return taps, first_pixels.long() + int(pixels[0])


def sharp_taps(offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the taps and starts that shift a measured mask without blurring it.

    A sensor averages the mask over its pixels once, wherever the mask falls. Linear interpolation
    of a measured mask blurs it once more, most of all at half a pixel. An estimated dispersion
    would then tend towards whole pixels. These taps keep the contrast.

    Args:
        offsets: `(P,)`, pixels, float64.

    Returns:
        Taps `(P, 4)` and starts `(P,)`.
    """
    taps, starts = ops.linear_taps(offsets)
    overshoot = _SHARPENING * taps.prod(-1, keepdim=True)
    return torch.cat((-overshoot, taps + overshoot, -overshoot), -1), starts - 1


def make_sharp_codes(mask: Tensor, offsets: Tensor, detector: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the codes of a measured mask on the detector, and taps and starts of the bands.

    Codes are zero at dark pixels; see `_MIN_LIGHT_FRACTION`.

    Args:
        mask: measured mask `(1|B, K, 1|C, H, W)`, with dispersion along columns.
        offsets: offsets of the bands, `(C,)`, pixels, float64.
        detector: pixels of the detector along the dispersion.

    Returns:
        Codes `(1|B, K, C, H, W + 1)`, taps `(C, 2)` and starts `(C,)`, for `after=True` of
        `cassi.ops.forward_taps`.
    """
    dtype = torch.promote_types(mask.dtype, torch.float32)
    taps, starts = ops.linear_taps(offsets)
    sharp_weights, _ = sharp_taps(offsets - starts)
    columns, padded_mask = mask.shape[-1] + 1, _pad_border(mask.to(dtype))
    shifted_masks = [
        tap[:, None, None] * padded_mask[..., 3 - k : 3 - k + columns]
        for k, tap in enumerate(sharp_weights.to(dtype).unbind(-1))
    ]
    # Outer taps are negative, so a code could fall below zero next to an edge.
    code, taps = sum(shifted_masks[1:], shifted_masks[0]).clamp_min(0), taps.to(dtype)
    is_lit = _find_lit_codes(code.detach(), taps.detach(), starts, detector)
    return (code * is_lit).to(mask.dtype).contiguous(), taps, starts


def _find_lit_codes(code: Tensor, taps: Tensor, starts: Tensor, detector: int) -> Tensor:
    """Return 1 where a code falls on a pixel with enough light, else 0, shaped like the code."""
    samples, shots, bands, height, columns = code.shape
    white = code.new_ones(samples, bands, height, columns - 1)
    gram_diagonal = ops.forward_taps(
        white, code.square(), taps.square(), starts, detector, after=True
    )
    is_lit = gram_diagonal > _MIN_LIGHT_FRACTION * gram_diagonal.median()
    # The adjoint of a camera with an open mask and one tap returns the pixels that each band
    # covers.
    pixels = is_lit.to(code.dtype).flatten(0, 1).unsqueeze(1)  # (B·K, 1, H, W')
    open_mask = code.new_ones(1, 1, height, columns)
    lit_codes = ops.adjoint_taps(pixels, open_mask, taps.new_ones(bands, 1), starts)
    return lit_codes.unflatten(0, (samples, shots))


def _pad_border(mask: Tensor) -> Tensor:
    """Repeat the first and last column of a mask `(B, K, 1|C, H, W)` twice more."""
    flat = mask.flatten(0, 1)
    return pad(flat, (2, 2, 0, 0), mode="replicate").unflatten(0, mask.shape[:2])
