"""Detector pixels that are weighed or left out, against dense linear algebra."""

import math

import pytest
import torch
from shared import rand

from cassi.solvers import Solver
from cassi.systems import BlurredCassi, SDCassi, Weighted, dot_test
from cassi.systems.conjugate import ConjugateGradients


def _mask(*shape):
    return 0.3 + 0.7 * rand(*shape)


CAMERAS = {
    "sd": lambda: SDCassi(_mask(7, 9), bands=4, step=2),
    "rows": lambda: SDCassi(_mask(7, 5), bands=3, step=-2, axis=-2),
    "offsets": lambda: SDCassi(_mask(5, 7), bands=4, offsets=[0.0, 1.3, 2.9, 4.25]),
    "two_shots": lambda: SDCassi(_mask(2, 1, 5, 6), bands=6, step=1),
    "blurred": lambda: BlurredCassi(_mask(6, 7), bands=4, step=1, point_spread=0.4),
}
every_camera = pytest.mark.parametrize("name", CAMERAS)


def _make(name):
    plain = CAMERAS[name]()
    plain.conjugate = ConjugateGradients(1e-13, 2000)
    shape = plain.measurement_shape
    bad = rand(*shape, seed=3) > 0.8
    return plain, Weighted(plain, 0.4 + rand(*shape, seed=4), bad)


def _matrix(system):  # (pixels, unknowns)
    size = math.prod(system.cube_shape)
    basis = torch.eye(size, dtype=torch.float64).view(size, *system.cube_shape)
    return system(basis).flatten(1).T


@every_camera
def test_the_adjoint_is_one(name):
    left, right = dot_test(_make(name)[1])
    assert left == pytest.approx(right, rel=1e-11)


@every_camera
@pytest.mark.parametrize("rho", [0.05, 1.0])
def test_gram_solve_is_the_dense_solve(name, rho):
    plain, system = _make(name)
    good = system.is_good.flatten()
    a, d = _matrix(plain)[good], system.variance.double().flatten()[good]
    r = rand(2, *system.measurement_shape, seed=5)
    expected = torch.zeros(2, good.numel(), dtype=torch.float64)
    gram = a @ a.T + rho * torch.diag(d)
    expected[:, good] = torch.linalg.solve(gram, r.flatten(1)[:, good].T).T
    torch.testing.assert_close(
        system.gram_solve(r, rho).flatten(1), expected, rtol=0, atol=1e-6 * expected.abs().max()
    )


@every_camera
def test_the_data_step_is_weighted_least_squares(name):
    plain, system = _make(name)
    good, rho = system.is_good.flatten(), 0.2
    a, d = _matrix(plain)[good], system.variance.double().flatten()[good]
    v, y = rand(2, *system.cube_shape, seed=6), rand(2, *system.measurement_shape, seed=7)
    weighted = a.T / d
    normal = weighted @ a + rho * torch.eye(a.shape[1], dtype=torch.float64)
    right = y.flatten(1)[:, good] @ weighted.T + rho * v.flatten(1)
    expected = torch.linalg.solve(normal, right.T).T.view_as(v)
    for camera in (system, system.begin()):
        torch.testing.assert_close(camera.data_step(v, y, rho), expected, rtol=0, atol=1e-6)
    per_sample = torch.tensor([rho, rho], dtype=torch.float64)
    torch.testing.assert_close(system.data_step(v, y, per_sample), expected, rtol=0, atol=1e-6)


@every_camera
@pytest.mark.parametrize("value", [1e6, math.nan, math.inf])
def test_what_bad_pixels_hold_changes_no_bit(name, value):
    _, system = _make(name)
    v, y = rand(1, *system.cube_shape, seed=6), rand(1, *system.measurement_shape, seed=7)
    other = torch.where(system.is_good, y, value)
    for apply in (
        system.adjoint,
        system.pinv,
        lambda y: system.gram_solve(y, 0.1),
        lambda y: system.data_step(v, y, 0.1),
        lambda y: Solver(lambda x, sigma: x, iterations=2).run(y, system).x,
    ):
        assert torch.equal(apply(y), apply(other))
        assert apply(y).isfinite().all()


def test_a_part_may_have_no_good_pixel():
    bad = torch.zeros(7, 15)
    bad[2] = 1
    part = Weighted(CAMERAS["sd"](), bad_pixels=bad).part(2, 3)
    y = torch.full((1, *part.measurement_shape), math.nan, dtype=torch.float64)
    assert not part.data_step(torch.zeros(1, *part.cube_shape, dtype=torch.float64), y, 0.1).any()


def test_weights_within_weights_are_one():
    plain, outer = _make("sd")
    bad = torch.zeros(plain.measurement_shape)
    bad[0, 1, 2] = 1
    nested = Weighted(Weighted(plain, outer.variance), 2.0 * outer.variance, bad)
    assert nested.system is plain
    torch.testing.assert_close(nested.variance, 2 * outer.variance**2)
    both = outer.weighted(bad_pixels=bad)
    assert torch.equal(both.is_good, outer.is_good & (bad == 0))
    assert "bad pixels" in str(both)


def test_it_has_what_the_camera_has():
    plain, system = _make("blurred")
    assert (system.bands, system.step, system.axis) == (4, 1, -1)
    assert torch.equal(system.mask, plain.mask)
    system.pinv(rand(1, *system.measurement_shape))
    assert system.last_solve is plain.last_solve is not None
    with pytest.raises(AttributeError):
        _ = system.nothing_of_the_kind


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bad_pixels": torch.zeros(7, 14)}, r"bad_pixels: expected .* \(1, 7, 15\) .* got"),
        ({"variance": torch.ones(3)}, "variance: expected .* got"),
        ({"variance": torch.zeros(7, 15)}, "variance: expected finite numbers > 0"),
        ({"variance": torch.full((7, 15), math.nan)}, "variance: expected finite numbers > 0"),
        ({"bad_pixels": torch.ones(7, 15)}, "bad_pixels: expected some good pixels"),
    ],
)
def test_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Weighted(CAMERAS["sd"](), **options)
    with pytest.raises(TypeError, match="expected a camera"):
        Weighted(torch.ones(3))
