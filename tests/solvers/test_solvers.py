"""Every exported algorithm on one small scene; what `Solver` and `solve` promise and refuse."""

import math
from functools import partial

import pytest
import shared
import torch

import cassi
import cassi.solvers
from cassi import ADMM, GAP, TV, SDCassi, Solver, solve
from cassi.metrics import psnr
from cassi.solvers import FISTA, HQS, Constant, Geometric, TwIST, iterate, signal_level
from cassi.solvers.schedules import as_schedule

ALGORITHMS = shared.ALGORITHMS | {"GAP plain": lambda: GAP(accelerated=False)}
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


def _identity(x, sigma):
    return x


def _scene(dtype=torch.float64):
    """A camera, two piecewise-constant scenes of six bands, and their measurements."""
    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand((16, 20), generator=generator) > 0.5).to(dtype)
    spectra = 0.2 + 0.8 * torch.rand((2, 3, 6, 1, 1), generator=generator, dtype=torch.float64)
    x = torch.zeros((2, 6, 16, 20), dtype=torch.float64)
    x += spectra[:, 0]
    x[..., 3:12, 4:13] = spectra[:, 1]
    x[..., 8:, 10:18] = spectra[:, 2]
    system = SDCassi(mask, bands=6, step=1)
    return system, x.to(dtype), system(x.to(dtype))


@every_algorithm
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_recovers_a_piecewise_constant_scene(name, dtype):
    system, truth, y = _scene(dtype)
    solution = Solver(TV(), ALGORITHMS[name](), iterations=60).run(y, system)
    assert solution.x.dtype == dtype
    assert solution.x.shape == truth.shape
    gain = psnr(solution.x, truth, "unit") - psnr(system.pinv(y), truth, "unit")
    assert (gain > 6).all(), gain
    residuals = [iteration.residual for iteration in solution.history]
    assert residuals[-1] < residuals[0] / 2
    assert residuals[-1] < 0.15  # plain GAP keeps the prior's bias
    assert solution.reason == "iterations"


@every_algorithm
def test_scale_of_the_measurement_does_not_matter(name):
    system, _, y = _scene()
    solver = Solver(TV(), ALGORITHMS[name](), iterations=8)
    x = solver(y, system)
    assert torch.equal(solver(64 * y, system), 64 * x)
    torch.testing.assert_close(solver(7 * y, system), 7 * x, rtol=1e-5, atol=1e-6)
    each = solver(y * torch.tensor([1.0, 1024.0], dtype=y.dtype).view(2, 1, 1, 1), system)
    torch.testing.assert_close(each[1], 1024 * x[1], rtol=1e-12, atol=0)


@every_algorithm
def test_samples_of_a_batch_do_not_meet(name):
    system, _, y = _scene()
    solver = Solver(TV(), ALGORITHMS[name](), iterations=5)
    torch.testing.assert_close(solver(y, system)[1:], solver(y[1:], system), rtol=1e-12, atol=1e-14)


@every_algorithm
def test_first_cube_is_honoured(name):
    system, truth, y = _scene()
    start = 0.5 * truth
    one = Solver(_identity, ALGORITHMS[name](), iterations=1)
    for x0, first in ((start, start), (None, system.pinv(y))):
        expected = system.data_step(first, y, one.algorithm.rho)
        if name in ("FISTA", "TwIST"):  # a gradient step instead
            expected = first + system.adjoint(y - system(first)) / system.gram.max()
        x = one.run(y, system, x0=x0).x
        torch.testing.assert_close(x, expected, rtol=1e-6, atol=1e-9)
    same = solve(
        y, system, prior=_identity, algorithm=one.algorithm, iterations=1, x0=start, sigma=0.3
    )
    assert torch.equal(same, one.run(y, system, x0=start).x)


def test_solver_equals_solve_and_has_the_documented_defaults():
    system, _, y = _scene()
    solver = Solver(TV(), iterations=3)
    assert solver.algorithm == GAP()
    assert (solver.sigma, solver.rho, solver.tol) == (Geometric(0.4, 0.1), None, 0.0)
    assert (solver.halo, solver.network, solver.shares_batch) == (40, None, True)
    assert not Solver(TV(), tol=0.1).shares_batch  # one sample would stop the others
    x = solver(y, system)
    assert torch.equal(x, solve(y, system, prior=TV(), iterations=3))
    assert torch.equal(x, solver.run(y, system).x)
    assert not torch.equal(x, solve(y, system, prior=TV(), iterations=3, sigma=0.3))
    seen = []
    solve(y, system, prior=TV(), tol=1e9, callback=lambda i, _: seen.append(i.index))
    assert seen == [1]


