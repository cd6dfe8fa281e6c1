"""First and second derivatives of every operator with respect to every tensor."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from cassi import ops
from cassi.ops._library import kernels

BANDS, HEIGHT, WIDTH = 3, 2, 4
MASKS = {
    "plane": (HEIGHT, WIDTH),
    "two_shots_bands": (2, BANDS, HEIGHT, WIDTH),
    "samples": (2, 2, 1, HEIGHT, WIDTH),
}
STEPS = [2, -1, 0]

# Functions of (x, y, mask, rho, step), with the tensors each depends on.
OPS = {
    "forward": ("xm", lambda x, y, m, r, s: ops.forward(x, m, s)),
    "adjoint": ("ym", lambda x, y, m, r, s: ops.adjoint(y, m, BANDS, s)),
    "mask_adjoint": ("xy", lambda x, y, m, r, s: kernels.mask_adjoint(x, y, s, False, True)),
    "mask_adjoint_samples": (
        "xy",
        lambda x, y, m, r, s: kernels.mask_adjoint(x, y, s, True, False),
    ),
    "add_adjoint": ("xym", lambda x, y, m, r, s: ops.add_adjoint(x, y, m, s)),
    "forward_subspace": (
        "xm",
        lambda x, y, m, r, s: ops.forward_subspace(x[:, :2], x[:, :, 0, :2], m, s),
    ),
    "adjoint_subspace": (
        "xym",
        lambda x, y, m, r, s: ops.adjoint_subspace(y, x[:, :, 0, :2], m, s),
    ),
    "gram": ("m", lambda x, y, m, r, s: ops.gram(m, BANDS, s)),
    "gram_solve": ("ymr", lambda x, y, m, r, s: ops.gram_solve(y, ops.gram(m, BANDS, s), r)),
    "data_step": ("xymr", lambda x, y, m, r, s: ops.data_step(x, y, m, s, r)),
}


def _tensors(shape, step, scalar_rho=False):
    generator = torch.Generator().manual_seed(sum(shape))
    shots = shape[-4] if len(shape) > 3 else 1
    shapes = {
        "x": (2, BANDS, HEIGHT, WIDTH),
        "y": (2, shots, HEIGHT, WIDTH + (BANDS - 1) * abs(step)),
        "m": shape,
        "r": () if scalar_rho else (2,),
    }
    return {
        name: torch.rand(s, generator=generator, dtype=torch.float64) + 0.3
        for name, s in shapes.items()
    }


def _check(name, shape, step, scalar_rho=False):
    names, op = OPS[name]
    tensors = _tensors(shape, step, scalar_rho)

    def function(*values):
        return op(*(tensors | dict(zip(names, values, strict=True))).values(), step)

    inputs = tuple(tensors[key].requires_grad_() for key in names)
    # fast_mode compares one random projection of the Jacobian: enough, as the case is redrawn
    # for every mask shape and step.
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("step", STEPS)
def test_all_arguments_together(name, shape, step):
    _check(name, shape, step)


@pytest.mark.parametrize("name", ["gram_solve", "data_step"])
def test_one_rho_for_all_samples(name):
    _check(name, MASKS["two_shots_bands"], 2, scalar_rho=True)


@pytest.mark.parametrize("name", ["gram_solve", "data_step"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("samples", [1, 2])
def test_one_rho_per_detector_pixel(name, mask, samples):
    shape = MASKS[mask]
    names, op = OPS[name]
    tensors = _tensors(shape, 2)
    pixels = torch.rand(samples, *tensors["y"].shape[1:], dtype=torch.float64) + 0.3
    absent = torch.rand(pixels.shape) < 0.2
    tensors["r"] = pixels

    def function(*values):
        given = tensors | dict(zip(names, values, strict=True))
        rho = torch.where(absent, torch.inf, given["r"])
        return op(*(given | {"r": rho}).values(), 2)

    inputs = tuple(tensors[key].requires_grad_() for key in names)
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)
    rho = torch.where(absent, torch.inf, pixels.detach()).requires_grad_()
    out = op(*(tensors | {"r": rho}).values(), 2)
    first, of_y = torch.autograd.grad(out.square().sum(), (rho, tensors["y"]), create_graph=True)
    assert first.shape == rho.shape
    assert not first[absent].any()
    assert first[~absent].all()
    assert not of_y[absent.expand_as(of_y)].any()
    (second,) = torch.autograd.grad(first.square().sum() + of_y.square().sum(), rho)
    assert not second[absent].any()
    assert second.isfinite().all()


@pytest.mark.parametrize("argument", "xymr")
def test_data_step_one_argument_at_a_time(argument):
    """Each gradient is right when no other is asked for, also for the projection, ρ = 0."""
    for rho in (0.0, 0.4):
        tensors = _tensors(MASKS["plane"], 1)
        tensors["r"] = torch.full((2,), rho, dtype=torch.float64)
        if argument == "r" and rho == 0:
            continue  # the numerical derivative would step to negative ρ
        leaf = tensors[argument].requires_grad_()

        def function(value, held=tensors):
            x, y, m, r = (held | {argument: value}).values()
            return ops.data_step(x, y, m, 1, r)

        assert gradcheck(function, leaf)
        assert gradgradcheck(function, leaf)


@pytest.mark.parametrize("shape", [(HEIGHT, WIDTH), (BANDS, HEIGHT, WIDTH), (2, 1, 1, 2, 4)])
@pytest.mark.parametrize("step", [*STEPS, 5])  # 5 > W leaves gaps
def test_ratio_inverse(shape, step):
    tensors = _tensors(shape, step)
    inputs = (tensors["y"].requires_grad_(), tensors["m"].requires_grad_())

    def function(y, m):
        return ops.ratio_inverse(y, m, BANDS, step)

    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


def test_ratio_inverse_has_no_mask_gradient_below_the_floor():
    mask = torch.tensor([[0.0, 0.5]], dtype=torch.float64, requires_grad=True)
    ops.ratio_inverse(torch.ones(1, 1, 2, dtype=torch.float64), mask, 1, 0).sum().backward()
    assert mask.grad.tolist() == [[0.0, -4.0]]


def test_ratio_inverse_gradient_is_finite_in_float16():
    mask = torch.tensor([[0.0, 0.5]], dtype=torch.float16)
    y = torch.ones(1, 1, 2, dtype=torch.float16, requires_grad=True)
    ops.ratio_inverse(y, mask, 1, 0)[..., 1].sum().backward()
    assert y.grad.tolist() == [[[0.0, 2.0]]]


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (3, 4)])
def test_tv_prox(size):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn((2, 2, *size), generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([0.1, 0.3], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, w: ops.tv_prox(x, w, 3), (x, weight))
    assert gradgradcheck(lambda x, w: ops.tv_prox(x, w, 3), (x, weight), fast_mode=True)


def test_tv_prox_gradient_is_finite_where_the_image_is_flat():
    for weight in (0.0, 0.1):
        x = torch.ones(1, 2, 4, 4, requires_grad=True)
        ops.tv_prox(x, weight, 4).square().sum().backward()
        torch.testing.assert_close(x.grad, torch.full_like(x, 2.0))


@pytest.mark.parametrize("name", [*OPS, "ratio_inverse"])
@pytest.mark.parametrize("half", "xym")
def test_gradients_have_the_dtype_of_their_argument(name, half):
    """One argument in bfloat16, the others in float32."""
    names, op = OPS.get(
        name, ("ym", lambda x, y, m, r, s: ops.ratio_inverse(y[:, :1], m[:1], BANDS, s))
    )
    exact = _tensors(MASKS["two_shots_bands"], 1)
    tensors = {
        key: value.to(torch.bfloat16 if key == half else torch.float32)
        for key, value in exact.items()
    }
    gradients = []
    for values in (tensors, {key: value.double() for key, value in tensors.items()}):
        leaves = [values[key].requires_grad_() for key in names]
        gradients.append(torch.autograd.grad(op(*values.values(), 1).square().sum(), leaves))
    for key, got, expected in zip(names, *gradients, strict=True):
        assert got.dtype == tensors[key].dtype
        error = (got.double() - expected).norm() / expected.norm()
        assert error < 0.05, (key, error)


def test_gram_given_or_not_the_mask_gradient_is_the_same():
    tensors = _tensors(MASKS["plane"], 2)
    mask = tensors["m"].requires_grad_()
    gradients = []
    for gram in (None, ops.gram(mask.detach(), BANDS, 2)):
        x = ops.data_step(tensors["x"], tensors["y"], mask, 2, 0.1, gram)
        gradients.append(torch.autograd.grad(x.square().sum(), mask)[0])
    assert torch.equal(*gradients)


def test_no_graph_without_grad():
    tensors = _tensors(MASKS["plane"], 2)
    assert not ops.data_step(*list(tensors.values())[:3], 2, tensors["r"]).requires_grad
    tensors["x"].requires_grad_()
    with torch.no_grad():
        assert not ops.data_step(*list(tensors.values())[:3], 2).requires_grad
