"""Reconstructors around reconstructors: starts, restarts, stops and limits."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from cassi.apps.reconstructors import build_method, compose_settings
from cassi.methods import (
    Blended,
    NoiseThreshold,
    Restarts,
    Started,
    TimeLimit,
    self_supervised,
)
from cassi.methods.refinement import MirroringDenoiser
from cassi.priors import NonLocalLowRank, Subspace
from cassi.solvers import (
    ADMM,
    AboveNoise,
    Geometric,
    Solver,
    Statistics,
    Timed,
    noise_damping,
    signal_level,
)
from cassi.solvers.base import Pass
from cassi.systems import SDCassi


@pytest.fixture(scope="module")
def scene():
    """A scene of one repeated pattern, two spectra, and its measurement."""
    generator = torch.Generator().manual_seed(0)
    system = SDCassi(torch.rand(36, 36, generator=generator), bands=6, step=1)
    tile = (torch.rand(9, 9, generator=generator) > 0.5).float().repeat(4, 4)
    one, two = torch.rand(2, 6, 1, 1, generator=generator)
    x = (one * tile + two * (1 - tile))[None]
    return system, system(x), x


SMOOTH = Solver(Subspace(), ADMM(rho=0.05), 40, Geometric(2.0, 0.03), noise=0.0)
OWN = Solver(NonLocalLowRank(rank=3), ADMM(rho=0.05), 20, Geometric(0.2, 0.02), noise=0.0)


def error(x, truth):
    return float((x - truth).norm() / truth.norm())


def restarts(count, iterations, share=0.5, **parts):
    """Return restarts of OWN from SMOOTH, each with a share of its first cube."""
    once = Blended(replace(OWN, iterations=iterations), share)
    return Started(Restarts([once] * count, **parts), SMOOTH)


def test_a_share_of_the_start_is_in_the_result(scene):
    system, y, _ = scene
    expected = 0.7 * Started(OWN, SMOOTH)(y, system) + 0.3 * SMOOTH(y, system)
    torch.testing.assert_close(Started(Blended(OWN, 0.3), SMOOTH)(y, system), expected)
    assert torch.equal(Blended(OWN, 0.3)(y, system), OWN(y, system))
    with pytest.raises(ValueError, match="blend"):
        Blended(OWN, 1.0)


def test_every_pass_begins_at_the_result_of_the_last(scene):
    system, y, _ = scene
    seen = []
    method = restarts(3, 2)
    solution = method.run(y, system, callback=lambda each, _: seen.append(each))
    x = SMOOTH(y, system)
    for once in method.method.passes:
        x = once.run(y, system, x0=x).x
    torch.testing.assert_close(solution.x, x)
    assert [each.index for each in seen] == [1, 2, 3, 4, 5, 6]
    assert seen == solution.history
    assert sorted(seen, key=lambda each: each.seconds) == seen
    assert (method.iterations, method.halo, method.shares_batch) == (6, 40, True)


def test_the_first_cube_has_a_share_of_every_pass(scene):
    system, y, _ = scene
    start = Noted([])
    method = replace(restarts(2, 2, weight=0.3), start=start)
    x = first = SMOOTH(y, system)
    for once in method.method.passes:
        x = torch.lerp(once.run(y, system, x0=x).x, first, 0.3)
    kept = Kept()
    torch.testing.assert_close(method.run(y, system, checkpoint=kept).x, x)
    assert len(start.seen) == 1
    assert method.halo == 96
    torch.testing.assert_close(method.run(y, system, checkpoint=kept).x, x)
    assert len(start.seen) == 1  # the cube that was kept
    torch.testing.assert_close(method.run(y, system, x0=first).x, x)


class Kept:
    """Keeps the first result of each name in memory: the run is killed in the second pass."""

    def __init__(self, **done):
        self.done = done

    def read(self, name):
        return self.done.get(name)

    def write(self, name, done):
        self.done.setdefault(name, replace(done, history=list(done.history)))


def test_a_run_goes_on_after_the_last_pass_that_was_kept(scene):
    system, y, _ = scene
    method, kept = restarts(3, 2), Kept()
    whole = method.run(y, system, checkpoint=kept)
    first = kept.read("pass")
    assert (first.passes, len(first.history)) == (1, 2)
    seen = []
    rest = method.run(y, system, checkpoint=kept, callback=lambda each, _: seen.append(each))
    assert torch.equal(rest.x, whole.x)
    assert [each.index for each in seen] == [3, 4, 5, 6]
    assert [each.index for each in rest.history] == [1, 2, 3, 4, 5, 6]
    assert seen[0].seconds > first.history[-1].seconds
    done = Kept(**{"pass": Pass(3, whole.x, whole.history)})
    assert torch.equal(method.run(y, system, checkpoint=done).x, whole.x)


def test_a_callback_ends_all_passes(scene):
    system, y, _ = scene
    solution = restarts(3, 2).run(y, system, callback=lambda each, _: each.index == 3)
    assert [each.index for each in solution.history] == [1, 2, 3]
    assert solution.reason == "callback"


@dataclass(frozen=True)
class Noted:
    """Remembers the statistics it was given."""

    seen: list[Any]
    iterations, halo, shares_batch, network = 1, 96, False, None

    def run(self, y, system, *, statistics=None, **_):
        self.seen.append(statistics)
        return SMOOTH.run(y, system)


@dataclass(frozen=True)
class Finds(Noted):
    """Finds a noise as well."""

    noise: Any

    def run(self, y, system, **given):
        return replace(super().run(y, system, **given), noise=self.noise)


@pytest.mark.parametrize(
    ("windows", "found", "told"),
    [(0.05, 0.0, 0.0), (0.05, 0.04, 0.04), (0.02, None, 0.0), (0.05, None, 0.05)],
)
def test_little_noise_is_texture_and_a_start_knows_better(scene, windows, found, told):
    system, y, _ = scene
    statistics = Statistics(lambda: [(y, system)])
    vars(statistics)["noise"] = torch.full((1,), windows)
    start = Finds([], None if found is None else torch.full((1,), found))
    inner = Noted([])
    method = Started(NoiseThreshold(inner, 0.03), start)
    assert (method.halo, method.shares_batch) == (96, False)
    method.run(y, system, statistics=statistics)
    method.run(y, system, x0=SMOOTH(y, system), statistics=statistics)
    assert [float(each.noise) for each in inner.seen] == pytest.approx(
        [told, 0.0 if windows < 0.03 else windows]
    )
    assert start.seen == [statistics]
    assert torch.equal(NoiseThreshold(OWN, 1.0)(y, system), OWN(y, system))


def test_sigma_stays_above_the_noise(scene):
    system, y, _ = scene
    told = 0.1
    solver = replace(OWN, noise=told, sigma=AboveNoise(OWN.sigma, 0.5))
    history = solver.run(y, system).history
    scaled = y / signal_level(y, system)
    damping = noise_damping(scaled, system, told).clamp_min(0.05)
    least = 0.5 * told * scaled.square().mean().sqrt() / damping.sqrt()
    assert 0.02 < float(least) < 0.2
    assert history[0].sigma == 0.2
    assert history[-1].sigma == pytest.approx(float(least), rel=1e-5)
    assert replace(solver, noise=0.002).run(y, system).history[-1].sigma == pytest.approx(0.02)
    two = torch.cat((y, y / 2))
    samples = solver.run(two, system)
    assert samples.history[-1].sigma == pytest.approx(float(least), rel=1e-5)
    torch.testing.assert_close(samples.x[:1], solver.run(y, system).x)
    with pytest.raises(ValueError, match="share"):
        AboveNoise(Geometric(0.2, 0.02), -1.0)


def test_a_schedule_follows_the_clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    timed = Timed(Geometric(1.0, 0.01), ends=110.0)
    values = []
    while not timed.is_over:
        values.append(timed(len(values), 21))
        now[0] += 2.5
    assert values == pytest.approx([1.0, 0.01**0.25, 0.1, 0.01**0.75])
    fast = Timed(Geometric(1.0, 0.01), ends=now[0] + 1e6)
    assert [fast(i, 3) for i in range(3)] == pytest.approx([1.0, 0.1, 0.01])
    assert fast.is_over


def test_time_is_limited(scene, monkeypatch):
    system, y, _ = scene
    limited = TimeLimit(replace(OWN, iterations=10**5), 0.3)
    assert not limited.shares_batch
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) / 100)
    history = limited.run(y, system).history
    assert 1 < len(history) < 30
    assert history[-1].sigma < 0.1


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Restarts([3]), TypeError, "Restarts passes: expected a reconstructor, got 3"),
        (lambda: Restarts([]), ValueError, "Restarts passes: expected at least one"),
        (lambda: Started(OWN, 3), TypeError, "start: expected a reconstructor, got 3"),
        (lambda: Restarts([OWN], 1), ValueError, "weight: expected a share"),
        (lambda: Blended(3, 0.5), TypeError, "Blended method: expected a reconstructor, got 3"),
        (lambda: NoiseThreshold(3), TypeError, "NoiseThreshold method: expected a reconstructor"),
        (lambda: NoiseThreshold(OWN, -1), ValueError, "noise_threshold: expected a number >= 0"),
        (lambda: TimeLimit(OWN, 0), ValueError, "time_limit: expected seconds above 0"),
        (lambda: TimeLimit(OWN, -1), ValueError, "time_limit: expected a number >= 0, got -1"),
        (lambda: self_supervised(passes=0), ValueError, "passes"),
    ],
)
def test_refuses(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_self_supervised_alternates_strong_components_and_all():
    method = self_supervised(iterations=12, passes=4)
    energies = [once.method.prior.energy for once in method.method.method.passes]
    assert energies == [2e-4, 0.0, 2e-4, 0.0]
    assert (method.iterations, method.start.iterations) == (12, 100)
    limited = self_supervised(passes=4, time_limit=20.0)
    assert {once.method.seconds for once in limited.method.method.passes} == {5.0}


def test_a_start_has_the_name_of_a_method_or_network(scene):
    system, y, _ = scene
    options = ["method=self_supervised", "solver.iterations=1"]
    method = build_method(compose_settings([*options, "solver.start=pretrained", "solver.noise=0"]))
    assert method.run(y, system).x.isfinite().all()
    assert method.start.settings.model["noise"] == 0
    auto = build_method(compose_settings([*options, "solver.noise=0.01"]))
    assert (auto.start.noise, auto.start.iterations) == (0.01, 100)
    with pytest.raises(ValueError, match=r"solver\.start: no method, network or .* 'automatic'"):
        build_method(compose_settings([*options, "solver.start=automatic"]))


def test_a_denoiser_sees_mirrored_images_in_turn():
    x, seen = torch.rand(1, 5, 8, 6), []
    run = MirroringDenoiser(lambda u, sigma: seen.append(u) or sigma * u).begin()
    for call, axes in enumerate([(), (-1,), (-2,), (-2, -1), ()]):
        assert torch.equal(run(x, 0.5), 0.5 * x)
        assert torch.equal(seen[call], x.flip(axes))
    assert torch.equal(MirroringDenoiser(lambda u, sigma: 2 * u)(x, 0.0), 2 * x)
