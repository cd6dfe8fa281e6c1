"""TiltedCassi by hand: against a warp, what its preconditioner saves, what is refused."""

import pytest
import torch
from shared import rand

from cassi.systems import ConjugateGradients, SDCassi, TiltedCassi, WarpedCassi

ACROSS = [1.3, 0.4, 0.0, -0.2]


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("across", [ACROSS, [0.0] * 4, [-1.0] * 4, [9.5, 0.0, 0.0, -9.5]])
def test_it_is_a_warp_by_a_constant_of_each_band(axis, across):
    mask, x = rand(7, 8), rand(2, 4, 7, 8)
    where = {"axis": axis, "offsets": [0.2, 1.5, 3.0, 4.7]}
    place = torch.zeros(4, 2, 1, 1, dtype=torch.float64)
    place[:, 0 if axis == -1 else 1, 0, 0] = -torch.tensor(across, dtype=torch.float64)
    warped = WarpedCassi(mask, 4, polynomial=place, **where)
    tilted = TiltedCassi(mask, 4, across=across, **where)
    y = warped(x)
    torch.testing.assert_close(tilted(x), y)
    torch.testing.assert_close(tilted.adjoint(y), warped.adjoint(y))
    torch.testing.assert_close(tilted.data_step(x, 2 * y, 0.3), warped.data_step(x, 2 * y, 0.3))


def test_without_a_displacement_one_iteration_is_exact():
    mask, x = rand(6, 7), rand(1, 5, 6, 7)
    offsets = [0.0, 0.7, 1.9, 2.2, 3.6]
    plain, tilted = SDCassi(mask, 5, offsets=offsets), TiltedCassi(mask, 5, offsets=offsets)
    y = plain(x)
    torch.testing.assert_close(tilted.gram_solve(y, 0.1), plain.gram_solve(y, 0.1))
    assert tilted.last_solve.iterations.tolist() == [1]


def test_the_preconditioner_saves_iterations_and_not_exactness():
    mask, x = rand(32, 32), rand(1, 8, 32, 32)
    camera = TiltedCassi(mask, 8, 2.02, across=[0.02 * c for c in range(8)])
    y, weight = camera(x), torch.tensor(0.05, dtype=torch.float64)
    exact = ConjugateGradients(1e-12, 500)
    expected, slow = exact.solve(lambda z: camera(camera.adjoint(z)), y, weight[None])
    camera.conjugate = exact
    torch.testing.assert_close(camera.gram_solve(y, weight), expected, rtol=0, atol=1e-9)
    assert 3 * int(camera.last_solve.iterations) < int(slow.iterations)


@pytest.mark.parametrize("across", [[0.0, 1.0], [0.0, 0.0, float("nan")]])
def test_other_numbers_are_refused(across):
    with pytest.raises(ValueError, match="across: expected"):
        TiltedCassi(torch.ones(4, 5), 3, across=across)
