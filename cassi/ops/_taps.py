"""Operators of cameras that shift each band by any offset, and may spread it over pixels.

    y[k, h, w'] = Σ_c Σ_t a[c, t] · (m·x)[k, c, h, w' − s(c) − t],   0 <= w' < D

Band c starts at detector column s(c), a whole number of any sign. Each of its pixels is spread over
T neighbours by the taps a[c]. Two taps shift a band by a fraction of a pixel; more taps form a line
spread function. Light that falls beside the detector is lost.

A mask may also code the bands after they are spread (`after`, in private functions `codes_spread`).
It then has W + T − 1 columns, one for each detector column that a band falls on:

    y[k, h, w'] = Σ_c m[k, c, h, w' − s(c)] · Σ_t a[c, t] x[c, h, w' − s(c) − t]

Let Q(x, m, a, y) = Σ a[c,t] · m·x · (y shifted back by s(c) + t). The operators `forward_taps`,
`adjoint_taps` and `mask_adjoint_taps` are the derivatives of Q with respect to y, x and m. The
derivative with respect to a is computed by `adjoint_taps` with a single tap. So gradients of any
order are composed of these three operators.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from cassi.ops import _checks, _reference_taps
from cassi.ops._camera import (
    fake_like_first,
    fake_mask_adjoint,
    fake_solve,
    is_channels_last,
    solve_gradients,
    sum_to_batch,
    vmap_mask_adjoint,
)
from cassi.ops._library import call, differentiable, operators
from cassi.ops._recording import Context, Gradients
from cassi.ops._reference import accumulation_dtype, band_offset, layout
from cassi.ops._reference_taps import cube_width

_MAX_TAPS = 1 << 20  # most taps of a band, as in the kernels, and most offsets of a camera


def linear_taps(offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the taps and starts that shift bands by linear interpolation.

    A shift o = s + f with s = ⌊o⌋ puts 1 − f of a pixel at s and f at s + 1.

    Args:
        offsets: pixels, `(C,)` or `(B, C)`, floating; the taps have gradients with respect to them.

    Returns:
        Taps `(…, C, 2)` and starts `(…, C)`, int64.

    Raises:
        TypeError: `offsets` is no dense tensor of a floating dtype.
        ValueError: more than a million offsets.

    >>> linear_taps(torch.tensor([0.0, 1.25]))
    (tensor([[1.0000, 0.0000],
            [0.7500, 0.2500]]), tensor([0, 1]))
    """
    if _checks.check_floating("offsets", offsets).numel() > _MAX_TAPS:
        raise ValueError(f"offsets: expected at most {_MAX_TAPS}, got {offsets.numel()}")
    starts = offsets.detach().floor()
    fraction = offsets - starts
    return torch.stack((1 - fraction, fraction), -1), starts.long()


def step_offsets(bands: int, step: int) -> tuple[float, ...]:
    """Return the offset of each band for a whole step, pixels; the smallest offset is 0.

    Raises:
        TypeError: `bands` or `step` is not an integer.
        ValueError: no band, or more than a million.

    >>> step_offsets(3, -2)
    (4.0, 2.0, 0.0)
    """
    step = _checks.check_int("step", step)
    if _checks.check_int("bands", bands, 1) > _MAX_TAPS:
        raise ValueError(f"bands: expected at most {_MAX_TAPS}, got {bands}")
    return tuple(float(band_offset(band, bands, step)) for band in range(bands))


def detector_columns(offsets: Sequence[float], width: int) -> int:
    """Return the number of detector columns for bands of `width` columns at offsets >= 0.

    Raises:
        TypeError: `width` is not an integer.
        ValueError: no offset, or one that is not finite; `width` < 1.
    """
    width = _checks.check_int("width", width, 1)
    farthest = max(map(float, offsets), default=math.nan)
    if not math.isfinite(farthest):
        raise ValueError(f"offsets: expected finite numbers, at least one, got {offsets}")
    return width + math.ceil(farthest)


