"""The package's operators as compositions of torch operators, for exported graphs.

The references change tensors in place. An exported graph cannot contain such changes, so the
functions here make none. For ONNX some operators of torch itself are replaced too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad, relu

from cassi.ops import _eigen, _reference, _reference_tv
from cassi.ops._library import Kernel, operator
from cassi.ops._reference import accumulation_dtype, detector_width

if TYPE_CHECKING:
    from torch._ops import OpOverload


def _sum_bands(planes: Tensor, step: int) -> Tensor:
    """Sum planes `(…, C, H, W)`, each shifted by its offset: `(…, H, W')`."""
    # The rows of all bands are padded to W' + |step| columns and joined to one long row. This row
    # is then cut into pieces of W' columns. In its piece, band c lies c·|step| columns further to
    # the right. So two views shift all bands.
    bands, width = planes.shape[-3], planes.shape[-1]
    planes = planes.flip(-3) if step < 0 else planes
    detector = detector_width(width, bands, step)
    row = pad(planes.movedim(-3, -2), (0, detector + abs(step) - width)).flatten(-2)
    return row[..., : bands * detector].unflatten(-1, (bands, detector)).sum(-2)


def _cut_bands(y: Tensor, bands: int, width: int, step: int) -> Tensor:
    """Cut the window of each band out of `(…, H, W')`: `(…, C, H, W)`."""
    if step == 0 or bands == 1:
        return y.unsqueeze(-3).expand(*y.shape[:-2], bands, *y.shape[-2:])
    planes = y.unfold(-1, width, abs(step)).movedim(-2, -3)
    return planes.flip(-3) if step < 0 else planes


def forward(x: Tensor, mask: Tensor, step: int) -> Tensor:
    """Compute y = A x."""
    dtype = accumulation_dtype(x, mask)
    return _sum_bands(x.to(dtype).unsqueeze(1) * mask.to(dtype), step).to(x.dtype)


def adjoint(y: Tensor, mask: Tensor, bands: int, step: int, channels_last: bool = False) -> Tensor:
    """Compute Aᵀy."""
    dtype = accumulation_dtype(y, mask)
    windows = _cut_bands(y.to(dtype), bands, mask.shape[-1], step)
    return (windows * mask.to(dtype)).sum(1).to(y.dtype)


def add_adjoint(v: Tensor, y: Tensor, mask: Tensor, step: int) -> Tensor:
    """Compute v + Aᵀy."""
    dtype = accumulation_dtype(v, y, mask)
    return (v + adjoint(y.to(dtype), mask, v.shape[1], step)).to(v.dtype)


def gram(mask: Tensor, bands: int, step: int) -> Tensor:
    """Compute A Aᵀ, K×K per pixel."""
    m = mask.to(accumulation_dtype(mask))
    products = m.unsqueeze(2) * m.unsqueeze(1)
    return _sum_bands(products.expand(-1, -1, -1, bands, -1, -1), step)


def gram_solve(r: Tensor, gram: Tensor, rho: Tensor) -> Tensor:
    """Compute (G + D)⁺ r for one shot.

    Raises:
        ValueError: there are several shots. These need eigenvalues, for which ONNX has no operator.
    """
    if gram.shape[1] != 1:
        raise ValueError(f"gram_solve: expected one shot to export, got {gram.shape[1]}")
    return _reference.gram_solve(r, gram, rho)


def data_step(v: Tensor, y: Tensor, mask: Tensor, gram: Tensor, rho: Tensor, step: int) -> Tensor:
    """Compute v + Aᵀ(AAᵀ + D)⁺(y − Av)."""
    dtype = accumulation_dtype(v, y, mask)
    residual = y.to(dtype) - forward(v.to(dtype), mask, step)
    return add_adjoint(v, gram_solve(residual, gram, rho), mask, step)


def ratio_inverse(
    y: Tensor, mask: Tensor, bands: int, step: int, channels_last: bool = False
) -> Tensor:
    """Divide y by the number of bands at each pixel, cut out each band, and divide by the mask."""
    dtype = accumulation_dtype(y, mask)
    ones = torch.ones((1, 1, bands, 1, mask.shape[-1]), dtype=dtype, device=y.device)
    count = gram(ones, bands, step)[:, 0].clamp_min(1)
    inverse = mask.to(dtype).clamp_min(_reference.RATIO_FLOOR).reciprocal()
    return adjoint(y.to(dtype) / count, inverse, bands, step).to(y.dtype)


def forward_subspace(components: Tensor, basis: Tensor, mask: Tensor, step: int) -> Tensor:
    """Compute y = A E a, with the components a and the basis E."""
    dtype = accumulation_dtype(components, basis, mask)
    cube = basis.to(dtype) @ components.to(dtype).flatten(2)
    cube = cube.unflatten(2, components.shape[2:])
    return forward(cube, mask, step).to(components.dtype)


def adjoint_subspace(y: Tensor, basis: Tensor, mask: Tensor, step: int) -> Tensor:
    """Compute the components EᵀAᵀy."""
    dtype = accumulation_dtype(y, basis, mask)
    cube = adjoint(y.to(dtype), mask, basis.shape[-2], step)
    return (basis.to(dtype).mT @ cube.flatten(2)).unflatten(2, cube.shape[2:]).to(y.dtype)


def tv_prox(x: Tensor, weight: Tensor, iterations: int, norm: int) -> Tensor:
    """Smooth by total variation, see `cassi.ops.tv_prox`."""
    return tv_prox_dual(x, weight, None, iterations, norm)[0]


def tv_prox_dual(
    x: Tensor, weight: Tensor, dual: Tensor | None, iterations: int, norm: int
) -> tuple[Tensor, Tensor]:
    """Smooth by total variation, starting from a dual; also return the last dual."""
    dtype = accumulation_dtype(x)
    image = x.to(dtype)
    limit = weight.to(dtype).clamp_max(torch.finfo(dtype).max).view(-1, 1, 1, 1)
    p, q = (torch.zeros_like(image),) * 2 if dual is None else dual.to(dtype).unbind(1)
    p, q = _reference_tv.iterate(image, limit, p, q, iterations, norm)
    return (image + _reference_tv.divergence(p, q)).to(x.dtype), torch.stack((p, q), 1)


def convolve3x3(
    image: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, rectify: bool
) -> Tensor:
    """Convolve images, add a residual, clip at zero."""
    y = conv2d(image, weight, bias, padding=1)
    y = y if residual is None else y + residual
    return relu(y) if rectify else y


def selective_scan(u: Tensor, delta: Tensor, rates: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Compute h_t = exp(Δ_t a) h_{t−1} + Δ_t b_t u_t and y_t = Σ_n c_t h_t in log₂ L passes.

    Each step has a pair (a, h) of decay and state. Pass k replaces it by (a·a', h + a·h'), where
    (a', h') is the pair 2ᵏ steps before.

    Source: Hillis and Steele, "Data parallel algorithms", Communications of the ACM 1986.
    """
    dtype, length = accumulation_dtype(u, delta, rates, b, c), u.shape[1]
    step = delta.to(dtype).unsqueeze(-1)  # (B, L, D, 1)
    decay = torch.exp(step * rates.to(dtype).unsqueeze(1))
    state = step * u.to(dtype).unsqueeze(-1) * b.to(dtype).unsqueeze(2)
    distance = 1
    while distance < length:
        previous = [pad(v[:, :-distance], (0, 0, 0, 0, distance, 0)) for v in (state, decay)]
        state, decay = state + decay * previous[0], decay * previous[1]
        distance *= 2
    return (state * c.to(dtype).unsqueeze(2)).sum(-1).to(u.dtype)


