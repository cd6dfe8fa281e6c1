"""Total variation as the public function `cassi.ops` offers."""

from __future__ import annotations

from typing import Literal, overload

from torch import Tensor

from cassi.ops import _checks
from cassi.ops._library import call, kernels


@overload
def tv_prox(
    x: Tensor,
    weight: float | Tensor,
    iterations: int = 5,
    *,
    coupled: bool = False,
    dual: Tensor | None = None,
    return_dual: Literal[False] = False,
) -> Tensor: ...


@overload
def tv_prox(
    x: Tensor,
    weight: float | Tensor,
    iterations: int = 5,
    *,
    coupled: bool = False,
    dual: Tensor | None = None,
    return_dual: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def tv_prox(
    x: Tensor,
    weight: float | Tensor,
    iterations: int = 5,
    *,
    coupled: bool = False,
    dual: Tensor | None = None,
    return_dual: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Denoise by isotropic total variation: argmin_u ½‖u − x‖² + weight·TV(u).

        TV(u) = Σ_c Σ_{h,w} |∇u_c|,   or coupled across bands   Σ_{h,w} √(Σ_c |∇u_c|²).

    A fixed number of projected-gradient iterations on the dual problem with step 1/8 (Chambolle,
    2005; coupled: Bresson and Chan, 2008); differences are forward, with replicated borders. In an
    iterative solver the dual of the last call is a good start for the next, and two or three
    iterations then do the work of many.

    Args:
        x: cube `(B, C, H, W)` or `(C, H, W)`.
        weight: in the units of x, >= 0; a number or one value per sample.
        iterations: number of dual iterations, >= 0.
        coupled: take one gradient norm for all bands of a pixel, which keeps edges in place across
            bands, instead of one for each band.
        dual: where to start, `(B, 2, C, H, W)` (without B if x has none) from an earlier call;
            zero if left out.
        return_dual: return the last dual as well.

    Returns:
        Cube shaped like x; with `return_dual` also the dual, in float32 at least.

    Raises:
        TypeError: x or dual is not a floating tensor, or `iterations` is not an integer.
        ValueError: wrong shape, or a negative weight or iteration count.
    """
    x, squeeze = _checks.canonical_batch("x", x, "a cube (B, C, H, W) or (C, H, W)")
    limit = _checks.per_sample("weight", weight, x)
    iterations = _checks.check_int("iterations", iterations, minimum=0)
    if dual is None and not return_dual:
        _checks.check_same_device(x=x, weight=limit)
        u = call(kernels.tv_prox.default, x, limit, iterations, coupled)
        return u[0] if squeeze else u
    start = _checks.canonical_dual(dual, x, squeeze)
    _checks.check_same_device(x=x, weight=limit, dual=x if start is None else start)
    u, last = call(kernels.tv_prox_dual.default, x, limit, start, iterations, coupled)
    if squeeze:
        u, last = u[0], last[0]
    return (u, last) if return_dual else u
