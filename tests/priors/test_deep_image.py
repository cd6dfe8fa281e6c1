"""DeepImage: fits, remembers within a run, repeats, refuses."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from cassi.models import Hourglass
from cassi.priors import DeepImage

NETWORK = partial(Hourglass, width=8, depth=2)


def _cube(batch: int = 1) -> Tensor:
    down = torch.linspace(0, 1, 12)[:, None]
    return torch.stack([down * down.T * gain for gain in (0.3, 0.6, 0.9)]).repeat(batch, 1, 1, 1)


def _error(u: Tensor, x: Tensor) -> float:
    return (u - x).square().mean().sqrt().item()


def test_a_run_goes_on_where_the_call_before_stopped() -> None:
    x = _cube()
    prior = DeepImage(NETWORK, iterations=10, learning_rate=0.01)
    run = prior.begin()
    cubes = [run(x, 0.1) for _ in range(4)]
    errors = [_error(u, x) for u in cubes]
    assert errors[-1] < errors[0]
    once = DeepImage(NETWORK, iterations=40, learning_rate=0.01)
    torch.testing.assert_close(cubes[-1], once(x, 0.1))


def test_a_run_has_a_memory_of_its_own() -> None:
    x = _cube()
    prior = DeepImage(NETWORK, iterations=5)
    one, two = prior.begin(), prior.begin()
    first = one(x, 0.1)
    one(x, 0.1)
    assert torch.equal(two(x, 0.1), first)
    assert torch.equal(prior(x, 0.1), first)
    assert not torch.equal(DeepImage(NETWORK, iterations=5, seed=1)(x, 0.1), first)


def test_the_state_of_the_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    DeepImage(NETWORK, iterations=1)(_cube(), 0.1)
    assert torch.equal(torch.rand(3), expected)


def test_the_first_call_may_take_longer() -> None:
    x = _cube()
    run = DeepImage(NETWORK, iterations=1, first=20).begin()
    assert torch.equal(run(x, 0.1), DeepImage(NETWORK, iterations=20)(x, 0.1))
    assert torch.equal(run(x, 0.1), DeepImage(NETWORK, iterations=21)(x, 0.1))


def test_it_stops_where_sigma_says() -> None:
    x = _cube()
    prior = DeepImage(NETWORK, iterations=400, learning_rate=0.01, strength=1.0)
    assert 0.05 < _error(prior(x, 0.1), x) <= 0.1
    assert _error(prior(x, 0.03), x) <= 0.03
    sigma = torch.tensor([0.1, 0.03])
    u = prior(_cube(2), sigma)
    assert torch.equal(u[:1], prior(x, 0.1))
    assert torch.equal(u[1:], prior(x, 0.03))


def test_it_works_where_no_gradients_are_recorded() -> None:
    x = _cube()
    prior = DeepImage(NETWORK, iterations=3)
    expected = prior(x, 0.1)
    assert not expected.requires_grad
    with torch.no_grad():
        assert torch.equal(prior(x, 0.1), expected)
    with torch.inference_mode():
        assert torch.equal(prior(x + 0, 0.1), expected)


def test_a_cube_that_is_not_finite_stays_so() -> None:
    x = _cube()
    x[0, 0, 0, 0] = torch.inf
    assert not DeepImage(NETWORK, iterations=1)(x, 0.1).isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"network": Hourglass(3)}, TypeError, "what makes a network .* got Hourglass"),
        ({"network": 3}, TypeError, "what makes a network .* got int"),
        ({"iterations": 0}, ValueError, "DeepImage iterations: expected a whole number"),
        ({"first": 0}, ValueError, "DeepImage first: expected a whole number"),
        ({"learning_rate": -1.0}, ValueError, "DeepImage learning_rate: expected a number >= 0"),
        ({"strength": -1.0}, ValueError, "DeepImage strength: expected a number >= 0"),
        ({"seed": -1}, ValueError, "DeepImage seed: expected"),
    ],
)
def test_refuses(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DeepImage(**{"network": NETWORK, **arguments})


def test_refuses_another_batch_within_a_run() -> None:
    run = DeepImage(NETWORK, iterations=1).begin()
    run(_cube(2), 0.1)
    with pytest.raises(ValueError, match="expected 2 samples as before, got 1"):
        run(_cube(1), 0.1)
