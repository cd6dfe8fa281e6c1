"""Where a calibration starts from: pixels away from the nominal camera."""

from __future__ import annotations

import pytest
import torch

from cassi.calibration import Frame, Geometry, PlainScenes, search_start
from cassi.evaluation import Twin
from cassi.systems import SDCassi

BANDS, HEIGHT, WIDTH = 6, 112, 128
TRUE = Geometry((2.3, -1.8), 0.05, (0.1,))


@pytest.fixture(scope="module", params=[-1, -2], ids=["columns", "rows"])
def bench(request):
    """A camera that disperses along either axis, and a snapshot with it moved by TRUE."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(HEIGHT, WIDTH, generator=generator)
    rows, columns = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    bands = torch.linspace(0, 1, BANDS).view(-1, 1, 1)
    scene = 0.5 + 0.3 * bands + 0.1 * torch.sin(columns / 25) + 0.1 * torch.cos(rows / 30)
    system = SDCassi(mask, BANDS, step=2, axis=request.param)
    moved = Twin(shift=TRUE.shift, rotation=TRUE.rotation, dispersion=TRUE.dispersion[0])
    return system, [Frame.snapshot(moved.expose(scene[None], system), BANDS)]


def test_the_search_leads_to_the_true_place(bench):
    system, frames = bench
    best, *others = search_start(frames, system, Geometry(), 3)
    for value, true in zip(best.values(), TRUE.values(), strict=True):
        assert value == pytest.approx(true, abs=0.3)
    scenes = PlainScenes(frames, system)
    assert all(scenes.objective(best) <= scenes.objective(place) for place in others)
    fit = scenes.fit(best)
    assert fit.geometry.values() == pytest.approx(TRUE.values(), abs=0.05)


def test_nothing_is_searched_within_no_pixel(bench):
    system, frames = bench
    assert search_start(frames, system, TRUE, 0) == [TRUE]
