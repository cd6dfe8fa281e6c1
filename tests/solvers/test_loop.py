"""The loop: when it stops, what it reports, what it leaves alone."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from cassi import ADMM, GAP, SDCassi
from cassi.priors import TV
from cassi.solvers import FISTA, HQS, Constant, TwIST, iterate, loop
from cassi.solvers.objective import evaluate_objective
from cassi.systems import Guided
from cassi.systems.examples import EXAMPLES

ALGORITHMS = {"gap": GAP(), "plain": GAP(accelerated=False), "admm": ADMM()}
ALGORITHMS |= {"hqs": HQS(), "fista": FISTA(), "twist": TwIST()}


def _camera():
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand((6, 7), generator=generator, dtype=torch.float64)
    system = SDCassi(mask, bands=3, step=1)
    return system, torch.rand((1, 1, 6, 9), generator=generator, dtype=torch.float64)


def _smooth(x, sigma):
    return (1 - sigma) * x + sigma * (x.roll(1, -1) + x.roll(1, -2)) / 2


def _run(algorithm, prior=_smooth, **options):
    system, y = _camera()
    options = {"iterations": 5, "sigma": Constant(0.3)} | options
    return iterate(algorithm, y, system, prior, **options)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_statistics_are_those_of_the_cubes(name):
    system, y = _camera()
    cubes = [ALGORITHMS[name].init(y, system, system.pinv(y)).x]
    seen = []

    def callback(statistics, x):
        seen.append(statistics)
        cubes.append(x.clone())

    solution = _run(ALGORITHMS[name], callback=callback, sigma=lambda i, n: (i + 1) / n)
    assert solution.reason == "iterations"
    assert solution.history == seen
    assert torch.equal(solution.x, cubes[-1])
    assert [s.index for s in seen] == [1, 2, 3, 4, 5]
    assert [s.sigma for s in seen] == [0.2, 0.4, 0.6, 0.8, 1.0]
    for before, after, s in zip(cubes, cubes[1:], seen, strict=False):
        assert s.residual == pytest.approx(((y - system(after)).norm() / y.norm()).item())
        assert s.change == pytest.approx(((after - before).norm() / after.norm()).item())
    seconds = [s.seconds for s in seen]
    assert seconds[0] > 0
    assert seconds == sorted(seconds)


def test_seconds_leave_out_the_callback(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def prior(x, sigma):
        clock.now += 1
        return x

    def callback(statistics, x):
        clock.now += 100

    history = _run(GAP(), prior, callback=callback).history
    assert [s.seconds for s in history] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("answer", [True, 1])
def test_callback_stops(answer):
    solution = _run(GAP(), callback=lambda s, _: answer if s.index == 2 else None)
    assert solution.reason == "callback"
    assert len(solution.history) == 2
    assert torch.equal(solution.x, _run(GAP(), iterations=2).x)


def test_tolerance_stops():
    full = _run(GAP(), iterations=40)
    assert full.reason == "iterations"
    changes = [s.change for s in full.history]
    wanted = next(i for i, change in enumerate(changes) if change <= 0.05)
    assert 0 < wanted < 39
    for tol in (0.05, changes[wanted]):  # equality stops too
        solution = _run(GAP(), iterations=40, tol=tol)
        assert solution.reason == "tolerance"
        assert [s.change for s in solution.history] == changes[: wanted + 1]


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_divergence_returns_the_last_finite_cube(name, bad):
    calls = []
    seen = []

    def prior(x, sigma):
        calls.append(1)
        x = _smooth(x, sigma)
        if len(calls) == 3:
            x[..., 2, 3] = bad
        return x

    solution = _run(ALGORITHMS[name], prior, callback=lambda s, _: seen.append(s.index))
    assert solution.reason == "diverged"
    assert len(calls) == 3
    assert [s.index for s in solution.history] == seen == [1, 2]
    assert torch.equal(solution.x, _run(ALGORITHMS[name], iterations=2).x)


def test_an_all_dark_measurement_gives_a_dark_cube():
    system, y = _camera()
    for algorithm in ALGORITHMS.values():
        solution = iterate(
            algorithm, 0 * y, system, _smooth, iterations=3, sigma=Constant(0.3), tol=0.0
        )
        assert solution.reason == "iterations"
        assert not solution.x.any()
        assert [s.residual for s in solution.history] == [0, 0, 0]


def test_gradients_flow_through_the_loop():
    system, y = _camera()
    y.requires_grad_()
    x = iterate(GAP(False), y, system, _smooth, iterations=3, sigma=Constant(0.3)).x
    (gradient,) = torch.autograd.grad(x.sum(), y)
    # All is linear in y, so the derivative along y is the value itself.
    assert (gradient * y).sum().item() == pytest.approx(x.sum().item(), rel=1e-12)


def test_no_iterations_return_the_first_cube():
    system, y = _camera()
    solution = _run(GAP(), iterations=0)
    assert torch.equal(solution.x, system.pinv(y))
    assert (solution.history, solution.reason) == ([], "iterations")


class _Ridge:
    """prior(v, σ) = argmin ½‖u − v‖² + σ/2‖u‖²."""

    def __call__(self, v, sigma):
        return v / (1 + sigma)

    def penalty(self, x, sigma):
        return sigma / 2 * x.square().sum((1, 2, 3))


@pytest.mark.parametrize(
    "algorithm",
    [GAP(False), GAP(False, 0.2), GAP(True), ADMM(0.3), HQS(0.3), FISTA(0.1), TwIST(0.1)],
    ids=str,
)
def test_objective_is_least_at_the_limit(algorithm):
    """No cube near the limit has a smaller one; accelerated GAP: none with Ax = y."""
    system, y = _camera()
    sigma = 0.2
    state, prior = algorithm.init(y, system, system.pinv(y)), _Ridge()
    for _ in range(2000):
        state = algorithm.step(state, y, system, prior, sigma, algorithm.rho)

    def value(x):
        moved = dataclasses.replace(state, x=x, residual=y - system(x))
        return evaluate_objective(algorithm, prior, moved, y, system, sigma, algorithm.rho)

    least = value(state.x)
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        direction = torch.randn(state.x.shape, generator=generator, dtype=torch.float64)
        if algorithm == GAP(True):
            direction = direction - system.pinv(system(direction))
        for length in (-1e-2, 1e-2):
            assert value(state.x + length * direction) > least


def test_objective_is_recorded_when_asked_for():
    algorithm, system_y = ADMM(0.3), _camera()
    system, y = system_y
    assert {s.objective for s in _run(algorithm, _Ridge()).history} == {None}
    assert {s.objective for s in _run(algorithm, objective=True).history} == {None}
    solution = _run(algorithm, _Ridge(), objective=True, iterations=1)
    x = solution.x
    expected = (system(x) - y).square().sum() / 2 + 0.3 * 0.3 / 2 * x.square().sum()
    assert solution.history[0].objective == pytest.approx(expected.item())
    history = _run(algorithm, _Ridge(), objective=2, iterations=5).history
    assert [s.index for s in history if s.objective is not None] == [1, 2, 4, 5]


def test_a_run_of_a_remembering_prior_has_its_penalty():
    class Remembering(_Ridge):
        def begin(self):
            return lambda v, sigma: self(v, sigma)

    history = _run(ADMM(0.3), Remembering(), objective=True).history
    expected = _run(ADMM(0.3), _Ridge(), objective=True).history
    assert [s.objective for s in history] == [s.objective for s in expected]


def test_a_guide_beside_conjugate_gradients_changes_no_other_prior():
    system = EXAMPLES["psf"]()
    y = system(torch.rand(1, *system.cube_shape, dtype=torch.float64))
    bands, height, width = system.cube_shape
    guided = Guided(system, torch.ones(height, width), torch.ones(1, bands))
    options = {"iterations": 3, "sigma": Constant(0.1)}
    cubes = [iterate(ADMM(), y, each, TV(), **options).x for each in (system, guided)]
    torch.testing.assert_close(*cubes, rtol=1e-4, atol=1e-5)
