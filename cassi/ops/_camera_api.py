"""The camera's operators as the public functions `cassi.ops` offers: checks, then the kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from cassi.ops import _checks
from cassi.ops._library import call, kernels


def forward(x: Tensor, mask: Tensor, step: int) -> Tensor:
    """Apply the camera: y = A x.

    Args:
        x: cube `(B, C, H, W)` or `(C, H, W)`.
        mask: transmission, see the module's shapes.
        step: dispersion, pixels per band; negative moves the last band least.

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
    y = call(kernels.forward.default, x, m, _checks.check_int("step", step))
    return y[0] if squeeze else y


def adjoint(
    y: Tensor, mask: Tensor, bands: int, step: int, *, channels_last: bool = False
) -> Tensor:
    """Apply the transpose: x[c, h, w] = Σ_k m[k, c, h, w] · y[k, h, w + o(c)].

    Args:
        y: measurement `(B, K, H, W')` or `(K, H, W')`.
        mask: transmission, see the module's shapes.
        bands: number of bands C of the cube.
        step: dispersion, pixels per band.
        channels_last: lay the cube out with its bands innermost, as convolutions like it.

    Returns:
        Cube `(B, C, H, W)`, without B if y has none.

    Raises:
        TypeError: an argument is not a floating tensor, or `bands`, `step` are not integers.
        ValueError: shapes or devices do not fit each other.
    """
    bands, step = _checks.check_int("bands", bands, 1), _checks.check_int("step", step)
    y, m, squeeze = _measurement_and_mask(y, mask, bands, step)
    x = call(kernels.adjoint.default, y, m, bands, step, channels_last)
    return x[0] if squeeze else x


def ratio_inverse(
    y: Tensor, mask: Tensor, bands: int, step: int, *, channels_last: bool = False
) -> Tensor:
    """Divide y by the number of bands n that reach each pixel, and each window by the mask.

        x[c, h, w] = y[h, w + o(c)] / n(w + o(c)) / max(m[c, h, w], 1e-12)

    It satisfies A x = y wherever the mask is above 1e-12, but is longer than `A⁺y` and amplifies
    noise where the mask is dark.

    Args:
        y: measurement `(B, 1, H, W')` or `(1, H, W')`.
        mask: transmission of one shot.
        bands: number of bands C of the cube.
        step: dispersion, pixels per band.
        channels_last: lay the cube out with its bands innermost, as convolutions like it.

    Returns:
        Cube `(B, C, H, W)`, without B if y has none.

    Raises:
        TypeError: an argument is not a floating tensor, or `bands`, `step` are not integers.
        ValueError: shapes or devices do not fit, or the mask has several shots, for which no such
            inverse exists.
    """
    bands, step = _checks.check_int("bands", bands, 1), _checks.check_int("step", step)
    y, m, squeeze = _measurement_and_mask(y, mask, bands, step)
    if m.shape[1] != 1:
        raise ValueError(
            f"ratio_inverse: expected a mask of one shot, got {m.shape[1]} shots; use pinv instead"
        )
    x = call(kernels.ratio_inverse.default, y, m, bands, step, channels_last)
    return x[0] if squeeze else x


def gram(mask: Tensor, bands: int, step: int) -> Tensor:
    """Compute A Aᵀ, which couples only the K shots at one detector pixel.

        G[k, l, h, w'] = Σ_c m[k, c, h, w' - o(c)] · m[l, c, h, w' - o(c)]

    For one shot this is the Σ of squared shifted masks that the literature calls Φs.

    Args:
        mask: transmission, see the module's shapes.
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
    g = call(kernels.gram.default, m, bands, step)
    return g if mask.ndim == 5 else g[0]


def gram_solve(r: Tensor, gram: Tensor, rho: float | Tensor = 0.0) -> Tensor:
    """Compute (G + ρI)⁺ r at every detector pixel.

    The Moore–Penrose inverse is taken where the K×K matrix is singular; with one shot that means
    zero where no light arrives.

    Args:
        r: measurement-shaped right-hand side `(B, K, H, W')` or `(K, H, W')`.
        gram: `(K, K, H, W')` or `(B, K, K, H, W')`, from `gram`.
        rho: ρ >= 0, a number or one value per sample; a tensor's values are not checked.

    Returns:
        The solution, shaped like r.

    Raises:
        TypeError: an argument is not a floating tensor (ρ: or a number).
        ValueError: shapes or devices do not fit, or ρ is negative.
    """
    r, squeeze = _checks.canonical_batch("r", r, "(B, K, H, W') or (K, H, W')")
    g = _canonical_gram(gram, r)
    weight = _checks.per_sample("rho", rho, r)
    _checks.check_same_device(r=r, gram=g, rho=weight)
    z = call(kernels.gram_solve.default, r, g, weight)
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

    ρ = 0 gives the Euclidean projection onto {x : Ax = y}, the step of GAP (Liao, Li, Carin, 2014);
    ρ > 0 the x-update of ADMM.

    Args:
        v: cube `(B, C, H, W)` or `(C, H, W)`.
        y: measurement `(B, K, H, W')` or `(K, H, W')`.
        mask: transmission, see the module's shapes.
        step: dispersion, pixels per band.
        rho: ρ >= 0, a number or one value per sample; a tensor's values are not checked.
        gram: `gram(mask, C, step)` when it is known already. It saves time and must equal that
            value: gradients with respect to the mask always include the path through the gram.

    Returns:
        Cube shaped like v.

    Raises:
        TypeError: an argument is not a floating tensor (ρ: or a number).
        ValueError: shapes or devices do not fit, ρ is negative, or `gram` requires a gradient.
    """
    m = _checks.canonical_mask(mask)
    v, squeeze = _checks.canonical_batch("v", v, "a cube (B, C, H, W) or (C, H, W)")
    y, _ = _checks.canonical_batch("y", y, "a measurement (B, K, H, W') or (K, H, W')")
    step = _checks.check_int("step", step)
    _checks.check_cube("v", v, m)
    _checks.check_measurement(y, m, v.shape[1], step)
    if y.shape[0] != v.shape[0]:
        raise ValueError(f"y: expected a batch of {v.shape[0]} as in v, got {y.shape[0]}")
    if gram is None:
        with torch.no_grad():
            g = call(kernels.gram.default, m, v.shape[1], step)
    else:
        g = _canonical_gram(gram, y)
        if g.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                "gram: expected no gradient; leave it out, and it is derived from the mask"
            )
    weight = _checks.per_sample("rho", rho, v)
    _checks.check_same_device(v=v, y=y, mask=m, gram=g, rho=weight)
    x = call(kernels.data_step.default, v, y, m, g, weight, step)
    return x[0] if squeeze else x


def _measurement_and_mask(
    y: Tensor, mask: Tensor, bands: int, step: int
) -> tuple[Tensor, Tensor, bool]:
    m = _checks.canonical_mask(mask)
    y, squeeze = _checks.canonical_batch("y", y, "a measurement (B, K, H, W') or (K, H, W')")
    _checks.check_same_device(y=y, mask=m)
    _checks.check_measurement(y, m, bands, step)
    return y, m, squeeze


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
