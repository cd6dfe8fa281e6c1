"""Wrong cameras are warned of, right ones are not."""

from __future__ import annotations

import re

import pytest
import torch

from cassi.calibration.camera_check import check_camera, without_calibration_advice
from cassi.calibration.mask_check import POSES
from cassi.calibration.response import Response
from cassi.calibration.spectra import read_statistics
from cassi.calibration.spectra_check import check_spectra
from cassi.systems import BlurredCassi, DDCassi, SDCassi
from tests.shared import uniform

BANDS, SIDE = 16, 128


def scene(bands: int = BANDS, height: int = SIDE, width: int = SIDE) -> torch.Tensor:
    """Return patches of a few spectra, `(1, C, H, W)`."""
    at = torch.linspace(0, 1, bands).view(-1, 1, 1)
    rows, columns = torch.arange(height).view(-1, 1), torch.arange(width)
    part = ((rows // 24 + columns // 24) % 3)[None]
    grey = (
        0.3
        + 0.5 * uniform(1, height // 24 + 1, width // 24 + 1, seed=3)[:, rows // 24, columns // 24]
    )
    spectra = torch.where(part == 0, 0.4 + 0.6 * at, torch.where(part == 1, 1 - 0.5 * at, 0.8))
    return (spectra * grey)[None]


def kinds(y, system, **more) -> set[str]:
    return {each.about for each in check_camera(y, system, **more).warnings}


@pytest.fixture(scope="module")
def mask():
    """A grey mask, a little coarser than the pixels."""
    fine = uniform(1, 1, SIDE + 2, SIDE + 2, seed=1)
    return torch.nn.functional.avg_pool2d((fine > 0.5).float(), 3, 1)[0, 0]


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("step", [1, 2, -3])
def test_the_right_camera_passes(mask, step, axis):
    system = SDCassi(mask, BANDS, step=step, axis=axis)
    found = check_camera(system(scene()), system)
    assert found.warnings == ()
    assert found.numbers["step"] == pytest.approx(abs(step), abs=0.05)
    assert found.note.startswith("mask pattern found")


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("pose", POSES)
def test_a_mask_that_lies_wrong(mask, pose, axis):
    y = SDCassi(mask, BANDS, step=2, axis=axis)(scene())
    inverse = {
        "turned by 90 degrees clockwise": "turned by 90 degrees counterclockwise",
        "turned by 90 degrees counterclockwise": "turned by 90 degrees clockwise",
    }.get(pose, pose)
    wrong = SDCassi(POSES[inverse][1](mask), BANDS, step=2, axis=axis)
    (warning,) = check_camera(y, wrong).warnings
    assert warning.about == "mask"
    assert pose in warning.message
    assert POSES[pose][0] in warning.message


def test_a_mask_of_another_camera(mask):
    y = SDCassi(mask, BANDS, step=2)(scene())
    other = SDCassi(uniform(SIDE, SIDE, seed=9), BANDS, step=2)
    (warning,) = check_camera(y, other).warnings
    assert "does not show it" in warning.message


@pytest.mark.parametrize("way", [1, -1])
@pytest.mark.parametrize("step", [1.8, 1.9, 2.1, 2.2])
def test_another_step(mask, step, way):
    y = SDCassi(mask, BANDS, step=2 * way)(scene())
    detector = y.shape[-1]
    offsets = [step * band for band in range(BANDS)][::way]
    (warning,) = check_camera(y, SDCassi(mask, BANDS, offsets=offsets, detector=detector)).warnings
    assert warning.about == "step"
    assert f"set system.step={2 * way}" in warning.message


def test_a_curve_is_told_to_stretch_not_to_become_straight(mask):
    at = torch.linspace(0, 1, BANDS)
    offsets = 30 * (1.6 * at - 0.6 * at * at)
    true = SDCassi(mask, BANDS, offsets=offsets.tolist())
    wrong = SDCassi(mask, BANDS, offsets=(offsets * 0.85).tolist(), detector=SIDE + 30)
    said = check_camera(true(scene()), wrong).warnings
    (message,) = (each.message for each in said if each.about == "step")
    assert "multiply the distances of system.offsets by 1.1" in message
    assert "Linear" not in message


def test_other_cameras_pass(mask):
    x = scene()
    wide = uniform(SIDE, SIDE + 2 * BANDS - 2, seed=5)
    frames = uniform(8, SIDE, SIDE, seed=6)
    for system in (
        DDCassi(wide, BANDS, step=2, width=SIDE),
        SDCassi(torch.stack([mask, mask.mT.flip(0)])[:, None], BANDS, step=2),
        BlurredCassi(mask, BANDS, step=2, point_spread=0.7),
        SDCassi(frames, 8, step=0),
    ):
        y = system(x[:, : system.bands])
        assert kinds(y, system) == set(), system
        torn = y.flip(-2)
        assert "mask" in kinds(torn, system), system


def test_bad_pixels_say_nothing(mask):
    system = SDCassi(mask, BANDS, step=2)
    y = system(scene())
    bad = uniform(*y.shape[-2:], seed=2) < 0.05
    torn = torch.where(bad, 1e4, y)
    assert kinds(torn, system.weighted(bad_pixels=bad)) == set()


def test_another_mask_says_nothing_of_the_direction(mask):
    system = SDCassi(mask.flip(-1), BANDS, step=2)
    y = SDCassi(mask, BANDS, step=2)(scene())
    reverse = scene().flip(1)
    about = kinds(y, system, x=reverse, wavelengths=[450 + 10 * band for band in range(BANDS)])
    assert about == {"mask"}


def test_a_first_band_counts_from_where_the_camera_has_it(mask):
    """It once counted from the detector's first pixel."""
    places = [10 + 2.4 * band for band in range(BANDS)]
    y = SDCassi(mask, BANDS, offsets=places, detector=SIDE + 60)(scene())
    for bands, name in ((places, "first"), (places[::-1], "last")):
        start, sign = (14.0, 2.0) if name == "first" else (44.0, -2.0)
        nominal = [start + sign * band for band in range(BANDS)]
        found = check_camera(y, SDCassi(mask, BANDS, offsets=nominal, detector=SIDE + 60))
        (message,) = [each.message for each in found.warnings if each.about == "step"]
        off = float(re.search(rf"the {name} band ([+-][\d.]+) pixels off", message)[1])
        assert off == pytest.approx(min(bands) - 14, abs=0.7)


def test_a_calibrated_camera_is_not_to_be_calibrated(mask):
    y = SDCassi(mask, BANDS, step=2)(scene())
    for system in (
        SDCassi(mask, BANDS, step=2.2, detector=y.shape[-1]),
        SDCassi(mask.roll(3, -2), BANDS, step=2),
    ):
        found = check_camera(y, system)
        (message,) = [each.message for each in found.warnings if each.about in ("step", "shift")]
        (left,) = [each.message for each in without_calibration_advice(found).warnings]
        assert "calibrate=true" in message
        assert "calibrate=true" not in left
        assert left == message[: len(left)]


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize(
    ("shift", "said"),
    [((3, 0), "3 pixels higher than"), ((0, -4), "4 pixels further right than")],
)
def test_a_mask_that_is_moved(mask, axis, shift, said):
    y = SDCassi(mask, BANDS, step=2, axis=axis)(scene())
    wrong = SDCassi(mask.roll(shift, (0, 1)), BANDS, step=2, axis=axis)
    (warning,) = check_camera(y, wrong).warnings
    assert warning.about == "shift"
    assert said in warning.message


def test_light(mask):
    system = SDCassi(mask, BANDS, step=2)
    y = system(scene())
    assert kinds(y.clamp_max(float(y.quantile(0.98))), system) == {"light"}
    (dark,) = check_camera(y - 0.8 * y.mean(), system).warnings
    assert dark.about == "light"
    assert "set dark=" in dark.message


@pytest.mark.parametrize(("axis", "beside"), [(-1, 12), (-2, 0)], ids=["no band", "one band"])
@pytest.mark.parametrize(("level", "said"), [(0.0, False), (0.02, False), (0.3, True)])
def test_a_dark_level_that_was_forgotten(mask, axis, beside, level, said):
    """It is said first, as other warnings come from it."""
    places = {"offsets": [beside / 2 + 2.0 * band for band in range(BANDS)], "axis": axis}
    system = SDCassi(mask, BANDS, detector=SIDE + 2 * BANDS - 2 + beside, **places)
    y = system(scene())
    found = check_camera(y + level * y.median(), system).warnings
    assert (found[:1] != () and found[0].about == "dark") is said
    assert not said or "set dark=auto or dark=FILE" in found[0].message
    assert "window=" not in " ".join(each.message for each in found if said)


def test_bands_beside_the_detector(mask):
    offsets = [2.0 * band for band in range(BANDS)]
    system, wide = (
        SDCassi(mask, BANDS, offsets=offsets, detector=SIDE + more) for more in (10, 60)
    )
    assert "detector" in kinds(system(scene()), system)
    y = wide(scene())
    assert "detector" not in kinds(y, wide)
    y[..., -20:] = y.mean()
    assert "detector" in kinds(y, wide)


def test_frames_that_are_not_judged(mask):
    for small in (uniform(16, 20), torch.ones(96, 96)):
        system = SDCassi(small, 4, step=2)
        found = check_camera(system(uniform(1, 4, *small.shape)), system)
        assert (found.warnings, found.note) == ((), "")
    camera = SDCassi(mask, BANDS, step=2)
    about = kinds(torch.zeros(1, *camera.measurement_shape), camera)
    assert not {"mask", "step", "shift", "curve"} & about
    with pytest.raises(ValueError, match=r"y: expected .* = \(B, 1, 128, 158\)"):
        check_camera(torch.ones(1, 1, SIDE, SIDE), camera)


def spectra_of(x, light=1.0, white=None, step=2.0):
    """Return what the spectra of a cube `(C, 40, 40)` in a light say of the direction."""
    system = SDCassi(torch.ones(40, 40), len(x), step=step)
    nm = read_statistics().wavelengths.tolist()
    return check_spectra((light * x)[None], system, nm, white)


def surfaces():
    """Return a cube of ordinary surfaces, drawn from the statistics of scenes."""
    known = read_statistics()
    root = torch.linalg.cholesky(known.within_scenes + 1e-3 * torch.eye(len(known.wavelengths)))
    draws = torch.randn(len(root), 100, dtype=torch.float64)
    x = (known.mean[:, None] + root @ draws).exp().float().view(-1, 10, 10)
    return x.repeat_interleave(4, 1).repeat_interleave(4, 2)


@pytest.mark.parametrize(("step", "remedy"), [(2.0, "-2"), (-1.25, "1.25")])
def test_reversed_spectra(step, remedy):
    nm = read_statistics().wavelengths
    pigments = [1 / (1 + torch.exp(-(nm - edge) / 8)) for edge in (540, 580, 610)]
    spectra = (0.1 + 0.8 * torch.stack(pigments)).float()
    x = spectra.mT.repeat(1, 40)[:, :100].reshape(-1, 10, 10).repeat(1, 4, 4)
    right = spectra_of(x, step=step)
    assert right.warnings == ()
    assert "spectra are consistent with it" in right.note
    found = spectra_of(x.flip(0), step=step)
    (warning,) = found.warnings
    assert f"set system.step={remedy}" in warning.message
    assert found.numbers["direction"] == pytest.approx(-right.numbers["direction"])


def test_a_lamp_does_not_hide_the_direction():
    nm, x = read_statistics().wavelengths, surfaces()
    lamp = nm**-4 / torch.expm1(1.4388e7 / (2600 * nm)) * torch.exp(-(((nm - 600) / 150) ** 2))
    lamp = (lamp / lamp.max()).float().view(-1, 1, 1)
    assert not spectra_of(x, lamp).warnings
    (warning,) = spectra_of(x.flip(0), lamp.flip(0)).warnings
    assert warning.about == "direction"


def test_reflectances_are_asked_in_a_light_of_no_lamp():
    x = surfaces()
    light = 0.1 + torch.arange(len(x)).remainder(2).float()
    shone, white = light[:, None, None], Response(light, torch.zeros(len(x)))
    assert spectra_of(x, shone).numbers["direction"] is None
    assert spectra_of(x, shone, white).numbers["direction"] > 0
    back = Response(light.flip(0), torch.zeros(len(x)))
    found = spectra_of(x.flip(0), shone.flip(0), back)
    assert "direction" in {each.about for each in found.warnings}


def test_combs():
    x = scene()
    system = SDCassi(torch.ones(SIDE, SIDE), BANDS)
    assert not check_spectra(x, system).warnings
    x[:, ::2] *= 1.2
    (warning,) = check_spectra(x, system).warnings
    assert warning.about == "spectra"