def forward_taps(
    x: Tensor, mask: Tensor, taps: Tensor, starts: Tensor, detector: int, *, after: bool = False
) -> Tensor:
    """Apply the camera: y = A x.

    Args:
        x: cube `(B, C, H, W)` or `(C, H, W)`.
        mask: transmission, in a shape that `cassi.ops` lists.
        taps: `(C, T)`, or `(B, C, T)`.
        starts: detector column of the first tap of column 0, int64, `(C,)` or `(B, C)`.
        detector: columns D.
        after: the mask codes bands after they are spread.

    Returns:
        Measurement `(B, K, H, D)`, without B if x has none.

    Raises:
        TypeError: an argument is not a tensor of its kind.
        ValueError: shapes or devices do not fit each other.
    """
    m = _checks.canonical_mask(mask)
    x, squeeze = _checks.canonical_batch("x", x, "a cube (B, C, H, W) or (C, H, W)")
    taps, starts = _canonical_taps(taps, starts, x)
    _checks.check_same_device(x=x, mask=m, taps=taps, starts=starts)
    _check_cube("x", x, m, taps, after)
    detector = _checks.check_int("detector", detector, 1)
    y = call(operators.forward_taps.default, x, m, taps, starts, detector, after)
    return y[0] if squeeze else y


def adjoint_taps(
    y: Tensor,
    mask: Tensor,
    taps: Tensor,
    starts: Tensor,
    *,
    channels_last: bool = False,
    after: bool = False,
) -> Tensor:
    """Apply the transpose: x[c, h, w] = Σ_k m[k, c, h, w] Σ_t a[c, t] y[k, h, w + s(c) + t].

    Args:
        y: measurement `(B, K, H, D)` or `(K, H, D)`.
        mask: transmission, in a shape that `cassi.ops` lists.
        taps: `(C, T)`, or `(B, C, T)`.
        starts: int64, `(C,)` or `(B, C)`.
        channels_last: return the cube with its bands innermost in memory (for convolutions).
        after: the mask codes bands after they are spread.

    Returns:
        Cube `(B, C, H, W)`, without B if y has none.

    Raises:
        TypeError: an argument is not a tensor of its kind.
        ValueError: shapes or devices do not fit each other.
    """
    m = _checks.canonical_mask(mask)
    y, squeeze = _checks.canonical_batch("y", y, "a measurement (B, K, H, W') or (K, H, W')")
    taps, starts = _canonical_taps(taps, starts, y)
    _checks.check_same_device(y=y, mask=m, taps=taps, starts=starts)
    _checks.check_bands(m, taps.shape[1])
    _crop_mask(m, taps, after)
    _check_measurement(y, m)
    x = call(operators.adjoint_taps.default, y, m, taps, starts, channels_last, after)
    return x[0] if squeeze else x


def add_adjoint_taps(
    v: Tensor, y: Tensor, mask: Tensor, taps: Tensor, starts: Tensor, *, after: bool = False
) -> Tensor:
    """Add the transpose to a cube: v + Aᵀy, in one pass over the cube.

    Args:
        v: cube `(B, C, H, W)`.
        y: measurement `(B, K, H, D)`.
        mask: transmission, in a shape that `cassi.ops` lists.
        taps: `(C, T)`, or `(B, C, T)`.
        starts: int64, `(C,)` or `(B, C)`.
        after: the mask codes bands after they are spread.

    Returns:
        Cube shaped like v, in its dtype.

    Raises:
        TypeError: an argument is not a tensor of its kind.
        ValueError: shapes or devices do not fit each other.
    """
    m = _checks.canonical_mask(mask)
    v, squeeze = _checks.canonical_batch("v", v, "a cube (B, C, H, W) or (C, H, W)")
    y, _ = _checks.canonical_batch("y", y, "a measurement (B, K, H, W') or (K, H, W')")
    taps, starts = _canonical_taps(taps, starts, v)
    _checks.check_same_device(v=v, y=y, mask=m, taps=taps, starts=starts)
    _check_cube("v", v, m, taps, after)
    _check_measurement(y, m)
    if len(y) != len(v):
        raise ValueError(f"y: expected {len(v)} samples as v, got {len(y)}")
    x = call(operators.add_adjoint_taps.default, v, y, m, taps, starts, after)
    return x[0] if squeeze else x


