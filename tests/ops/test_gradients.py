"""First and second derivatives of every operator with respect to every tensor."""

import pytest
import torch
from kernel_calls import STEP, B, C, kernel_calls
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from cassi import ops
from cassi.ops._library import SCHEMAS, operators

# Operators whose kernels have no gradient: the public functions choose the reference.
PUBLIC = {name: getattr(ops, name) for name in ("shrink_groups", "orthogonal_iteration")}
NAMES = sorted(name for name in SCHEMAS if not name.endswith("_backward"))
NAMES.remove("convolve3x3")  # is held against torch's


def _data_step(v, y, mask, gram, rho, step):
    return ops.data_step(v, y, mask, step, rho)  # the gram is a function of the mask


def _gram_solve(r, gram, rho):
    """Solve for a symmetric matrix at each pixel, whatever the argument is."""
    pairs = torch.einsum("skmhw,slmhw->sklhw", gram, gram)
    return operators.gram_solve(r, pairs, rho)


def _band_solve(r, gram, rho):
    own, beyond = gram.split((r.shape[1], gram.shape[1] - r.shape[1]), 1)
    return operators.band_solve(r, torch.cat(((own + own.transpose(1, 2)) / 2, beyond), 1), rho)


FUNCTIONS = PUBLIC | {"data_step": _data_step, "gram_solve": _gram_solve}
FUNCTIONS["band_solve"] = _band_solve


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("shots", "samples", "bands", "seed"), [(1, 1, 1, 0), (2, B, C, 1), (2, 1, C, 2), (1, B, 1, 3)]
)
def test_all_arguments_together(name, shots, samples, bands, seed):
    """With one ρ for a sample, and one for each pixel; some of these are infinite."""
    values = list(kernel_calls(shots, samples, bands, seed=seed)[name])
    places = [i for i, v in enumerate(values) if isinstance(v, Tensor) and v.is_floating_point()]
    function = FUNCTIONS.get(name, getattr(operators, name))
    named = [argument.name for argument in getattr(operators, name).default._schema.arguments]
    absent = None
    if "rho" in named and shots > 1:
        absent = torch.rand(values[named.index("rho")].shape) < 0.2

    def call(*tensors):
        given = list(values)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        if absent is not None:
            given[named.index("rho")] = torch.where(absent, torch.inf, given[named.index("rho")])
        return function(*given)

    leaves = [values[i].detach().clone().requires_grad_() for i in places]
    # fast_mode compares one random projection of the Jacobian: the case is drawn anew four times.
    assert gradcheck(call, leaves, fast_mode=True, atol=1e-6)
    assert gradgradcheck(call, leaves, fast_mode=True, atol=1e-6)


@pytest.mark.parametrize("norm", ops.NORMS)
@pytest.mark.parametrize("iterations", [0, 3])
def test_total_variation(norm, iterations):
    """With a dual that is given, and the one that is returned."""
    generator = torch.Generator().manual_seed(2)
    x, dual = (
        torch.randn(s, generator=generator).double().requires_grad_()
        for s in ((2, 2, 3, 4), (2, 2, 2, 3, 4))
    )
    weight = torch.tensor([0.07, 0.15], dtype=torch.float64, requires_grad=True)

    def call(x, weight, dual):
        return ops.tv_prox(x, weight, iterations, norm=norm, dual=0.05 * dual, return_dual=True)

    assert gradcheck(call, (x, weight, dual), fast_mode=True)
    assert gradgradcheck(call, (x, weight, dual), fast_mode=True)
    fused, recorded = (
        torch.autograd.grad(
            ops.tv_prox(x, weight, 9, norm=norm).square().sum(), (x, weight), create_graph=again
        )
        for again in (False, True)
    )
    torch.testing.assert_close(fused, recorded)


def test_total_variation_of_a_flat_image_has_a_finite_gradient():
    for weight in (0.0, 0.1):
        x = torch.ones(1, 2, 4, 4, requires_grad=True)
        ops.tv_prox(x, weight, 4).square().sum().backward()
        torch.testing.assert_close(x.grad, torch.full_like(x, 2.0))


