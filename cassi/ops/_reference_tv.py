"""Pure-torch total variation: the specification of the compiled kernels.

The dual (p, q) has one value per vertical and horizontal edge of every band, and

    u = x + div(p, q),   |(p, q)| ≤ weight

at each pixel. BAND takes the norm |·| of the two values of each band. FROBENIUS takes the Frobenius
norm of the 2×C matrix of all bands. NUCLEAR takes the spectral norm of this matrix: it is the dual
of the nuclear norm. One iteration is a projected gradient step of length 1/8, the inverse of the
Lipschitz constant of the dual gradient in two dimensions.

Canonical shapes: cube `(B, C, H, W)`, weight `(1|B,)`, dual `(B, 2, C, H, W)` in the dtype of the
sums.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from cassi.ops._reference import accumulation_dtype

STEP = 0.125
BAND, FROBENIUS, NUCLEAR = range(3)
_CHUNK_PIXELS = 1 << 16  # pixels that are iterated together, so that they stay in a core's cache


def tv_prox(x: Tensor, weight: Tensor, iterations: int, norm: int) -> Tensor:
    """Take projected-gradient steps on the dual of min_u ½‖u − x‖² + weight·TV(u), from zero."""
    if norm != BAND or not x.numel():
        return tv_prox_dual(x, weight, None, iterations, norm)[0]
    # Bands are independent for this norm. A few at a time stay in a core's cache in all iterations.
    dtype = accumulation_dtype(x)
    batch, bands, height, width = x.shape
    limit = _limit(weight, dtype).expand(batch, 1, 1, 1).repeat_interleave(bands, 0)
    planes = x.reshape(batch * bands, 1, height, width)
    chunk = max(1, _CHUNK_PIXELS // max(1, height * width))
    results = []
    for plane, level in zip(planes.split(chunk), limit.split(chunk), strict=True):
        image = plane.to(dtype)
        zero = torch.zeros_like(image)
        p, q = iterate(image, level, zero, zero, iterations, BAND)
        results.append(image + divergence(p, q))
    u = torch.cat(results) if results else planes
    return torch.empty_like(x).copy_(u.view(x.shape))


def tv_prox_dual(
    x: Tensor, weight: Tensor, dual: Tensor | None, iterations: int, norm: int
) -> tuple[Tensor, Tensor]:
    """Take the steps of `tv_prox`, starting from a dual; also return the last dual."""
    dtype = accumulation_dtype(x)
    image = x.to(dtype)
    if not x.numel():  # differences of an empty image are an error
        return torch.empty_like(x), torch.stack((image, image), 1)
    p, q = (torch.zeros_like(image),) * 2 if dual is None else dual.to(dtype).unbind(1)
    p, q = iterate(image, _limit(weight, dtype), p, q, iterations, norm)
    u = image + divergence(p, q)
    return torch.empty_like(x).copy_(u), torch.stack((p, q), 1).contiguous()


def tv_prox_backward(
    grad: Tensor,
    grad_dual: Tensor | None,
    x: Tensor,
    weight: Tensor,
    dual: Tensor | None,
    iterations: int,
    norm: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Differentiate the iterations of `tv_prox_dual`.

    Returns:
        Gradients of x, of the weight (one per sample), and of the dual.
    """
    if norm == NUCLEAR:
        return _recorded_backward(grad, grad_dual, x, weight, dual, iterations, norm)
    dtype = accumulation_dtype(x)
    image, limit = x.to(dtype), _limit(weight, dtype)
    zero = torch.zeros_like(image)
    p, q = (zero, zero) if dual is None else dual.to(dtype).unbind(1)
    states = [(p, q)]
    for _ in range(iterations):
        p, q = iterate(image, limit, p, q, 1, norm)
        states.append((p, q))
    grad_x = grad.to(dtype).clone()
    dp, dq = _divergence_transpose(grad_x)
    if grad_dual is not None:
        dp, dq = dp + grad_dual[:, 0], dq + grad_dual[:, 1]
    grad_limit = torch.zeros(x.shape[0], dtype=dtype, device=x.device)
    floor = torch.finfo(dtype).tiny
    for p, q in reversed(states[:-1]):
        u = image + divergence(p, q)
        a, b = p + STEP * _down(u), q + STEP * _right(u)
        norms = _edge_norms(a, b, norm)
        factor = limit / torch.maximum(norms, limit).clamp_min(floor)
        inner_product = dp * a + dq * b
        inner_product = inner_product if norm == BAND else inner_product.sum(1, keepdim=True)
        relative_product = torch.where(
            norms > limit, inner_product / norms, 0
        )  # elsewhere the shrinkage is 1
        grad_limit += relative_product.sum((1, 2, 3))
        dp = dp * factor - a * (relative_product * limit / norms.square())
        dq = dq * factor - b * (relative_product * limit / norms.square())
        du = STEP * (_down_transpose(dp) + _right_transpose(dq))
        grad_x += du
        back_p, back_q = _divergence_transpose(du)
        dp, dq = dp + back_p, dq + back_q
    return torch.empty_like(x).copy_(grad_x), grad_limit, torch.stack((dp, dq), 1).contiguous()


