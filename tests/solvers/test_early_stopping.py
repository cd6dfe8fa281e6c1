"""How far an annealing goes in noise, and how near a cube may come to a noisy measurement."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from cassi.priors import TV, Subspace
from cassi.solvers import ADMM, Geometric, Solver
from cassi.solvers.early_stopping import HeldOutMonitor, find_stopping_point
from cassi.solvers.heldout import HeldOutLines, draw_heldout
from cassi.solvers.refinement import limit_to_noise
from cassi.systems import SDCassi


@pytest.fixture(scope="module")
def system():
    mask = torch.rand(96, 96, generator=torch.Generator().manual_seed(2))
    return SDCassi(mask, bands=6, step=1)


@pytest.fixture(scope="module")
def truth():
    generator = torch.Generator().manual_seed(3)
    spectra = torch.rand(4, 6, 1, 1, generator=generator)
    places = torch.randint(0, 4, (6, 6), generator=generator).repeat_interleave(16, 0)
    places = places.repeat_interleave(16, 1)
    return sum(s * (places == k) for k, s in enumerate(spectra))[None]


def solver(**settings):
    prior = Subspace(prior=TV(norm="nuclear", warm=True), balance=1.0)
    return Solver(
        prior, ADMM(rho=0.05, relaxation=1.6), 60, Geometric(2.0, 0.01), heldout=0.05, **settings
    )


def noisy(truth, system, level=0.05):
    y = system(truth)
    draws = torch.randn(y.shape, generator=torch.Generator().manual_seed(4))
    return y + level * y.square().mean().sqrt() * draws


def monitored(errors, monkeypatch):
    """Return a monitor that has seen errors, of every third cube, at strengths that halve."""
    left = iter(errors)
    monkeypatch.setattr(
        "cassi.solvers.heldout.HeldOutLines.errors", lambda *_: torch.tensor([next(left)])
    )
    monitor = HeldOutMonitor(HeldOutLines(torch.zeros(1), None, torch.zeros(1)), 100)

    def look(index, strength):
        iteration = SimpleNamespace(sigma=strength, index=index)
        return monitor(iteration, torch.full((1,), strength) if monitor.wants(iteration) else None)

    assert not any(look(k, strength) for k, strength in enumerate((2.0, 0.9, 0.39)))
    ends = []
    for k in range(len(errors)):
        ends.append(look(3 * k + 3, 0.39 / 2**k))
        assert not look(3 * k + 4, 0.39 / 2**k)  # not looked at
    return monitor, ends


def test_the_last_strength_that_is_nearly_the_best_is_taken(monkeypatch):
    monitor, ends = monitored([0.3, 0.2, 0.201, 0.21, 0.25], monkeypatch)
    assert ends == [False, False, False, True, True]
    assert monitor.find_best_count() == 9
    assert float(monitor.x) == pytest.approx(0.39 / 2)  # of the least error


@pytest.fixture
def all_lines(monkeypatch):
    """Let the whole scene be looked at."""
    monkeypatch.setattr("cassi.solvers.early_stopping.N_LINES", 96)


def looks(truth, good):
    """Return a run whose cubes are true for factors that are good, and 10 % too dark for others."""

    def reconstruct(_, camera, monitor, factor):
        for k in range(3):
            cube = truth[..., : camera.cube_shape[1], :] * (1.0 if good(factor) else 0.9)
            monitor(SimpleNamespace(sigma=0.1 / 2**k, index=k + 1), cube)

    return reconstruct


def test_what_seems_noise_may_be_texture(system, truth, all_lines):
    y = system(truth)
    clean = looks(truth, lambda factor: factor == 0)
    found = find_stopping_point(y, system, 0.05, 3, 10.0, clean)
    assert (found.factor, found.count) == (0, 3)
    assert torch.equal(found.x, truth)


def test_the_held_out_error_bounds_the_noise(system, truth, all_lines):
    y = system(truth)
    dark = looks(truth, lambda factor: False)  # all predict as badly
    error = find_stopping_point(y, system, 0.05, 3, 1e-9, dark).error
    found = find_stopping_point(y, system, 0.05, 3, error / 0.7, dark)
    assert found.factor == pytest.approx(0.7)
    assert (found.count, found.error) == (3, error)
    assert find_stopping_point(y, system, 0.05, 3, error / 1.1, dark).factor == 1


def test_what_the_camera_does_not_explain_is_noise_too(system, truth, all_lines):
    y = system(truth)
    error = 0.1 * float(y.square().mean().sqrt())
    more = find_stopping_point(
        y, system, 0.05, 3, error / 4, looks(truth, lambda factor: factor > 1)
    )
    assert more.factor == pytest.approx(4, rel=0.2)
    sure = find_stopping_point(
        y, system, 0.05, 3, error / 1.1, looks(truth, lambda factor: factor > 1)
    )
    assert sure.factor == 1


def test_pixels_that_were_held_out_before_are_not_asked_again(system, truth):
    y = system(truth)
    camera = system.weighted(bad_pixels=draw_heldout(y.shape[1:], 0.05))
    assert (
        find_stopping_point(y, camera, 0.05, 3, 10.0, looks(truth, lambda factor: False)).error > 0
    )


def test_in_noise_the_run_ends_early_and_is_better(system, truth):
    y = noisy(truth, system)
    whole = replace(solver(), heldout=0.0).run(y, system)
    chosen = solver().run(y, system)
    assert chosen.history[-1].sigma > whole.history[-1].sigma
    assert (chosen.x - truth).norm() < (whole.x - truth).norm()
    assert torch.equal(solver().run(y, system).x, chosen.x)


def test_a_noise_that_is_given_is_believed(system, truth):
    y = noisy(truth, system)
    given = solver(noise=0.05).run(y, system)
    assert torch.equal(given.x, replace(solver(noise=0.05), heldout=0.0).run(y, system).x)
    assert len(given.history) == 60


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.3])
def test_no_closer_than_the_noise(system, truth, noise):
    y = system(truth).repeat(2, 1, 1, 1)
    x = truth + 0.2 * torch.randn((2, *truth.shape[1:]), generator=torch.Generator().manual_seed(5))
    stepped = system.data_step(x, y, 0.0)
    near = limit_to_noise(x, stepped, y, system, torch.tensor([noise, 0.0]))
    left, first = (
        (y - system(cube)).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1) for cube in (near, x)
    )
    assert left[0].item() == pytest.approx(min(noise, first[0].item()), abs=1e-4)
    assert torch.equal(near[1], stepped[1])


def test_balanced_components_smooth_colour_more_than_brightness(truth):
    x = truth + 0.05 * torch.randn(truth.shape, generator=torch.Generator().manual_seed(6))

    def rest(balance):
        u = Subspace(prior=TV(norm="nuclear"), balance=balance, energy=0.0)(x, 0.02)
        wrong = u - truth
        brightness = wrong.mean(1, keepdim=True)
        return (wrong - brightness).norm() / brightness.norm()

    assert rest(1.0) < rest(0.0)


def test_cubes_are_weighed_by_the_pixels_they_did_not_see(system, truth):
    generator = torch.Generator().manual_seed(5)
    # Errors that are the same in every band: those that pixels tell apart.
    errors = torch.randn(3, 1, 1, *truth.shape[2:], generator=generator).expand(3, *truth.shape)
    y = system(truth)
    lines = HeldOutLines(y, system, draw_heldout(y.shape[1:], 0.1))
    shares = (0.2, 0.2, 0.6)
    # Of independent errors the best weights are as their inverse squares: 4 : 1 : 4 of 9.
    cubes = [truth + size * error for size, error in zip((0.1, 0.2, 0.1), errors, strict=True)]
    found, nearest = lines.weigh(cubes, shares, shares, 1e6)
    torch.testing.assert_close(
        found[:, 0], torch.tensor([4.0, 1, 4]).double() / 9, atol=0.1, rtol=0
    )
    assert nearest.item() < 0.5  # their mean is nearer to the truth than the first of them
    assert lines.weigh([truth, *cubes[1:]], shares, shares, 1.0)[1].item() > 0.8
    usual = (0.1, 0.1, 0.8)
    near, _ = lines.weigh(cubes, shares, usual, 0.1)
    assert (near[:, 0] - torch.tensor(usual)).abs().max() < 0.15
    # Cubes that do not differ are weighed as told; samples of a batch each by their own pixels.
    same, _ = lines.weigh([truth] * 3, shares, usual, 0.2)
    torch.testing.assert_close(same[:, 0].float(), torch.tensor(usual))
    batch = HeldOutLines(torch.cat((y, y)), system, lines.heldout)
    both, _ = batch.weigh([torch.cat((one, truth)) for one in cubes], shares, shares, 1e6)
    torch.testing.assert_close(both[:, :1], found)
    alone, _ = lines.weigh([truth], (1.0,), (1.0,), 0.2)
    torch.testing.assert_close(alone, torch.ones(1, 1).double())
