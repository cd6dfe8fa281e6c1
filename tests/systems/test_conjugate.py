"""Conjugate gradients against dense algebra: solutions, gradients, reports."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from shared import rand
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from cassi import SDCassi
from cassi.systems import ConjugateGradients, System

SHAPE = (1, 3, 4)  # of a measurement
SIZE = 12


_rand = partial(rand, low=-0.3)


class Dense(System):
    """A camera given by any matrix `(12, 8)` or wider: forward, adjoint and shapes, no more."""

    matrix: Tensor

    def __init__(self, matrix):
        super().__init__()
        self.register_buffer("matrix", matrix)

    @property
    def cube_shape(self):
        return (1, 1, self.matrix.shape[1])

    @property
    def measurement_shape(self):
        return SHAPE

    def forward(self, x):
        return (x.flatten(1) @ self.matrix.T.to(x.dtype)).view(-1, *SHAPE)

    def adjoint(self, y):
        return (y.flatten(1) @ self.matrix.to(y.dtype)).view(-1, *self.cube_shape)


def _exact(matrix, r, rho):
    eye = torch.eye(SIZE, dtype=torch.float64)
    dense = matrix @ matrix.T + rho.view(-1, 1, 1) * eye
    inverse = torch.linalg.pinv(dense, rtol=1e-11, hermitian=True)
    return (inverse @ r.flatten(1)[..., None]).view_as(r)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])
def test_every_sample_is_solved(dtype, bound):
    matrix, r = _rand(SIZE, 20), _rand(3, *SHAPE)
    r[2] = 0
    rho = torch.tensor([0.0, 0.7, 0.0], dtype=torch.float64)
    system = Dense(matrix)
    z = system.gram_solve(r.to(dtype), rho)
    assert z.dtype == dtype
    exact = _exact(matrix, r, rho)
    assert (z - exact).norm() <= bound * 100 * exact.norm()
    report = system.last_solve
    assert bool(report.converged.all())
    assert report.iterations[2] == 0
    assert report.iterations[1] <= report.iterations[0] <= 2 * SIZE
    assert bool((report.residual <= (1e-13 if dtype == torch.float64 else 1e-6)).all())


def test_singular_systems_have_the_minimum_norm_least_squares_solution():
    """Also for an r that no x gives."""
    matrix, r = _rand(SIZE, 7), _rand(2, *SHAPE)
    system = Dense(matrix)
    z = system.gram_solve(r)
    torch.testing.assert_close(z, _exact(matrix, r, torch.zeros(2)), rtol=1e-9, atol=1e-9)
    exact = r.flatten(1) @ torch.linalg.pinv(matrix).T
    torch.testing.assert_close(system.pinv(r).flatten(1), exact, rtol=1e-9, atol=1e-9)
    report = system.last_solve
    assert bool(report.converged.all())
    misfit = (r - system(system.pinv(r))).flatten(1).norm(dim=1) / r.flatten(1).norm(dim=1)
    torch.testing.assert_close(report.residual, misfit)


def test_limits_are_kept_and_reported():
    system, r = Dense(_rand(SIZE, 20)), _rand(2, *SHAPE)
    system.conjugate = ConjugateGradients(tolerance=1e-2)
    z = system.gram_solve(r)
    report = system.last_solve
    assert report is not None
    misfit = (r - system(system.adjoint(z))).flatten(1).norm(dim=1) / r.flatten(1).norm(dim=1)
    torch.testing.assert_close(report.residual, misfit)
    assert bool((misfit <= 1e-2).all())
    few = report.iterations
    system.conjugate = ConjugateGradients(iterations=3)
    system.gram_solve(r)
    report = system.last_solve
    assert report.iterations.tolist() == [3, 3]
    assert not report.converged.any()
    assert bool((few > 3).all())


@pytest.mark.parametrize("rho", [0.0, 0.3])
def test_gradients_are_those_of_the_exact_solution(rho):
    def solve(matrix, r, weight):
        return Dense(matrix).gram_solve(r, weight)

    weight = torch.tensor([rho, 0.5], dtype=torch.float64)
    inputs = tuple(v.requires_grad_() for v in (_rand(SIZE, 20) + 0.1, _rand(2, *SHAPE), weight))
    matrix, r, weight = inputs
    torch.testing.assert_close(solve(*inputs), _exact(matrix, r, weight), rtol=1e-8, atol=1e-8)
    w = _rand(2, *SHAPE, seed=5)
    got = torch.autograd.grad((solve(*inputs) * w).sum(), inputs)
    eye = torch.eye(SIZE, dtype=torch.float64)
    dense = matrix @ matrix.T + weight.view(-1, 1, 1) * eye
    z = torch.linalg.solve(dense, r.flatten(1)[..., None]).view_as(r)
    expected = torch.autograd.grad((z * w).sum(), inputs)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7 * b.abs().max().item())


def test_the_gradient_of_a_solve_cut_short_is_refined():
    matrix, g = _rand(SIZE, 20), _rand(1, *SHAPE, seed=5)
    system = Dense(matrix)
    system.conjugate = ConjugateGradients(iterations=4)
    r, rho = _rand(1, *SHAPE).requires_grad_(), torch.full((1,), 0.3).double().requires_grad_()
    (gradient,) = torch.autograd.grad((system.gram_solve(r, rho) * g).sum(), r)
    with torch.no_grad():
        once = system.gram_solve(g, rho)
        exact = _exact(matrix, g, rho)
    assert (gradient - exact).norm() < 0.7 * (once - exact).norm()


@pytest.mark.parametrize("samples", [1, 2])
def test_pixels_without_influence(samples):
    """Solution and gradients are those of the camera without these rows."""
    absent = _rand(samples, *SHAPE, seed=4) > 0.4
    rho = torch.where(absent, torch.inf, 0.2 + _rand(samples, *SHAPE, seed=6).abs())
    inputs = tuple(v.requires_grad_() for v in (_rand(SIZE, 20), _rand(2, *SHAPE), rho))
    matrix, r, _ = inputs
    system, g = Dense(matrix), _rand(2, *SHAPE, seed=5)
    z = system.gram_solve(r, rho)
    got = torch.autograd.grad((z * g).sum(), inputs)
    parts = []
    for b in range(2):
        d = rho[min(b, samples - 1)].flatten()
        kept = d.isfinite()
        rows = matrix[kept]
        part = torch.linalg.solve(rows @ rows.T + d[kept].diag(), r[b].flatten()[kept])
        parts.append(torch.zeros_like(d).masked_scatter(kept, part))
    exact = torch.stack(parts).view_as(r)
    torch.testing.assert_close(z, exact, rtol=1e-9, atol=1e-9)
    expected = torch.autograd.grad((exact * g).sum(), inputs)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)
    assert not got[2][absent].any()
    with torch.no_grad():
        for value in (1e30, torch.nan):
            other = torch.where(absent, value, r)
            assert torch.equal(system.gram_solve(other, rho), system.gram_solve(r, rho))
    report = system.last_solve
    assert bool(report.converged.all())


def test_gradients_of_every_order():
    matrix, scale = _rand(SIZE, 20), 1 + 0.1 * _rand(SIZE, 1)
    absent = _rand(1, *SHAPE, seed=4) > 0.4

    def solve(scale, r, weight):
        rho = torch.where(absent, torch.inf, weight)
        return Dense(matrix * scale).gram_solve(r, rho)

    weight = 0.3 + _rand(1, *SHAPE, seed=6).abs()
    inputs = tuple(v.requires_grad_() for v in (scale, _rand(1, *SHAPE), weight))
    assert gradcheck(solve, inputs, atol=1e-6, fast_mode=True)
    assert gradgradcheck(solve, inputs, atol=1e-6, fast_mode=True)


def test_a_gradient_of_r_alone_costs_one_solve():
    calls = 0

    class Counted(Dense):
        def forward(self, x):
            nonlocal calls
            calls += 1
            return super().forward(x)

    system, r = Counted(_rand(SIZE, 20)), _rand(1, *SHAPE).requires_grad_()
    z = system.gram_solve(r, 0.1)
    ahead, calls = calls, 0
    z.sum().backward()
    assert 0 < calls <= ahead + 2
    torch.testing.assert_close(r.grad, system.gram_solve(torch.ones_like(r), 0.1).detach())


def test_the_report_changes_nothing():
    system, r = Dense(_rand(SIZE, 20)), _rand(2, *SHAPE)
    first = system.gram_solve(r, 0.1)
    system.gram_solve(r * 7, 0.3)
    assert torch.equal(system.gram_solve(r, 0.1), first)
    with torch.no_grad():
        assert torch.equal(system.gram_solve(r, 0.1), first)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tolerance": -1.0}, ValueError, r"tolerance: expected a number >= 0, got -1\.0"),
        ({"iterations": 0}, ValueError, "iterations: expected a whole number of at least 1, got 0"),
        ({"iterations": 2.0}, ValueError, r"iterations: expected a whole number .*, got 2\.0"),
    ],
)
def test_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        ConjugateGradients(**arguments)


def test_a_measurement_that_does_not_fit_is_named():
    system = Dense(_rand(SIZE, 20))
    with pytest.raises(ValueError, match=r"y: expected .* \(B, 1, 3, 4\), got shape \(1, 3, 4\)"):
        system.gram_solve(_rand(1, 3, 4))
    with pytest.raises(ValueError, match="rho: expected a number >= 0, got -1"):
        system.gram_solve(_rand(1, *SHAPE), -1)


def test_a_run_starts_each_data_step_where_the_last_ended():
    system, y = Dense(_rand(SIZE, 20)), _rand(2, *SHAPE)
    system.conjugate = ConjugateGradients(tolerance=1e-9)
    run, v = system.begin(), _rand(2, 1, 1, 20)
    torch.testing.assert_close(run(v), system(v))
    torch.testing.assert_close(run.pinv(y), system.pinv(y))
    torch.testing.assert_close(run.adjoint(y), system.adjoint(y))
    assert torch.equal(run.data_step(v, y, 0.1), system.data_step(v, y, 0.1))
    first = system.last_solve
    again = run.data_step(v + 1e-7, y, 0.1)
    torch.testing.assert_close(again, system.data_step(v + 1e-7, y, 0.1), rtol=1e-6, atol=1e-6)
    run.data_step(v + 1e-7, y, 0.1)
    assert first is not None
    assert bool((system.last_solve.iterations < first.iterations // 2).all())
    assert bool((system.last_solve.residual <= 1e-9).all())


def test_a_closed_form_with_gradients_keeps_nothing():
    camera = SDCassi(torch.nn.Parameter(_rand(4, 5) + 0.5), bands=2)
    assert camera.begin() is camera
