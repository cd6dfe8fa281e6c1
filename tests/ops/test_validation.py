"""Messages of the public boundary: what was expected, and what came."""

import numpy as np
import pytest
import torch

from cassi import ops

X, Y, M = torch.rand(2, 3, 4, 5), torch.rand(2, 1, 4, 9), torch.rand(4, 5)
G, R = torch.rand(1, 1, 4, 9), torch.tensor
TAPS, STARTS = torch.ones(3, 2), torch.zeros(3, dtype=torch.int64)
CELLS, POINTS, VOLUME = torch.rand(4, 8, 2), torch.rand(4, 3), torch.rand(2, 3, 4, 5)
GROUPS, T = torch.zeros(2, 4, 5, dtype=torch.int64), torch.ones(1)
U, RATES, STATES = torch.rand(2, 4, 3), torch.rand(3, 5), torch.rand(2, 4, 5)
W, A = torch.rand(7, 3, 3, 3), torch.rand(2, 5)

WRONG_TYPES = [
    (lambda: ops.forward(np.ones((3, 4, 5)), M, 2), "x: expected a torch.Tensor, got ndarray"),
    (
        lambda: ops.forward(X.int(), M, 2),
        "x: expected float32, float64, bfloat16 or float16, got torch.int32; "
        "convert it with x.float()",
    ),
    (
        lambda: ops.forward(X, M.to_sparse(), 2),
        "mask: expected a dense tensor, got layout torch.sparse_coo",
    ),
    (lambda: ops.forward(X, M, 2.0), "step: expected an integer, got 2.0"),
    (lambda: ops.adjoint(Y, M, 3, True), "step: expected an integer, got True"),
    (lambda: ops.gram([[1.0]], 3, 2), "mask: expected a torch.Tensor, got list"),
    (lambda: ops.gram_solve(Y, G, "0"), "rho: expected a number or a tensor, got '0'"),
    (lambda: ops.data_step(X, Y, M, 2, R([1, 2])), "rho: expected float32"),
    (lambda: ops.data_step(X, Y, M, 2, True), "rho: expected a number or a tensor, got True"),
    (lambda: ops.data_step(X, Y, M, 2, 0.0, G.numpy()), "gram: expected a .*Tensor, got ndarray"),
    (lambda: ops.tv_prox(X, None), "weight: expected a number or a tensor, got None"),
    (lambda: ops.tv_prox(X, 0.1, 2.5), "iterations: expected an integer, got 2.5"),
    (lambda: ops.tv_prox(X, 0.1, dual=[0.0]), "dual: expected a torch.Tensor, got list"),
    (lambda: ops.forward_taps(X, M, TAPS, STARTS.float(), 9), "starts: expected an int64 tensor"),
    (lambda: ops.forward_taps(X, M, TAPS, STARTS.to_sparse(), 9), "starts: expected a dense"),
    (lambda: ops.linear_taps(-1), "offsets: expected a torch.Tensor, got int"),
    (lambda: ops.convolve1d([1.0], A), "a: expected a torch.Tensor, got list"),
    (lambda: ops.trilinear(CELLS, POINTS.long()), "points: expected float32"),
    (lambda: ops.sample_volume(3, POINTS), "volume: expected a torch.Tensor"),
    (lambda: ops.selective_scan(U, U, RATES.long(), STATES, STATES), "rates: expected float32"),
    (lambda: ops.shrink_groups(X, GROUPS.int(), T, 3), "groups: expected int64, got torch.int32"),
    (lambda: ops.convolve3x3(X.long(), W), "image: expected"),
    (lambda: torch.ops.cassi.gram(None, 6, 4), "gram: expected a tensor mask, got None"),
]
WRONG_VALUES = [
    (
        lambda: ops.forward(M, M, 2),
        r"x: expected a cube \(B, C, H, W\) or \(C, H, W\), got shape \(4, 5\)",
    ),
    (lambda: ops.adjoint(M, M, 3, 2), r"y: expected a measurement \(B, K, H"),
    (lambda: ops.forward(X, M[0], 2), r"mask: expected \(H, W\), \(C, H, W\), .* got shape \(5,\)"),
    (lambda: ops.gram(M[:0], 3, 2), r"mask: expected at least one pixel, got .*0, 5"),
    (
        lambda: ops.forward(X, M.T, 2),
        r"x: expected the mask's height and width \(5, 4\), got shape \(2, 3, 4, 5\)",
    ),
    (
        lambda: ops.forward(X, M.expand(2, 4, 5), 2),
        r"mask: expected 1 or 3 bands, got 2; a 3-D mask is \(C, H, W\)",
    ),
    (lambda: ops.adjoint(Y, M, 0, 2), "bands: expected at least 1, got 0"),
    (
        lambda: ops.forward(X, M.expand(3, 1, 1, 4, 5), 2),
        r"mask: expected one for all or one per sample of x \(2\), got 3",
    ),
    (
        lambda: ops.adjoint(Y, M, 3, -3),
        r"y: expected \(B, K, H, W'\) = \(B, 1, 4, 11\) for a 4 x 5 mask, 3 bands and step -3, "
        r"got shape \(2, 1, 4, 9\)",
    ),
    (lambda: ops.data_step(X, Y[:1], M, 2), "y: expected a batch of 2 as in v, got 1"),
    (
        lambda: ops.ratio_inverse(Y.expand(2, 2, 4, 9), M.expand(2, 1, 4, 5), 3, 2),
        "ratio_inverse: expected a mask of one shot, got 2 shots; use pinv instead",
    ),
    (
        lambda: ops.gram_solve(Y, G[..., 1:]),
        r"gram: expected \(K, K, H, W'\) = \(1, 1, 4, 9\), got shape \(1, 1, 4, 8\)",
    ),
    (lambda: ops.gram_solve(Y, G.expand(3, 1, 1, 4, 9)), "^gram: .*one per sample"),
    (
        lambda: ops.data_step(X, Y, M, 2, 0.0, G.clone().requires_grad_()),
        "gram: expected a tensor without gradient.*leave gram out",
    ),
    (lambda: ops.data_step(X, Y, M, 2, -0.1), r"rho: expected a number >= 0, got -0\.1"),
    (
        lambda: ops.gram_solve(Y, G, torch.ones(3)),
        r"rho: expected a number, one value per sample \(2\) or one per detector pixel "
        r"\(1 or 2, 1, 4, 9\), got shape \(3,\)",
    ),
    (lambda: ops.gram_solve(Y, G, torch.ones(3, 1, 4, 9)), r"rho: .*, got shape \(3, 1, 4, 9\)"),
    (lambda: ops.tv_prox(X[0], torch.ones(2)), r"weight: .* per sample \(1\)"),
    (lambda: ops.tv_prox(X, 0.1, -1), "iterations: expected at least 0, got -1"),
    (
        lambda: ops.tv_prox(X, 0.1, norm="l1"),
        "norm: expected one of band, frobenius, nuclear, got 'l1'",
    ),
    (lambda: ops.tv_prox(X, 0.1, dual=torch.zeros(2, 2, 3, 4, 4)), "dual: expected"),
    (
        lambda: ops.forward(X, M.to("meta"), 2),
        "expected all tensors on one device, got x on cpu, mask on meta",
    ),
    (
        lambda: ops.forward_subspace(X, torch.rand(5, 2), M, 2),
        r"components: expected \(B, R, H, W\) = \(B, 2, 4, 5\), got shape \(2, 3, 4, 5\)",
    ),
    (lambda: ops.adjoint_subspace(Y, torch.rand(3), M, 2), r"basis: expected \(C, R\) or"),
    (lambda: ops.forward_taps(X, M, TAPS, STARTS[:2], 9), r"expected \(C, T\) and \(C,\)"),
    (lambda: ops.forward_taps(X, M, TAPS[:2], STARTS[:2], 9), "taps: expected 3 bands as the cube"),
    (lambda: ops.forward_taps(X, M, TAPS, STARTS, 0), "detector: expected at least 1"),
    (
        lambda: ops.gram_taps(M, TAPS[:, :1].expand(3, 8), STARTS, 9, after=True),
        r"mask: expected W \+ 7 columns after 8 taps, got 5",
    ),
    (
        lambda: ops.adjoint_taps(torch.ones(1, 2, 4, 9), M, TAPS, STARTS),
        r"y: expected \(B, K, H, D\) with K = 1 and H = 4",
    ),
    (lambda: ops.add_adjoint_taps(X, Y[:1], M, TAPS, STARTS), "y: expected 2 samples as v, got 1"),
    (lambda: ops.band_solve(Y, torch.ones(1, 3, 2, 4, 9)), r"gram: expected \(1 or B, T·K, K, H"),
    (
        lambda: ops.linear_taps(torch.zeros(1).expand(1 << 31)),
        "offsets: expected at most 1048576, got 2147483648",
    ),
    (lambda: ops.step_offsets(1 << 21, 1), "bands: expected at most 1048576, got 2097152"),
    (lambda: ops.detector_columns([0.0, np.inf], 5), "offsets: expected finite numbers, at least"),
    (
        lambda: ops.convolve1d(A[:, :0], A),
        r"a: expected at least one value along the last dimension, got shape \(2, 0\)",
    ),
    (
        lambda: ops.convolve1d(torch.rand(3, 2, 5), torch.rand(2, 1, 3)),
        r"v: expected leading dimensions .* \(3, 2\), got shape \(2, 1, 3\)",
    ),
    (lambda: ops.trilinear(CELLS[:, :7], POINTS), r"features: expected \(N, 8, F\), got shape"),
    (lambda: ops.trilinear(CELLS, POINTS[:3]), r"points: expected \(N, 3\) = \(4, 3\), got shape"),
    (lambda: ops.sample_volume(VOLUME[0], POINTS), r"volume: expected \(F, D, H, W\) or \(B, F"),
    (
        lambda: ops.sample_volume(VOLUME[:, :, :0], POINTS),
        r"volume: expected at least one sample along every axis, got shape \(2, 3, 0, 5\)",
    ),
    (lambda: ops.sample_volume(VOLUME, POINTS[:, :2]), r"points: expected \(\.\.\., 3\), got"),
    (
        lambda: ops.sample_volume(VOLUME[None], POINTS),
        r"points: expected \(B, \.\.\., 3\) with the volume's batch of 1, got shape \(4, 3\)",
    ),
    (
        lambda: ops.selective_scan(U[0], U, RATES, STATES, STATES),
        r"u: expected \(B, L, D\), got shape \(4, 3\)",
    ),
    (
        lambda: ops.selective_scan(U, U, RATES.mT, STATES, STATES),
        r"rates: expected \(D, N\) = \(3, 1 to 64\), got shape \(5, 3\)",
    ),
    (
        lambda: ops.selective_scan(U, U, RATES, STATES[..., :4], STATES),
        r"b: expected \(2, 4, 5\), got shape \(2, 4, 4\)",
    ),
    (lambda: ops.shrink_groups(X[0], GROUPS, T, 3), r"image: expected \(B, R, H, W\), got shape"),
    (lambda: ops.shrink_groups(X, GROUPS[:1], T, 3), r"groups: expected \(2, N, 1 or more\), got"),
    (
        lambda: ops.shrink_groups(X, GROUPS[:, :1].expand(2, 21, 5), T, 3),
        "groups: expected at most one for each pixel, 20, got 21",
    ),
    (lambda: ops.shrink_groups(X, GROUPS, torch.ones(3), 3), r"threshold: expected \(1,\) or"),
    (lambda: ops.shrink_groups(X, GROUPS, T, 5), "patch: expected 1 to 4, the sides of the image"),
    (
        lambda: ops.orthogonal_iteration(torch.ones(2, 3), torch.ones(2, 3, 1)),
        r"moments: expected \(B, C, C\), got shape \(2, 3\)",
    ),
    (
        lambda: ops.orthogonal_iteration(torch.ones(2, 3, 3), torch.ones(2, 3, 4)),
        r"frame: expected \(2, 3, 1 to 3\), got",
    ),
    (
        lambda: ops.orthogonal_iteration(torch.ones(2, 3, 3), torch.ones(2, 3, 2), 0),
        "steps: expected 1 to 1000, got 0",
    ),
    (lambda: ops.convolve3x3(X[0], W), "image: expected"),
    (lambda: ops.convolve3x3(X, W[:, :2]), "weight: expected"),
    (lambda: ops.convolve3x3(X, W, W[:3, 0, 0, 0]), "bias: expected"),
    (lambda: ops.convolve3x3(X, W, None, X), "residual: expected"),
]


