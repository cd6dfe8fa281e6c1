"""Each defect of a twin against its equation, written out; and the truth about the camera."""

import numpy as np
import pytest
import torch
from scipy import ndimage
from shared import seeded, uniform

from cassi.data.sensor import Sensor
from cassi.evaluation import Twin
from cassi.systems import BlurredCassi, DDCassi, SDCassi, TiltedCassi
from cassi.systems.masks import move_mask

BANDS, HEIGHT, WIDTH, STEP = 5, 14, 17, 2


@pytest.fixture
def mask():
    return uniform(HEIGHT, WIDTH, seed=1)


@pytest.fixture
def system(mask):
    return SDCassi(mask, BANDS, STEP)


@pytest.fixture
def x():
    return uniform(1, BANDS, HEIGHT, WIDTH, seed=2)


def measured(mask, x, offsets=None):
    """Σ_c S(o(c)) [m · x_c], pixel by pixel; what falls beside the detector is lost."""
    bands, height, width = x.shape
    y = np.zeros((height, width + (bands - 1) * STEP))
    for c in range(bands):
        offset = c * STEP if offsets is None else offsets[c]
        whole, part = int(np.floor(offset)), offset - np.floor(offset)
        for shift, weight in ((whole, 1 - part), (whole + 1, part)):
            for w in range(width):
                if 0 <= w + shift < y.shape[1]:
                    y[:, w + shift] += weight * mask[:, w] * x[c, :, w]
    return y


def blurred(image, sigma, mode):
    """Convolve with a Gaussian sampled at pixels, up to four standard deviations."""
    reach = int(np.ceil(4 * sigma))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    kernel /= kernel.sum()
    for axis in (0, 1):
        image = ndimage.correlate1d(image, kernel, axis, mode=mode)
    return image


def frame(twin, x, system, seed=0):
    return twin.measure(x, system, seeded(seed))


def close(found, expected, tolerance=1e-5):
    expected = torch.as_tensor(expected, dtype=found.dtype)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("supersample", [1, 4])
def test_without_defects_it_is_the_nominal_camera(x, system, supersample):
    close(frame(Twin(supersample=supersample), x, system), system(x))
    assert torch.equal(frame(Twin(), x, system), system(x))
    true = Twin(supersample=supersample).true_camera(system)
    close(true.system(x), system(x))
    assert torch.equal(true.correct(system(x)), system(x))
    assert true.noise == (0, 0)


def test_the_mask_is_turned_magnified_and_shifted(mask, x, system):
    twin = Twin(shift=[0.4, -0.3], rotation=3.0, magnification=1.05)
    middle = np.array([(HEIGHT - 1) / 2, (WIDTH - 1) / 2])
    angle = np.radians(3.0)
    # Where a pixel of the moved mask comes from; rows count downwards.
    back = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]) / 1.05
    start = middle - back @ (middle + twin.shift)
    moved = ndimage.affine_transform(mask.double().numpy(), back, start, order=1, mode="nearest")
    expected = measured(moved, x[0].double().numpy())
    close(frame(twin, x, system)[0, 0], expected)


def test_the_mask_is_blurred_and_its_contrast_falls(mask, x, system):
    twin = Twin(mask_blur=0.7, mask_offset=0.1, mask_contrast=0.8)
    true = 0.1 + 0.8 * blurred(mask.double().numpy(), 0.7, "nearest")
    close(frame(twin, x, system)[0, 0], measured(true, x[0].double().numpy()))


def test_the_dispersion_is_off_and_bent(mask, x, system):
    twin = Twin(dispersion=0.07, curvature=0.4)
    v = np.linspace(-1, 1, BANDS)
    offsets = STEP * np.arange(BANDS) + 0.07 * 2 * v + 0.4 * (1.5 * v**2 - 0.5)
    expected = measured(mask.double().numpy(), x[0].double().numpy(), offsets)
    close(frame(twin, x, system)[0, 0], expected)


