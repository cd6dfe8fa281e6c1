"""Pixels withheld, and how well a method predicts them."""

import pytest
import torch

import cassi
from cassi.models.inference import prepare
from cassi.solvers import Function, Solver
from cassi.solvers.heldout import measure_heldout

QUIET = ("output.progress=false",)


def test_of_a_solver(reconstruct, camera, results, tmp_path):
    outcome = reconstruct(*camera.given(), "solver.iterations=10", "heldout=0.1", *QUIET).ok()
    found = results()["heldout"]
    assert (found["share"], found["lines"]) == (0.1, 12)
    assert 0 < found["error"] < 0.5
    assert "held-out error" in outcome.out
    assert "heldout_error" in (tmp_path / "run" / "report.html").read_text()
    cube = (tmp_path / "run" / "cube.tif").read_bytes()
    reconstruct(*camera.given(), "solver.iterations=10", *QUIET).ok()
    assert "heldout" not in results()
    assert (tmp_path / "run" / "cube.tif").read_bytes() == cube


def test_of_a_network(reconstruct, camera, results):
    given = ("model=mst_s", "model.weights=random", "output.pictures=false", "heldout=0.05")
    reconstruct(*camera.given(), *given, *QUIET).ok()
    assert results()["heldout"]["error"] > 0


@pytest.mark.parametrize("value", ["0", "0.6", "-1"])
def test_refused(reconstruct, camera, value):
    said = reconstruct(*camera.given(), f"heldout={value}").refusal
    assert "heldout: expected a share above 0, at most 0.5, got" in said
    said = reconstruct(*camera.given(), "heldout=0.1", "memory_budget=1GB").refusal
    assert "heldout: expected null with memory_budget" in said


def test_a_third_of_the_lines_and_none_of_the_pixels_withheld():
    random = torch.Generator().manual_seed(0)
    system = cassi.SDCassi(torch.rand(120, 20, generator=random), bands=4, step=1)
    x = torch.rand(2, 4, 120, 20, generator=random)
    y = system(x)
    asked = []

    def method(y, camera):
        asked.append((tuple(y.shape), camera.is_good))
        assert not y[~camera.is_good.expand_as(y)].any()
        return torch.full((len(y), *camera.cube_shape), 0.5)

    found = measure_heldout(y, system, Function(method), 0.2)
    ((shape, good),) = asked
    assert shape == (2, 1, 40, 23)
    assert found.lines == 40
    assert 0.15 < (~good).double().mean() < 0.25
    # Bad pixels of the camera's own are neither given nor predicted.
    bad = torch.rand(120, 23, generator=random) < 0.1
    again = measure_heldout(
        torch.where(bad, torch.nan, y), system.weighted(bad_pixels=bad), Function(method), 0.2
    )
    assert 0 < again.error < 1


def test_overfitting_shows():
    random = torch.Generator().manual_seed(0)
    system = cassi.SDCassi((torch.rand(64, 64, generator=random) > 0.5).float(), bands=6, step=1)
    ramp = torch.linspace(0.2, 1, 64).expand(64, 64)
    y = system(torch.stack([ramp * (0.5 + 0.1 * c) for c in range(6)])[None])
    y = y + 0.1 * torch.randn(y.shape, generator=random)
    weak, right = (
        Solver(cassi.TV(weight=1), iterations=20, sigma=sigma, noise=0) for sigma in (1e-3, 0.1)
    )
    assert measure_heldout(y, system, weak).error > measure_heldout(y, system, right).error


def test_the_shipped_network():
    random = torch.Generator().manual_seed(0)
    system = cassi.SDCassi((torch.rand(48, 48, generator=random) > 0.5).float(), bands=8, step=1)
    ramp = torch.linspace(0.2, 1, 48).expand(48, 48)
    y = system(torch.stack([ramp * (0.5 + 0.05 * c) for c in range(8)])[None])
    net = prepare(cassi.create_model("pretrained", system, size="small").network)
    found = measure_heldout(y, system, net)
    assert found.lines == 32
    assert found.error < 0.1
