"""Dispersion: curves against published indices and geometry, and what fits a detector."""

import math
import re

import pytest

from cassi.data.formats.curves import read_table
from cassi.systems import Curve, Linear, Polynomial, Prism, fitting_dispersions, infer_bands
from cassi.systems.dispersion import SELLMEIER, refractive_index

WAVELENGTHS = [450.0, 500.0, 580.0, 650.0]
CURVES = [
    Linear(2.03),
    Polynomial([0.0, 0.27, -2e-4], 550),
    Prism("SF2", 30, 50, 10),
    Prism(["N-BK7", "SF2", "N-BK7"], [30, -40, 30], 50, 10),
    Curve([(440, 0), (550, 30), (660, 54)]),
]


# n_d and Abbe number of the makers' data sheets.
@pytest.mark.parametrize(
    ("glass", "index", "abbe"),
    [
        ("N-BK7", 1.51680, 64.17), ("N-BAK4", 1.56883, 55.98), ("F2", 1.62004, 36.37),
        ("N-F2", 1.62005, 36.43), ("SF2", 1.64769, 33.85), ("N-SF2", 1.64769, 33.82),
        ("SF10", 1.72825, 28.41), ("SF11", 1.78472, 25.76), ("N-SF11", 1.78472, 25.68),
        ("fused silica", 1.45846, 67.82),
    ],
)  # fmt: skip
def test_published_indices(glass, index, abbe):
    d, f, c = (refractive_index(glass, nm) for nm in (587.5618, 486.1327, 656.2725))
    assert d == pytest.approx(index, abs=6e-6)
    assert (d - 1) / (f - c) == pytest.approx(abbe, abs=6e-3)


def test_every_glass_is_checked():
    checked = {mark.args[1][k][0] for mark in test_published_indices.pytestmark for k in range(10)}
    assert set(SELLMEIER) == checked | {"BK7"}


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: type(curve).__name__)
def test_offsets_start_at_zero_in_one_direction(curve):
    offsets = curve.offsets(WAVELENGTHS)
    assert min(offsets) == 0
    assert list(offsets) in (sorted(offsets), sorted(offsets, reverse=True))
    places = curve.positions(WAVELENGTHS)
    assert offsets == pytest.approx([place - min(places) for place in places], abs=1e-8)
    object.__setattr__(curve, "absolute", True)
    assert curve.offsets(WAVELENGTHS) == pytest.approx(places, abs=1e-8)
    object.__setattr__(curve, "absolute", False)


def test_minimum_deviation():
    prism = Prism("SF11", 50, 100, 5, reference=550)
    n = refractive_index("SF11", 550)
    least = 2 * math.degrees(math.asin(n * math.sin(math.radians(25)))) - 50
    assert prism.deviation(550) == pytest.approx(least, abs=1e-12)
    for away in (-2, 2):
        incidence = math.degrees(math.asin(n * math.sin(math.radians(25)))) + away
        assert Prism("SF11", 50, 100, 5, incidence=incidence).deviation(550) > least


def test_deviation_by_the_textbook():
    """δ = θ + arcsin(sin α √(n² − sin² θ) − sin θ cos α) − α, Hecht 5.53."""
    alpha, theta = math.radians(40), math.radians(35)
    for nm in WAVELENGTHS:
        n = refractive_index("SF2", nm)
        inner = math.sin(alpha) * math.sqrt(n**2 - math.sin(theta) ** 2)
        delta = theta + math.asin(inner - math.sin(theta) * math.cos(alpha)) - alpha
        got = Prism("SF2", 40, 50, 10, incidence=35).deviation(nm)
        assert got == pytest.approx(math.degrees(delta), abs=1e-10)


def test_blue_is_turned_most_and_flip_reverses():
    prism = Prism("SF2", 30, 50, 10)
    offsets = prism.offsets(WAVELENGTHS)
    assert offsets[0] == max(offsets)
    flipped = Prism("SF2", 30, 50, 10, flip=True).offsets(WAVELENGTHS)
    assert flipped == pytest.approx([max(offsets) - o for o in offsets])
    assert Prism("SF2", 30, 50, 5).offsets(WAVELENGTHS)[0] == pytest.approx(2 * offsets[0])


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff450,3\n550,33.5\n",
        "\ufeffWavelength;Pixel\n450;3\n550;33,5\n",
        "measured on the bench\nnm\tpixel\n450\t3\n550\t33,5\n",
        "# a, b; c\nnm pixel\n450 3\n550   33.5\n",
        '"450","3"\r\n"550","33.5"\r\n',
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_tables_of_spreadsheets(tmp_path, text, encoding):
    file = tmp_path / "curve.csv"
    file.write_bytes(text.removeprefix("\ufeff" * (encoding == "utf-16")).encode(encoding))
    assert Curve(file=file).points == ((450, 3), (550, 33.5))
    assert read_table(file, "response").tolist() == [[450, 3], [550, 33.5]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("450;3\n550;x\n", "line 2: expected 2 numbers, got '550;x'"),
        ("a,b\n\n450,3\n550,3,1\n", "line 4: expected 2 numbers, got '550,3,1'"),
        ("450,n/a\n550,3\n", "line 1: expected numbers, got '450,n/a'"),
        ("a,b\n", "expected lines of numbers, got none"),
    ],
)
def test_lines_that_are_no_numbers_are_named(tmp_path, text, said):
    file = tmp_path / "curve.csv"
    file.write_text(text)
    for read in (lambda: Curve(file=file), lambda: read_table(file, "response")):
        with pytest.raises(ValueError, match=re.escape(said)):
            read()


