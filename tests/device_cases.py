"""What a GPU would refuse, and what would make it wait, without one; see `pretended`."""

import copy

import pytest
import torch
from fake_graphs import CUDAGraph, FakeCuda
from pretended import DEVICE, Pretended, Watched
from shared import (
    before_a_push,
    networks_of_each_class,
    quick_systems,
    small_settings,
    smooth_scene,
)
from torch import nn

import cassi
from cassi.pipeline.align import align
from cassi.solvers.graphs import Graphs
from cassi.systems.examples import EXAMPLES


def moved(module):
    """Return a copy of a camera or network whose tensors are on `DEVICE`."""
    module = copy.deepcopy(module)
    for each in module.modules():
        for store in (each._parameters, each._buffers):
            for name, value in store.items():
                if isinstance(value, nn.Parameter):
                    store[name] = nn.Parameter(Pretended(value.data), value.requires_grad)
                elif value is not None:
                    store[name] = Pretended(value)
        for name, value in vars(each).items():
            if isinstance(value, torch.Tensor):
                setattr(each, name, Pretended(value))
    return module


@torch.no_grad()
def test_it_refuses_tensors_of_two_devices_and_counts():
    with Watched() as watched:
        there = Pretended(torch.rand(3)) + torch.tensor([1.0, 2.0, 3.0], device=DEVICE)
        assert there.device == DEVICE
        assert watched.operations["add"] == 1
        assert (there > 0).all()
        assert watched.reads.total() == 1
        assert there.to("cpu").device.type == "cpu"
        assert watched.copies.total() == 1
        with pytest.raises(RuntimeError, match="two devices"):
            there + torch.rand(3)


@pytest.mark.parametrize("name", quick_systems())
@torch.no_grad()
def test_cameras_stay_on_their_device(name):
    system = EXAMPLES[name]()
    x = torch.rand(2, *system.cube_shape, dtype=torch.float64)
    y, bad = system(x), torch.eye(*system.measurement_shape[-2:])
    with Watched() as watched:
        camera, x, y = moved(system), Pretended(x), Pretended(y)
        weighted = camera.weighted(bad_pixels=bad)
        watched.copies.clear()
        results = [
            camera(x),
            camera.adjoint(y),
            camera.pinv(y),
            camera.data_step(x, y, 0.1),
            weighted.data_step(x, y, 0.1),
        ]
        assert all(result.device == DEVICE for result in results)
        assert not watched.copies


@pytest.mark.parametrize("name", before_a_push(networks_of_each_class(), ["gap_net", "mst_s"]))
@torch.no_grad()
def test_networks_let_the_host_run_ahead(name):
    net = cassi.create_model(name, bands=8, **small_settings(name)).eval()
    system = cassi.SDCassi(torch.rand(32, 32), bands=8, step=2)
    y = system(torch.rand(1, 8, 32, 32))
    with Watched() as watched:
        there, camera = moved(net), moved(system)
        watched.reads.clear()
        watched.copies.clear()
        assert there(Pretended(y), camera).device == DEVICE
        # It starts with a few steps of a solver, in a subspace of a rank of its own.
        assert watched.reads.total() <= (60 if name == "cassi_net" else 0)
        assert watched.copies.total() <= (60 if name == "cassi_net" else 0)


@pytest.fixture(scope="module")
def snapshot():
    """A mask and a noisy frame; what is ordinary of their alignment is kept from then on."""
    torch.manual_seed(0)
    mask = (torch.rand(64, 64) > 0.5).float()
    system = cassi.SDCassi(mask, bands=28, step=2)
    y = system(smooth_scene(28, 64, 64).float())
    y += 0.02 * torch.randn_like(y)
    align(y, system)
    return mask, y


@pytest.mark.parametrize(
    ("method", "operations", "waits", "decompositions"),
    before_a_push(
        [
            ("gap_tv", 1_400, 30, 0),
            ("admm_tv", 2_000, 30, 0),
            ("auto", 4_600, 60, 2),
            ("pretrained", 9_820, 100, 16),
        ],
        [("gap_tv", 1_400, 30, 0)],
    ),
)
def test_methods_seldom_make_a_device_wait(snapshot, method, operations, waits, decompositions):
    mask, y = snapshot
    with Watched() as watched:
        camera, there = cassi.SDCassi(Pretended(mask), bands=28, step=2), Pretended(y)
        watched.operations.clear()
        watched.reads.clear()
        watched.copies.clear()
        assert cassi.reconstruct(there, camera, method).device == DEVICE
        assert watched.operations.total() <= operations
        assert watched.reads.total() + watched.copies.total() <= waits
        assert watched.decompositions <= decompositions


@pytest.mark.parametrize(
    ("method", "replays", "operations"),
    before_a_push([("auto", 120, 2_450), ("pretrained", 200, 5_500)], [("auto", 120, 2_450)]),
)
def test_iterations_are_recorded_without_the_host(
    snapshot, monkeypatch, method, replays, operations
):
    mask, y = snapshot
    fake, replay = FakeCuda(), CUDAGraph.replay
    monkeypatch.setattr("cassi.solvers.components.begin_graphs", lambda _: Graphs(fake))

    def uncounted(graph):
        before = watched.operations.copy()
        replay(graph)
        watched.operations = before
        watched.operations["replay"] += 1

    monkeypatch.setattr(CUDAGraph, "replay", uncounted)
    with Watched() as watched:
        camera, there = cassi.SDCassi(Pretended(mask), bands=28, step=2), Pretended(y)
        watched.operations.clear()
        assert cassi.reconstruct(there, camera, method).device == DEVICE
        assert watched.operations["replay"] > replays
        assert watched.operations.total() <= operations
