"""ADMM on components: what it computes, where the cube is made, what is left out."""

from types import SimpleNamespace

import pytest
import torch

from cassi.priors import TV, Subspace
from cassi.solvers import ADMM, Constant, Solver
from cassi.solvers.components import Components
from cassi.solvers.loop import iterate
from cassi.solvers.objective import evaluate_objective
from cassi.systems import SDCassi
from cassi.systems.examples import EXAMPLES

SMOOTH = TV(norm="nuclear", warm=True, iterations=3)


@pytest.fixture(scope="module")
def problem():
    generator = torch.Generator().manual_seed(0)
    spectra, amounts = (torch.rand(s, generator=generator).double() for s in ((6, 3), (3, 4, 5)))
    amounts = amounts.repeat_interleave(8, 1).repeat_interleave(8, 2)
    mask = (torch.rand((32, 40), generator=generator) > 0.5).double()
    system = SDCassi(mask, bands=6, step=2)
    return system, system(torch.einsum("cr,rhw->chw", spectra, amounts)[None])


def run(problem, prior, system=None, iterations=12, relaxation=1.8, **more):
    camera, y = problem
    return iterate(
        ADMM(rho=0.05, relaxation=relaxation),
        y,
        system or camera,
        prior,
        iterations=iterations,
        sigma=Constant(0.05),
        **more,
    )


def as_cubes(prior):
    """The same prior, of which nobody knows that it is one on components."""

    def begin():
        running = prior.begin()
        return lambda x, sigma: running(x, sigma)

    return SimpleNamespace(begin=begin)


def test_is_the_same_where_the_basis_is_complete(problem):
    prior = Subspace(SMOOTH, rank=6, pool=4, energy=0.0, renew=1)
    found, expected = run(problem, prior), run(problem, as_cubes(prior))
    torch.testing.assert_close(found.x, expected.x)
    for one, other in zip(found.history, expected.history, strict=True):
        assert one.residual == pytest.approx(other.residual, rel=1e-6)
        assert one.change == pytest.approx(other.change, rel=1e-6)


@pytest.mark.parametrize("name", ["tilted", "sd_offsets", "sd_two_shots"])
def test_takes_every_camera(name):
    system = EXAMPLES[name]()
    truth = torch.rand(1, *system.cube_shape, dtype=torch.float64)
    y = system(truth)
    prior = Subspace(SMOOTH, rank=system.cube_shape[0], pool=1, energy=0.0, renew=1)
    found, expected = (run((system, y), each, relaxation=1.0) for each in (prior, as_cubes(prior)))
    torch.testing.assert_close(found.x, expected.x, rtol=1e-3, atol=1e-3)


def test_lengths_are_those_of_the_cubes(problem):
    cubes = []
    prior = Subspace(SMOOTH, rank=3, pool=4, renew=3)
    history = run(
        problem, prior, iterations=20, callback=lambda _, x: cubes.append(x.clone())
    ).history
    for k in range(1, 20):
        expected = (cubes[k] - cubes[k - 1]).norm() / cubes[k].norm()
        assert history[k].change == pytest.approx(float(expected), rel=1e-4)


def test_a_cube_is_made_where_it_is_looked_at(problem, monkeypatch):
    made = []
    whole = Components.x.func
    monkeypatch.setattr(Components, "x", property(lambda state: made.append(1) or whole(state)))

    cubes = []

    class Third:
        def wants(self, iteration):
            return iteration.index == 3

        def __call__(self, iteration, x):
            cubes.append(x)

    solver = Solver(Subspace(SMOOTH, rank=3, pool=4), ADMM(), iterations=5, sigma=0.05, noise=0)
    system, y = problem
    solver.run(y, system, callback=Third())
    assert [x is not None for x in cubes] == [False, False, True, False, False]
    assert len(made) == 3  # and beside the first cube, and the result


def test_the_objective_is_that_of_the_cube(problem):
    system, y = problem
    algorithm, prior = ADMM(rho=0.05), Subspace(SMOOTH, rank=3, pool=4).begin()
    state = algorithm.init(y, system, system.pinv(y))
    for _ in range(3):
        state = algorithm.step(state, y, system, prior, 0.05, 0.05)
    value = evaluate_objective(algorithm, prior, state, y, system, 0.05, 0.05)
    misfit = (system(state.x) - y).square().sum() / 2
    assert value == pytest.approx(float(misfit + 0.05 * prior.penalty(state.x, 0.05).sum()))