def test_keeps_no_graph():
    system, _, y = _scene()
    system.mask.requires_grad_()
    solution = Solver(TV(), iterations=2).run(y.requires_grad_(), system)
    assert not solution.x.requires_grad
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("step", [1, -2, 0])
@pytest.mark.parametrize("shots", [1, 2])
def test_level_of_an_even_scene_is_its_radiance(shots, step):
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand((shots, 1, 9, 8), generator=generator, dtype=torch.float64)
    system = SDCassi(mask, bands=4, step=step)
    radiance = torch.tensor([0.5, 3.0, 0.0], dtype=torch.float64).view(3, 1, 1, 1)
    level = signal_level(system(radiance.expand(3, *system.cube_shape)), system)
    assert level.shape == (3, 1, 1, 1)
    assert level.flatten().tolist() == pytest.approx([0.5, 3.0, 1.0], rel=1e-6)


def test_level_is_of_the_bright_pixels_and_blind_to_dark_ones():
    mask = torch.ones(40, 50)
    mask[0, :] = 1e-5  # a division by almost nothing must not decide
    system = SDCassi(mask, bands=1)
    y = torch.full((1, 1, 40, 50), 0.1)
    y[0, 0, 20] = 2.0
    y[0, 0, 30, 0] = 1e6  # one hot pixel of 2000
    assert signal_level(y, system).item() == pytest.approx(2.0)
    assert signal_level(-y, system).item() == pytest.approx(2.0)
    assert signal_level(y, system).dtype == y.dtype


def test_noise_behind_a_nearly_dark_pixel_stays_small():
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(64, 64, generator=generator)
    mask[:, 0] = 1e-4
    system = SDCassi(mask, bands=4, step=1)
    y = system(torch.full((1, 4, 64, 64), 0.5))
    y = y + 0.05 * torch.randn(y.shape, generator=generator)
    assert system.pinv(y).abs().max() > 50
    solver = Solver(lambda x, sigma: x, algorithm=cassi.ADMM(), iterations=1, noise=0.05)
    assert solver(y, system).abs().max() < 5


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
        *(
            (partial(Solver, TV(), **{key: value}), ValueError, f"{key}: expected")
            for key, value in (
                *(("iterations", each) for each in (0, 2.0, True)),
                *(("tol", each) for each in (-1e-3, math.nan)),
                *(("noise", each) for each in (-0.1, "much", True, math.nan, None)),
                ("heldout", 0.7),
            )
        ),
        (lambda: Solver("tv"), TypeError, "prior: expected a callable, got 'tv'"),
        (lambda: Solver(abs, "gap"), TypeError, r"algorithm: expected GAP\(\), .* got 'gap'"),
        (lambda: Solver(abs, GAP), TypeError, r"algorithm: expected GAP\(\), got the class GAP"),
        (lambda: as_schedule("fast"), TypeError, "expected a number or a schedule, got 'fast'"),
    ],
)
def test_parts_that_make_no_solver(make, error, message):
    with pytest.raises(error, match=message):
        make()


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
    with pytest.raises(TypeError, match=r"solve: expected \(y, system\), .* give y first"):
        solve(camera, y, prior=abs)
    with pytest.raises(TypeError, match=r"iterate: expected \(y, system\), got \(system, y\)"):
        iterate(GAP(), camera, y, abs, iterations=1, sigma=Constant(1.0))


@pytest.mark.parametrize("consistent", [False, True])
def test_a_last_data_step_gives_data_consistency(consistent, camera):
    x = torch.rand(1, 3, 6, 7, generator=torch.Generator().manual_seed(1))
    y = camera(x)
    solver = Solver(lambda x, sigma: 0.9 * x, GAP(), iterations=3, noise=0.0, consistent=consistent)
    misfit = (camera(solver.run(y, camera).x) - y).norm() / y.norm()
    assert (misfit < 1e-5) == consistent