def linalg_qr(a: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """Factor `(…, M, N)`, M >= N, into Q R by Householder reflections, with the signs of LAPACK.

    Source: Golub and Van Loan, "Matrix computations", 4th edition, algorithm 5.2.1.
    """
    rows, columns = a.shape[-2:]
    reflections, r = [], a
    for j in range(min(rows - 1, columns)):
        x = r[..., j:, j]
        first, tail = x[..., :1], x[..., 1:].square().sum(-1, True)
        size = (first.square() + tail).sqrt()
        length = torch.where(first < 0, size, -size)
        # A column that is zero below the diagonal is not reflected, as in LAPACK.
        is_reduced = tail == 0
        scale = torch.where(is_reduced, torch.ones_like(first), first - length)
        vector = torch.cat((torch.ones_like(first), x[..., 1:] / scale), -1)
        vector = pad(vector, (j, 0))
        tau = torch.where(is_reduced, torch.zeros_like(first), (length - first) / length)
        reflections.append((vector, tau))
        r = r - tau.unsqueeze(-1) * vector.unsqueeze(-1) * (vector.unsqueeze(-2) @ r)
    q = torch.eye(rows, columns, dtype=a.dtype, device=a.device).expand(a.shape)
    for vector, tau in reversed(reflections):
        q = q - tau.unsqueeze(-1) * vector.unsqueeze(-1) * (vector.unsqueeze(-2) @ q)
    return q, r[..., :columns, :].triu()


def _cos_sin_tables(size: int, count: int, tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin of 2π·k·j/size, `(size, count)`."""
    # The sine of multiples of π is set to 0, because its rounding error would give real values a
    # phase.
    numbers = [torch.arange(n, device=tensor.device) for n in (size, count)]
    turns = (numbers[0][:, None] * numbers[1]) % size
    angle = turns.double() * (2 * math.pi / size)
    sines = torch.where(2 * turns % size == 0, torch.zeros_like(angle), angle.sin())
    return angle.cos().to(tensor.dtype), sines.to(tensor.dtype)


def _multiply_along(x: Tensor, table: Tensor, axis: int) -> Tensor:
    return (x.movedim(axis, -1) @ table).movedim(-1, axis)


def _rotate_sum(re: Tensor, im: Tensor, axis: int, sign: int) -> tuple[Tensor, Tensor]:
    """Return Σ_j z_j exp(±2πi·k·j/n) along an axis, as real and imaginary part."""
    cos, sin = _cos_sin_tables(re.shape[axis], re.shape[axis], re)
    real_part = _multiply_along(re, cos, axis) - sign * _multiply_along(im, sin, axis)
    return real_part, sign * _multiply_along(re, sin, axis) + _multiply_along(im, cos, axis)


def _check_transform(s: Sequence[int] | None, norm: str | None, expected: Sequence[int]) -> None:
    if norm not in (None, "backward") or (s is not None and list(s) != list(expected)):
        raise ValueError(f"expected a transform of whole images, got s={s} and norm={norm!r}")


def fft_rfft2(
    x: Tensor,
    s: Sequence[int] | None = None,
    dim: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Tensor:
    """Transform real images by sums instead of a fast Fourier transform.

    Values that are real for every image, such as the mean, have an imaginary part of exactly 0. So
    their phase is 0 or π, never −π.
    """
    first, last = dim
    size = x.shape[last]
    _check_transform(s, norm, (x.shape[first], size))
    cos, sin = _cos_sin_tables(size, size // 2 + 1, x)
    return torch.complex(
        *_rotate_sum(_multiply_along(x, cos, last), -_multiply_along(x, sin, last), first, -1)
    )


def fft_irfft2(
    z: Tensor,
    s: Sequence[int] | None = None,
    dim: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Tensor:
    """Transform half of a spectrum back to real images."""
    first, last = dim
    height, count = z.shape[first], z.shape[last]
    width = 2 * (count - 1) if s is None else s[1]
    _check_transform(s, norm, (height, width))
    re, im = torch.view_as_real(z).unbind(-1)
    re, im = _rotate_sum(re, im, first, 1)
    cos, sin = _cos_sin_tables(width, count, re)
    # Most frequencies count twice, because each has a conjugate in the other half of the spectrum.
    # The mean, and the highest frequency of an even width, have none.
    order = torch.arange(count, device=z.device)
    multiplicity = torch.where((order == 0) | (2 * order == width), 1.0, 2.0).to(re.dtype)
    x = _multiply_along(re, multiplicity[:, None] * cos.mT, last) - _multiply_along(
        im, multiplicity[:, None] * sin.mT, last
    )
    return x / (height * width)


def angle(z: Tensor) -> Tensor:
    """Compute the phase in (−π, π]; ONNX returns −π for negative numbers, this function π."""
    if not z.is_complex():
        return torch.where(z < 0, torch.full_like(z, math.pi), torch.zeros_like(z))
    re, im = torch.view_as_real(z).unbind(-1)
    pi = torch.full_like(re, math.pi)
    imaginary_sign_pi = torch.where(im < 0, -pi, pi)
    result = torch.atan(im / re) + torch.where(
        re < 0, imaginary_sign_pi, torch.zeros_like(imaginary_sign_pi)
    )
    return torch.where((re == 0) & (im == 0), torch.zeros_like(imaginary_sign_pi), result)


# OpOverload of the package → function of torch operators.
OUR_DECOMPOSITIONS: dict[OpOverload, Kernel] = {
    operator(function.__name__): function
    for function in (
        forward,
        adjoint,
        add_adjoint,
        gram,
        gram_solve,
        data_step,
        ratio_inverse,
        forward_subspace,
        adjoint_subspace,
        tv_prox,
        tv_prox_dual,
        convolve3x3,
        selective_scan,
    )
}
# This reference changes no tensor in place, so it serves here too.
OUR_DECOMPOSITIONS[operator("orthogonal_iteration")] = _eigen.reference
# For ONNX these are added: operators of torch that ONNX lacks, or computes less exactly.
ONNX_DECOMPOSITIONS: dict[OpOverload, Kernel] = {
    **OUR_DECOMPOSITIONS,
    torch.ops.aten.linalg_qr.default: linalg_qr,
    torch.ops.aten.angle.default: angle,
    torch.ops.aten.fft_rfft2.default: fft_rfft2,
    torch.ops.aten.fft_irfft2.default: fft_irfft2,
}
