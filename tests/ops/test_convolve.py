"""convolve3x3: its values, when its kernel runs, and what is not finite."""

import pytest
import torch
import torch.nn.functional as F
from shared import rand

from cassi import ops
from cassi.models.layers import ConvPair, ResidualSequence
from cassi.ops import _convolve
from cassi.ops._library import operators

X, W, B = rand(2, 5, 30, 21).float(), rand(7, 5, 3, 3).float() - 0.5, rand(7).float()


def _expected(x, r, rectify):
    y = F.conv2d(x.double(), W.double(), B.double(), padding=1)
    y = y if r is None else y + r.double()
    return F.relu(y) if rectify else y


@pytest.mark.parametrize("rectify", [False, True])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (3, 4), (5, 9), (30, 21)])
def test_equals_torch(size, adds, rectify):
    x = X[..., : size[0], : size[1]]
    r = rand(2, 7, *size).float() - 2 if adds else None
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-13)):
        tensors = (t if t is None else t.to(dtype) for t in (x, W, B, r))
        got = operators.convolve3x3(*tensors, rectify)
        assert got.dtype == dtype
        torch.testing.assert_close(
            got.double(), _expected(x, r, rectify), rtol=tolerance, atol=10 * tolerance
        )


@pytest.fixture
def calls(monkeypatch):
    """The calls of the compiled kernel."""
    made = []
    original = _convolve.call

    def call(op, *arguments):
        made.append(str(op))
        return original(op, *arguments)

    monkeypatch.setattr(_convolve, "call", call)
    return made


def test_runs_where_it_is_faster(calls):
    assert torch.allclose(ops.convolve3x3(X, W, B), _expected(X, None, False).float(), atol=1e-4)
    assert len(calls) == 1
    ops.convolve3x3(X[..., :9, :9], W, B)  # few pixels
    ops.convolve3x3(X.double(), W.double())
    with torch.autocast("cpu", torch.bfloat16):
        assert ops.convolve3x3(X, W).dtype == torch.bfloat16
    torch.vmap(lambda x: ops.convolve3x3(x, W))(X[None])
    ops.convolve3x3(X, torch.zeros(_convolve.MAX_CHANNELS + 1, 5, 3, 3))
    assert len(calls) == 1


@pytest.mark.parametrize("rectify", [False, True])
@pytest.mark.parametrize("others", [(None, None), (B, rand(2, 7, 30, 21).float() - 2)])
def test_gradients_equal_those_of_torch(calls, others, rectify):
    given = [t if t is None else t.clone().requires_grad_() for t in (X, W, *others)]
    leaves = [t for t in given if t is not None]

    def gradients(y, twice):
        first = torch.autograd.grad((y * y).sum(), leaves, create_graph=twice)
        return first, torch.autograd.grad(first[0].sin().sum(), leaves) if twice else ()

    for twice in (False, True):
        calls.clear()
        got = gradients(ops.convolve3x3(*given, rectify), twice)
        # The result, and the gradients of the image and of the weight.
        assert calls == ["cassi.convolve3x3", "cassi.convolve3x3", "cassi.convolve3x3_backward"]
        expected = gradients(_convolve.convolve_by_torch(*given, rectify), twice)
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-2)


def test_layers_give_what_they_gave():
    pairs = {"a": ConvPair(5, 5, rectify=False), "b": ConvPair(5, 5)}
    block = ResidualSequence(**pairs).requires_grad_(False)
    x = X
    for pair in block:
        y = x
        for layer in pair:
            y = F.relu(y) if isinstance(layer, torch.nn.ReLU) else layer(y)
        # The last ReLU of a pair belongs to the pair: it sees no residual.
        x = x + y
    torch.testing.assert_close(block(X), x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_spreads_over_its_tiles_only(value):
    x = X.clone()
    x[0, 2, 9, 10] = value
    got, clean = (
        operators.convolve3x3(x, W, B, None, True),
        operators.convolve3x3(X, W, B, None, True),
    )
    spoilt = got.isnan() | got.isinf()
    assert spoilt[0, :, 8:11, 9:12].any(1).any(1).any()
    assert torch.equal(got[1], clean[1])
    outside = torch.ones(30, 21, dtype=torch.bool)
    outside[4:16, 4:16] = False
    assert torch.equal(got[..., outside], clean[..., outside])
