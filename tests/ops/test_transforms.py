"""What wraps an operator: vmap over the batch, the other transforms, autocast, export."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils._pytree import tree_leaves

import cassi
from cassi import ops
from cassi.ops import _library
from cassi.ops._library import kernels

N, B, C, H, W, STEP = 3, 2, 3, 4, 5, 1
WIDE = W + (C - 1) * STEP


def _rand(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) + 0.1


X, Y, M, RHO = _rand(N, B, C, H, W), _rand(N, B, 2, H, WIDE), _rand(N, 1, 2, 1, H, W), _rand(N, B)
EACH, PIXELS = RHO[..., None, None, None], _rand(N, 1, 2, H, WIDE)
G = torch.stack([kernels.gram(m, C, STEP) for m in M])
DUAL = _rand(N, B, 2, C, H, W) * 0.01
BASIS = _rand(N, 1, C, 2)
GROUPS = torch.tensor([[[0, 7, 1], [2, 2, 11]]] * B)
TAPS, STARTS = _rand(N, 1, C, 2), torch.tensor([[0, 1, 3]])
BAND = torch.stack([ops.gram_taps(m[0], TAPS[0, 0], STARTS[0], WIDE) for m in M])
# op: a call on one entry's tensors, tensors with N entries each
MAPPED = {
    "forward": (lambda x, m: kernels.forward(x, m, STEP), (X, M)),
    "adjoint": (lambda y, m: kernels.adjoint(y, m, C, STEP), (Y, M)),
    "add_adjoint": (lambda x, y, m: kernels.add_adjoint(x, y, m, STEP), (X, Y, M)),
    "forward_subspace": (
        lambda a, e, m: kernels.forward_subspace(a, e, m, STEP),
        (X[:, :, :2], BASIS, M),
    ),
    "adjoint_subspace": (lambda y, e, m: kernels.adjoint_subspace(y, e, m, STEP), (Y, BASIS, M)),
    "mask_adjoint": (lambda x, y: kernels.mask_adjoint(x, y, STEP, False, True), (X, Y)),
    "ratio_inverse": (
        lambda y, m: kernels.ratio_inverse(y, m, C, STEP),
        (Y[:, :, :1], M[:, :, :1]),
    ),
    "gram": (lambda m: kernels.gram(m, C, STEP), (M,)),
    "gram_solve": (lambda y, g, r: kernels.gram_solve(y, g, r), (Y, G, EACH)),
    "data_step": (
        lambda x, y, m, g, r: kernels.data_step(x, y, m, g, r, STEP),
        (X, Y, M, G, PIXELS),
    ),
    "forward_taps": (lambda x, m, a: kernels.forward_taps(x, m, a, STARTS, WIDE), (X, M, TAPS)),
    "adjoint_taps": (lambda y, m, a: kernels.adjoint_taps(y, m, a, STARTS), (Y, M, TAPS)),
    "mask_adjoint_taps": (
        lambda x, y, a: kernels.mask_adjoint_taps(x, y, a, STARTS, False, True),
        (X, Y, TAPS),
    ),
    "band_solve": (lambda y, g, r: kernels.band_solve(y, g, r), (Y, BAND, PIXELS)),
    "tv_prox": (lambda x, w: kernels.tv_prox(x, w, 3, True), (X, RHO)),
    "tv_prox_dual": (lambda x, w, d: kernels.tv_prox_dual(x, w, d, 3, False), (X, RHO, DUAL)),
    "convolve1d": (lambda a, v: kernels.convolve1d(a, v), (X[:, 0, 0], Y[:, 0, 0])),
    "correlate1d": (lambda a, v: kernels.correlate1d(a, v), (Y[:, 0, 0], X[:, 0, 0])),
    "selective_scan": (
        lambda u, delta, rates, b, c: kernels.selective_scan(u, delta, -rates, b, c),
        (X[:, :, 0], X[:, :, 1], _rand(N, 1, W, 2), Y[:, :, 0, :, :2], Y[:, :, 1, :, :2]),
    ),
    "shrink_groups": (lambda x, t: kernels.shrink_groups(x, GROUPS, t, 2), (X, RHO)),
    "convolve3x3": (
        lambda x, w, b: kernels.convolve3x3(x, w, b, None, False),
        (_rand(N, 2, 3, 4, 5), _rand(N, 2, 3, 3, 3), _rand(N, 2)),
    ),
    "trilinear": (lambda f, p: kernels.trilinear(f, p), (_rand(N, 4, 8, 2), _rand(N, 4, 3))),
}


def test_every_differentiable_op_is_here():
    assert set(MAPPED) == {name for name in _library.SCHEMAS if not name.endswith("_backward")}


@pytest.mark.parametrize("name", sorted(MAPPED))
def test_vmap_equals_a_loop(name):
    function, tensors = MAPPED[name]
    for shared in range(-1, len(tensors) - 1):  # one tensor at a time is not mapped
        arguments = [t[0] if i == shared else t for i, t in enumerate(tensors)]
        dims = tuple(None if i == shared else 0 for i in range(len(tensors)))
        mapped = torch.vmap(function, in_dims=dims)(*arguments)
        rows = [
            function(*(a if i == shared else a[n] for i, a in enumerate(arguments)))
            for n in range(N)
        ]
        if isinstance(mapped, tuple):
            for part, expected in zip(mapped, zip(*rows, strict=True), strict=True):
                torch.testing.assert_close(part, torch.stack(expected))
        else:
            torch.testing.assert_close(mapped, torch.stack(rows))


# Operators whose kernels have no gradient: the public functions choose the reference.
NOT_OF_THE_KERNEL = {
    "shrink_groups": lambda x, t: ops.shrink_groups(x, GROUPS, t, 2),
    "convolve3x3": lambda x, w, b: ops.convolve3x3(x, w, b),
}


@pytest.mark.parametrize("name", sorted(MAPPED))
def test_tangents_and_gradients(name):
    """vjp, jvp, jacrev, jacfwd, vmap of grad and grad of vmap, with respect to all tensors."""
    function, tensors = MAPPED[name]
    function = NOT_OF_THE_KERNEL.get(name, function)
    many = [t.double() for t in tensors]
    if name == "data_step":  # a function of the mask
        many[3] = torch.stack([kernels.gram(m, C, STEP) for m in many[2]])
    one, ways = [t[0] for t in many], [t[1] for t in many]

    def flat(*values):
        result = function(*values)
        parts = result if isinstance(result, tuple) else (result,)
        return torch.cat([part.flatten() for part in parts])

    result, pull = vjp(flat, *one)
    upstream = torch.linspace(-1, 1, len(result), dtype=result.dtype)
    gradients = pull(upstream)
    leaves = [value.clone().requires_grad_() for value in one]
    expected = torch.autograd.grad(flat(*leaves), leaves, upstream, materialize_grads=True)
    torch.testing.assert_close(gradients, expected)
    _, tangent = jvp(flat, tuple(one), tuple(ways))
    along = sum((g * way).sum() for g, way in zip(gradients, ways, strict=True))
    torch.testing.assert_close((tangent * upstream).sum(), along)
    torch.testing.assert_close(jacfwd(flat)(*one), jacrev(flat)(*one))

    def loss(*values):
        return flat(*values).square().sum()

    rows = torch.stack([grad(loss)(*values) for values in zip(*many, strict=True)])
    torch.testing.assert_close(vmap(grad(loss))(*many), rows)
    whole = grad(lambda first: vmap(loss)(first, *many[1:]).sum())(many[0])
    torch.testing.assert_close(whole, rows)
    _, curved = jvp(lambda value: grad(loss)(value, *one[1:]), (one[0],), (ways[0],))
    back = grad(lambda value: (grad(loss)(value, *one[1:]) * ways[0]).sum())(one[0])
    torch.testing.assert_close(curved, back)


@pytest.mark.parametrize("name", sorted(MAPPED))
def test_tangents_without_a_transform(name):
    function, tensors = MAPPED[name]
    function = NOT_OF_THE_KERNEL.get(name, function)
    one, ways = ([t[i].double() for t in tensors] for i in (0, 1))
    if name == "data_step":
        one[3] = kernels.gram(one[2], C, STEP)
    _, expected = jvp(function, tuple(one), tuple(ways))
    with forward_ad.dual_level():
        dual = function(*map(forward_ad.make_dual, one, ways))
        for part, tangent in zip(*map(tree_leaves, (dual, expected)), strict=True):
            torch.testing.assert_close(forward_ad.unpack_dual(part).tangent, tangent)


def test_vmap_over_another_dimension_and_nested():
    x = X.movedim(0, 3)
    got = torch.vmap(lambda v: ops.forward(v, M[0, 0], STEP), in_dims=3, out_dims=1)(x)
    torch.testing.assert_close(
        got.movedim(1, 0), ops.forward(X.flatten(0, 1), M[0, 0], STEP).unflatten(0, (N, B))
    )
    nested = torch.vmap(torch.vmap(lambda v: ops.forward(v, M[0, 0], STEP)))(X)
    torch.testing.assert_close(nested, got.movedim(1, 0))


def test_vmap_of_a_damping_per_pixel():
    for rho in (PIXELS, PIXELS[:, 0], RHO, RHO[:, :1]):
        for dim in (0, None):
            mapped = torch.vmap(
                lambda v, y, r: ops.data_step(v, y, M[0, 0], STEP, r), in_dims=(0, 0, dim)
            )(X, Y, rho if dim == 0 else rho[0])
            for n in range(N):
                expected = ops.data_step(X[n], Y[n], M[0, 0], STEP, rho[n if dim == 0 else 0])
                torch.testing.assert_close(mapped[n], expected)


def test_vmap_carries_gradients():
    x = X.clone().requires_grad_()
    torch.vmap(lambda v, y: ops.data_step(v, y, M[0, 0], STEP, 0.1))(x, Y).square().sum().backward()
    expected = X.clone().requires_grad_()
    flat = ops.data_step(expected.flatten(0, 1), Y.flatten(0, 1), M[0, 0], STEP, 0.1)
    flat.square().sum().backward()
    torch.testing.assert_close(x.grad, expected.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_autocast_runs_in_the_widest_dtype(dtype):
    x = X[0].bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        y = ops.forward(x, M[0, 0].to(dtype), STEP)
        u = ops.data_step(x, Y[0].to(dtype), M[0, 0].to(dtype), STEP, 0.1)
    assert (y.dtype, u.dtype) == (dtype, torch.float32)  # the gram has float32 at least
    torch.testing.assert_close(
        y.float(), ops.forward(x.float(), M[0, 0].to(dtype).float(), STEP), rtol=1e-2, atol=1e-2
    )


def test_autocast_reaches_no_sum():
    x = X[0].clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        u = ops.data_step(x, Y[0], M[0, 0], STEP, 0.1)
    u.sum().backward()
    plain = X[0].clone().requires_grad_()
    ops.data_step(plain, Y[0], M[0, 0], STEP, 0.1).sum().backward()
    assert torch.equal(u, ops.data_step(X[0], Y[0], M[0, 0], STEP, 0.1))
    assert torch.equal(x.grad, plain.grad)


class _Stage(nn.Module):
    def __init__(self, system):
        super().__init__()
        self.system = system
        self.weight = nn.Parameter(torch.tensor(0.05))

    def forward(self, v, y):
        return ops.tv_prox(self.system.data_step(v, y, 0.1), self.weight, 2)


def test_export():
    stage = _Stage(cassi.SDCassi(M[0, 0, 0, 0], bands=C, step=STEP))
    v, y = X[0], Y[0, :, :1]
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(stage, (v, y), dynamic_shapes=({0: batch}, {0: batch}))
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert {"cassi.data_step.default", "cassi.tv_prox.default"} <= names
    for n in (2, 4):
        torch.testing.assert_close(
            program.module()(v[:1].expand(n, -1, -1, -1), y[:1].expand(n, -1, -1, -1)),
            stage(v[:1].expand(n, -1, -1, -1), y[:1].expand(n, -1, -1, -1)),
        )
