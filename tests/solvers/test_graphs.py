"""Iterations as CUDA graphs, recorded by a stand-in: the same bits, and what cannot be recorded."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from fake_graphs import FakeCuda
from shared import seeded, smooth_scene

import cassi
from cassi.methods.automatic import auto
from cassi.methods.self_supervision import nonlocal_subspace
from cassi.priors import TV, Compose, Subspace
from cassi.solvers import ADMM, Geometric, Solver, graphs
from cassi.solvers.graphs import Graphs, Recorder, run_directly
from cassi.systems import BlurredCassi


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr("cassi.solvers.components.begin_graphs", lambda _: Graphs(fake))
    return fake


def problem(shots=1, noise=0.02):
    mask = (torch.rand(shots, 1, 40, 36, generator=seeded()) > 0.5).float()
    system = cassi.SDCassi(mask, bands=8, step=1)
    y = system(smooth_scene(8, 40, 36).float())
    return y + noise * torch.randn(y.shape, generator=seeded(1)), system


@torch.no_grad()
def test_replays_with_new_arguments_into_new_memory():
    fake = FakeCuda()
    run, kept = Graphs(fake), torch.tensor([10.0, 20.0])
    first = [run(lambda a, s: (a * s + kept,), torch.full((2,), float(k)), k) for k in range(5)]
    assert [r[0].tolist() for r in first] == [[k * k + 10.0, k * k + 20.0] for k in range(5)]
    assert [graph.replays for graph in fake.graphs] == [4]
    run(lambda a, s: (a * s,), torch.ones(3), 1.0)  # of another kind: it warms up
    assert len(fake.graphs) == 1


@torch.no_grad()
def test_what_reads_a_value_runs_on_and_says_so_once():
    run, body = Graphs(FakeCuda()), lambda a: (a * a.sum().item(),)
    run(body, torch.ones(2))
    with pytest.warns(RuntimeWarning, match="without a CUDA graph.*_local_scalar_dense"):
        assert run(body, torch.ones(2))[0].tolist() == [2.0, 2.0]
    assert run(body, torch.ones(2))[0].tolist() == [2.0, 2.0]  # warnings are errors here


def test_gradients_are_recorded_by_autograd_instead():
    fake = FakeCuda()
    run, x = Graphs(fake), torch.ones(2, requires_grad=True)
    for _ in range(3):
        run(lambda a: (a * a,), x)[0].sum().backward()
    assert not fake.graphs
    assert x.grad.tolist() == [6.0, 6.0]


@torch.no_grad()
def test_large_arguments_are_not_copied(monkeypatch):
    monkeypatch.setattr(graphs, "MAX_ARGUMENT_BYTES", 16)
    fake = FakeCuda()
    run = Graphs(fake)
    for _ in range(3):
        assert run(lambda a: (2 * a,), torch.ones(5))[0].tolist() == [2.0] * 5
        run(lambda a: (a + 1,), torch.ones(4))
    assert len(fake.graphs) == 1


def test_graphs_of_a_stream_record_into_the_same_memory(monkeypatch):
    class Graph:
        def __init__(self, pools):
            self.capture_begin, self.capture_end = lambda pool: pools.append(pool), lambda: None

        def pool(self):
            return self

    pools = []
    first, second, third = (Graph(pools) for _ in range(3))
    monkeypatch.setattr(graphs, "_STREAMS", graphs._RecordingStreams())
    monkeypatch.setattr(torch.cuda, "Stream", object)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "default")
    with pytest.raises(RuntimeError, match="reads"), Recorder().graph(first):
        raise RuntimeError("reads a value")
    for recorder in (Recorder(), Recorder()):
        for graph in (second, third):
            with recorder.graph(graph):
                pass
    assert pools == [None, None, second, second, second]


@pytest.mark.parametrize("shots", [1, 2])
def test_the_default_gives_the_same_bits(cuda, monkeypatch, shots):
    y, system = problem(shots)
    recorded = auto(iterations=60).run(y, system)
    assert sum(graph.replays for graph in cuda.graphs) > 40
    monkeypatch.undo()
    expected = auto(iterations=60).run(y, system)
    assert torch.equal(recorded.x, expected.x)
    assert [i.residual for i in recorded.history] == [i.residual for i in expected.history]


@pytest.mark.parametrize("refresh", [9, 36])
def test_groups_of_patches_are_found_between_replays(cuda, monkeypatch, refresh):
    y, system = problem()
    groups = nonlocal_subspace(5e-5, rank=4, stride=4, matches=8, radius=3, refresh=refresh)
    composed = replace(groups, prior=Compose([groups.prior]))
    for prior in (groups, composed):
        solver = Solver(prior, ADMM(rho=0.05), iterations=36, sigma=0.05, noise=0.01)
        with monkeypatch.context() as context:
            context.setattr("cassi.solvers.components.begin_graphs", lambda _: run_directly)
            expected = solver.run(y, system).x
        cuda.graphs.clear()
        assert torch.equal(solver.run(y, system).x, expected)
        assert sum(graph.replays for graph in cuda.graphs) > 15


@pytest.mark.parametrize("weigh", [False, True])
def test_bases_and_ranks_change_between_replays(cuda, monkeypatch, weigh):
    y, system = problem()
    if weigh:
        system = system.weighted(bad_pixels=torch.rand(y.shape[1:], generator=seeded(2)) < 0.1)
    prior = Subspace(TV(norm="nuclear", warm=True), rank=6, balance=1.0, renew=7, energy=1e-5)
    solver = Solver(prior, ADMM(rho=0.1), iterations=50, sigma=Geometric(0.7, 0.02), noise=0.01)
    recorded = solver.run(y, system)
    assert len(cuda.graphs) >= 2  # one for each rank
    monkeypatch.undo()
    assert torch.equal(recorded.x, solver.run(y, system).x)


def test_conjugate_gradients_are_not_tried(cuda):
    y, system = problem()
    blurred = BlurredCassi(system.mask, bands=8, step=1, point_spread=0.6)
    auto(iterations=20).run(y, blurred)
    assert not cuda.graphs
