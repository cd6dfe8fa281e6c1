"""One-dimensional convolution and trilinear interpolation, as functions of tensors.

Any floating dtype; sums run in float32 at least, and the result has the dtype of the first
argument. All functions have reverse-mode gradients to any order with respect to both arguments, run
under `torch.compile(fullgraph=True)`, and give the same bits for every number of threads.
"""

import torch
from torch import Tensor
from torch.nn.functional import embedding, pad

from cassi.ops._checks import check_floating, check_same_device, shape_of
from cassi.ops._library import define, differentiable, operators
from cassi.ops._recording import Context, Gradients, is_recorded
from cassi.ops._reference import accumulation_dtype


def convolve1d(a: Tensor, v: Tensor) -> Tensor:
    """Convolve signals with kernels along the last dimension, in full.

        out[n] = Σ_m a[n − m] v[m],   n = 0 … N+M−2

    For one signal and one kernel the result is that of `numpy.convolve`. Here every row has its own
    kernel. All N·M products are computed, so either signals or kernels should be short.

    Args:
        a: signals `(..., N)`.
        v: kernels `(..., M)`; leading dimensions broadcast against those of a.

    Returns:
        `(..., N+M-1)` in the dtype of a.

    Raises:
        TypeError: an argument is not a floating tensor.
        ValueError: a row is empty, or leading dimensions or devices do not fit each other.

    >>> convolve1d(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 10.0]))
    tensor([ 1., 12., 23., 30.])
    """
    for name, value in (("a", a), ("v", v)):
        check_floating(name, value)
        if value.ndim == 0 or value.shape[-1] == 0:
            raise ValueError(
                f"{name}: expected at least one value along the last dimension, "
                f"got shape {shape_of(value)}"
            )
    check_same_device(a=a, v=v)
    # Dimensions are compared from the right, because broadcasting aligns them there.
    for rows, other_rows in zip(a.shape[-2::-1], v.shape[-2::-1], strict=False):
        if rows != other_rows and rows != 1 and other_rows != 1:
            raise ValueError(
                "v: expected leading dimensions that broadcast with those of a, "
                f"{tuple(a.shape[:-1])}, got shape {shape_of(v)}"
            )
    rows = torch.broadcast_shapes(a.shape[:-1], v.shape[:-1])
    result = operators.convolve1d(
        a.expand(*rows, a.shape[-1]).reshape(-1, a.shape[-1]),
        v.expand(*rows, v.shape[-1]).reshape(-1, v.shape[-1]),
    )
    return result.reshape(*rows, result.shape[-1])


def trilinear(features: Tensor, points: Tensor) -> Tensor:
    """Interpolate features given at the eight corners of a cell, one cell for every point.

        out = Σ_{i,j,k} w_i(u₀) w_j(u₁) w_k(u₂) features[4i + 2j + k],
        u = (p + 1)/2,   w_0(u) = 1 − u,   w_1(u) = u

    The cell reaches from −1 to +1 along each axis. Points are not clamped: outside of the cell, the
    same polynomial extrapolates.

    Args:
        features: `(N, 8, F)`, corners in the order 000, 001, 010, 011, 100, 101, 110, 111; the
            first digit belongs to `points[:, 0]`.
        points: `(N, 3)`, in [−1, 1].

    Returns:
        `(N, F)` in the dtype of features.

    Raises:
        TypeError: an argument is not a floating tensor.
        ValueError: shapes or devices do not fit each other.

    >>> trilinear(torch.arange(8.0).reshape(1, 8, 1), torch.tensor([[0.0, -1.0, 1.0]]))
    tensor([[3.]])
    """
    check_floating("features", features)
    check_floating("points", points)
    if features.ndim != 3 or features.shape[1] != 8:
        raise ValueError(f"features: expected (N, 8, F), got shape {shape_of(features)}")
    if tuple(points.shape) != (features.shape[0], 3):
        raise ValueError(
            f"points: expected (N, 3) = ({features.shape[0]}, 3), got shape {shape_of(points)}"
        )
    check_same_device(features=features, points=points)
    return operators.trilinear(features, points)


