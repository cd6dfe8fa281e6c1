"""Arguments that fit every operator, small enough for any test of all of them."""

from functools import partial

import torch
from shared import rand

from cassi import ops

SOLVING = ["gram_solve", "data_step", "data_step_backward"]
CAMERA = ["forward", "adjoint", "add_adjoint", "mask_adjoint", "ratio_inverse", "gram"]
CAMERA += ["forward_subspace", "adjoint_subspace", *SOLVING]
"""Operators of a camera with a step; those of SOLVING have a ρ."""
B, C, H, W, STEP = 2, 3, 4, 5, -2
WIDE = W + (C - 1) * abs(STEP)


def kernel_calls(shots=1, samples=1, bands=1, dtype=torch.float64, seed=0):
    """Return the arguments of every operator by its name; a new one without them fails its tests.

    Args:
        shots: number K; with several there is a ρ for each detector pixel.
        samples: of the mask, 1 or B.
        bands: of the mask, 1 or C.
        dtype: of cubes, measurements and masks, which are not contiguous.
        seed: of the numbers.
    """
    draw, many = partial(rand, low=0.1, seed=seed), shots > 1
    x, y, m = draw(B, C, H, W), draw(B, shots, H, WIDE), draw(samples, shots, bands, H, W)
    x, y, m, g = (_turned(value).to(dtype) for value in (x, y, m, ops.gram(m, C, STEP)))
    rho = draw(B, dtype=torch.float32 if dtype.itemsize < 8 else dtype)
    damping = draw(samples, shots, H, WIDE).to(rho.dtype) if many else rho.view(-1, 1, 1, 1)
    dual = (draw(B, 2, C, H, W) * 0.01).to(rho.dtype)
    taps, basis = (draw(samples, C, 2).to(dtype) for _ in range(2))
    starts = torch.tensor([[0, 1, 3]]).expand(samples, -1).contiguous()
    after = samples > 1
    code = _turned(draw(samples, shots, bands, H, W + after)).to(dtype)
    band = ops.gram_taps(m[0].double(), taps[0].double(), starts[0], WIDE)
    rows, kernel = draw(6, 4, dtype=dtype).mT, draw(4, 3, dtype=dtype)
    cells, points = draw(4, 2, 8, dtype=dtype).mT, draw(4, 3, dtype=dtype)
    u, states = draw(B, 5, 3, dtype=dtype), draw(B, 5, 2, dtype=dtype)
    sequences = u, _turned(u * 0.5), -draw(samples, 3, 2, dtype=dtype), states, states * 0.5
    spectra = draw(B, C, C).double()
    moments, frame = spectra.mT @ spectra, torch.linalg.qr(draw(B, C, 2).double())[0]
    convolution = _turned(draw(C, C, 3, 3)).to(dtype), draw(samples * C).to(dtype)[:C]
    return {
        "forward": (x, m, STEP),
        "adjoint": (y, m, C, STEP),
        "add_adjoint": (x, y, m, STEP),
        "forward_subspace": (x[:, :2], basis, m, STEP),
        "adjoint_subspace": (y, basis, m, STEP),
        "mask_adjoint": (x, y, STEP, samples > 1, bands > 1),
        "ratio_inverse": (y[:, :1], m[:, :1], C, STEP),
        "gram": (m, C, STEP),
        "gram_solve": (y, g, damping),
        "data_step": (x, y, m, g, damping, STEP),
        "data_step_backward": (x * 0.5, x, y, m, g, damping, STEP, True, True),
        "forward_taps": (x, code, taps, starts, WIDE, after),
        "adjoint_taps": (y, code, taps, starts, False, after),
        "add_adjoint_taps": (x, y, code, taps, starts, after),
        "mask_adjoint_taps": (x, y, taps, starts, after, samples > 1, bands > 1),
        "band_solve": (y, band, damping),
        "convolve1d": (rows, kernel),
        "correlate1d": (rows, kernel),
        "convolve3x3": (x, *convolution, x if samples > 1 else None, many),
        "convolve3x3_backward": (x * 0.5, x),
        "trilinear": (cells, points),
        "trilinear_backward": (draw(2, 4, dtype=dtype).mT, cells, points),
        "selective_scan": sequences,
        "selective_scan_backward": (draw(B, 5, 3, dtype=dtype), *sequences),
        "shrink_groups": (x, torch.tensor([[[0, 7, 1]], [[3, 2, 3]]]), rho, 2),
        "orthogonal_iteration": (moments.to(dtype), _turned(frame).to(dtype), 2),
        "tv_prox": (x, rho * 0.1, 2, many),
        "tv_prox_dual": (x, rho * 0.1, dual, 2, not many),
        "tv_prox_backward": (x, dual, x, rho * 0.1, dual, 2, many),
    }


def _turned(value):
    """Equal values, other strides."""
    return value.movedim(1, -1).contiguous().movedim(-1, 1)
