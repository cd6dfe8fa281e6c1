"""Parts and numbers that make no solver are named before anything runs; a consistent end."""

from __future__ import annotations

import pytest
import torch

from cassi import ADMM, GAP, SDCassi, Solver, solve
from cassi.solvers import FISTA, HQS, Constant, Phases, TwIST, iterate, signal_level
from cassi.solvers.schedules import as_schedule


@pytest.fixture
def camera():
    mask = torch.rand(6, 7, generator=torch.Generator().manual_seed(0)) + 0.1
    return SDCassi(mask, bands=3, step=1)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: GAP(rho=-1.0), ValueError, r"GAP rho: expected a number >= 0, got -1\.0"),
        (lambda: FISTA(rho=-1.0), ValueError, r"FISTA rho: expected a number >= 0, got -1\.0"),
        (lambda: TwIST(rho=-1.0), ValueError, r"TwIST rho: expected a number >= 0, got -1\.0"),
        (lambda: ADMM(rho=0.0), ValueError, r"ADMM rho: expected a number > 0, got 0\.0"),
        (lambda: HQS(rho=0.0), ValueError, r"HQS rho: expected a number > 0, got 0\.0"),
        (lambda: TwIST(least=0.0), ValueError, r"TwIST least: expected a number in \(0, 1\], got"),
        (lambda: TwIST(least=1.1), ValueError, r"TwIST least: expected a number in \(0, 1\], got"),
        (lambda: Solver("tv"), TypeError, "prior: expected a callable, got 'tv'"),
        (lambda: Solver(abs, algorithm="gap"), TypeError, "algorithm: expected GAP, .* got 'gap'"),
        (lambda: as_schedule("fast"), TypeError, "expected a number or a schedule, got 'fast'"),
    ],
)
def test_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_the_least_numbers_that_pass():
    assert (GAP(rho=0.0).rho, FISTA(rho=0.0).rho, TwIST(rho=0.0, least=1.0).least) == (0, 0, 1)


@pytest.mark.parametrize(
    ("y", "error", "message"),
    [
        ([[1.0]], TypeError, "y: expected a torch.Tensor, got list"),
        (torch.ones(6, 9), ValueError, r"y: expected \(B, K, H', W'\), got shape \(6, 9\)"),
        (torch.full((1, 1, 6, 9), torch.nan), ValueError, "y: expected finite values"),
    ],
)
def test_a_measurement_without_a_level(y, error, message, camera):
    with pytest.raises(error, match=message):
        signal_level(y, camera)


def test_the_old_order_of_arguments_is_refused(camera):
    y = torch.ones(1, 1, 6, 9)
    with pytest.raises(TypeError, match=r"solve: expected \(y, system\), .* order has changed"):
        solve(camera, y, prior=abs)
    with pytest.raises(TypeError, match=r"iterate: expected \(y, system\), got \(system, y\)"):
        iterate(GAP(), camera, y, abs, iterations=1, sigma=Constant(1.0))


def test_phases_may_have_names():
    parts = [Constant(2.0), Constant(1.0)]
    named = Phases({"first": parts[0], "then": parts[1]}, [2, 1])
    assert [named(i, 5) for i in range(4)] == [2, 2, 1, 1]


@pytest.mark.parametrize("consistent", [False, True])
def test_a_last_data_step_gives_data_consistency(consistent, camera):
    x = torch.rand(1, 3, 6, 7, generator=torch.Generator().manual_seed(1))
    y = camera(x)
    solver = Solver(lambda x, sigma: 0.9 * x, GAP(), iterations=3, noise=0.0, consistent=consistent)
    misfit = (camera(solver.run(y, camera).x) - y).norm() / y.norm()
    assert (misfit < 1e-5) == consistent