def test_the_lens_blurs_what_is_on_the_detector(mask, x, system):
    twin = Twin(lens_blur=0.8, curvature=0.3)
    sharp = Twin(curvature=0.3).expose(x, system)[0, 0].double().numpy()
    close(frame(twin, x, system)[0, 0], blurred(sharp, 0.8, "constant"))
    assert isinstance(twin.true_camera(system).system, BlurredCassi)


@pytest.mark.parametrize("axis", [-1, -2])
def test_supersampling_moves_parts_of_pixels(mask, x, axis):
    system = SDCassi(mask, BANDS, STEP, axis)
    twin = Twin(shift=[0.5, -0.25], mask_blur=0.4, dispersion=0.05, lens_blur=0.3, supersample=4)
    parts = np.kron(mask.double().numpy(), np.ones((4, 4)))
    moved = ndimage.shift(parts, (2, -1), order=1, mode="nearest")
    moved = blurred(moved, 1.6, "nearest")
    scene = np.kron(x[0].double().numpy(), np.ones((4, 4)))
    offsets = 4 * (STEP * np.arange(BANDS) + 0.05 * (np.arange(BANDS) - 2))
    global_step = 4 * STEP
    turned = (lambda a: a) if axis == -1 else (lambda a: a.swapaxes(-1, -2))
    z = fine(turned(moved), turned(scene), offsets, global_step)
    z = blurred(turned(z), 1.2, "constant")
    expected = z.reshape(z.shape[0] // 4, 4, z.shape[1] // 4, 4).mean((1, 3))
    close(frame(twin, x, system)[0, 0], expected)


def fine(mask, x, offsets, step):
    """Do what `measured` does, on a grid of its own."""
    y = np.zeros((x.shape[1], x.shape[2] + (len(x) - 1) * step))
    for c, offset in enumerate(offsets):
        wide = np.zeros_like(y)
        wide[:, : x.shape[2]] = mask * x[c]
        y += ndimage.shift(wide, (0, offset), order=1, mode="grid-constant")
    return y


@pytest.mark.parametrize("blur", [0.0, 0.5, 2.0])
def test_the_true_camera_of_parts_of_pixels_sees_an_even_scene_exactly(mask, blur):
    """Of even light and whole offsets a mean over parts is all that there is to know."""
    system = SDCassi(torch.ones(24, 30), BANDS, STEP)
    twin = Twin(lens_blur=blur, supersample=4)
    true = twin.true_camera(system).system
    x = uniform(1, BANDS, 24, 30, seed=3)
    close(true(x), twin.expose(x, system))


def test_light_falls_off_and_pixels_differ(x, system):
    light = system(x)
    edge = frame(Twin(vignette=0.3), torch.ones_like(x), SDCassi(torch.ones(HEIGHT, WIDTH), BANDS))
    assert edge[0, 0, 0, 0] == pytest.approx(0.7)  # one band, in a corner
    twin = Twin(vignette=0.3, pattern=0.05, seed=4)
    rows, columns = np.mgrid[-1 : 1 : light.shape[-2] * 1j, -1 : 1 : light.shape[-1] * 1j]
    height, width = light.shape[-2:]
    r2 = ((rows * height) ** 2 + (columns * width) ** 2) / (height**2 + width**2)
    pattern = 1 + 0.05 * torch.randn(height, width, generator=seeded(4)).numpy()
    close(frame(twin, x, system)[0, 0], light[0, 0].numpy() * (1 - 0.3 * r2) * pattern)
    close(twin.true_camera(system).correct(frame(twin, x, system)), light)


def test_the_dark_level_is_a_share_of_full_scale(x, system):
    full = BANDS / (2 * 1.5)
    close(frame(Twin(dark=0.02, exposure=1.5), x, system), system(x) + 0.02 * full)
    counted = frame(Twin(dark=0.02, exposure=1.5, bits=14), x, system)
    close(counted, system(x) + 0.02 * full, 0.51 * full / 2**14)
    assert Twin(dark=0.02, exposure=1.5, bits=14).true_camera(system).dark == pytest.approx(
        0.02 * full
    )


def test_photons_are_those_of_the_sensor(x, system):
    counted = frame(Twin(shot="binomial", bits=11), x, system, 5)
    assert torch.equal(counted, Sensor()(system(x), BANDS, seeded(5)))
    twin = Twin(shot="poisson", bits=12, full_well=9000, read=3, dark=0.05, saturate=True, qe=0.6)
    sensor = Sensor(
        qe=0.6, shot="poisson", bits=12, full_well=9000, gain=9000 / 4096, read=3,
        offset=0.05 * 4096, saturate=True, raw=True,
    )  # fmt: skip
    assert torch.equal(frame(twin, x, system, 5), sensor(system(x), BANDS, seeded(5)))


@pytest.mark.parametrize("shot", ["poisson", "binomial", None])
def test_the_noise_has_the_variance_that_is_told(shot):
    system = SDCassi(torch.ones(80, 80), 1, 0)
    twin = Twin(shot=shot, read=4.0, bits=9, full_well=2000, dark=0.03)
    true = twin.true_camera(system)
    for level in (0.05, 0.3):
        y = frame(twin, torch.full((1, 1, 80, 80), level), system)
        assert y.mean().item() == pytest.approx(level + true.dark, rel=5e-3)
        expected = true.noise[0] * level + true.noise[1]
        assert y.var().item() == pytest.approx(expected, rel=0.1)


def test_stuck_pixels_are_at_the_ends_of_the_scale(x, system):
    full = BANDS / 2.4
    for bits, most in ((None, full), (10, full * 1023 / 1024)):
        twin = Twin(dead=0.05, hot=0.1, bits=bits)
        y, true = frame(twin, x, system)[0, 0], twin.true_camera(system)
        pixels = y.numel()
        assert int(true.bad.sum()) == round(0.05 * pixels) + round(0.1 * pixels)
        assert int((y[true.bad] == 0).sum()) == round(0.05 * pixels)
        close(y[true.bad].max(), most)
        close(y[~true.bad], system(x)[0, 0][~true.bad], full / 1024)
    # Others than the seed says, and the same in every frame.
    other = Twin(dead=0.05, hot=0.1, seed=1).true_camera(system).bad
    assert not torch.equal(other, true.bad)
    assert not true.correct(frame(twin, x, system))[..., true.bad].any()
    close(true.camera(x), torch.where(true.bad, 0, system(x)), 1e-6)


def test_all_that_is_told_gives_the_light_back(x, system):
    twin = Twin(
        shift=[0.4, -0.3], rotation=1, magnification=1.01, mask_blur=0.5, mask_offset=0.03,
        mask_contrast=0.9, dispersion=0.03, curvature=0.2, lens_blur=0.4, vignette=0.2,
        pattern=0.02, dark=0.01,
    )  # fmt: skip
    true = twin.true_camera(system)
    close(true.correct(frame(twin, x, system)), true.system(x))


def test_shots_share_one_sensor(x):
    masks = uniform(2, 1, HEIGHT, WIDTH)
    twin = Twin(shift=[0.5, 0], mask_blur=0.5, lens_blur=0.4, vignette=0.2, dead=0.1, supersample=2)
    both = frame(twin, x, SDCassi(masks, BANDS, STEP))
    for shot in (0, 1):
        close(both[:, [shot]], frame(twin, x, SDCassi(masks[[shot]], BANDS, STEP)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shift": [1]}, r"twin\.shift: expected \[down, right\]"),
        ({"shift": [1, float("nan")]}, r"twin\.shift: expected finite"),
        ({"rotation": float("inf")}, r"twin\.rotation: expected a finite"),
        ({"magnification": 0}, r"twin\.magnification: expected a number > 0"),
        ({"mask_blur": -1}, r"twin\.mask_blur: expected 0 to 50 pixels"),
        ({"mask_contrast": 0.9, "mask_offset": 0.2}, "of at most 1"),
        ({"dead": 1.0}, r"twin\.dead: expected a share"),
        ({"dead": 0.3, "hot": 0.3}, "expected half of the pixels or fewer"),
        ({"shot": "poisson"}, r"twin\.full_well: expected electrons"),
        ({"shot": "fish", "bits": 3}, r"twin\.shot: expected poisson, binomial or null"),
        ({"bits": 40}, r"twin\.bits: expected 1 to 24"),
        ({"exposure": 0}, r"twin\.exposure: expected a number > 0"),
        ({"supersample": 0}, r"twin\.supersample"),
    ],
)
def test_refusals(options, said):
    with pytest.raises(ValueError, match=said):
        Twin(**options)


def test_other_cameras_are_refused(x):
    with pytest.raises(ValueError, match="expected an SDCassi, got DDCassi"):
        Twin(shift=[1, 0]).true_camera(DDCassi(torch.ones(HEIGHT, WIDTH), BANDS, 1))
    each = SDCassi(torch.ones(2, 1, 1, HEIGHT, WIDTH), BANDS)
    with pytest.raises(ValueError, match="one mask for all samples"):
        Twin().expose(x, each)


def test_the_axis_is_tilted_about_the_first_band(mask, x):
    system = SDCassi(mask, BANDS, STEP)
    twin = Twin(dispersion=0.1, pivot=0.0, tilt=4.0)
    y = frame(twin, x, system)[0, 0].double().numpy()
    angle, expected = np.radians(4.0), np.zeros(y.shape)
    coded = mask.double().numpy() * x[0].double().numpy()
    for c in range(BANDS):
        reach = (STEP + 0.1) * c
        wide = np.pad(coded[c], ((1, 1), (1, y.shape[1] - WIDTH)))
        moved = (-np.sin(angle) * reach, np.cos(angle) * reach)
        expected += ndimage.shift(wide, moved, order=1)[1:-1, 1:]
    inside = (slice(None), slice(0, -2))  # the last band leaves the detector
    close(torch.from_numpy(y[inside]), torch.from_numpy(expected[inside]), 1e-5)
    assert isinstance(twin.true_camera(system).system, TiltedCassi)
    close(twin.true_camera(system).system(x)[0, 0], y)


def test_a_tilt_of_dispersion_along_rows_is_that_of_the_turned_scene(mask, x):
    twin = Twin(tilt=3.0, supersample=2)
    along = frame(twin, x, SDCassi(mask, BANDS, STEP))
    back = frame(Twin(tilt=-3.0, supersample=2), x.mT, SDCassi(mask.mT, BANDS, STEP, axis=-2))
    close(back.mT, along)


def test_whole_pixels_and_quarter_turns_move_a_mask_exactly(mask):
    moved = move_mask(mask[None, None], (2, -3), 0)[0, 0]
    torch.testing.assert_close(moved[2:, :-3], mask[:-2, 3:])
    square = uniform(2, 3, 9, 9)
    torch.testing.assert_close(move_mask(square, (0, 0), 90), square.rot90(1, (-2, -1)))


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("step", [2, -1])
def test_a_whole_pixel_per_band_is_another_step(mask, axis, step):
    # Nothing may leave the nominal detector.
    inner = torch.nn.functional.pad(uniform(1, 3, HEIGHT - 6, WIDTH - 6), (3, 3, 3, 3))
    found = Twin(dispersion=1.0).expose(inner, SDCassi(mask, 3, step, axis))
    real = SDCassi(mask, 3, step + 1, axis)(inner)
    # The middle band stays where it was on the detector.
    start = abs(step) - abs(step + 1)
    for index in range(real.shape[axis]):
        if 0 <= index + start < found.shape[axis]:
            close(found.select(axis, index + start), real.select(axis, index))
