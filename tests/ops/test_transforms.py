"""What wraps an operator: vmap over the batch, the other transforms, autocast, export."""

import pytest
import torch
from kernel_calls import STEP, WIDE, B, C, H, W, kernel_calls
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils._pytree import tree_leaves

import cassi
from cassi import ops
from cassi.ops import _library
from cassi.ops._library import operators

N = 3


def _rand(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) + 0.1


X, Y, M, RHO = _rand(N, B, C, H, W), _rand(N, B, 2, H, WIDE), _rand(N, 1, 2, 1, H, W), _rand(N, B)
PIXELS = _rand(N, 1, 2, H, WIDE)
NAMES = sorted(name for name in _library.SCHEMAS if not name.endswith("_backward"))
# Operators whose kernels have no gradient: the public functions choose the reference.
NOT_OF_THE_KERNEL = {
    name: getattr(ops, name) for name in ("shrink_groups", "convolve3x3", "orthogonal_iteration")
}


def _mapped(name, kernel):
    """Return a call on one entry's tensors of numbers, and such tensors with N entries each."""
    shots = 1 if name == "gram_solve" else 2  # one ρ for each sample, or for each pixel
    bands = C if name.startswith("mask_adjoint") else 1
    draws = [kernel_calls(shots, 1, bands, torch.float32, seed=n)[name] for n in range(N)]
    places = [i for i, v in enumerate(draws[0]) if isinstance(v, Tensor) and v.is_floating_point()]

    def call(*tensors):
        given = list(draws[0])
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        return kernel(*given)

    return call, [torch.stack([draw[i] for draw in draws]) for i in places]


@pytest.mark.parametrize("name", NAMES)
def test_vmap_equals_a_loop(name):
    function, tensors = _mapped(name, getattr(operators, name))
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


@pytest.mark.parametrize("name", NAMES)
def test_tangents_and_gradients(name):
    """vjp, jvp, jacrev, jacfwd, vmap of grad and grad of vmap, with respect to all tensors."""
    function, tensors = _mapped(name, NOT_OF_THE_KERNEL.get(name, getattr(operators, name)))
    many = [t.double() for t in tensors]
    if name == "data_step":  # a function of the mask
        many[3] = torch.stack([operators.gram(m, C, STEP) for m in many[2]])
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


@pytest.mark.parametrize("name", NAMES)
def test_tangents_without_a_transform(name):
    function, tensors = _mapped(name, NOT_OF_THE_KERNEL.get(name, getattr(operators, name)))
    one, ways = ([t[i].double() for t in tensors] for i in (0, 1))
    if name == "data_step":
        one[3] = operators.gram(one[2], C, STEP)
    _, expected = jvp(function, tuple(one), tuple(ways))
    with forward_ad.dual_level():
        dual = function(*map(forward_ad.make_dual, one, ways))
        for part, tangent in zip(*map(tree_leaves, (dual, expected)), strict=True):
            torch.testing.assert_close(forward_ad.unpack_dual(part).tangent, tangent)


def test_vmap_of_a_damping_per_pixel():
    for rho in (PIXELS, PIXELS[:, 0], RHO, RHO[:, :1]):
        for dim in (0, None):
            mapped = torch.vmap(
                lambda v, y, r: ops.data_step(v, y, M[0, 0], STEP, r), in_dims=(0, 0, dim)
            )(X, Y, rho if dim == 0 else rho[0])
            for n in range(N):
                expected = ops.data_step(X[n], Y[n], M[0, 0], STEP, rho[n if dim == 0 else 0])
                torch.testing.assert_close(mapped[n], expected)


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