def gram_taps(
    mask: Tensor, taps: Tensor, starts: Tensor, detector: int, *, after: bool = False
) -> Tensor:
    """Compute A Aᵀ, which couples detector pixels of a row at most T − 1 apart.

        G[d·K + k, l, h, w'] = Σ_c Σ_t a[c, t] a[c, t + d] (m_k m_l)[c, h, w' − s(c) − t]

    This element couples shot k at column w' with shot l at column w' + d, for 0 <= d < T.

    Args:
        mask: transmission, in a shape that `cassi.ops` lists.
        taps: `(C, T)`, or `(B, C, T)`.
        starts: int64, `(C,)` or `(B, C)`.
        detector: columns D.
        after: the mask codes bands after they are spread.

    Returns:
        `(1 or B, T·K, K, H, D)`, float64.

    Raises:
        TypeError: an argument is not a tensor of its kind.
        ValueError: shapes or devices do not fit each other.
    """
    detector = _checks.check_int("detector", detector, 1)
    m = _checks.canonical_mask(mask)
    taps_samples = len(taps) if _checks.check_floating("taps", taps).ndim == 3 else 1
    samples, m = taps_samples if len(m) == 1 else len(m), m.double()
    taps, starts = _canonical_taps(taps, starts, m.expand(samples, -1, -1, -1, -1))
    bands = taps.shape[1]
    _checks.check_bands(m, bands)
    shots, height, width = m.shape[1], m.shape[3], _crop_mask(m, taps, after).shape[-1]
    m = m.expand(samples, -1, -1, -1, -1)
    # G is A applied to masks in place of cubes: the mask of shot l is the cube, and the masks of
    # all shots k are the mask. If the mask codes spread bands, the product of both masks is the
    # mask, and the cube is 1.
    cubes = m.expand(-1, -1, bands, -1, -1).flatten(0, 1)
    masks, other_masks = m.repeat_interleave(shots, 0), m.flatten(0, 1).unsqueeze(1)
    white = m.new_ones(1).expand(samples * shots, bands, height, width)
    starts = _repeat_shots(starts, samples, shots)
    parts = []
    for distance in range(taps.shape[-1]):
        weights = taps[..., : taps.shape[-1] - distance] * taps[..., distance:]
        weights = _repeat_shots(weights.double(), samples, shots)
        x, m = cubes, masks
        if after:
            x = white
            m = masks[..., : masks.shape[-1] - distance] * other_masks[..., distance:]
        parts.append(call(operators.forward_taps.default, x, m, weights, starts, detector, after))
    gram = torch.stack(parts, 1)  # (samples·K, T, K, H, D), shot l first
    return gram.unflatten(0, (samples, shots)).movedim(1, 3).flatten(1, 2)


def band_solve(r: Tensor, gram: Tensor, rho: float | Tensor = 0.0) -> Tensor:
    """Solve (G + diag ρ) z = r directly, in float64, with G of `gram_taps`.

    z is zero at a detector pixel that depends linearly on the pixels before it. Examples are a
    pixel without light, and the second of two pixels that measure the same pixel of the cube. For
    every r = A x this is still a solution. If ρ is infinite at a pixel, z is zero there for any r,
    and at the other pixels z is as if this pixel did not exist.

    Args:
        r: `(B, K, H, D)`.
        gram: `(1 or B, T·K, K, H, D)`.
        rho: ρ >= 0, infinity included: a number, one value per sample `(B,)`, or one per detector
            pixel, `(1|B, K, H, D)` or `(K, H, D)`.

    Returns:
        z, shaped like r.

    Raises:
        TypeError: an argument is not a floating tensor.
        ValueError: shapes or devices do not fit each other.
    """
    _checks.check_floating("r", r)
    _checks.check_floating("gram", gram)
    _checks.check_same_device(r=r, gram=gram)
    if (
        r.ndim != 4
        or gram.ndim != 5
        or gram.shape[2:] != r.shape[1:]
        or gram.shape[1] % max(r.shape[1], 1)
    ):
        raise ValueError(
            "gram: expected (1 or B, T·K, K, H, D) for r (B, K, H, D), got shapes "
            f"{_checks.shape_of(gram)} and {_checks.shape_of(r)}"
        )
    _checks.check_samples("r", r, gram, "gram")
    return call(operators.band_solve.default, r, gram, _checks.canonical_damping(rho, r, r))


def _repeat_shots(value: Tensor, samples: int, shots: int) -> Tensor:
    if len(value) == 1:
        return value
    return value.expand(samples, *value.shape[1:]).repeat_interleave(shots, 0)


