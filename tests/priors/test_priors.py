"""Every exported prior: what it keeps, what it lowers, what it refuses."""

import inspect
import math

import pytest
import torch

import cassi.priors
from cassi import ops
from cassi.priors import TV, Denoiser

PRIORS = {
    name: value
    for name, value in ((name, getattr(cassi.priors, name)) for name in cassi.priors.__all__)
    if inspect.isclass(value) and callable(value)
}
# Made of a network.
PRIORS["Denoiser"] = lambda: Denoiser(lambda x, sigma: ops.tv_prox(x, sigma, 8))
every_prior = pytest.mark.parametrize("name", PRIORS)


def _noisy(dtype=torch.float64, noise=0.1):
    generator = torch.Generator().manual_seed(0)
    clean = torch.zeros(2, 4, 16, 20, dtype=torch.float64)
    clean[..., 4:12, 5:13] = torch.rand((2, 4, 1, 1), generator=generator, dtype=torch.float64)
    disturbance = noise * torch.randn(clean.shape, generator=generator, dtype=torch.float64)
    return (clean + disturbance).to(dtype), clean.to(dtype)


@every_prior
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_keeps_shape_dtype_and_its_argument(name, dtype):
    x, _ = _noisy(dtype)
    before = x.clone()
    u = PRIORS[name]()(x, 0.1)
    assert (u.shape, u.dtype) == (x.shape, dtype)
    assert u.isfinite().all()
    assert torch.equal(x, before)
    assert torch.equal(u, PRIORS[name]()(x, 0.1))


@every_prior
def test_removes_noise(name):
    x, clean = _noisy()
    u = PRIORS[name]()(x, 0.1)
    assert (u - clean).norm() < 0.7 * (x - clean).norm()


@every_prior
def test_samples_do_not_meet(name):
    x, _ = _noisy()
    prior = PRIORS[name]()
    torch.testing.assert_close(prior(x[1:], 0.1), prior(x, 0.1)[1:], rtol=1e-12, atol=1e-14)


PROXIMAL = [name for name in PRIORS if hasattr(PRIORS[name], "penalty")]


@pytest.mark.parametrize("name", PROXIMAL)
@pytest.mark.parametrize("sigma", [0.0, 0.02, 0.1, 0.5])
def test_lowers_its_objective(name, sigma):
    x, _ = _noisy()
    prior = PRIORS[name]()
    u = prior(x, sigma)
    before = prior.penalty(x, sigma)
    after = 0.5 * (u - x).square().flatten(1).sum(1) + prior.penalty(u, sigma)
    assert before.shape == after.shape == (2,)
    assert (after <= before + 1e-12).all()  # what rounding leaves
    if sigma >= 0.1:
        assert (after < 0.8 * before).all()


def test_tv_is_the_operator_with_its_parameters():
    x, _ = _noisy()
    assert torch.equal(TV()(x, 0.1), ops.tv_prox(x, 0.1, 5))
    assert torch.equal(TV(weight=2.0, iterations=3)(x, 0.1), ops.tv_prox(x, 0.2, 3))
    sigma = torch.tensor([0.1, 0.3], dtype=x.dtype)
    assert torch.equal(TV(0.5)(x, sigma)[1], ops.tv_prox(x[1], 0.15, 5))
    assert torch.equal(TV(0.0)(x, 0.1), x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight": -0.1}, r"TV weight: expected a number >= 0, got -0\.1"),
        ({"weight": math.nan}, "TV weight: expected a number >= 0, got nan"),
        ({"iterations": 0}, "TV iterations: expected a whole number of at least 1, got 0"),
    ],
)
def test_tv_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        TV(**arguments)


@pytest.mark.parametrize("norm", ops.NORMS)
def test_warm_tv_continues_where_the_call_before_stopped(norm):
    x, _ = _noisy()
    prior = TV(iterations=3, norm=norm, warm=True)
    run = prior.begin()
    first, second = run(x, 0.1), run(x, 0.1)
    assert torch.equal(first, ops.tv_prox(x, 0.1, 3, norm=norm))
    torch.testing.assert_close(second, ops.tv_prox(x, 0.1, 6, norm=norm))
    assert torch.equal(prior.begin()(x, 0.1), first)  # a run of its own
    assert torch.equal(prior(x, 0.1), first)  # without a run there is no memory
    cold = TV()
    assert cold.begin() is cold
