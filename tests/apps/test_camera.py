"""Cameras of a config: offsets and curves, dual disperser, masks drawn or stored shifted."""

import numpy as np
import pytest
import scipy.io
import torch
from shared import before_a_push

import cassi
from cassi.apps.camera.system import build_camera, draw_mask, fit_bands, move_back

SD = {"_target_": "cassi.systems.SDCassi", "bands": None, "step": 2, "axis": -1}
DD = {"_target_": "cassi.systems.DDCassi", "bands": None, "step": 2, "axis": -1, "width": None}
CURVE = {"_target_": "cassi.systems.Polynomial", "coefficients": [0.0, 0.05], "reference": 500}
NM = (500.0, 530.0, 550.0)  # by CURVE: 0, 1.5, 2.5 pixels
TINY = ("solver.iterations=2", "output.pictures=false", "output.progress=false")


def _system(base, **values):
    return base | values


def _sizes(mask_length, detector):
    return torch.ones(1, 1, 4, mask_length), torch.ones(1, 1, 4, detector)


@pytest.mark.parametrize(
    ("system", "detector", "wavelengths"),
    [
        (_system(SD, offsets=[0, 1.5, 2.5]), 9, None),
        (_system(SD, offsets=CURVE), 9, NM),
        (_system(SD, step=1.5), 9, None),
        (_system(SD, step=-1.2), 9, NM),
        (_system(SD, step=2, detector=8, bands=3), 8, None),
        (_system(SD, offsets={"_target_": "cassi.systems.Linear", "step": -1.2}), 9, NM),
        (_system(SD, offsets={"_target_": "cassi.systems.Linear", "step": 1}, bands=3), 8, None),
        (_system(SD, offsets=[0, 1.5, 3.0]), 9, None),
        (_system(SD, offsets=[-1.5, 0, 2.5], detector=7), 7, None),
        (_system(SD, offsets=CURVE | {"absolute": True}, detector=12), 12, NM),
        (_system(DD), 6, NM),
        (_system(DD, bands=3), 4, None),
        (_system(DD, offsets=CURVE), 6, NM),
    ],
)
def test_fits(system, detector, wavelengths):
    mask, measurement = _sizes(6, detector)
    bands = fit_bands(system, mask, measurement, system["bands"], wavelengths)
    assert bands == 3
    camera = build_camera(system, mask, bands, wavelengths, detector)
    assert camera.measurement_shape == (1, 4, detector)


@pytest.mark.parametrize(
    ("system", "detector", "wavelengths", "message"),
    [
        (_system(SD, offsets=[0, 1.5, 2.5]), 8, None, "expected 9 pixels .* system.detector=8"),
        (
            _system(SD, offsets=[0, 1], detector=7),
            8,
            None,
            "got 8: system.detector says so; set system.detector=8",
        ),
        (_system(SD, offsets=CURVE), 9, None, "expected the number of bands"),
        (_system(SD, offsets=CURVE, bands=3), 9, None, "expected wavelengths for a dispersion"),
        (_system(SD, offsets=[0, 1.5]), 9, NM, "expected 3 values, one per band, got 2"),
        (_system(SD, offsets="wide"), 9, NM, "expected a list of pixels or a curve, got 'wide'"),
        (_system(SD, offsets={"_target_": "cassi.priors.TV"}), 9, NM, "got TV"),
        (_system(SD, step=2.6), 9, NM, "wavelengths: expected 2 values, .* that step 2.6 makes"),
        (_system(SD, step=2.6), 8, None, "a mask of 6, step 2.6; what would fit"),
        (_system(SD, step=1), 9, NM, "expected 4 values, .* got 3; set system.detector=9"),
        (_system(SD, step=-0.75), 9, NM, "3 bands and step -0.75; set system.detector=9, which"),
        (_system(SD), 6, None, "expected more room for bands, .* have 6 pixels each"),
        (_system(SD, step="2"), 9, NM, "system.step: expected a number of pixels per band, got"),
        (_system(DD), 6, None, "expected the number of bands"),
        (_system(DD, width=5), 6, NM, "expected 5 pixels .* system.width says"),
    ],
)
def test_does_not_fit(system, detector, wavelengths, message):
    mask, measurement = _sizes(6, detector)
    with pytest.raises(ValueError, match=message):
        fit_bands(system, mask, measurement, system["bands"], wavelengths)


def test_masks_are_drawn_for_a_truth():
    node = {"_target_": "cassi.systems.RandomMask", "shots": 2}
    truth = torch.ones(3, 4, 6)
    assert draw_mask(node, _system(SD), truth, None).shape == (2, 1, 4, 6)
    assert draw_mask(node, _system(DD), truth, None).shape == (2, 1, 4, 10)
    assert draw_mask(node, _system(DD, axis=-2), truth, None).shape == (2, 1, 8, 6)
    assert draw_mask(node, _system(DD, offsets=CURVE), truth, NM).shape == (2, 1, 4, 9)
    with pytest.raises(ValueError, match="expected the file of the mask"):
        draw_mask(node, _system(SD), None, None)
    with pytest.raises(ValueError, match="expected a mask to draw, got TV"):
        draw_mask({"_target_": "cassi.priors.TV"}, _system(SD), truth, None)


