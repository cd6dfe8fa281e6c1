"""The operators that exported graphs are made of, against the kernels."""

import pytest
import torch
from shared import rand

from cassi.ops._library import operators
from cassi.ops._plain import ONNX_DECOMPOSITIONS

B, C, H, W = 2, 3, 4, 5


@pytest.mark.parametrize("step", [2, 0, -1, 7])
@pytest.mark.parametrize(("samples", "bands"), [(1, 1), (B, C)])
def test_plain_equals_the_kernels(step, samples, bands):
    wide = W + (C - 1) * abs(step)
    x, y, m = rand(B, C, H, W), rand(B, 1, H, wide, seed=1), rand(samples, 1, bands, H, W, seed=2)
    gram, rho = operators.gram(m, C, step), rand(B, 1, 1, 1, seed=3)
    rho[0] = 0
    basis = rand(B, C, 2, seed=4)
    dual = rand(B, 2, C, H, W, seed=5, low=-0.5)
    spectra = rand(B, C, 5, seed=6)
    scanned = (rand(B, 7, 2), rand(B, 7, 2, seed=1))
    arguments = {
        "forward": (x, m, step),
        "adjoint": (y, m, C, step),
        "add_adjoint": (x, y, m, step),
        "gram": (m, C, step),
        "gram_solve": (y, gram, rho),
        "data_step": (x, y, m, gram, rho, step),
        "ratio_inverse": (y, m, C, step),
        "forward_subspace": (x[:, :2], basis, m, step),
        "adjoint_subspace": (y, basis, m, step),
        "tv_prox": (x, rand(B), 3, step % 3),
        "tv_prox_dual": (x, rand(B), dual, 3, step % 3),
        "convolve3x3": (x, rand(2, C, 3, 3), rand(2), -x[:, :2], True),
        "selective_scan": (rand(B, 7, 3), rand(B, 7, 3, seed=1), -rand(1, 3, 2), *scanned),
        "orthogonal_iteration": (spectra @ spectra.mT, torch.linalg.qr(basis)[0], 3),
        "linalg_qr": (x.mT - 0.5,),
        "fft_rfft2": (x,),
        "fft_irfft2": (torch.fft.rfft2(x),),
        "angle": (torch.complex(x - 0.5, 0.5 - x),),
    }
    assert set(arguments) == {op._opname for op in ONNX_DECOMPOSITIONS}
    for op, plain in ONNX_DECOMPOSITIONS.items():
        given = arguments[op._opname]
        torch.testing.assert_close(plain(*given), op(*given), rtol=1e-13, atol=1e-13)


def test_several_shots_do_not_export():
    gram = torch.ones(1, 2, 2, H, W)
    with pytest.raises(ValueError, match="expected one shot to export, got 2"):
        ONNX_DECOMPOSITIONS[operators.gram_solve.default](
            rand(B, 2, H, W), gram, torch.ones(1, 1, 1, 1)
        )
