"""Cameras with filters or lenses of a kind, and their masks, against formulas written out."""

import pytest
import torch
from shared import rand

from cassi.calibration import check_camera
from cassi.calibration.mask_check import repeats
from cassi.systems import (
    BlurredCassi,
    ColourMask,
    Complementary,
    HoleMask,
    MosaicCassi,
    OpenMask,
    PsfCassi,
    RandomMask,
    SDCassi,
    TurningPsf,
    check_mask,
)
from cassi.systems.mask_patterns import filter_curves


@pytest.mark.parametrize(("step", "axis"), [(2, -1), (-1, -1), (1, -2), (0, -1)])
def test_a_mosaic_filters_what_falls_on_its_detector(step, axis):
    mask, response, x = rand(6, 7), rand(3, 4), rand(1, 4, 6, 7)
    plain = SDCassi(mask, 4, step, axis)
    camera = MosaicCassi(mask, 4, step, axis, pattern="RGGB", response=response)
    assert camera.measurement_shape == plain.measurement_shape
    y = camera(x)
    tile = torch.tensor([[0, 1], [1, 2]])
    for row in range(y.shape[2]):
        for column in range(y.shape[3]):
            curve = response[tile[row % 2, column % 2]]
            seen = plain(x * curve.view(-1, 1, 1))
            torch.testing.assert_close(y[..., row, column], seen[..., row, column])


def test_a_mosaic_without_a_mask_sees_one_filter_a_pixel():
    camera = MosaicCassi(torch.ones(9, 11), 20, pattern=4)
    assert camera.response.shape == (16, 20)
    assert not camera.codes_frames
    y = camera(torch.ones(1, 20, 9, 11))[0, 0]
    torch.testing.assert_close(y[5, 6], camera.response[4 * 1 + 2].sum())
    part = camera.part(3, 7)
    torch.testing.assert_close(part(torch.ones(1, 20, 4, 11))[0, 0], y[3:7])
    assert "16 filters in a tile of 4x4" in repr(camera)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pattern": "RGB"}, "a square of letters R, G, B"),
        ({"pattern": "RGXB"}, "a square of letters R, G, B"),
        ({"pattern": 0}, "1 to 64 pixels a side"),
        ({"pattern": [0, 1]}, "numbers of filters from 0 on in rows"),
        ({"pattern": [[0, -1]]}, "numbers of filters from 0 on in rows"),
        ({"response": torch.ones(2, 4)}, r"\(G, C\) = \(3, 4\), a row per filter, got \(2, 4\)"),
        ({"response": torch.full((3, 4), torch.nan)}, "response: expected finite"),
        ({"step": 1.5}, "expected 4 whole numbers of pixels, one per band, for a sensor with"),
        ({"offsets": [0, 1, 2.5, 3]}, "whole numbers of pixels"),
        ({"mask": torch.ones(3, 6, 7)}, "mask: expected 1 or 4 bands, got 3"),
    ],
)
def test_mosaics_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        MosaicCassi(**({"mask": torch.ones(6, 7), "bands": 4} | options))


@pytest.mark.parametrize(
    "camera",
    [
        MosaicCassi(torch.ones(64, 64), 8, pattern=4),
        MosaicCassi(torch.ones(64, 64), 8, pattern="RGGB"),
        SDCassi(HoleMask().draw(64, 64, 8), 8, step=1),
    ],
)
def test_the_camera_check_asks_no_grid_where_it_lies(camera):
    found = check_camera(camera(rand(1, 8, 64, 64).float()), camera)
    assert "mask" not in {each.about for each in found.warnings}


def test_masks_that_repeat():
    assert repeats(MosaicCassi(torch.ones(64, 64), 8, pattern=5).mask)
    assert not repeats(MosaicCassi(RandomMask().draw(64, 64), 8, pattern=5).mask)
    assert not repeats(RandomMask().draw(64, 64))
    assert not repeats(RandomMask().draw(16, 16).repeat_interleave(4, -1))


def test_a_psf_is_the_blur_of_its_kernels():
    mask, kernels, x = rand(2, 4, 8, 9), rand(4, 5, 7), rand(2, 4, 8, 9)
    camera = PsfCassi(mask, 4, step=1, kernels=kernels, line_spread=0.4)
    plain = BlurredCassi(mask, 4, step=1, point_spread=kernels, line_spread=0.4)
    y = camera(x)
    torch.testing.assert_close(y, plain(x), rtol=0, atol=1e-12)
    torch.testing.assert_close(camera.adjoint(y), plain.adjoint(y), rtol=0, atol=1e-11)
    point = torch.zeros(4, 3, 3, dtype=torch.float64)
    point[:, 1, 1] = 1
    sharp = PsfCassi(mask, 4, step=1, kernels=point)
    torch.testing.assert_close(sharp(x), SDCassi(mask, 4, step=1)(x), rtol=0, atol=1e-12)


def test_a_psf_has_no_second_spread():
    with pytest.raises(ValueError, match="point_spread: expected None"):
        PsfCassi(torch.ones(8, 9), 2, kernels=TurningPsf(length=2), point_spread=1.0)