def sample_volume(volume: Tensor, points: Tensor) -> Tensor:
    """Interpolate a volume trilinearly at points anywhere in it.

    Along every axis −1 is the centre of the first sample and +1 that of the last (in `grid_sample`,
    `align_corners=True`). Points outside are moved to the border, and their gradient is zero. At a
    sample the gradient of a point is the slope of the next cell.

    A volume in `torch.channels_last_3d` is read in place; any other is copied first.

    Args:
        volume: `(F, D, H, W)`, or `(B, F, D, H, W)` with points for every volume.
        points: `(..., 3)`, or `(B, ..., 3)`, in [−1, 1]: the coordinates along D, H and W, in this
            order; `grid_sample` has the reverse order.

    Returns:
        `(..., F)`, or `(B, ..., F)`, in the dtype of volume.

    Raises:
        TypeError: an argument is not a floating tensor.
        ValueError: an axis of the volume is empty, or shapes or devices do not fit each other.

    >>> line = torch.tensor([1.0, 2.0, 4.0]).reshape(1, 3, 1, 1)
    >>> sample_volume(line, torch.tensor([[-1.0, 0.0, 0.0], [0.5, 0.0, 0.0]]))
    tensor([[1.],
            [3.]])
    """
    volumes = _check_volume(volume, points)
    batch, _, *sizes = volumes.shape
    dtype = accumulation_dtype(volume, points)
    lower, upper, positions = [], [], []
    for p, size in zip(points.to(dtype).reshape(-1, 3).unbind(1), sizes, strict=True):
        position = (p.clamp(-1, 1) + 1) * (0.5 * (size - 1))
        # The integers are clamped too, because a NaN passes the clamp of the points and would
        # become an address outside of the volume.
        first = position.floor().long().clamp(max=size - 2).clamp(min=0)
        lower.append(first)
        upper.append((first + 1).clamp(max=size - 1))
        positions.append(2 * (position - first) - 1)
    sample = torch.arange(batch, device=volume.device)
    if volume.ndim == 5:
        sample = sample.reshape(-1, *(1,) * (points.ndim - 2)).expand(points.shape[:-1])
    index = sample.reshape(-1, 1, 1, 1)
    for axis, size in enumerate(sizes):
        corner = torch.stack((lower[axis], upper[axis]), 1)
        index = index * size + corner.reshape(-1, *(2 if a == axis else 1 for a in range(3)))
    # The gradient of an embedding is summed in a fixed order. If a tensor is indexed instead,
    # threads sum the gradient in any order (on CPUs, in float32), so its bits would change.
    rows = volumes.to(dtype).movedim(1, -1).flatten(0, -2)
    result = operators.trilinear(embedding(index.flatten(1), rows), torch.stack(positions, 1))
    return result.to(volume.dtype).reshape(*points.shape[:-1], result.shape[-1])


def _check_volume(volume: Tensor, points: Tensor) -> Tensor:  # (B, F, D, H, W)
    check_floating("volume", volume)
    check_floating("points", points)
    if volume.ndim not in (4, 5):
        raise ValueError(
            f"volume: expected (F, D, H, W) or (B, F, D, H, W), got shape {shape_of(volume)}"
        )
    if 0 in volume.shape[-3:]:
        raise ValueError(
            f"volume: expected at least one sample along every axis, got shape {shape_of(volume)}"
        )
    leading = tuple(volume.shape[:-4])
    if points.ndim == 0 or points.shape[-1] != 3:
        raise ValueError(f"points: expected (..., 3), got shape {shape_of(points)}")
    if points.ndim <= len(leading) or tuple(points.shape[: len(leading)]) != leading:
        raise ValueError(
            f"points: expected (B, ..., 3) with the volume's batch of {leading[0]}, "
            f"got shape {shape_of(points)}"
        )
    check_same_device(volume=volume, points=points)
    return volume if volume.ndim == 5 else volume[None]


# Pure-torch references, the specification of the compiled kernels. Sums run in float32 at least.
# Convolution and correlation are partial derivatives of one trilinear form,
#
#     T(a, v, g) = Σ_{n,m} a[n] v[m] g[n + m],
#
# with respect to g (`convolve1d`), a (`correlate1d` of g and v) and v (`correlate1d` of g and a).

# Most values that `sum_in_order` adds in one piece.
_CHUNK_SIZE = 4096


def _reference_convolve1d(a: Tensor, v: Tensor) -> Tensor:
    """Convolve every row of a with the same row of v: out[n] = Σ_m v[m] a[n − m]."""
    dtype = accumulation_dtype(a, v)
    length = a.shape[1] + v.shape[1] - 1
    longer, shorter = (a, v) if a.shape[1] >= v.shape[1] else (v, a)
    longer, shorter = longer.to(dtype), shorter.to(dtype)
    result = a.new_zeros((a.shape[0], length), dtype=dtype)
    for m in range(shorter.shape[1]):
        result[:, m : m + longer.shape[1]].addcmul_(longer, shorter[:, m : m + 1])
    return result.to(a.dtype)


def _reference_correlate1d(g: Tensor, v: Tensor) -> Tensor:
    """Correlate every row of g with the same row of v: out[n] = Σ_m g[n + m] v[m]."""
    dtype = accumulation_dtype(g, v)
    signal, kernel = g.to(dtype), v.to(dtype)
    taps = v.shape[1]
    length = g.shape[1] - taps + 1
    result = g.new_zeros((g.shape[0], length), dtype=dtype)
    if taps <= length:
        for m in range(taps):
            result.addcmul_(signal[:, m : m + length], kernel[:, m : m + 1])
    else:
        for n in range(length):
            result[:, n] = sum_in_order(signal[:, n : n + taps] * kernel)
    return result.to(g.dtype)