def iterate(
    x: Tensor, limit: Tensor, p: Tensor, q: Tensor, iterations: int, norm: int
) -> tuple[Tensor, Tensor]:
    """Take projected gradient steps on the dual."""
    floor = torch.finfo(x.dtype).tiny
    for _ in range(iterations):
        u = x + divergence(p, q)
        p, q = p + STEP * _down(u), q + STEP * _right(u)
        if norm == NUCLEAR:
            p, q = _project_spectral(p, q, limit)
            continue
        factor = limit / torch.maximum(_edge_norms(p, q, norm), limit).clamp_min(floor)
        p, q = p * factor, q * factor
    return p, q


def _project_spectral(p: Tensor, q: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """Project the 2×C matrix (p; q) of every pixel onto the ball of spectral norm `limit`.

    The projection is f(S) (p; q), with S = (p; q)(p; q)ᵀ and f(s) = min(1, limit/√s). S is 2×2. So
    f(S) equals the linear function of S that agrees with f at the two eigenvalues.
    """
    floor = torch.finfo(p.dtype).tiny

    def shrinkage(eigenvalue: Tensor) -> Tensor:
        singular_value = (eigenvalue + floor).sqrt()
        return limit / torch.maximum(singular_value, limit).clamp_min(floor)

    a, b, c = ((s * t).sum(1, keepdim=True) for s, t in ((p, p), (p, q), (q, q)))
    trace = a + c + floor
    half_difference, off_diagonal = 0.5 * (a - c) / trace, b / trace
    radius = (half_difference.square() + off_diagonal.square() + floor).sqrt()
    large_factor, small_factor = (
        shrinkage(trace * (0.5 + radius)),
        shrinkage(trace * (0.5 - radius).clamp_min(0)),
    )
    mean_factor, slope = (
        0.5 * (large_factor + small_factor),
        0.5 * (large_factor - small_factor) / radius,
    )
    cross_term = slope * off_diagonal
    return (mean_factor + slope * half_difference) * p + cross_term * q, cross_term * p + (
        mean_factor - slope * half_difference
    ) * q


def _recorded_backward(
    grad: Tensor,
    grad_dual: Tensor | None,
    x: Tensor,
    weight: Tensor,
    dual: Tensor | None,
    iterations: int,
    norm: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Differentiate by autograd through the iterations."""
    dtype = accumulation_dtype(x)
    batch, bands, height, width = x.shape
    with torch.enable_grad():
        image = x.detach().to(dtype).requires_grad_()
        limit = weight.detach().to(dtype).expand(batch).clone().requires_grad_()
        start = x.new_zeros((batch, 2, bands, height, width), dtype=dtype)
        start = (start if dual is None else dual.detach().to(dtype)).clone().requires_grad_()
        u, last = tv_prox_dual(image, limit, start, iterations, norm)
        upstream = [grad.to(dtype), torch.zeros_like(last) if grad_dual is None else grad_dual]
        gradients = torch.autograd.grad(
            (u, last), (image, limit, start), upstream, materialize_grads=True
        )
    return torch.empty_like(x).copy_(gradients[0]), gradients[1], gradients[2]


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """Subtract from each edge's value the value of the edge before it; add both axes."""
    return (p - pad(p, (0, 0, 1, -1))) + (q - pad(q, (1, -1)))


def _limit(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.to(dtype).clamp_max(torch.finfo(dtype).max).view(-1, 1, 1, 1)


def _edge_norms(p: Tensor, q: Tensor, norm: int) -> Tensor:
    square = p * p + q * q
    square = square if norm == BAND else square.sum(1, keepdim=True)
    return (square + torch.finfo(p.dtype).tiny).sqrt()


def _down(u: Tensor) -> Tensor:
    return pad(u.diff(dim=-2), (0, 0, 0, 1))


def _right(u: Tensor) -> Tensor:
    return pad(u.diff(dim=-1), (0, 1))


def _down_transpose(p: Tensor) -> Tensor:
    p = p[..., :-1, :]
    return pad(p, (0, 0, 1, 0)) - pad(p, (0, 0, 0, 1))


def _right_transpose(q: Tensor) -> Tensor:
    q = q[..., :-1]
    return pad(q, (1, 0)) - pad(q, (0, 1))


def _divergence_transpose(u: Tensor) -> tuple[Tensor, Tensor]:
    return u - pad(u, (0, 0, -1, 1)), u - pad(u, (-1, 1))
