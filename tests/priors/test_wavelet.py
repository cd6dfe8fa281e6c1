"""The transform of the wavelet prior against PyWavelets' own."""

import numpy as np
import pytest
import pywt
import torch

from cassi.priors.wavelet import _make_orthogonal_matrix

NAMES = ["haar", "db2", "db3", "sym4", "coif1", "db10"]


def matrix(name, n):
    return _make_orthogonal_matrix(name, n, torch.float64, torch.device("cpu")).to_dense()


@pytest.mark.parametrize("name", NAMES)
def test_inside_it_is_that_of_pywavelets(name):
    taps = pywt.Wavelet(name).dec_len
    x = np.random.default_rng(0).normal(size=96)
    ours = (matrix(name, 96) @ torch.from_numpy(x)).numpy().reshape(2, 48)
    # PyWavelets has Σ_k h_k x[2r + 1 − k], here it is x[2r + L/2 − k].
    shift = taps // 2 - 1
    theirs = np.stack(pywt.dwt(np.roll(x, -(shift % 2)), name, mode="periodic"))
    for r in range(taps, 48 - taps):
        np.testing.assert_allclose(ours[:, r], theirs[:, r + shift // 2], rtol=0, atol=1e-12)
