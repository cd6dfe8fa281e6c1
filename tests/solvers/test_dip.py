"""DIP: fits the measurement, repeats, keeps its states apart, refuses."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cassi import SDCassi, Solver
from cassi.models import Hourglass
from cassi.solvers import DIP

NETWORK = partial(Hourglass, width=8, depth=2)


def _camera(batch: int = 1) -> tuple[SDCassi, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    system = SDCassi(torch.rand((12, 12), generator=generator) + 0.1, bands=3, step=1)
    ramp = torch.linspace(0.1, 1, 12)
    x = torch.stack([ramp[:, None] * ramp * gain for gain in (0.3, 0.6, 0.9)])
    x = torch.stack([x * (1 + 0.5 * b) for b in range(batch)])
    return system, system(x), x


def _never(x: Tensor, sigma: Any) -> Tensor:
    raise AssertionError


def test_fits_the_measurement_without_a_prior() -> None:
    system, y, x = _camera()
    solution = Solver(_never, DIP(NETWORK, steps=20, learning_rate=0.01), 15).run(y, system)
    residuals = [iteration.residual for iteration in solution.history]
    assert residuals[-1] < 0.1 < residuals[0]
    assert (solution.x - x).norm() < 0.7 * (system.pinv(y) - x).norm()


def test_results_repeat_and_leave_the_generator_alone() -> None:
    system, y, _ = _camera()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    solver = Solver(_never, DIP(NETWORK, steps=2), 2)
    first = solver(y, system)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(solver(y, system), first)
    assert not torch.equal(Solver(_never, DIP(NETWORK, steps=2, seed=1), 2)(y, system), first)
    assert not first.requires_grad
    with torch.inference_mode():
        assert torch.equal(solver(y, system), first)


def test_steps_are_pure() -> None:
    system, y, _ = _camera()
    algorithm = DIP(NETWORK, steps=3)
    state = algorithm.step(algorithm.init(y, system, system.pinv(y)), y, system, _never, 0.1, 0.0)
    cubes = [algorithm.step(state, y, system, _never, 0.1, 0.0).x for _ in range(2)]
    assert torch.equal(*cubes)
    twice = algorithm.step(
        algorithm.step(state, y, system, _never, 0.1, 0.0), y, system, _never, 0.1, 0.0
    )
    once = DIP(NETWORK, steps=9)
    whole = once.step(once.init(y, system, system.pinv(y)), y, system, _never, 0.1, 0.0)
    torch.testing.assert_close(twice.x, whole.x)


def test_samples_do_not_meet() -> None:
    system, y, _ = _camera(batch=2)
    solver = Solver(_never, DIP(NETWORK, steps=3), 2)
    torch.testing.assert_close(solver(y, system)[1:], solver(y[1:], system))


def test_rho_draws_towards_the_prior() -> None:
    system, y, _ = _camera()
    dim = [
        Solver(lambda x, sigma: 0 * x, DIP(NETWORK, steps=20, rho=rho), 5)(y, system).norm()
        for rho in (0.0, 0.3, 100.0)
    ]
    assert dim[0] > dim[1] > dim[2]


def test_takes_double_precision_and_any_network() -> None:
    system, y, _ = _camera()
    x = Solver(_never, DIP(lambda bands: nn.Conv2d(bands, bands, 1), steps=1), 1)(
        y.double(), system.double()
    )
    assert x.dtype == torch.float64


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"network": Hourglass(3)}, TypeError, "what makes a network .* got Hourglass"),
        ({"network": 3}, TypeError, "what makes a network .* got int"),
        ({"steps": 0}, ValueError, "DIP steps: expected a whole number of at least 1, got 0"),
        ({"seed": 0.5}, ValueError, r"DIP seed: expected a whole number of at least 0, got 0\.5"),
        ({"learning_rate": -1.0}, ValueError, "DIP learning_rate: expected a number >= 0"),
        ({"rho": -1.0}, ValueError, "DIP rho: expected a number >= 0"),
    ],
)
def test_refuses(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DIP(**{"network": NETWORK, **arguments})
