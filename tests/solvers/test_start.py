"""A solver that starts from another method's cube, and one that has only so much time."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from cassi.apps.reconstructors import build_solver, compose_settings
from cassi.priors import InTurn, NonLocalLowRank, Subspace
from cassi.solvers import ADMM, Function, Geometric, Pass, Solver, Statistics, Timed
from cassi.solvers.solver import PARTNER
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


def error(x: torch.Tensor, truth: torch.Tensor) -> float:
    return float((x - truth).norm() / truth.norm())


def test_patches_of_the_scene_itself_add_to_a_start(scene):
    system, y, truth = scene
    smooth = SMOOTH(y, system)
    solution = replace(OWN, start=SMOOTH).run(y, system)
    assert error(solution.x, truth) < 0.7 * error(smooth, truth)
    assert len(solution.history) == 20
    assert torch.equal(solution.x, OWN.run(y, system, x0=smooth).x)


def test_a_share_of_the_start_is_in_the_result(scene):
    system, y, _ = scene
    solver = replace(OWN, start=SMOOTH)
    expected = 0.7 * solver(y, system) + 0.3 * SMOOTH(y, system)
    torch.testing.assert_close(replace(solver, blend=0.3)(y, system), expected)
    with pytest.raises(ValueError, match="blend"):
        replace(solver, blend=1.0)


def test_every_pass_begins_at_the_result_of_the_last(scene):
    system, y, _ = scene
    seen: list[Any] = []
    later = Geometric(0.1, 0.02)
    solver = replace(OWN, start=SMOOTH, blend=0.5, iterations=6, passes=3, again=later)
    solution = solver.run(y, system, callback=lambda each, _: seen.append(each))
    once = replace(OWN, iterations=2, blend=0.5)
    x = once.run(y, system, x0=SMOOTH(y, system)).x
    for _ in range(2):
        x = replace(once, sigma=later).run(y, system, x0=x).x
    torch.testing.assert_close(solution.x, x)
    assert [each.index for each in seen] == [1, 2, 3, 4, 5, 6]
    assert seen == solution.history
    assert sorted(seen, key=lambda each: each.seconds) == seen


def test_passes_take_priors_in_turn(scene):
    system, y, _ = scene
    priors = [OWN.prior, NonLocalLowRank(rank=2)]
    solver = replace(OWN, prior=InTurn(priors), start=SMOOTH, blend=0.5, iterations=6, passes=3)
    x = SMOOTH(y, system)
    for k in (0, 1, 0):
        x = replace(OWN, prior=priors[k], iterations=2, blend=0.5).run(y, system, x0=x).x
    torch.testing.assert_close(solver(y, system), x)
    kept = Kept()
    solver.run(y, system, checkpoint=kept)
    torch.testing.assert_close(solver.run(y, system, checkpoint=kept).x, x)
    once = replace(solver, passes=1)
    assert torch.equal(once(y, system), replace(once, prior=priors[0])(y, system))


def test_a_partner_has_a_share_of_every_pass(scene):
    system, y, _ = scene
    partner = Noted([])
    solver = replace(OWN, start=SMOOTH, blend=0.5, iterations=4, passes=2, partner=partner)
    x, other = SMOOTH(y, system), SMOOTH(y, system)
    for _ in range(2):
        x = torch.lerp(replace(OWN, iterations=2, blend=0.5).run(y, system, x0=x).x, other, PARTNER)
    torch.testing.assert_close(solver.run(y, system).x, x)
    assert len(partner.seen) == 1
    assert solver.halo == 96
    with pytest.raises(TypeError, match="partner: expected a reconstructor or None, got 3"):
        replace(OWN, partner=3)


class Kept:
    """Keeps the result of a pass in memory."""

    def __init__(self, done: Pass | None = None) -> None:
        self.done = done

    def read(self) -> Pass | None:
        return self.done

    def write(self, done: Pass) -> None:
        if self.done is None:  # as if the run was killed in the next pass
            self.done = replace(done, history=list(done.history))


def test_a_run_goes_on_after_the_last_pass_that_was_kept(scene):
    system, y, _ = scene
    solver = replace(OWN, start=SMOOTH, blend=0.5, iterations=6, passes=3)
    kept = Kept()
    whole = solver.run(y, system, checkpoint=kept)
    assert kept.done is not None
    assert (kept.done.passes, len(kept.done.history)) == (1, 2)
    seen: list[Any] = []
    rest = solver.run(y, system, checkpoint=kept, callback=lambda each, _: seen.append(each))
    assert torch.equal(rest.x, whole.x)
    assert [each.index for each in seen] == [3, 4, 5, 6]
    assert [each.index for each in rest.history] == [1, 2, 3, 4, 5, 6]
    assert seen[0].seconds > kept.done.history[-1].seconds
    done = Kept(Pass(3, whole.x, whole.history))
    assert torch.equal(solver.run(y, system, checkpoint=done).x, whole.x)


def test_a_callback_ends_all_passes(scene):
    system, y, _ = scene
    solver = replace(OWN, iterations=6, passes=3)
    solution = solver.run(y, system, callback=lambda each, _: each.index == 3)
    assert [each.index for each in solution.history] == [1, 2, 3]
    assert solution.reason == "callback"
    assert len(replace(solver, iterations=2).run(y, system).history) == 2


def test_a_first_cube_that_is_given_wins(scene):
    system, y, truth = scene

    def never(y, system):
        raise AssertionError

    x = replace(OWN, start=Function(never), iterations=1).run(y, system, x0=truth).x
    assert error(x, truth) < 0.1


@dataclass(frozen=True)
class Noted:
    """Remembers the statistics it was given."""

    seen: list[Any]
    iterations, halo, shares_batch, network = 1, 96, False, None

    def run(self, y, system, *, statistics=None, **_):
        self.seen.append(statistics)
        return SMOOTH.run(y, system)


@pytest.mark.parametrize("level", [0.01, 0.05])
def test_where_noise_is_visible_all_passes_have_the_first_prior(scene, level):
    system, y, _ = scene
    priors = [OWN.prior, NonLocalLowRank(rank=2)]
    solver = replace(OWN, prior=InTurn(priors), iterations=4, passes=2, visible=0.03)
    statistics = Statistics(lambda: [(y, system)])
    vars(statistics)["noise"] = torch.full((1,), level)
    found = replace(solver, start=(noted := Noted([])), noise="auto")
    assert (found.halo, found.shares_batch) == (96, False)
    x = found.run(y, system, statistics=statistics).x
    seen = level if level > solver.visible else 0.0
    assert [float(told.noise) for told in noted.seen] == [pytest.approx(seen)]
    taken = priors[:1] * 2 if seen else priors
    expected = replace(solver, prior=InTurn(taken), visible=0.0, noise=seen, start=SMOOTH)
    torch.testing.assert_close(x, expected(y, system))
    given = replace(solver, noise=level, start=SMOOTH)
    torch.testing.assert_close(given(y, system), replace(expected, noise=level)(y, system))


def test_a_run_that_fits_noise_leaves_its_first_cube(scene):
    system, y, _ = scene
    solver = replace(OWN, noise=0.2, passes=2, start=SMOOTH, blend=0.5)
    whole = solver.run(y, system)
    below = 1.01 * whole.history[5].residual / 0.2
    ended = replace(solver, closest=below).run(y, system)
    assert len(ended.history) < len(whole.history) == 20
    assert ended.history[-1].residual < 0.2 * below
    torch.testing.assert_close(ended.x, SMOOTH(y, system))
    far = replace(solver, closest=0.99 * min(each.residual for each in whole.history) / 0.2)
    assert torch.equal(far(y, system), whole.x)
    samples = replace(OWN, closest=0.8)
    assert (samples.shares_batch, replace(samples, noise=0.1).shares_batch) == (True, False)
    with pytest.raises(ValueError, match="closest"):
        replace(OWN, closest=-1)


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


def test_time_is_limited(scene):
    system, y, _ = scene
    solution = replace(OWN, iterations=10**5, time_limit=0.3).run(y, system)
    assert solution.history[-1].seconds < 3
    assert solution.history[-1].sigma < 0.1


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"start": 3}, TypeError, "start: expected a reconstructor or None, got 3"),
        ({"time_limit": 0}, ValueError, "time_limit: expected seconds above 0"),
        ({"time_limit": -1}, ValueError, "time_limit: expected a number >= 0, got -1"),
    ],
)
def test_refuses(changed, error, message):
    with pytest.raises(error, match=message):
        replace(OWN, **changed)


def test_a_start_has_the_name_of_a_method_or_network(scene):
    system, y, _ = scene
    options = ["experiment=self_supervised", "solver.iterations=1"]
    solver = build_solver(compose_settings([*options, "solver.start=pretrained", "solver.noise=0"]))
    assert solver.run(y, system).x.isfinite().all()
    assert solver.start.settings.model["noise"] == 0
    auto = build_solver(compose_settings([*options, "solver.noise=0.01"]))
    assert (auto.start.noise, auto.start.iterations) == (0.01, 125)
    with pytest.raises(ValueError, match=r"solver\.start: no method, network or .* 'automatic'"):
        build_solver(compose_settings([*options, "solver.start=automatic"]))
