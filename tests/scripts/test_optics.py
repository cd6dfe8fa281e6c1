"""Drawn cameras: rays fall where `place` says, and frames are made of mask and truth."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml

from cassi.data.bundled import bundled_path
from scripts.benchmarks.optics import PAD, SUBPIXELS, draw, expose, write
from scripts.benchmarks.relay import Disperser, refractive_index

SHAPE = (48, 56)


@pytest.fixture(scope="module", params=range(6))
def optics(request):
    return draw(request.param, bundled_path("scene.tif"), SHAPE, bands=9)


def _centroid(fine):
    light = F.avg_pool2d(fine, SUBPIXELS)[0, 0].double()
    return [
        float((light.sum(1 - at) * torch.arange(n)).sum() / light.sum())
        for at, n in enumerate(light.shape)
    ]


def test_glasses_have_the_index_and_abbe_number_of_the_catalogue():
    for glass, index, abbe in [("N-BK7", 1.5168, 64.17), ("N-SF11", 1.78472, 25.68)]:
        n, blue, red = (refractive_index(glass, nm) for nm in (587.56, 486.13, 656.27))
        assert n == pytest.approx(index, abs=1e-5)
        assert (n - 1) / (blue - red) == pytest.approx(abbe, abs=0.01)


@pytest.mark.parametrize("nm", [450.0, 650.0])
def test_prism_deviates_as_snell_says(nm):
    apex, middle, n = 0.4, refractive_index("F2", 550), refractive_index("F2", nm)
    incidence = math.asin(middle * math.sin(apex / 2))
    inner = apex - math.asin(math.sin(incidence) / n)
    turn = math.asin(n * math.sin(inner)) - incidence  # 0 at 550 nm
    found = Disperser(("F2",), apex).tangents(0, 0, nm)[1]
    assert abs(float(found)) == pytest.approx(abs(math.tan(turn)), abs=1e-12)


def test_grating_deviates_as_its_equation_says():
    size = 2e-5
    behind, axis = math.asin(650 * size), math.asin(550 * size)
    found = Disperser((), size).tangents(0, 0, 650.0)[1]
    assert float(found) == pytest.approx(math.tan(behind - axis), abs=1e-12)


def test_open_element_falls_at_its_place(optics):
    n_rows, n_columns = optics.frame.shape
    for row, column in ((4, 5), (22, 30), (43, 47)):
        plane = torch.zeros([(n + 2 * PAD) * SUBPIXELS for n in SHAPE])
        plane[(row + PAD) * SUBPIXELS :, (column + PAD) * SUBPIXELS :][:SUBPIXELS, :SUBPIXELS] = 1
        pixel = np.array([row]), np.array([column])
        if optics.is_measured:  # the element lies between pixels of the file
            seen = optics.relay.image(*pixel, optics.filter_nm)
            pixel = [x - start for x, start in zip(seen, optics.origin, strict=True)]
            shown = [(optics.filter_nm, plane)]
            found = _centroid(expose(optics.relay, shown, SHAPE, optics.origin, SHAPE))
            assert found == pytest.approx([float(x[0]) for x in pixel], abs=0.05)
        pixel = [torch.as_tensor(x) for x in pixel]
        for nm in optics.wavelengths[::4]:
            place = [float(x[0]) for x in optics.position(*pixel, nm)]
            beside = [max(place[0] - n_rows, place[1] - n_columns), -min(place)]
            if max(beside) < -3:
                found = _centroid(
                    expose(optics.relay, [(nm, plane)], SHAPE, (0, 0), (n_rows, n_columns))
                )
                assert found == pytest.approx(place, abs=0.05)


def test_back_is_the_inverse_of_image(optics):
    there = optics.relay.image(3.0, 50.0, 460.0)
    assert optics.relay.back(*there, 460.0) == pytest.approx((3.0, 50.0), abs=1e-6)


def test_frame_is_mask_times_truth_placed(optics):
    rows, columns = torch.meshgrid(*(torch.arange(n) for n in SHAPE), indexing="ij")
    total = torch.zeros([n + 1 for n in optics.frame.shape])
    for nm, truth in zip(optics.wavelengths, optics.truth, strict=True):
        row, column = optics.position(rows, columns, nm)
        for down in (0, 1):
            for right in (0, 1):
                r, s = row.floor() + down, column.floor() + right
                share = (1 - (row - r).abs()) * (1 - (column - s).abs()) * optics.mask * truth
                inside = (r >= 0) & (s >= 0) & (r < total.shape[0]) & (s < total.shape[1])
                index = r[inside].long(), s[inside].long()
                total.index_put_(index, share[inside].float(), accumulate=True)
    light = F.avg_pool2d(total[None, :-1, :-1], 6)
    frame = F.avg_pool2d(torch.where(optics.bad_pixels, total[:-1, :-1], optics.frame)[None], 6)
    light, frame = light[:, 2:-2, 2:-2], frame[:, 2:-2, 2:-2]  # light from beside the file enters
    assert float((light - frame).norm() / frame.norm()) < 0.1


def test_what_the_user_knows(optics, tmp_path):
    size = list(optics.mask.shape)
    size[optics.axis] = optics.detector
    assert list(optics.frame.shape) == list(optics.bad_pixels.shape) == size
    assert optics.truth.shape == (9, *SHAPE)
    assert 0 <= float(optics.mask.min()) <= float(optics.mask.max()) <= 1
    ends = np.array(optics.nominal)[[0, -1]] - np.array(optics.offsets())[[0, -1]]
    assert max(abs(ends)) < 3.5
    write(tmp_path, optics)
    camera, true = (yaml.safe_load((tmp_path / f"{x}.yaml").open()) for x in ("camera", "true"))
    assert camera["system"].pop("offsets") == pytest.approx(optics.nominal)
    assert true["system"].pop("offsets") == pytest.approx(optics.offsets())
    assert camera == true


def test_a_seed_draws_the_same_camera_again():
    first, second = (draw(7, bundled_path("scene.tif"), (24, 28), bands=3) for _ in range(2))
    assert torch.equal(first.frame, second.frame)
    assert first.nominal == second.nominal