@pytest.mark.parametrize("argument", range(4))
@pytest.mark.parametrize("rho", [0.0, 0.4])
def test_data_step_one_argument_at_a_time(argument, rho):
    """Each gradient is right when no other is asked for, also for the projection, ρ = 0."""
    v, y, mask, *_ = kernel_calls()["data_step"]
    values = [v, y, mask, torch.full((B,), rho, dtype=torch.float64)]
    if argument == 3 and rho == 0:
        return  # the numerical derivative would step to negative ρ
    leaf = values[argument].detach().clone().requires_grad_()

    def call(value):
        v, y, mask, rho = (*values[:argument], value, *values[argument + 1 :])
        return ops.data_step(v, y, mask, STEP, rho)

    assert gradcheck(call, leaf, fast_mode=True)
    assert gradgradcheck(call, leaf, fast_mode=True)


@pytest.mark.parametrize("name", ["gram_solve", "data_step", "band_solve"])
def test_pixels_of_infinite_rho_have_no_gradient(name):
    values = list(kernel_calls(2)[name])
    named = [argument.name for argument in getattr(operators, name).default._schema.arguments]
    at = named.index("rho")
    absent = torch.rand(values[at].shape) < 0.3
    values[at] = torch.where(absent, torch.inf, values[at]).requires_grad_()
    of = named.index("y" if "y" in named else "r")
    values[of] = values[of].clone().requires_grad_()
    result = FUNCTIONS[name](*values)
    leaves = values[at], values[of]
    first, of_y = torch.autograd.grad(result.square().sum(), leaves, create_graph=True)
    assert not first[absent].any()
    assert first[~absent].all()
    assert not of_y[absent.expand_as(of_y)].any()
    (second,) = torch.autograd.grad(first.square().sum() + of_y.square().sum(), leaves[0])
    assert not second[absent].any()
    assert second.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_gradients_have_the_dtype_of_their_argument(name):
    """One argument in bfloat16, the others in float32."""
    values = kernel_calls(1, 1, C, torch.float32)[name]
    function = FUNCTIONS.get(name, getattr(operators, name))
    places = [i for i, v in enumerate(values) if isinstance(v, Tensor) and v.is_floating_point()]
    for half in places:
        gradients = []
        for widen in (False, True):
            given = [v.detach().clone() if isinstance(v, Tensor) else v for v in values]
            given[half] = given[half].bfloat16()
            for i in places:
                given[i] = (given[i].double() if widen else given[i]).requires_grad_()
            result = function(*given)
            parts = result if isinstance(result, tuple) else (result,)
            loss = sum(part.double().square().sum() for part in parts)
            leaves = [given[i] for i in places]
            found = torch.autograd.grad(loss, leaves, allow_unused=True)
            gradients.append([(g, leaf) for g, leaf in zip(found, leaves, strict=True)])
        for (got, leaf), (expected, _) in zip(*gradients, strict=True):
            if expected is None:
                continue
            assert got.dtype == leaf.dtype
            assert (got.double() - expected).norm() <= 0.05 * expected.norm() + 1e-9


def test_ratio_inverse_below_the_floor():
    mask = torch.tensor([[0.0, 0.5]], dtype=torch.float64, requires_grad=True)
    ops.ratio_inverse(torch.ones(1, 1, 2, dtype=torch.float64), mask, 1, 0).sum().backward()
    assert mask.grad.tolist() == [[0.0, -4.0]]
    y = torch.ones(1, 1, 2, dtype=torch.float16, requires_grad=True)
    ops.ratio_inverse(y, mask.detach().half(), 1, 0)[..., 1].sum().backward()
    assert y.grad.tolist() == [[[0.0, 2.0]]]


def test_gram_given_or_not_the_mask_gradient_is_the_same():
    v, y, mask, gram, rho, _ = kernel_calls()["data_step"]
    mask.requires_grad_()
    gradients = []
    for known in (None, gram.detach()):
        x = ops.data_step(v, y, mask, STEP, rho, known)
        gradients.append(torch.autograd.grad(x.square().sum(), mask)[0])
    assert torch.equal(*gradients)


def test_no_graph_without_grad():
    v, y, mask, _, rho, _ = kernel_calls()["data_step"]
    assert not ops.data_step(v, y, mask, STEP, rho).requires_grad
    with torch.no_grad():
        assert not ops.data_step(v.requires_grad_(), y, mask, STEP, rho).requires_grad