@pytest.mark.parametrize("mask", [torch.ones(20, 24), rand(20, 24), 0.9 + 0.1 * rand(2, 1, 20, 24)])
def test_sums_of_bands_before_a_mask_are_those_behind_it(mask):
    mask, x = mask.double(), rand(2, 3, 20, 24)
    kernels = TurningPsf(length=2).draw(3)
    summed = PsfCassi(mask, 3, kernels=kernels)
    planes = mask.expand(len(mask) if mask.ndim == 4 else 1, 3, 20, 24)
    each = PsfCassi(planes, 3, kernels=kernels)
    torch.testing.assert_close(summed(x), each(x), rtol=0, atol=1e-12)
    y = summed(x)
    torch.testing.assert_close(summed.adjoint(y), each.adjoint(y), rtol=0, atol=1e-11)
    for rho in (0.3, 0.01):
        got = summed.gram_solve(y, rho)
        torch.testing.assert_close(got, each.gram_solve(y, rho), rtol=0, atol=1e-7)
    if float(mask.amin()) == 1:  # preconditioned
        assert summed.last_solve.iterations.max() < 0.7 * each.last_solve.iterations.max()


def test_kernels_larger_than_the_scene():
    kernels, x = rand(2, 13, 11), rand(1, 2, 5, 4)
    y = PsfCassi(torch.ones(5, 4).double(), 2, kernels=kernels)(x)
    expected = torch.zeros(5, 4, dtype=torch.float64)
    for h, w, i, j in torch.cartesian_prod(*map(torch.arange, (5, 4, 5, 4))).tolist():
        expected[h, w] += (kernels[:, 6 + h - i, 5 + w - j] * x[0, :, i, j]).sum()
    torch.testing.assert_close(y[0, 0], expected)


@pytest.mark.parametrize(
    ("kernels", "message"),
    [
        (torch.ones(3, 3, 3), r"kernels: expected .* with C = 2, got shape \(3, 3, 3\)"),
        (torch.ones(2, 4, 3), "kernels of odd sides"),
        (torch.full((2, 3, 3), torch.inf), "kernels: expected finite"),
    ],
)
def test_kernels_that_do_not_fit(kernels, message):
    with pytest.raises(ValueError, match=message):
        PsfCassi(torch.ones(5, 4), 2, kernels=kernels)


def test_a_psf_that_turns():
    kernels = TurningPsf(length=4, blades=3).draw(6)
    torch.testing.assert_close(kernels.sum((1, 2)), torch.ones(6).double())
    two = TurningPsf(length=4, blades=2).draw(4)
    # By 180° over all bands: half way it is turned by 90°.
    torch.testing.assert_close(two[2], two[0].rot90(1, (0, 1)))
    for wrong in ({"length": 0}, {"width": 101}, {"blades": 1.5}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}: expected"):
            TurningPsf(**wrong)


def test_spectra_of_holes_do_not_overlap():
    mask = HoleMask().draw(12, 40, bands=8)
    check_mask(mask)
    for axis, drawn in ((-1, mask), (-1, HoleMask(rows=3).draw(12, 40, bands=8))):
        touched = SDCassi((drawn > 0).float(), 8, step=1, axis=axis)(torch.ones(1, 8, 12, 40))
        assert touched.max() == 1
    assert HoleMask(columns=4, rows=2).density == 1 / 8
    for wrong in ({"columns": 0}, {"rows": 0}, {"stagger": -1}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}: expected"):
            HoleMask(**wrong)


def test_a_grid_of_holes_may_have_dark_rows_and_a_wrong_crop_not():
    check_mask(HoleMask(columns=6, rows=3, stagger=0).draw(13, 25))
    cropped = RandomMask().draw(13, 25)
    cropped[..., 9:, :] = 0
    with pytest.raises(ValueError, match="4 all-dark rows"):
        check_mask(cropped)


def test_a_colour_aperture_has_one_filter_a_pixel():
    mask = ColourMask(filters=3, shots=2, seed=4).draw(20, 30, bands=9)
    assert mask.shape == (2, 9, 20, 30)
    curves = filter_curves(3, 9)
    spectra = mask.movedim(1, -1).reshape(-1, 1, 9)
    assert ((spectra == curves).all(-1).sum(1) == 1).all()
    assert torch.equal(mask, ColourMask(filters=3, shots=2, seed=4).draw(20, 30, bands=9))
    for wrong in ({"filters": 0}, {"width": 0}, {"seed": -1}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}: expected"):
            ColourMask(**wrong)


def test_complements_and_no_mask():
    masks = Complementary(RandomMask(shots=2, per_band=True)).draw(5, 6, bands=3)
    assert masks.shape == (4, 3, 5, 6)
    assert (masks[:2] + masks[2:] == 1).all()
    with pytest.raises(TypeError, match="of: expected a mask to draw, got int"):
        Complementary(3)
    assert (OpenMask().draw(3, 4) == 1).all()
