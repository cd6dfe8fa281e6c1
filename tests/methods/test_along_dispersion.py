"""Cubes that are computed along the dispersion."""

import pytest
import torch

import cassi
from cassi.camera.grid_ends import find_grid
from cassi.methods import auto
from cassi.methods.along_dispersion import AlongDispersion, with_grid_of, without_grid
from cassi.solvers import Statistics
from cassi.solvers.heldout import measure_heldout
from cassi.systems import SDCassi
from cassi.systems.grid import SpectralGrid

PRISM = (0.4, 5.1, 8.7, 11.4, 13.5, 15.1)
LINE = (0.4, *(0.4 + 2.94 * band for band in range(1, 5)), 15.1)


def draw(offsets=PRISM):
    random = torch.Generator().manual_seed(3)
    mask = (torch.rand(64, 72, generator=random) < 0.5).float()
    fine = SDCassi(mask, 148, offsets=torch.linspace(0.4, 15.1, 148).tolist(), detector=90)
    place = torch.linspace(0, 1, 148)[:, None, None]
    rows, columns = torch.meshgrid(torch.arange(64.0), torch.arange(72.0), indexing="ij")
    x = (1 + torch.sin(rows / 9 + 2 * place) * torch.cos(columns / 11 + place))[None] / 148
    camera = SDCassi(mask, 6, offsets=offsets, detector=90)
    camera.is_broadband = True
    return fine(x), camera


def test_a_wrong_curve_changes_the_names_alone():
    cubes = []
    for offsets in (PRISM, LINE):
        y, camera = draw(offsets)
        grid = find_grid(y, camera)
        found = AlongDispersion(auto(iterations=10), grid).run(y, camera)
        assert found.x.shape == (1, 6, 64, 72)
        assert torch.equal(found.x, grid.read(found.along.x))
        cubes.append(found.along)
    assert cubes[0].grid.offsets == cubes[1].grid.offsets
    assert torch.equal(cubes[0].x, cubes[1].x)


def test_what_is_reported_is_at_the_bands():
    y, camera = draw()
    method = AlongDispersion(auto(iterations=30), SpectralGrid.from_bands(PRISM))
    seen = []
    known = Statistics(lambda: [(y, camera)])
    first = torch.full((1, 6, 64, 72), float(y.mean()) / 3)
    found = method.run(
        y, camera, x0=first, statistics=known, callback=lambda _, x: seen.append(x.shape)
    )
    assert seen == [(1, 6, 64, 72)] * 30
    residual = float((y - found.measured(camera)).norm() / y.norm())
    assert residual == pytest.approx(found.history[-1].residual, rel=0.5)
    assert measure_heldout(y, camera, method).error < 0.2


def test_the_functions_take_it_by_themselves():
    y, camera = draw()
    lines = SDCassi(camera.mask, 6, offsets=PRISM, detector=90)
    x = cassi.reconstruct(y, camera, align=False)
    grid = find_grid(y, camera)
    assert torch.equal(x, AlongDispersion(auto(), grid).run(y, camera).x)
    assert not torch.equal(x, cassi.reconstruct(y, lines, align=False))
    sure = cassi.reconstruct(y, camera, uncertainty=True, align=False)
    assert sure.std.shape == x.shape


def test_what_is_within():
    method = auto()
    whole = AlongDispersion(method, SpectralGrid.from_bands(PRISM))
    assert without_grid(whole) is method
    assert without_grid(method) is method
    assert with_grid_of(whole, auto(iterations=2)).method.iterations == 2
    assert with_grid_of(method, whole) is whole
