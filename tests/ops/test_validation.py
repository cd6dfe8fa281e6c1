"""Every message of the public boundary: what was expected, and what came."""

import numpy as np
import pytest
import torch

from cassi import ops

X = torch.rand(2, 3, 4, 5)
Y = torch.rand(2, 1, 4, 9)
M = torch.rand(4, 5)
G = torch.rand(1, 1, 4, 9)
R = torch.tensor

WRONG_TYPES = [
    (lambda: ops.forward(np.ones((3, 4, 5)), M, 2), "x: expected a torch.Tensor, got ndarray"),
    (lambda: ops.gram([[1.0]], 3, 2), "mask: expected a torch.Tensor, got list"),
    (
        lambda: ops.forward(X.int(), M, 2),
        "x: expected float32, float64, bfloat16 or float16, got torch.int32; "
        "convert it with x.float()",
    ),
    (lambda: ops.adjoint(Y, M > 0.5, 3, 2), "mask: expected float32, .* torch.bool"),
    (lambda: ops.ratio_inverse(Y + 0j, M, 3, 2), "y: expected .*, got torch.complex64"),
    (
        lambda: ops.forward(X, M.to_sparse(), 2),
        "mask: expected a dense tensor, got layout torch.sparse_coo",
    ),
    (lambda: ops.forward(X, M, 2.0), "step: expected an integer, got 2.0"),
    (lambda: ops.adjoint(Y, M, 3, True), "step: expected an integer, got True"),
    (lambda: ops.adjoint(Y, M, 3.0, 2), "bands: expected an integer, got 3.0"),
    (lambda: ops.gram_solve(Y, G, "0"), "rho: expected a number or a tensor, got '0'"),
    (lambda: ops.data_step(X, Y, M, 2, True), "rho: expected a number or a tensor"),
    (lambda: ops.data_step(X, Y, M, 2, R([1, 2])), "rho: expected float32"),
    (lambda: ops.gram_solve(Y, G, Y > 0), "rho: expected float32, .* torch.bool"),
    (lambda: ops.tv_prox(X, None), "weight: expected a number or a tensor, got None"),
    (lambda: ops.tv_prox(X, 0.1, 2.5), "iterations: expected an integer, got 2.5"),
    (lambda: ops.tv_prox(X, 0.1, dual=[0.0]), "dual: expected a torch.Tensor, got list"),
    (lambda: ops.gram_solve(Y, G.int()), "gram: expected float32"),
    (lambda: ops.data_step(None, Y, M, 2), "v: expected a torch.Tensor, got NoneType"),
    (lambda: ops.data_step(X, Y, M, 2, 0.0, G.numpy()), "gram: expected a .*Tensor, got ndarray"),
    (lambda: ops.gram_solve(Y.long(), G), "r: expected float32"),
]
WRONG_VALUES = [
    (
        lambda: ops.forward(M, M, 2),
        r"x: expected a cube \(B, C, H, W\) or \(C, H, W\), got shape \(4, 5\)",
    ),
    (lambda: ops.tv_prox(X[None], 0.1), r"x: expected a cube .* \(1, 2, 3, 4, 5\)"),
    (lambda: ops.adjoint(M, M, 3, 2), r"y: expected a measurement \(B, K, H"),
    (lambda: ops.gram_solve(M, G), r"r: expected \(B, K, H, W'\) or \(K, H, W'\)"),
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
    (lambda: ops.gram_solve(Y, G.expand(3, 1, 1, 4, 9)), "^gram: .*one per sample"),
    (lambda: ops.forward(X[0], M.expand(2, 1, 1, 4, 5), 2), r"one per sample of x \(1\), got 2"),
    (
        lambda: ops.adjoint(Y, M, 3, -3),
        r"y: expected \(B, K, H, W'\) = \(B, 1, 4, 11\) for a 4 x 5 mask, 3 bands and step -3, "
        r"got shape \(2, 1, 4, 9\)",
    ),
    (lambda: ops.data_step(X, Y, M.expand(2, 1, 4, 5), 2), r"y: expected .* = \(B, 2, 4, 9\)"),
    (lambda: ops.data_step(X, Y[:1], M, 2), "y: expected a batch of 2 as in v, got 1"),
    (
        lambda: ops.ratio_inverse(Y.expand(2, 2, 4, 9), M.expand(2, 1, 4, 5), 3, 2),
        "ratio_inverse: expected a mask of one shot, got 2 shots; use pinv instead",
    ),
    (
        lambda: ops.gram_solve(Y, G[..., 1:]),
        r"gram: expected \(K, K, H, W'\) = \(1, 1, 4, 9\), got shape \(1, 1, 4, 8\)",
    ),
    (lambda: ops.gram_solve(Y, G[0, 0]), r"gram: expected .*, got shape \(4, 9\)"),
    (
        lambda: ops.data_step(X, Y, M, 2, 0.0, G[..., 1:]),
        r"gram: expected .* got shape \(1, 1, 4, 8\)",
    ),
    (
        lambda: ops.data_step(X, Y, M, 2, 0.0, G.clone().requires_grad_()),
        "gram: expected a tensor without gradient.*leave gram out",
    ),
    (lambda: ops.data_step(X, Y, M, 2, -0.1), r"rho: expected a number >= 0, got -0\.1"),
    (lambda: ops.gram_solve(Y, G, float("nan")), "rho: expected a number >= 0, got nan"),
    (
        lambda: ops.gram_solve(Y, G, torch.ones(3)),
        r"rho: expected a number, one value per sample \(2\) or one per detector pixel "
        r"\(1 or 2, 1, 4, 9\), got shape \(3,\)",
    ),
    (lambda: ops.gram_solve(Y, G, torch.ones(2, 1, 4, 8)), r"rho: .*, got shape \(2, 1, 4, 8\)"),
    (lambda: ops.gram_solve(Y, G, torch.ones(3, 1, 4, 9)), r"rho: .*, got shape \(3, 1, 4, 9\)"),
    (lambda: ops.data_step(X, Y, M, 2, torch.ones(4, 9)), r"rho: .*, got shape \(4, 9\)"),
    (lambda: ops.tv_prox(X, -1), "weight: expected a number >= 0, got -1"),
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
        lambda: ops.gram_solve(Y, G, torch.ones(2, device="meta")),
        "r on cpu, gram on cpu, rho on meta",
    ),
    (lambda: ops.tv_prox(X, torch.ones(2, device="meta")), "x on cpu, weight on meta"),
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


def test_tv_of_bands_without_pixels():
    assert ops.tv_prox(torch.zeros(1, 3, 0, 5), 0.1).shape == (1, 3, 0, 5)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("gram", (None, 6, 4), "gram: expected a tensor mask, got None"),
        ("trilinear", (None, R([[0.0] * 3], device="meta")), "trilinear: expected a tensor feat"),
    ],
)
def test_an_operator_without_its_tensor(name, arguments, message):
    with pytest.raises(TypeError, match=message):
        getattr(torch.ops.cassi, name)(*arguments)
