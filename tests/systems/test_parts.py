"""Cameras of a part of a scene, and what solvers know of the whole one."""

import pytest
import torch

from cassi.solvers import (
    FISTA,
    Statistics,
    largest_eigenvalue,
    noise_damping,
    noise_level,
    signal_level,
)
from cassi.systems import DDCassi, SDCassi, WarpedCassi

CAMERAS = {
    "step": {"step": 2},
    "back": {"step": -1},
    "columns": {"step": 2, "axis": -2},
    "offsets": {"offsets": [0, 1.5, 2.25, 4, 5.5]},
    "shots": {"step": 1, "shots": 2},
    "dual": {"step": 1, "dual": True},
}


def make(name):
    settings = dict(CAMERAS[name])
    shots, dual = settings.pop("shots", 1), settings.pop("dual", False)
    generator = torch.Generator().manual_seed(3)
    mask = (torch.rand(shots, 1, 100, 96, generator=generator) > 0.4).float()
    cells = torch.rand(1, 5, 5, 6, generator=generator)
    x = torch.nn.functional.interpolate(cells, size=(100, 96), mode="nearest")
    return (DDCassi if dual else SDCassi)(mask, bands=5, **settings), x


@pytest.mark.parametrize("name", CAMERAS)
def test_a_part_measures_its_rows(name):
    system, x = make(name)
    axis = system.part_axis
    part = system.part(30, 71)
    y = system(x).narrow(axis, 30, 41)
    assert torch.equal(part(x.narrow(axis, 30, 41)), y)
    whole = system.data_step(x * 0, system(x), 0.1).narrow(axis, 30, 41)
    assert torch.allclose(part.data_step(whole * 0, y, 0.1), whole, atol=1e-6)


def test_a_part_lies_inside():
    system, _ = make("step")
    with pytest.raises(ValueError, match="0 <= start < stop <= 100"):
        system.part(90, 101)


def test_a_camera_that_mixes_rows_has_no_parts():
    with pytest.raises(ValueError, match="memory_budget=null"):
        WarpedCassi(torch.ones(8, 8), bands=2).part(0, 4)


@pytest.mark.parametrize("name", CAMERAS)
def test_parts_answer_for_the_whole(name):
    system, x = make(name)
    y, axis = system(x), system.part_axis
    y = y + 0.02 * torch.randn(y.shape, generator=torch.Generator().manual_seed(1))

    def parts():
        for start in range(0, y.shape[axis], 48):
            stop = min(start + 48, y.shape[axis])
            yield y.narrow(axis, start, stop - start), system.part(start, stop)

    camera = system.part(20, 60)
    statistics = Statistics(parts, axis)
    seen = y.narrow(axis, 20, 40)

    def relative(y, system, statistics=None):
        return noise_level(y, system, statistics) / y.square().flatten(1).mean(1).sqrt()

    assert torch.equal(signal_level(seen, camera, statistics), signal_level(y, system))
    found, expected = relative(seen, camera, statistics), relative(y, system)
    assert found.item() == pytest.approx(expected.item(), rel=1e-3)
    assert Statistics(lambda: [(y, system)]).noise.item() == pytest.approx(
        expected.item(), rel=1e-6
    )
    damping = noise_damping(seen, camera, 0.1, statistics)
    assert torch.allclose(damping, noise_damping(y, system, 0.1), rtol=1e-5)
    bound = largest_eigenvalue(seen, camera, statistics)
    assert bound.item() == pytest.approx(largest_eigenvalue(y, system).item(), rel=1e-3)
    assert torch.equal(FISTA().init(seen, camera, camera.pinv(seen), statistics).lipschitz, bound)
