import numpy as np
import pytest
import torch

from cassi import viz
from cassi.viz.color import rendering_matrix

ILLUMINANTS = ["D65", "D50", "A", None]
VARIANTS = {
    "kaist": lambda kaist: kaist,
    "visible": lambda _: list(range(400, 701, 10)),
    "red end": lambda _: [600.0, 610.0, 700.0],
    "two": lambda _: [500.0, 600.0],
    "one": lambda _: [550.0],
    "infrared too": lambda _: [450.0, 550.0, 650.0, 900.0, 1500.0],
    "infrared": lambda _: [900.0, 1000.0, 1100.0, 1200.0],
    "none": lambda _: None,
}


@pytest.mark.parametrize("illuminant", ILLUMINANTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_flat_spectrum_is_neutral_and_white(variant, illuminant, wavelengths):
    bands = VARIANTS[variant](wavelengths)
    flat = np.ones((len(bands) if bands else 28, 3, 4), np.float32)
    white = viz.srgb(flat, bands, illuminant, exposure=1.0)
    assert white.min() >= 254
    grey = viz.srgb(0.2 * flat, bands, illuminant, exposure=1.0)
    assert np.ptp(grey.astype(int), axis=2).max() <= 1
    assert grey.max() == 124  # the sRGB curve at 0.2


@pytest.mark.filterwarnings("ignore:(?s).*(Trimming|honoured|Aligning)")
def test_chart_agrees_with_colour_science():
    import colour

    observer = colour.MSDS_CMFS["CIE 1931 2 Degree Standard Observer"]
    light = colour.SDS_ILLUMINANTS["D65"]
    bands = np.arange(400.0, 701.0, 10.0)
    patches = colour.SDS_COLOURCHECKERS["BabelColor Average"].values()
    cube = np.stack([np.interp(bands, sd.wavelengths, sd.values) for sd in patches], axis=1)
    ours = viz.srgb(cube.reshape(31, 4, 6), bands, exposure=1.0).reshape(24, 3)
    for row, sd in zip(ours, patches, strict=True):
        xyz = colour.sd_to_XYZ(sd.copy(), observer, light) / 100
        theirs = np.clip(colour.XYZ_to_sRGB(xyz), 0, 1) * 255
        np.testing.assert_allclose(row, theirs, atol=2.5)


@pytest.mark.parametrize(("nm", "channel"), [(460, 2), (550, 1), (640, 0)])
def test_narrow_bands_have_their_colour(nm, channel, wavelengths):
    cube = np.zeros((28, 4, 4), np.float32)
    cube[int(np.argmin(np.abs(np.array(wavelengths) - nm)))] = 1.0
    color = viz.srgb(cube, wavelengths)[0, 0].astype(int)
    assert color.argmax() == channel
    assert color[channel] > np.delete(color, channel).max() + 80


def test_band_colors_follow_the_wavelength(wavelengths):
    colors = viz.band_colors(wavelengths, 28)
    assert colors.shape == (28, 3)
    assert colors.min() >= 0
    np.testing.assert_allclose(colors.max(axis=1), 1.0, rtol=1e-6)
    assert [int(colors[band].argmax()) for band in (0, 16, 27)] == [2, 1, 0]
    np.testing.assert_array_equal(viz.band_colors([300.0, 900.0], 2), 1.0)
    np.testing.assert_array_equal(viz.band_colors(None, 3), 1.0)


def test_bands_outside_the_visible_contribute_nothing(cube, wavelengths):
    longer = np.concatenate([cube, 50 * cube[:2]])
    np.testing.assert_array_equal(
        viz.srgb(longer, [*wavelengths, 800.0, 1000.0]), viz.srgb(cube, wavelengths)
    )


def test_false_colours_are_the_thirds():
    bands = np.arange(6.0)[:, None, None] / 10
    linear = rendering_matrix(None, 6) @ bands.reshape(6, 1)
    np.testing.assert_allclose(linear.ravel(), [0.45, 0.25, 0.05], rtol=1e-6)
    np.testing.assert_allclose(rendering_matrix(None, 3), np.eye(3)[::-1], atol=1e-6)
    np.testing.assert_allclose(rendering_matrix(None, 1), np.ones((3, 1)), atol=1e-6)


def test_exposure_is_shared_and_invariant(cube, wavelengths):
    exposure = viz.exposure_of(cube, wavelengths)
    bright = viz.srgb(cube, wavelengths)
    np.testing.assert_array_equal(viz.srgb(cube, wavelengths, exposure=exposure), bright)
    np.testing.assert_array_equal(viz.srgb(8 * cube, wavelengths), bright)
    half = viz.srgb(0.5 * cube, wavelengths, exposure=exposure)
    assert half.mean() < 0.8 * bright.mean()
    assert 240 <= np.percentile(bright.max(axis=2), 99.5) <= 252


def test_black_and_negative_cubes_render(wavelengths):
    black = np.zeros((28, 3, 3))
    assert viz.exposure_of(black, wavelengths) == 1.0
    assert viz.srgb(black, wavelengths).max() == 0
    assert viz.srgb(black - 1, wavelengths).max() == 0
    black[:, 0, 0] = 1e-3  # one lit pixel still decides
    assert viz.srgb(np.pad(black, ((0, 0), (0, 60), (0, 60))), wavelengths).max() > 200


@pytest.mark.parametrize("kind", ["tensor", "half", "bfloat16", "strided", "float64", "grad"])
def test_any_float_layout_renders_the_same(kind, cube, wavelengths):
    tensor = torch.from_numpy(cube)
    given = {
        "tensor": tensor,
        "half": tensor.half(),
        "bfloat16": tensor.bfloat16(),
        "strided": np.ascontiguousarray(cube.transpose(1, 2, 0)).transpose(2, 0, 1),
        "float64": cube.astype(np.float64),
        "grad": tensor.clone().requires_grad_(),
    }[kind]
    atol = 3 if kind == "bfloat16" else 1
    picture = viz.srgb(given, torch.tensor(wavelengths))
    np.testing.assert_allclose(picture.astype(int), viz.srgb(cube, wavelengths), atol=atol)


def _with_nan(cube):
    cube = cube.copy()
    cube[3, 4, 5] = np.nan
    return cube


BAD = {
    "batch": (lambda x, w: viz.srgb(x[None], w), r"\(C, H, W\), got shape \(1, 28"),
    "plane": (lambda x, w: viz.srgb(x[0], w), r"\(C, H, W\), got shape \(37, 53\)"),
    "empty": (lambda x, w: viz.srgb(x[:0], w), "got shape"),
    "length": (lambda x, w: viz.srgb(x, w[:-1]), r"expected 28 wavelengths.*got shape \(27,\)"),
    "order": (lambda x, w: viz.srgb(x, w[::-1]), "increase"),
    "negative": (lambda x, w: viz.srgb(x, [-1.0, *w[1:]]), "positive"),
    "nan": (lambda x, w: viz.srgb(_with_nan(x), w), "NaN"),
    "infinity": (lambda x, w: viz.srgb(x * np.inf, w), "NaN or infinity"),
    "nan wavelength": (lambda x, w: viz.srgb(x, [*w[:-1], np.nan]), "NaN"),
    "illuminant": (lambda x, w: viz.srgb(x, w, "sun"), "'sun'.*D65"),
    "exposure": (lambda x, w: viz.srgb(x, w, exposure=0.0), "positive exposure, got 0.0"),
    "complex": (lambda x, w: viz.srgb(x.astype(np.complex64), w), "complex64"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case, cube, wavelengths):
    call, message = BAD[case]
    with pytest.raises((ValueError, TypeError), match=message) as error:
        call(np.abs(cube) + 1e-3, wavelengths)
    assert "\n" not in str(error.value)