@pytest.mark.parametrize(("run", "message"), WRONG_TYPES)
def test_wrong_types(run, message):
    with pytest.raises(TypeError, match=message):
        run()


@pytest.mark.parametrize(("run", "message"), WRONG_VALUES)
def test_wrong_values(run, message):
    with pytest.raises(ValueError, match=message):
        run()


def test_what_is_accepted():
    """Shapes at the edge of what the messages allow."""
    x = ops.data_step(X, Y, M, 2, 1)
    assert torch.equal(ops.data_step(X, Y, M, 2, torch.tensor(1.0)), x)
    for shape in ((2, 1, 1, 1), (1, 4, 9), (1, 1, 4, 9), (2, 1, 4, 9)):
        assert torch.equal(ops.data_step(X, Y, M, 2, torch.ones(shape)), x)
        assert torch.equal(ops.gram_solve(Y, G, torch.ones(shape)), ops.gram_solve(Y, G, 1))
    with torch.no_grad():  # nothing asks for the gradient that would be missing
        ops.data_step(X, Y, M, 2, 0.0, G.clone().requires_grad_())
    assert ops.data_step(X[0], Y[:1], M, 2).shape == X[0].shape
    assert ops.data_step(X[:1], Y[0], M, 2).shape == X[:1].shape
    assert ops.tv_prox(torch.zeros(1, 3, 0, 5), 0.1).shape == (1, 3, 0, 5)
