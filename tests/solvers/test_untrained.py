"""A network fitted to the measurement: against torch's Adam, and what it keeps to."""

from functools import partial

import pytest
import torch
from torch import nn

from cassi.models.published.lctc import LCTC
from cassi.priors.none import NoPrior
from cassi.solvers import Solver, Untrained
from cassi.systems import SDCassi

STEPS = 12


class Small(nn.Module):
    """Two convolutions, in a form that needs six pixels a side."""

    inputs, least = 2, 6

    def __init__(self, bands):
        super().__init__()
        self.first = nn.Conv2d(self.inputs, 8, 3, padding=1)
        self.last = nn.Conv2d(8, bands, 1)

    def forward(self, z):
        assert min(z.shape[-2:]) >= self.least
        return self.last(torch.tanh(self.first(z)))


@pytest.fixture
def scene():
    generator = torch.Generator().manual_seed(3)
    system = SDCassi(torch.rand(8, 9, generator=generator) + 0.1, bands=3, step=1)
    return system, system(torch.rand(2, 3, 8, 9, generator=generator))


def solver(iterations=STEPS, prior=NoPrior(), **settings):  # noqa: B008
    algorithm = Untrained(Small, **{"rate": 0.02, **settings})
    return Solver(prior, algorithm, iterations, sigma=0.0)


def run(solver, y, system, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return solver.run(y, system).x


def test_follows_adam(scene):
    """Every iterate, written with modules and torch's optimiser, where all is drawn alike."""
    system, y = scene[0].double(), scene[1][:1].double()
    algorithm = Untrained(Small, rate=0.03, fidelity=0.2, sparsity=0.7, level=0.6)
    torch.manual_seed(5)
    state = algorithm.init(y, system, system.pinv(y))
    torch.manual_seed(5)
    network = Small(3)
    z = nn.Parameter(0.1 * torch.rand(2, 8, 9).double())
    network.double()
    optimizer = torch.optim.Adam([*network.parameters(), z], lr=0.03)
    best, expected = float("inf"), torch.zeros(())
    for count in range(STEPS):
        noise = torch.randn(2, 8, 9, generator=torch.Generator().manual_seed(5 + count)).double()
        cube = network((z + 0.033 * noise)[None])
        loss = 0.2 * (system(cube) - 0.6 * y).abs().mean() + 0.7 * z.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < best:
            best, expected = loss.item(), cube.detach() / 0.6
        state = algorithm.step(state, y, system, NoPrior(), 0.0, 0.0)
        torch.testing.assert_close(state.x, expected, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(state.residual, y - system(state.x))
        assert state.loss.item() == pytest.approx(best)


def test_the_seed_decides_and_samples_do_not_meet(scene):
    system, y = scene
    x = run(solver(), y, system)
    assert torch.equal(x, run(solver(), y, system))
    assert not torch.equal(x, run(solver(), y, system, seed=1))
    torch.testing.assert_close(run(solver(), y[1:], system), x[1:])
    scale = torch.tensor([3.0, 0.02]).view(-1, 1, 1, 1)
    torch.testing.assert_close(run(solver(), y * scale, system), x * scale, rtol=1e-3, atol=1e-4)


def test_fits_a_scene():
    system = SDCassi(torch.rand(24, 24, generator=torch.Generator().manual_seed(0)), 4, step=1)
    rows = torch.linspace(0, 1, 24).view(24, 1).expand(24, 24)
    y = system(torch.stack([rows, rows**2, 1 - rows, rows * 0 + 0.5])[None])
    algorithm = Untrained(partial(LCTC, inputs=2, width=16), rate=5e-3)
    solution = Solver(NoPrior(), algorithm, 60, sigma=0.0).run(y, system)
    assert solution.history[-1].residual < 0.35 * solution.history[0].residual
    assert len(solution.history) == 60


def test_bad_pixels_have_no_influence(scene):
    system, y = scene
    bad = torch.zeros(y.shape[-2:])
    bad[2, 3:6] = 1
    camera = system.weighted(bad_pixels=bad)
    assert torch.equal(run(solver(), y, camera), run(solver(), y + 9 * bad, camera))


def test_bfloat16_is_near(scene):
    system, y = scene
    x, near = (run(solver(precision=p), y, system) for p in ("32-true", "bf16-mixed"))
    assert near.dtype == x.dtype
    assert 0 < (near - x).norm() / x.norm() < 0.05


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"network": "lctc"}, TypeError, "Untrained network: expected a callable, got 'lctc'"),
        ({"rate": 0.0}, ValueError, "Untrained rate: expected a number > 0, got 0"),
        ({"level": -1.0}, ValueError, "Untrained level: expected a number >= 0, got -1"),
        ({"fidelity": float("nan")}, ValueError, "Untrained fidelity: expected a number >= 0"),
        ({"sparsity": -1.0}, ValueError, "Untrained sparsity: expected a number >= 0, got -1"),
        ({"spread": -1.0}, ValueError, "Untrained spread: expected a number >= 0, got -1"),
        ({"disturbance": -1}, ValueError, "Untrained disturbance: expected a number >= 0, got -1"),
        (
            {"precision": "16-mixed"},
            ValueError,
            "Untrained precision: expected 32-true or bf16-mixed, got '16-mixed'",
        ),
    ],
)
def test_refuses(settings, kind, message):
    with pytest.raises(kind, match=message):
        Untrained(**{"network": Small, **settings})
