"""Operators of a single disperser with whole steps: public functions, fake kernels, gradients."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from cassi.ops import _checks, _reference
from cassi.ops._library import call, define, differentiable, operator, operators
from cassi.ops._recording import Argument, Context, Dims, Gradients, VmapInfo, is_recorded


def forward(x: Tensor, mask: Tensor, step: int) -> Tensor:
    """Apply the camera: y = A x.

    Args:
        x: cube `(B, C, H, W)` or `(C, H, W)`.
        mask: transmission, in a shape that `cassi.ops` lists.
        step: dispersion, pixels per band; if negative, the last band has offset 0.

    Returns:
        Measurement `(B, K, H, W + (C-1)|step|)`, without B if x has none.

    Raises:
        TypeError: an argument is not a floating tensor, or `step` is not an integer.
        ValueError: shapes or devices do not fit each other.

    >>> forward(torch.ones(3, 1, 2), torch.ones(1, 2), step=1)
    tensor([[[1., 2., 2., 1.]]])
    """
    m = _checks.canonical_mask(mask)
    x, squeeze = _checks.canonical_batch("x", x, "a cube (B, C, H, W) or (C, H, W)")
    _checks.check_same_device(x=x, mask=m)
    _checks.check_cube("x", x, m)
    y = call(operators.forward.default, x, m, _checks.check_int("step", step))
    return y[0] if squeeze else y


def adjoint(
    y: Tensor, mask: Tensor, bands: int, step: int, *, channels_last: bool = False
) -> Tensor:
    """Apply the transpose: x[c, h, w] = Σ_k m[k, c, h, w] · y[k, h, w + o(c)].

    Args:
        y: measurement `(B, K, H, W')` or `(K, H, W')`.
        mask: transmission, in a shape that `cassi.ops` lists.
        bands: number of bands C of the cube.
        step: dispersion, pixels per band.
        channels_last: return the cube with its bands innermost in memory (for convolutions).

    Returns:
        Cube `(B, C, H, W)`, without B if y has none.

    Raises:
        TypeError: an argument is not a floating tensor, or `bands`, `step` are not integers.
        ValueError: shapes or devices do not fit each other.
    """
    bands, step = _checks.check_int("bands", bands, 1), _checks.check_int("step", step)
    y, m, squeeze = _measurement_and_mask(y, mask, bands, step)
    x = call(operators.adjoint.default, y, m, bands, step, channels_last)
    return x[0] if squeeze else x


def add_adjoint(v: Tensor, y: Tensor, mask: Tensor, step: int) -> Tensor:
    """Add the transpose to a cube: v + Aᵀy, in one pass over the cube.

    Args:
        v: cube `(B, C, H, W)` or `(C, H, W)`.
        y: measurement `(B, K, H, W')` or `(K, H, W')`.
        mask: transmission, in a shape that `cassi.ops` lists.
        step: dispersion, pixels per band.

    Returns:
        Cube shaped like v, in its dtype.

    Raises:
        TypeError: an argument is not a floating tensor, or `step` is not an integer.
        ValueError: shapes or devices do not fit each other.
    """
    v, y, m, step, squeeze = _cube_measurement_and_mask(v, y, mask, step)
    _checks.check_same_device(v=v, y=y, mask=m)
    x = call(operators.add_adjoint.default, v, y, m, step)
    return x[0] if squeeze else x


def ratio_inverse(
    y: Tensor, mask: Tensor, bands: int, step: int, *, channels_last: bool = False
) -> Tensor:
    """Divide y by the number of bands n at each pixel, cut out each band, and divide by the mask.

        x[c, h, w] = y[h, w + o(c)] / n(w + o(c)) / max(m[c, h, w], 1e-12)

    If the mask is above 1e-12 everywhere, A x = y. But x has a larger norm than `A⁺y`, and noise is
    amplified where the mask is dark.

    Args:
        y: measurement `(B, 1, H, W')` or `(1, H, W')`.
        mask: transmission of one shot.
        bands: number of bands C of the cube.
        step: dispersion, pixels per band.
        channels_last: return the cube with its bands innermost in memory (for convolutions).

    Returns:
        Cube `(B, C, H, W)`, without B if y has none.

    Raises:
        TypeError: an argument is not a floating tensor, or `bands`, `step` are not integers.
        ValueError: shapes or devices do not fit each other, or the mask has several shots: this
            inverse is for one shot.
    """
    bands, step = _checks.check_int("bands", bands, 1), _checks.check_int("step", step)
    y, m, squeeze = _measurement_and_mask(y, mask, bands, step)
    if m.shape[1] != 1:
        raise ValueError(
            f"ratio_inverse: expected a mask of one shot, got {m.shape[1]} shots; use pinv instead"
        )
    x = call(operators.ratio_inverse.default, y, m, bands, step, channels_last)
    return x[0] if squeeze else x


def gram(mask: Tensor, bands: int, step: int) -> Tensor:
    """Compute A Aᵀ, which couples only the K shots at one detector pixel.

        G[k, l, h, w'] = Σ_c m[k, c, h, w' - o(c)] · m[l, c, h, w' - o(c)]

    For one shot this is the Σ of squared shifted masks that the literature calls Φs.

    Args:
        mask: transmission, in a shape that `cassi.ops` lists.
        bands: number of bands C.
        step: dispersion, pixels per band.

    Returns:
        `(K, K, H, W')`, or `(B, K, K, H, W')` for a mask per sample; float32 at least.

    Raises:
        TypeError: the mask is not a floating tensor, or `bands`, `step` are not integers.
        ValueError: the mask has another number of bands.
    """
    bands, step = _checks.check_int("bands", bands, 1), _checks.check_int("step", step)
    m = _checks.canonical_mask(mask)
    _checks.check_bands(m, bands)
    g = call(operators.gram.default, m, bands, step)
    return g if mask.ndim == 5 else g[0]


def gram_solve(r: Tensor, gram: Tensor, rho: float | Tensor = 0.0) -> Tensor:
    """Compute (G + D)⁺ r at every detector pixel, with D = diag(ρ) over its K shots.

    If the K×K matrix is singular, its Moore–Penrose inverse is used. For one shot, the solution is
    then zero at pixels without light. If ρ of a shot is infinite at a pixel, the solution of this
    shot is zero there for any r. The solutions of the other shots are as if it did not exist.

    Args:
        r: measurement-shaped right-hand side `(B, K, H, W')` or `(K, H, W')`.
        gram: `(K, K, H, W')` or `(B, K, K, H, W')`, from `gram`.
        rho: ρ >= 0 in the unit of the gram, infinity included: a number, one value per sample
            `(B,)`, or one per detector pixel, `(1|B, K, H, W')` or `(K, H, W')`. The values of a
            tensor are not checked.

    Returns:
        The solution, shaped like r.

    Raises:
        TypeError: an argument is not a floating tensor (ρ: or a number).
        ValueError: shapes or devices do not fit, or ρ is negative.
    """
    r, squeeze = _checks.canonical_batch("r", r, "(B, K, H, W') or (K, H, W')")
    g = _canonical_gram(gram, r)
    weight = _checks.canonical_damping(rho, r, r)
    _checks.check_same_device(r=r, gram=g, rho=weight)
    z = call(operators.gram_solve.default, r, g, weight)
    return z[0] if squeeze else z


def data_step(
    v: Tensor,
    y: Tensor,
    mask: Tensor,
    step: int,
    rho: float | Tensor = 0.0,
    gram: Tensor | None = None,
) -> Tensor:
    """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖² = v + Aᵀ(AAᵀ + ρI)⁻¹(y − Av) in closed form.

    ρ = 0 gives the Euclidean projection onto {x : Ax = y}, the step of GAP (Liao, Li, Carin, 2014).
    ρ > 0 gives the x-update of ADMM. With one ρ per detector pixel, D = diag(ρ), it solves

        argmin_x ½ (Ax − y)ᵀ D⁻¹ (Ax − y) + ½ ‖x − v‖² = v + Aᵀ(AAᵀ + D)⁻¹(y − Av)

    Here ρ is the noise variance of a pixel over the variance of x about v. If ρ is infinite at a
    pixel, the value of y there has no influence.

    Args:
        v: cube `(B, C, H, W)` or `(C, H, W)`.
        y: measurement `(B, K, H, W')` or `(K, H, W')`.
        mask: transmission, in a shape that `cassi.ops` lists.
        step: dispersion, pixels per band.
        rho: ρ >= 0, infinity included: a number, one value per sample `(B,)`, or one per detector
            pixel, `(1|B, K, H, W')` or `(K, H, W')`. The values of a tensor are not checked.
        gram: the result of `gram(mask, C, step)`; None computes it here. Gradients with respect to
            the mask include the path through the gram, even if it is given.

    Returns:
        Cube shaped like v.

    Raises:
        TypeError: an argument is not a floating tensor (ρ: or a number).
        ValueError: shapes or devices do not fit, ρ is negative, or `gram` requires a gradient.
    """
    v, y, m, step, squeeze = _cube_measurement_and_mask(v, y, mask, step)
    if gram is None:
        with torch.no_grad():
            g = call(operators.gram.default, m, v.shape[1], step)
    else:
        g = _canonical_gram(gram, y)
        if g.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                "gram: expected a tensor without gradient, got one with; leave gram out, and it is "
                "computed from the mask"
            )
    weight = _checks.canonical_damping(rho, v, y)
    _checks.check_same_device(v=v, y=y, mask=m, gram=g, rho=weight)
    x = call(operators.data_step.default, v, y, m, g, weight, step)
    return x[0] if squeeze else x


def _measurement_and_mask(
    y: Tensor, mask: Tensor, bands: int, step: int
) -> tuple[Tensor, Tensor, bool]:
    m = _checks.canonical_mask(mask)
    y, squeeze = _checks.canonical_batch("y", y, "a measurement (B, K, H, W') or (K, H, W')")
    _checks.check_same_device(y=y, mask=m)
    _checks.check_measurement(y, m, bands, step)
    return y, m, squeeze


def _cube_measurement_and_mask(
    v: Tensor, y: Tensor, mask: Tensor, step: int
) -> tuple[Tensor, Tensor, Tensor, int, bool]:
    m = _checks.canonical_mask(mask)
    v, squeeze = _checks.canonical_batch("v", v, "a cube (B, C, H, W) or (C, H, W)")
    y, _ = _checks.canonical_batch("y", y, "a measurement (B, K, H, W') or (K, H, W')")
    step = _checks.check_int("step", step)
    _checks.check_cube("v", v, m)
    _checks.check_measurement(y, m, v.shape[1], step)
    if y.shape[0] != v.shape[0]:
        raise ValueError(f"y: expected a batch of {v.shape[0]} as in v, got {y.shape[0]}")
    return v, y, m, step, squeeze


def _canonical_gram(gram: Tensor, y: Tensor) -> Tensor:  # (1|B, K, K, H, W')
    _checks.check_floating("gram", gram)
    g = gram[None] if gram.ndim == 4 else gram
    _, shots, height, width = y.shape
    if g.ndim != 5 or tuple(g.shape[1:]) != (shots, shots, height, width):
        raise ValueError(
            f"gram: expected (K, K, H, W') = ({shots}, {shots}, {height}, {width}), "
            f"got shape {_checks.shape_of(gram)}"
        )
    _checks.check_samples("y", y, g, "gram")
    return g


# Fake kernels: they return empty tensors with the shapes, dtypes and strides of the results.


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


def fake_like_first(first: Tensor, *_: Argument) -> Tensor:
    """Return a tensor in the shape, dtype and strides of the first argument."""
    return torch.empty_like(first)


def fake_mask_adjoint(x: Tensor, y: Tensor, *rest: bool) -> Tensor:
    """Return an empty mask gradient; the last two arguments are per_sample and per_band."""
    per_sample, per_band = rest[-2:]
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


def fake_solve(r: Tensor, gram: Tensor, rho: Tensor) -> Tensor:
    """Return an empty solution, shaped like r."""
    return r.new_empty(r.shape)


def _fake_data_step_backward(
    grad: Tensor, v: Tensor, y: Tensor, mask: Tensor, gram: Tensor, rho: Tensor, *rest: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    need_mask, need_rho = rest[-2:]
    sums = _reference.accumulation_dtype(v, y, mask)
    rho_sizes = y.shape if _reference.varies_in_row(rho) else (y.shape[0], 1, y.shape[2], 1)
    return (
        torch.empty_like(v),
        y.new_empty(y.shape),
        mask.new_empty(mask.shape if need_mask else (0,), dtype=sums),
        v.new_empty(rho_sizes if need_rho else (0,), dtype=sums),
    )


def vmap_mask_adjoint(
    kernel: str, info: VmapInfo, in_dims: Dims, *args: Argument
) -> tuple[Tensor, int]:
    """Apply vmap to an operator whose last arguments are per_sample and per_band."""
    # The mapped dimension is folded into the batch. If the operator summed over this batch, it
    # would mix mapped entries. So it runs per sample, and the sum over the original batch follows.
    *values, per_sample, per_band = args
    tensors = [value for value in values if isinstance(value, Tensor)]
    count = len(tensors)
    moved_tensors = [
        value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
        for value, dim in zip(tensors, in_dims, strict=False)
    ]
    batch = moved_tensors[0].shape[1]
    folded_tensors = [
        value.expand(-1, batch, *value.shape[2:]).reshape(-1, *value.shape[2:])
        for value in moved_tensors
    ]
    m = operator(kernel)(*folded_tensors, *values[count:], True, per_band)
    m = m.unflatten(0, (info.batch_size, -1))
    return m if per_sample else m.sum(1, keepdim=True), 0


# Gradients. Each function returns one entry per argument of the schema.


def is_channels_last(x: Tensor) -> bool:
    """Tell whether the bands of a cube are innermost in memory."""
    return not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


def _mask_gradient(x: Tensor, y: Tensor, mask: Tensor, step: int) -> Tensor:
    per_sample = mask.shape[0] > 1 or x.shape[0] == 1
    return operators.mask_adjoint(x, y, step, per_sample, mask.shape[2] > 1).to(mask.dtype)


@differentiable(
    "forward(Tensor x, Tensor mask, SymInt step) -> Tensor", _reference.forward, _fake_forward
)
def _backward_forward(ctx: Context, g: Tensor) -> Gradients:
    x, mask = ctx.saved_tensors
    (step,) = ctx.constants
    grad_x = grad_mask = None
    if ctx.needs_input_grad[0]:
        grad_x = operators.adjoint(g, mask, x.shape[1], step, is_channels_last(x))
    if ctx.needs_input_grad[1]:
        grad_mask = _mask_gradient(x, g, mask, step)
    return grad_x, grad_mask, None


@differentiable(
    "adjoint(Tensor y, Tensor mask, SymInt bands, SymInt step, bool channels_last=False) -> Tensor",
    _reference.adjoint,
    _fake_adjoint,
)
def _backward_adjoint(ctx: Context, g: Tensor) -> Gradients:
    y, mask = ctx.saved_tensors
    _, step, _ = ctx.constants
    grad_y = operators.forward(g, mask, step) if ctx.needs_input_grad[0] else None
    grad_mask = _mask_gradient(g, y, mask, step) if ctx.needs_input_grad[1] else None
    return grad_y, grad_mask, None, None, None


@differentiable(
    "add_adjoint(Tensor v, Tensor y, Tensor mask, SymInt step) -> Tensor",
    _reference.add_adjoint,
    fake_like_first,
)
def _backward_add_adjoint(ctx: Context, g: Tensor) -> Gradients:
    _, y, mask = ctx.saved_tensors
    (step,) = ctx.constants
    grad_y = operators.forward(g, mask, step).to(y.dtype) if ctx.needs_input_grad[1] else None
    grad_mask = _mask_gradient(g, y, mask, step) if ctx.needs_input_grad[2] else None
    return g, grad_y, grad_mask, None


@differentiable(
    "mask_adjoint(Tensor x, Tensor y, SymInt step, bool per_sample, bool per_band) -> Tensor",
    _reference.mask_adjoint,
    fake_mask_adjoint,
    vmap=partial(vmap_mask_adjoint, "mask_adjoint"),
)
def _backward_mask_adjoint(ctx: Context, g: Tensor) -> Gradients:
    x, y = ctx.saved_tensors
    step = ctx.constants[0]
    grad_x = grad_y = None
    if ctx.needs_input_grad[0]:
        grad_x = operators.adjoint(y, g, x.shape[1], step, is_channels_last(x)).to(x.dtype)
    if ctx.needs_input_grad[1]:
        grad_y = operators.forward(x, g, step).to(y.dtype)
    return grad_x, grad_y, None, None, None


@differentiable(
    "ratio_inverse(Tensor y, Tensor mask, SymInt bands, SymInt step, bool"
    " channels_last=False) -> Tensor",
    _reference.ratio_inverse,
    _fake_adjoint,
)
def _backward_ratio_inverse(ctx: Context, g: Tensor) -> Gradients:
    # ratio_inverse(y, m) = adjoint(y / n, 1 / m), so the gradient follows from that of the adjoint.
    y, mask = ctx.saved_tensors
    bands, step, _ = ctx.constants
    # Half precision cannot represent the floor of 1e-12.
    dtype = _reference.accumulation_dtype(y, mask)
    g, m = g.to(dtype), mask.to(dtype)
    share = 1 / _reference.band_count(mask.shape[-1], bands, step, y.device).to(dtype)
    inverse = m.clamp_min(_reference.RATIO_FLOOR).reciprocal()
    grad_y = grad_mask = None
    if ctx.needs_input_grad[0]:
        grad_y = (operators.forward(g, inverse, step) * share).to(y.dtype)
    if ctx.needs_input_grad[1]:
        grad = -_mask_gradient(g, y * share, m, step) * inverse.square()
        grad_mask = torch.where(m >= _reference.RATIO_FLOOR, grad, 0).to(mask.dtype)
    return grad_y, grad_mask, None, None, None


@differentiable(
    "gram(Tensor mask, SymInt bands, SymInt step) -> Tensor", _reference.gram, _fake_gram
)
def _backward_gram(ctx: Context, g: Tensor) -> Gradients:
    # G[k,l] = Σ_c m_k m_l, hence dm_k = Σ_l (g[k,l] + g[l,k]) m_l. The adjoint computes this sum
    # over the shots l, with the shots k as its batch.
    (mask,) = ctx.saved_tensors
    bands, step = ctx.constants
    samples, shots, mask_bands, height, width = mask.shape
    symmetric = (g + g.transpose(1, 2)).reshape(samples * shots, shots, height, g.shape[-1])
    rows = mask.repeat_interleave(shots, 0)
    grad = operators.adjoint(symmetric, rows, bands, step)
    grad = grad.reshape(samples, shots, bands, height, width).to(mask.dtype)
    return grad.sum(2, keepdim=True) if mask_bands == 1 else grad, None, None


def sum_to_batch(value: Tensor, batch: int) -> Tensor:
    """Sum gradients over samples if all samples share one value (`batch` is 1)."""
    return value.sum(0, keepdim=True) if batch == 1 else value


def _sum_to_rho(value: Tensor, rho: Tensor) -> Tensor:
    # Sum over the pixels that share one value of ρ, then over the samples.
    shared_dims = [dim for dim in (1, 2, 3) if rho.shape[dim] == 1]
    value = value.sum(shared_dims, keepdim=True) if shared_dims else value
    return sum_to_batch(value, rho.shape[0]).to(rho.dtype)


def solve_gradients(
    ctx: Context, g: Tensor, solve: Callable[..., Tensor], product: Callable[..., Tensor]
) -> Gradients:
    """Return the gradients of z = `solve(r, gram, rho)`.

    With S = (G + D)⁻¹, D = diag(ρ): z = S r and dz = S dr − S dG z − S dD z. For a gradient g of z
    and w = S g, the gradients are w of r, −`product(w, z, gram)` of G, and −w·z of ρ. Where ρ is
    infinite, w and z are zero, and so are the gradients.
    """
    r, gram, rho = ctx.saved_tensors
    w = solve(g, gram, rho)
    grad_gram = grad_rho = None
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
        z = solve(r, gram, rho)
        if ctx.needs_input_grad[1]:
            grad_gram = (-sum_to_batch(product(w, z, gram), gram.shape[0])).to(gram.dtype)
        if ctx.needs_input_grad[2]:
            grad_rho = -_sum_to_rho(w * z, rho)
    return w, grad_gram, grad_rho


@differentiable(
    "gram_solve(Tensor r, Tensor gram, Tensor rho) -> Tensor", _reference.gram_solve, fake_solve
)
def _backward_gram_solve(ctx: Context, g: Tensor) -> Gradients:
    def product(w: Tensor, z: Tensor, gram: Tensor) -> Tensor:
        return w.unsqueeze(2) * z.unsqueeze(1)

    return solve_gradients(ctx, g, operators.gram_solve, product)


@differentiable(
    "data_step(Tensor v, Tensor y, Tensor mask, Tensor gram, Tensor rho, SymInt step) -> Tensor",
    _reference.data_step,
    fake_like_first,
)
def _backward_data_step(ctx: Context, g: Tensor) -> Gradients:
    # The fused kernel has no gradient. If a second derivative may be needed, the gradient is
    # composed of other operators, which have gradients.
    v, y, mask, gram, rho = ctx.saved_tensors
    (step,) = ctx.constants
    _, need_y, need_mask, _, need_rho = ctx.needs_input_grad[:5]
    gradient = _composed_gradient if is_recorded() else operators.data_step_backward
    grad_v, grad_y, grad_mask, grad_rho = gradient(
        g, v, y, mask, gram, rho, step, need_mask, need_rho
    )
    grad_y = grad_y if need_y else None
    grad_mask = grad_mask.to(mask.dtype) if need_mask and grad_mask is not None else None
    grad_rho = _sum_to_rho(grad_rho, rho) if need_rho and grad_rho is not None else None
    return grad_v, grad_y, grad_mask, None, grad_rho, None


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
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    # The equations are in `_reference.data_step_backward`. The gram is computed from the mask once
    # more, so that a second derivative includes the path through the gram.
    bands = v.shape[1]
    if need_mask:
        gram = operators.gram(mask, bands, step)
    w = operators.gram_solve(operators.forward(g, mask, step), gram, rho)
    grad_v = g - operators.adjoint(w, mask, bands, step)
    grad_mask = grad_rho = None
    if need_mask or need_rho:
        z = operators.gram_solve(y.to(v.dtype) - operators.forward(v, mask, step), gram, rho)
        grad_rho = _reference.rho_gradient(w, z, rho)
        if need_mask:
            x = v + operators.adjoint(z, mask, bands, step)
            grad_mask = _mask_gradient(grad_v, z, mask, step) - _mask_gradient(x, w, mask, step)
    return grad_v, w.to(y.dtype), grad_mask, grad_rho


define(
    "data_step_backward(Tensor grad, Tensor v, Tensor y, Tensor mask, Tensor gram, Tensor"
    " rho, SymInt step, bool need_mask, bool need_rho) -> (Tensor, Tensor, Tensor, Tensor)",
    _reference.data_step_backward,
    _fake_data_step_backward,
)