def _canonical_taps(taps: Tensor, starts: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    _checks.check_floating("taps", taps)
    if not isinstance(starts, Tensor) or starts.dtype != torch.int64:
        actual = starts.dtype if isinstance(starts, Tensor) else type(starts).__name__
        raise TypeError(f"starts: expected an int64 tensor, got {actual}")
    if starts.layout is not torch.strided:
        raise TypeError(f"starts: expected a dense tensor, got layout {starts.layout}")
    taps = taps[None] if taps.ndim == 2 else taps
    starts = starts[None] if starts.ndim == 1 else starts
    has_fitting_shapes = taps.ndim == 3 and starts.shape == taps.shape[:2]
    if not (has_fitting_shapes and 1 <= taps.shape[-1] < _MAX_TAPS):
        raise ValueError(
            "taps, starts: expected (C, T) and (C,), or (B, C, T) and (B, C), got shapes "
            f"{_checks.shape_of(taps)} and {_checks.shape_of(starts)}"
        )
    _checks.check_samples("the batch", value, taps, "taps")
    return taps, starts


def _crop_mask(mask: Tensor, taps: Tensor, codes_spread: bool) -> Tensor:
    """Crop a mask to the columns of the cube."""
    return mask[..., : cube_width(mask, taps, codes_spread)]


def _check_cube(name: str, x: Tensor, mask: Tensor, taps: Tensor, codes_spread: bool) -> None:
    _checks.check_cube(name, x, _crop_mask(mask, taps, codes_spread))
    if taps.shape[1] != x.shape[1]:
        raise ValueError(f"taps: expected {x.shape[1]} bands as the cube, got {taps.shape[1]}")


def _check_measurement(y: Tensor, mask: Tensor) -> None:
    _checks.check_int("columns of y", y.shape[-1], 1)
    _checks.check_samples("y", y, mask)
    if tuple(y.shape[1:3]) != (mask.shape[1], mask.shape[3]):
        raise ValueError(
            f"y: expected (B, K, H, D) with K = {mask.shape[1]} and H = {mask.shape[3]} as the "
            f"mask, got shape {_checks.shape_of(y)}"
        )


# Fake kernels: they return empty tensors with the shapes, dtypes and strides of the results.


def _fake_forward_taps(
    x: Tensor, mask: Tensor, taps: Tensor, starts: Tensor, detector: int, codes_spread: bool = False
) -> Tensor:
    return x.new_empty((x.shape[0], mask.shape[1], x.shape[2], detector))


def _fake_adjoint_taps(
    y: Tensor,
    mask: Tensor,
    taps: Tensor,
    starts: Tensor,
    channels_last: bool = False,
    codes_spread: bool = False,
) -> Tensor:
    shape = (y.shape[0], taps.shape[1], y.shape[2], cube_width(mask, taps, codes_spread))
    return torch.empty(shape, dtype=y.dtype, device=y.device, memory_format=layout(channels_last))


def _fake_mask_adjoint_taps(
    x: Tensor, y: Tensor, taps: Tensor, starts: Tensor, codes_spread: bool, *flags: bool
) -> Tensor:
    mask_width = x.shape[-1] + codes_spread * (taps.shape[-1] - 1)
    return fake_mask_adjoint(x.new_empty((*x.shape[:-1], mask_width)), y, *flags)


# Gradients. Each function returns one entry per argument of the schema.


def _mask_gradient(
    x: Tensor, y: Tensor, mask: Tensor, taps: Tensor, starts: Tensor, codes_spread: bool
) -> Tensor:
    per_sample = mask.shape[0] > 1 or x.shape[0] == 1
    grad = operators.mask_adjoint_taps(
        x, y, taps, starts, codes_spread, per_sample, mask.shape[2] > 1
    )
    return grad.to(mask.dtype)


def _taps_gradient(
    x: Tensor, mask: Tensor, y: Tensor, taps: Tensor, starts: Tensor, codes_spread: bool
) -> Tensor:
    # ∂Q/∂a[c,t] is the inner product of the cube with the adjoint for a single tap of 1.
    dtype = accumulation_dtype(x, mask, y)
    unit_taps = torch.ones_like(taps[..., :1])
    products = []
    for t in range(taps.shape[-1]):
        m = mask.narrow(-1, t * codes_spread, x.shape[-1])
        adjoint = operators.adjoint_taps(y.to(dtype), m, unit_taps, starts + t, is_channels_last(x))
        products.append((adjoint * x).sum((-2, -1)))
    return sum_to_batch(torch.stack(products, -1), taps.shape[0]).to(taps.dtype)


@differentiable(
    "forward_taps(Tensor x, Tensor mask, Tensor taps, Tensor starts, SymInt detector, bool"
    " after=False) -> Tensor",
    _reference_taps.forward_taps,
    _fake_forward_taps,
)
def _backward_forward_taps(ctx: Context, g: Tensor) -> Gradients:
    x, mask, taps, starts = ctx.saved_tensors
    _, codes_spread = ctx.constants
    need_x, need_mask, need_taps = ctx.needs_input_grad[:3]
    return (
        operators.adjoint_taps(g, mask, taps, starts, is_channels_last(x), codes_spread)
        if need_x
        else None,
        _mask_gradient(x, g, mask, taps, starts, codes_spread) if need_mask else None,
        _taps_gradient(x, mask, g, taps, starts, codes_spread) if need_taps else None,
        None,
        None,
        None,
    )


@differentiable(
    "adjoint_taps(Tensor y, Tensor mask, Tensor taps, Tensor starts, bool channels_last=False,"
    " bool after=False) -> Tensor",
    _reference_taps.adjoint_taps,
    _fake_adjoint_taps,
)
def _backward_adjoint_taps(ctx: Context, g: Tensor) -> Gradients:
    return (*_adjoint_gradients(ctx, g, ctx.constants[1], 0), None)


@differentiable(
    "add_adjoint_taps(Tensor v, Tensor y, Tensor mask, Tensor taps, Tensor starts, bool"
    " after=False) -> Tensor",
    _reference_taps.add_adjoint_taps,
    fake_like_first,
)
def _backward_add_adjoint_taps(ctx: Context, g: Tensor) -> Gradients:
    return (g, *_adjoint_gradients(ctx, g, ctx.constants[0], 1))


def _adjoint_gradients(ctx: Context, g: Tensor, codes_spread: bool, y_index: int) -> Gradients:
    """Return the gradients of y, mask, taps, starts and one flag; y is saved tensor `y_index`."""
    y, mask, taps, starts = ctx.saved_tensors[y_index:]
    need_y, need_mask, need_taps = ctx.needs_input_grad[y_index : y_index + 3]
    y_gradient = (
        operators.forward_taps(g, mask, taps, starts, y.shape[-1], codes_spread) if need_y else None
    )
    return (
        y_gradient if y_gradient is None else y_gradient.to(y.dtype),
        _mask_gradient(g, y, mask, taps, starts, codes_spread) if need_mask else None,
        _taps_gradient(g, mask, y, taps, starts, codes_spread) if need_taps else None,
        None,
        None,
    )


@differentiable(
    "mask_adjoint_taps(Tensor x, Tensor y, Tensor taps, Tensor starts, bool after, bool"
    " per_sample, bool per_band) -> Tensor",
    _reference_taps.mask_adjoint_taps,
    _fake_mask_adjoint_taps,
    vmap=partial(vmap_mask_adjoint, "mask_adjoint_taps"),
)
def _backward_mask_adjoint_taps(ctx: Context, g: Tensor) -> Gradients:
    x, y, taps, starts = ctx.saved_tensors
    codes_spread = ctx.constants[0]
    need_x, need_y, need_taps = ctx.needs_input_grad[:3]
    grad_x = grad_y = grad_taps = None
    if need_x:
        grad_x = operators.adjoint_taps(y, g, taps, starts, is_channels_last(x), codes_spread).to(
            x.dtype
        )
    if need_y:
        grad_y = operators.forward_taps(x, g, taps, starts, y.shape[-1], codes_spread).to(y.dtype)
    if need_taps:
        grad_taps = _taps_gradient(x, g, y, taps, starts, codes_spread)
    return grad_x, grad_y, grad_taps, None, None, None, None


@differentiable(
    "band_solve(Tensor r, Tensor gram, Tensor rho) -> Tensor",
    _reference_taps.band_solve,
    fake_solve,
)
def _backward_band_solve(ctx: Context, g: Tensor) -> Gradients:
    def product(w: Tensor, z: Tensor, gram: Tensor) -> Tensor:
        # The gram stores each coupling d > 0 once, but G has it above and below the diagonal.
        w, z = w.to(gram.dtype), z.to(gram.dtype)
        parts = [_shifted_product(w, z, 0)]
        for distance in range(1, gram.shape[1] // w.shape[1]):
            parts.append(_shifted_product(w, z, distance) + _shifted_product(z, w, distance))
        return torch.cat(parts, 1)

    return solve_gradients(ctx, g, operators.band_solve, product)


def _shifted_product(w: Tensor, z: Tensor, distance: int) -> Tensor:  # (B, K, K, H, D)
    # w[k, p] z[l, p + distance], zero outside of the detector.
    shifted_z = torch.nn.functional.pad(z[..., distance:], (0, min(distance, z.shape[-1])))
    return w.unsqueeze(2) * shifted_z.unsqueeze(1)
