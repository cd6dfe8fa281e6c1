"""Where a calibration starts from: pixels away from the nominal camera."""

from __future__ import annotations

import pytest
import torch
from shared import before_a_push

from cassi.calibration import Frame, Geometry, PlainScenes, search_start
from cassi.calibration.geometry import moved_offsets, on_pixels
from cassi.calibration.search import search_prisms
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


@pytest.mark.parametrize("sign", before_a_push([1, -1], [1], "thorough"))
def test_a_bend_of_seven_pixels_is_found(sign):
    at = torch.linspace(0, 1, 14, dtype=torch.float64)
    prism = (1 + 0.6 * at) ** -2
    prism = 30 * (1 - (prism - prism[-1]) / (prism[0] - prism[-1]))
    curve = prism if sign > 0 else 30 - prism
    line = torch.linspace(*curve[[0, -1]].tolist(), len(at), dtype=torch.float64)
    assert (curve - line).abs().max() > 5
    mask = (torch.rand(112, 112, generator=torch.Generator().manual_seed(0)) < 0.5).float()
    scene = 0.5 + 0.4 * torch.cos(3 * at.float() + 1).view(-1, 1, 1) * torch.ones(112, 112)
    y = SDCassi(mask, 14, offsets=curve.tolist(), detector=142)(scene[None])
    system = SDCassi(mask, 14, offsets=line.tolist(), detector=142)
    frames, start = [Frame.snapshot(y, 14)], Geometry(whole=0)
    straight = search_start(frames, system, start, 2)[0]
    best = search_prisms(frames, system, start, 2, straight)[0]
    away = moved_offsets(system, best) - curve
    assert (away - away.mean()).abs().max() < 0.3
    # The outermost bands keep their places, and so does the mask.
    assert on_pixels(best, system).whole == 0
    right = search_start([Frame.snapshot(system(scene[None]), 14)], system, start, 2)[0]
    bent = search_prisms([Frame.snapshot(system(scene[None]), 14)], system, start, 2, right)
    assert all(abs(each.dispersion[1]) < 0.5 for each in bent)


def test_nothing_is_searched_within_no_pixel(bench):
    system, frames = bench
    assert search_start(frames, system, TRUE, 0) == [TRUE]