def test_only_masks_of_the_detectors_size_are_moved_back():
    masks = torch.zeros(1, 3, 4, 10)
    for band in range(3):
        masks[:, band, :, 2 * band : 2 * band + 6] = 0.5
    moved, more, note = move_back(_system(SD), masks, 10, None)
    assert (moved.shape, more) == ((1, 1, 4, 6), {})
    assert "moved back" in note
    for system, detector in ((_system(SD), 14), (_system(SD, step=0), 10), (_system(DD), 10)):
        assert move_back(system, masks, detector, None) == (masks, {}, None)


@pytest.mark.parametrize(
    ("moved", "said"),
    [(0, "alike; set system.step=0 if"), (1, "; set system.step=1$"), (-3, "step=-3$")],
)
def test_masks_that_the_step_does_not_move_are_refused(moved, said):
    """Masks of the detector's size, with light everywhere: of frames, or of another step."""
    random = torch.Generator().manual_seed(0)
    wide = torch.rand(1, 1, 6, 48, generator=random)
    masks = [wide[..., 9 - moved * band : 33 - moved * band] for band in range(4)]
    masks = torch.rand(1, 4, 6, 24, generator=random) if moved == 0 else torch.cat(masks, 1)
    with pytest.raises(ValueError, match=said):
        move_back(_system(SD), masks, 24, None)
    move_back(_system(SD, step=moved or 2), masks if moved else masks[:, :1], 24, None)
    move_back(_system(SD, step=2), torch.ones_like(masks), 24, None)


def test_masks_that_move_along_the_other_axis_are_refused_with_the_remedy():
    """Or by nothing at all, which smooth masks that move may look like along one axis."""
    random = torch.Generator().manual_seed(0)
    wide = torch.rand(1, 1, 48, 24, generator=random)
    masks = torch.cat([wide[:, :, 9 - 2 * band : 33 - 2 * band] for band in range(4)], 1)
    with pytest.raises(ValueError, match=r"along the rows; set system.axis=-2 system.step=2$"):
        move_back(_system(SD, step=1), masks, 24, None)
    assert move_back(_system(SD, axis=-2, step=2), masks, 24, None)[1]["detector"] == 24
    still = masks[:, :1].expand(-1, 4, -1, -1)
    with pytest.raises(ValueError, match=r"do not move; set system.step=0$"):
        move_back(_system(SD), still, 24, None)
    assert move_back(_system(SD, step=0), still, 24, None) == (still, {}, None)


@pytest.mark.parametrize("side", [0.0, 0.2])
def test_mask_3d_shift_from_a_file(reconstruct, results, tmp_path, side):
    """As published code stores it: (H, W', C), every band where it falls on the detector."""
    random = np.random.default_rng(0)
    mask, cube = random.random((7, 9)), random.random((3, 7, 9))
    stored = np.full((7, 13, 3), side)
    y = np.zeros((7, 13))
    for band in range(3):
        stored[:, 2 * band : 2 * band + 9, band] = mask
        y[:, 2 * band : 2 * band + 9] += mask * cube[band]
    scipy.io.savemat(tmp_path / "mask.mat", {"mask_3d_shift": stored})
    np.save(tmp_path / "y.npy", y)
    outcome = reconstruct(
        "measurement=y.npy", "mask=mask.mat", "wavelengths=[500,550,600]", *TINY
    ).ok()
    assert "one per band as it falls on the detector" in outcome.out
    result = cassi.read_cube(tmp_path / "run" / "cube.tif")
    assert result.shape == (1, 3, 7, 17 if side else 9)
    assert results()["relative_residual"] < 0.3


SHOTS = "mask={_target_: cassi.systems.RandomMask, shots: 2, density: 0.5, seed: 0}"
OTHERS = {
    "two shots": [SHOTS],
    "two dispersers": ["system=dd_cassi"],
    "video": ["experiment=cacti"],
    "two shots by gap_tv": ["method=gap_tv", SHOTS],
    "video by gap_tv": ["experiment=cacti", "method=gap_tv"],
}


@pytest.mark.parametrize(
    "name", before_a_push(list(OTHERS), ["two dispersers", "two shots by gap_tv"])
)
def test_other_cameras_run(reconstruct, name):
    reconstruct(*OTHERS[name], *TINY).ok()


def test_prism_by_name(reconstruct, results):
    reconstruct(
        "dispersion@system.offsets=prism", "system.offsets.focal_length=30", "solver=gap", *TINY
    ).ok()
    assert results()["measurement_shape"] == [1, 256, 256 + 44]