def test_table_from_a_file(tmp_path):
    file = tmp_path / "curve.csv"
    file.write_text("wavelength,pixel\n# calibration\n450, 3\n\n550, 33\n650, 53\n")
    curve = Curve(file=file)
    assert curve.positions([450, 500, 600, 650]) == (3, 18, 43, 53)
    assert hash(curve) == hash(Curve(curve.points))
    file.write_text("450,3\n550,x\n")
    with pytest.raises(ValueError, match=r"line 2: expected 2 numbers, got '550,x'"):
        Curve(file=file)
    with pytest.raises(FileNotFoundError, match="no file"):
        Curve(file=tmp_path / "none.csv")
    with pytest.raises(ValueError, match="from 450 to 650 nm"):
        curve.offsets([400, 500])
    with pytest.warns(UserWarning, match="extrapolated from 450 to 650 nm, .* to 430 to 660 nm"):
        assert curve.positions([430, 500, 660]) == pytest.approx((-3, 18, 55))


def test_a_curve_that_turns_round_says_so():
    with pytest.warns(UserWarning, match="rise and fall between 450 and 650 nm"):
        Polynomial([0, 0, 1], 550).offsets([450, 500, 600, 650])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Prism("SF3", 30, 50, 10), "glass: expected one of .* did you mean SF2"),
        (lambda: Prism("SF11", 80, 50, 10), "no light passes SF11 with 80"),
        (lambda: Prism("SF11", 80, 50, 10, incidence=0), "total reflection"),
        (lambda: Prism("SF2", 30, -50, 10), "focal_length, pitch"),
        (lambda: Prism(["SF2", "F2"], 30, 50, 10), "one angle for each of 2 prisms"),
        (lambda: Prism("SF2", 30, 50, 10).offsets([100, 200]), "300 to 2500 nm"),
        (lambda: Polynomial([]), "coefficients"),
        (lambda: Curve(), "points or a file"),
        (lambda: Curve([(450, 1)]), "at least two"),
        (lambda: Curve([(550, 1), (450, 2)]), "increasing wavelength"),
        (lambda: Linear(1).offsets([500, 450]), "increasing values in nm"),
        (lambda: Linear(1).offsets([]), "increasing values in nm"),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_all_that_fit():
    assert fitting_dispersions(256, 310) == [
        (55, 1), (28, 2), (19, 3), (10, 6), (7, 9), (4, 18), (3, 27), (2, 54),
    ]  # fmt: skip
    assert fitting_dispersions(256, 257) == [(2, 1)]
    assert fitting_dispersions(256, 256) == []
    assert fitting_dispersions(256, 255) == []


def test_every_listed_pair_has_the_right_size():
    for bands, step in fitting_dispersions(7, 67):
        assert 7 + (bands - 1) * step == 67
        assert infer_bands(7, 67, -step) == infer_bands(7, 67, step, bands) == bands


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((256, 310, 2), 28),
        ((256, 310, -2), 28),
        ((256, 310, 54), 2),
        ((256, 256, 2), 1),
        ((256, 256, 2, 1), 1),
        ((256, 256, 0, 28), 28),
        ((256, 279, -1.5), 16),
        ((256, 283, 2.03, 14), 14),
        ((256, 259, 0.4, 7), 7),
        ((256, 256, 0.4), 1),
    ],
)
def test_number_of_bands(arguments, expected):
    assert infer_bands(*arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (256, 310, 4),
            "310 pixels .* a mask of 256, step 4; set system.bands=14 system.detector=310, which "
            "reaches 2 pixels beyond the bands; what would fit: 19 bands x step 3, 28 bands",
        ),
        ((256, 310, 2, 31), r"31 bands and step 2; what would fit: .* \(either sign\)"),
        ((240, 269, 2, 24), "fit: 24 bands x step 1.218 to 1.26, 30 bands x step 1"),
        ((256, 316, 8), "step 8; what would fit: 11 bands x step 6, .*; or set system.bands=8"),
        ((256, 310, 0), "step 0; what would fit: 55 bands x step 1"),
        ((256, 310, 0, 28), "28 bands and step 0; what would fit"),
        ((256, 250, 2), "the measurement is smaller than the mask"),
        ((256, 256, 2, 28), "equal sizes leave no room for dispersion"),
        ((256, 278, 1.5), "step 1.5; set system.bands=15 .* what would fit: 23 bands x step 1, 12"),
        ((256, 279, 1.5, 15), "15 bands and step 1.5; set system.detector=279, .* what would fit"),
        ((240, 264, -1.5, 16), "reaches 1.5 pixels beyond the bands; what would fit: 25 bands"),
        ((256, 289, 1.5, 15), "15 bands and step 1.5; what would fit.* or set system.detector=289"),
        ((256, 259, -0.4), "system.bands: .* 7 to 8 bands fit system.step=-0.4"),
        ((256, 256, 0), "system.bands: expected the number of bands, got none; with system.step=0"),
    ],
)
def test_no_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        infer_bands(*arguments)