def _reference_trilinear(features: Tensor, points: Tensor) -> Tensor:
    """Interpolate between the corners of a unit cell, with u = (p + 1)/2 and w(u) = (1 − u, u).

    out = Σ_{i,j,k} w_i(u₀) w_j(u₁) w_k(u₂) features[4i + 2j + k]
    """
    dtype = accumulation_dtype(features, points)
    u = (points.to(dtype) + 1) / 2
    values = features.to(dtype).unflatten(1, (2, 2, 2))
    for axis in range(3):
        t = u[:, axis].reshape(-1, *(1,) * (values.ndim - 2))
        values = (1 - t) * values[:, 0] + t * values[:, 1]  # exact at either corner
    return values.to(features.dtype).contiguous()


def _reference_trilinear_backward(
    grad: Tensor, features: Tensor, points: Tensor
) -> tuple[Tensor, Tensor]:
    """Differentiate `trilinear`: gradients of features and points.

    No tensor is changed in place, so that torch can differentiate this function again.
    """
    dtype = accumulation_dtype(features, points)
    u = (points.to(dtype) + 1) / 2
    weights = torch.stack((1 - u, u), 2)  # (N, 3, 2)
    i, j, k = (
        weights[:, axis].reshape(-1, *(2 if a == axis else 1 for a in range(3)))
        for axis in range(3)
    )
    upstream = grad.to(dtype).unsqueeze(1)  # (N, 1, F)
    grad_features = (i * j * k).flatten(1).unsqueeze(2) * upstream
    share = (features.to(dtype) * upstream).sum(2).unflatten(1, (2, 2, 2))
    slopes = (share.diff(dim=1) * j * k, share.diff(dim=2) * i * k, share.diff(dim=3) * i * j)
    grad_points = torch.stack([slope.sum((1, 2, 3)) for slope in slopes], 1) / 2
    return grad_features.to(features.dtype).contiguous(), grad_points.to(points.dtype)


def sum_in_order(values: Tensor) -> Tensor:
    """Sum along the last dimension, `(R, N)` → `(R,)`, with the same bits for any thread count."""
    # torch divides a long sum among its threads, so the bits would depend on the number of threads.
    # The sum of a short piece is not divided.
    size = min(_CHUNK_SIZE, values.shape[1])
    return pad(values, (0, -values.shape[1] % size)).unflatten(1, (-1, size)).sum(2).sum(1)


def _fake_convolve1d(a: Tensor, v: Tensor) -> Tensor:
    return a.new_empty((a.shape[0], a.shape[1] + v.shape[1] - 1))


def _fake_correlate1d(g: Tensor, v: Tensor) -> Tensor:
    return g.new_empty((g.shape[0], g.shape[1] - v.shape[1] + 1))


def _fake_trilinear(features: Tensor, points: Tensor) -> Tensor:
    return features.new_empty((features.shape[0], features.shape[2]))


def _fake_trilinear_backward(
    grad: Tensor, features: Tensor, points: Tensor
) -> tuple[Tensor, Tensor]:
    return features.new_empty(features.shape), points.new_empty(points.shape)


def _correlate(g: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
    # g is converted first, so that the gradient of a float32 kernel is not rounded to bfloat16 if
    # the signal is bfloat16.
    return operators.correlate1d(g.to(torch.promote_types(g.dtype, dtype)), v).to(dtype)


@differentiable("convolve1d(Tensor a, Tensor v) -> Tensor", _reference_convolve1d, _fake_convolve1d)
def _backward_convolve1d(ctx: Context, g: Tensor) -> Gradients:
    a, v = ctx.saved_tensors
    need_a, need_v = ctx.needs_input_grad
    return (
        _correlate(g, v, a.dtype) if need_a else None,
        _correlate(g, a, v.dtype) if need_v else None,
    )


@differentiable(
    "correlate1d(Tensor g, Tensor v) -> Tensor", _reference_correlate1d, _fake_correlate1d
)
def _backward_correlate1d(ctx: Context, h: Tensor) -> Gradients:
    g, v = ctx.saved_tensors
    need_g, need_v = ctx.needs_input_grad
    return (
        operators.convolve1d(h, v) if need_g else None,
        _correlate(g, h, v.dtype) if need_v else None,
    )


@differentiable(
    "trilinear(Tensor features, Tensor points) -> Tensor",
    _reference_trilinear,
    _fake_trilinear,
)
def _backward_trilinear(ctx: Context, grad: Tensor) -> Gradients:
    features, points = ctx.saved_tensors
    # The fused kernel has no gradient. If a second derivative may be needed, torch differentiates
    # the reference.
    is_composed = is_recorded()
    backward = _reference_trilinear_backward if is_composed else operators.trilinear_backward
    grad_features, grad_points = backward(grad, features, points)
    need_features, need_points = ctx.needs_input_grad
    return grad_features if need_features else None, grad_points if need_points else None


define(
    "trilinear_backward(Tensor grad, Tensor features, Tensor points) -> (Tensor, Tensor)",
    _reference_trilinear_backward,
    _fake_trilinear_backward,
)
