"""Every camera under the transforms of `torch.func`, with respect to cube, measurement and mask."""

import itertools

import pytest
import torch
from shared import before_a_push, rand, systems_of_each_class
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vjp, vmap

import cassi
from cassi.systems import BlurredCassi, SDCassi, TiltedCassi, WarpedCassi
from cassi.systems.examples import EXAMPLES

# One of each class, and further ones whose operators are others.
SOME = [*systems_of_each_class(), "sd_offsets", "sd_two_shots"]
# All derivatives of these take little; of cameras that iterate one stands for the others.
QUICK = [name for name in SOME if EXAMPLES[name]().has_closed_form or name == "tilted"]
close = torch.testing.assert_close


def _methods(system):
    """Functions of one tensor without a batch, and such tensors."""
    x, y = rand(2, *system.cube_shape), rand(2, *system.measurement_shape, seed=1)
    return {
        "forward": (lambda v: system(v[None])[0], x),
        "adjoint": (lambda v: system.adjoint(v[None])[0], y),
        "pinv": (lambda v: system.pinv(v[None])[0], y),
        "data_step": (lambda v: system.data_step(v[None], y[:1], 0.3)[0], x),
    }


def _autograd(function, value, upstream):
    leaf = value.clone().requires_grad_()
    return torch.autograd.grad(function(leaf), leaf, upstream)[0]


def _vjp(function, values):
    result, pull = vjp(function, values[0])
    upstream = rand(*result.shape, seed=2)
    close(result, function(values[0]), rtol=0, atol=1e-12)
    close(pull(upstream)[0], _autograd(function, values[0], upstream))


def _jvp(function, values):
    result, tangent = jvp(function, (values[0],), (values[1],))
    close(result, function(values[0]), rtol=0, atol=1e-12)
    upstream = rand(*result.shape, seed=2)
    back = _autograd(function, values[0], upstream)
    close((tangent * upstream).sum(), (back * values[1]).sum())
    with forward_ad.dual_level():
        dual = function(forward_ad.make_dual(values[0], values[1]))
        close(forward_ad.unpack_dual(dual).tangent, tangent)


def _jacobians(function, values):
    backwards = jacrev(function)(values[0])
    close(jacfwd(function)(values[0]), backwards)
    upstream = rand(*function(values[0]).shape, seed=2)
    weighted = torch.tensordot(upstream, backwards, upstream.ndim)
    close(weighted, _autograd(function, values[0], upstream))


def _grad_of_samples(function, values):
    def loss(value):
        return function(value).square().sum()

    each = torch.stack([grad(loss)(value) for value in values])
    close(vmap(grad(loss))(values), each)
    close(grad(lambda values: vmap(loss)(values).sum())(values), each)
    _, curved = jvp(grad(loss), (values[0],), (values[1],))
    close(curved, grad(lambda value: (grad(loss)(value) * values[1]).sum())(values[0]))


def _cases(*further):
    """Both products of each class of cameras, and of the quick ones what is made of them."""
    kept = [*itertools.product(SOME, (_vjp, _jvp)), *itertools.product(QUICK, further)]
    return before_a_push(itertools.product(EXAMPLES, (_vjp, _jvp, *further)), kept, "thorough")


@pytest.mark.parametrize(("name", "check"), _cases(_jacobians, _grad_of_samples))
def test_transforms(name, check):
    for function, values in _methods(EXAMPLES[name]()).values():
        check(function, values)


class _Result(torch.nn.Module):
    def __init__(self, system, function):
        super().__init__()
        self.system, self.function = system, function

    def forward(self):
        return self.function(self.system)


@pytest.mark.parametrize(("name", "check"), _cases(_grad_of_samples))
def test_transforms_of_the_mask(name, check):
    system = EXAMPLES[name]()
    if "mask" not in system.state_dict():
        pytest.skip("a system without a mask of its own")
    x, y = rand(1, *system.cube_shape), rand(1, *system.measurement_shape, seed=1)
    before = system.data_step(x, y, 0.3)
    masks = torch.stack([system.mask * 0.9, rand(*system.mask.shape, seed=3)])
    for method in (
        lambda s: s(x),
        lambda s: s.adjoint(y),
        lambda s: s.data_step(x, y, 0.3),
    ):
        result = _Result(system, method)
        check(lambda mask, r=result: functional_call(r, {"system.mask": mask}, ()), masks)
    assert torch.equal(system.data_step(x, y, 0.3), before)  # nothing of a transform is left


@pytest.mark.parametrize("check", [_vjp, _jvp])
def test_transforms_of_a_map(check):
    system = EXAMPLES["warped"]()
    x, y = rand(1, *system.cube_shape), rand(1, *system.measurement_shape, seed=1)
    for method in (lambda s: s(x), lambda s: s.adjoint(y), lambda s: s.data_step(x, y, 0.3)):
        result = _Result(system, method)
        check(
            lambda smile, r=result: functional_call(r, {"system.smile": smile}, ()),
            torch.stack([system.smile, 0.9 * system.smile + 0.01]),
        )


@pytest.mark.parametrize(
    "name", ["dd", "sd_offsets", "sd_rows", "tilted", "warped", "blurred", "measured_mask"]
)
def test_gradients_reach_the_mask_that_was_given(name):
    makers = {
        "dd": lambda mask: cassi.DDCassi(mask, bands=3, step=1),
        "sd_offsets": lambda mask: SDCassi(mask, 3, offsets=[0.0, 1.3, 2.9]),
        "sd_rows": lambda mask: SDCassi(mask, 3, step=1, axis=-2),
        "tilted": lambda mask: TiltedCassi(mask, 3, across=[0.0, 0.1, 0.3]),
        "warped": lambda mask: WarpedCassi(mask, 3, smile=0.3),
        "blurred": lambda mask: BlurredCassi(mask, 3, point_spread=0.4),
        "measured_mask": lambda mask: SDCassi(mask, 3, offsets=[0, 1.4, 2.7], measured_mask=True),
    }
    x = rand(1, 3, 5, 6)

    def result(mask):
        system = makers[name](mask)
        return system.data_step(x * 0.9, system(x), 0.2).square().sum()

    mask, way = (0.3 + 0.5 * rand(5, 6, seed=1)).requires_grad_(), rand(5, 6, seed=2)
    (gradient,) = torch.autograd.grad(result(mask), mask)
    with torch.no_grad():
        ends = [result(mask + h * way).item() for h in (1e-5, -1e-5)]
    assert (gradient * way).sum().item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6)
    close(grad(result)(mask.detach()), gradient)


def test_what_has_no_gradient_is_refused():
    mask, wanted = rand(4, 5), torch.tensor([0.0, 0.5, 1.5], requires_grad=True)
    with pytest.raises(ValueError, match=r"offsets: .* without gradient, .*; give an nn.Parameter"):
        SDCassi(mask, 3, offsets=wanted)
    with pytest.raises(ValueError, match=r"smile: .*; call camera.smile.requires_grad_\(\) after"):
        WarpedCassi(mask, 3, smile=wanted)
    with pytest.raises(ValueError, match="across: expected a tensor without gradient"):
        TiltedCassi(mask, 3, across=wanted)
    with pytest.raises(ValueError, match="line_spread: expected a tensor without gradient"):
        BlurredCassi(mask, 3, line_spread=wanted)
    with torch.no_grad():
        assert SDCassi(mask, 3, offsets=wanted).offsets == (0.0, 0.5, 1.5)
