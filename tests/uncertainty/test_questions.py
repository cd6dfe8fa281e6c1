"""Questions about a scene, against libraries and other formulas."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import nnls

import cassi
from cassi.data.bundled import bundled_path
from cassi.uncertainty.questions import (
    Abundance,
    Area,
    ColorDifference,
    Function,
    Index,
    RegionMean,
    Target,
    delta_e,
    to_lab,
)
from cassi.viz.color import xyz_of_srgb
from scripts.benchmarks.answers import find_materials

NM = (500.0, 550.0, 600.0, 650.0)


@pytest.fixture(scope="module")
def cube():
    """A cube of positive values without a unit, (4, 6, 7)."""
    return 0.1 + torch.rand(4, 6, 7, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def scene():
    """A part of the bundled scene, and four materials of it."""
    cube = cassi.read_cube(bundled_path("scene.tif"))[0]
    return cube[:, 64:96, 64:96], find_materials(cube)


FORMULAS = {
    "w550": lambda x: x[1],
    "w500 / w650": lambda x: x[0] / x[3],
    "(w650 - w550) / (w650 + w550)": lambda x: (x[3] - x[1]) / (x[3] + x[1]),
    "w575": lambda x: (x[1] + x[2]) / 2,
    "w510_5 - -w650": lambda x: 0.79 * x[0] + 0.21 * x[1] + x[3],
    "+2.5 * (w600 - w500) / (w600 + 6 * w500 + 1)": (
        lambda x: 2.5 * (x[2] - x[0]) / (x[2] + 6 * x[0] + 1)
    ),
    "w600 ** 2 / 1e-3": lambda x: 1000 * x[2] ** 2,
    "3": lambda x: 0 * x[0] + 3,
}


@pytest.mark.parametrize("formula", FORMULAS)
def test_index(cube, formula):
    index = Index(formula, NM)(cube)
    torch.testing.assert_close(index, FORMULAS[formula](cube), rtol=1e-5, atol=1e-6)


def test_an_index_of_one_band():
    assert float(Index("w550", [550.0])(torch.full((1, 1, 1), 3.0))) == 3


@pytest.mark.parametrize("formula", ["w600 / (w500 / w650)", "w600 / 2", "w600 / (w500 + w650)"])
def test_an_index_scales_with_its_unit(cube, formula):
    """The bound of a denominator does not depend on the unit of the cube."""
    index = Index(formula, NM)
    power = 0 if "+" in formula else 1
    torch.testing.assert_close(index(1000 * cube), 1000**power * index(cube))


def test_a_denominator_stays_away_from_zero():
    x = torch.ones(4, 2, 50)
    x[1, 0, :3] = torch.tensor([0.0, 1e-5, -1e-5])
    index = Index("w500 / w550", NM)(x)
    least = 0.01 * float(x[1].abs().mean())
    expected = torch.tensor([1 / least, 1 / least, -1 / least])
    torch.testing.assert_close(index[0, :3], expected)
    assert bool((index[0, 3:] == 1).all())


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("w550 +", r"expected a formula such as .* got 'w550 \+'"),
        ("w550\0", "expected a formula"),
        ("w700", "expected wavelengths from 500 to 650 nm, got 700 in 'w700'"),
        ("w499_9", "got 499.9"),
        ("abs(w550)", r"expected numbers, .* got 'abs\(w550\)' in"),
        ("w550 // w600", "got 'w550 // w600'"),
        ("~w550", "got '~w550'"),
        ("red / w550", "got 'red'"),
        ("w550 if w600 else 1", "expected numbers"),
        ("'w550'", "expected numbers"),
        ("__import__('os')", "expected numbers"),
    ],
)
def test_formulas_that_are_refused(formula, message):
    with pytest.raises(ValueError, match=message):
        Index(formula, NM)


@pytest.mark.parametrize("sum_to_one", [False, True])
def test_abundances_are_those_of_least_squares(scene, sum_to_one):
    cube, spectra = scene
    question = Abundance(spectra, ("a", "b", "c", "d"), sum_to_one)
    abundance = question(cube)
    assert abundance.shape == (4, 32, 32)
    # A row with a large weight makes the sum 1.
    weight = 1e3 if sum_to_one else 0.0
    matrix = np.vstack([spectra.double().numpy().T, np.full(4, weight)])
    pixels = cube.flatten(1).double().numpy()
    expected = [nnls(matrix, np.append(pixel, weight))[0] for pixel in pixels.T]
    expected = torch.from_numpy(np.stack(expected, 1)).view(4, 32, 32)
    torch.testing.assert_close(abundance.double(), expected, rtol=0, atol=1e-3)
    least, largest = question.bounds
    assert least == 0
    assert largest == (1 if sum_to_one else math.inf)


@pytest.mark.parametrize(
    ("spectra", "labels"),
    [
        (torch.ones(2, 4), ("a",)),
        (torch.ones(4), ("a",) * 4),
        (torch.ones(0, 4), ()),
        (torch.tensor([[1.0, 2.0], [0.0, 0.0]]), ("a", "b")),
        (torch.tensor([[1.0, math.nan]]), ("a",)),
    ],
)
def test_spectra_that_are_refused(spectra, labels):
    with pytest.raises(ValueError, match=r"^abundance: expected"):
        Abundance(spectra, labels)


@pytest.mark.parametrize("detector", ["matched_filter", "coherence"])
def test_detectors(scene, detector):
    cube, spectra = scene
    question = Target(spectra[1], detector)
    pixels, target = cube.flatten(1).double().numpy(), spectra[1].double().numpy()
    covariance = np.cov(pixels, bias=True)
    covariance += 0.1 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    inverse, mean = np.linalg.inv(covariance), pixels.mean(1)
    s, x = target - mean, pixels - mean[:, None]
    expected = s @ inverse @ x / (s @ inverse @ s)
    if detector == "coherence":
        expected = expected**2 * (s @ inverse @ s) / np.einsum("ci,cd,di->i", x, inverse, x)
        assert question.bounds == (0, 1)
    torch.testing.assert_close(
        question(cube).flatten().double(), torch.from_numpy(expected), rtol=1e-4, atol=1e-5
    )


def test_a_target_has_1_and_the_background_0(cube):
    x = cube.clone()
    x[:, 2, 3] = torch.tensor([3.0, 0.0, 3.0, 0.0])
    statistic = Target(x[:, 2, 3])(x)
    assert float(statistic[2, 3]) == pytest.approx(1, abs=1e-5)
    assert float(statistic.mean()) == pytest.approx(0, abs=1e-5)


def test_a_target_in_the_dark_has_one_value():
    for detector in ("matched_filter", "coherence"):
        assert bool((Target(torch.ones(4), detector)(torch.zeros(4, 3, 3)) == 0).all())
    with pytest.raises(ValueError, match="expected detector matched_filter or coherence, got 'x'"):
        Target(torch.ones(4), "x")


def test_regions_and_areas(cube):
    where = torch.zeros(6, 7, dtype=torch.bool)
    where[1:3, 2:6] = True
    region = RegionMean(where)
    torch.testing.assert_close(region(cube), cube[:, 1:3, 2:6].mean((1, 2)))
    assert region.pixels(cube) is cube
    area = Area(Index("w500 / w600", NM), 1.0, where)
    share = (cube[0] > cube[2])[1:3, 2:6].double().mean()
    assert float(area(cube)) == pytest.approx(float(share))
    assert area.pixels(cube).shape == (6, 7)
    for pixels in (torch.zeros(6, 7, dtype=torch.bool), torch.ones(6, 7)):
        with pytest.raises(ValueError, match="region: expected a bool image with some pixels"):
            RegionMean(pixels)
        with pytest.raises(ValueError, match="region: expected a bool image with some pixels"):
            Area(Index("w500", NM), 1.0, pixels)


def test_a_function_keeps_its_properties(cube):
    question = Function(lambda x: x.mean().item(), unit="counts", bounds=(0.0, 9.0))
    assert question(cube).shape == ()
    assert (question.unit, question.bounds, question.labels) == ("counts", (0.0, 9.0), ())


def test_color_differences_are_those_of_colour():
    colour = pytest.importorskip("colour")
    random = np.random.default_rng(0)
    first, second = random.uniform([0, -90, -90], [100, 90, 90], (2, 4000, 3))
    first[:500, 1:] = 0  # greys
    second[250:750, 1:] = 0
    second[1000:2000] = first[1000:2000] + random.normal(0, 1, (1000, 3))
    expected = torch.from_numpy(colour.delta_E(first, second, method="CIE 2000"))
    difference = delta_e(torch.from_numpy(first).T, torch.from_numpy(second).T)
    torch.testing.assert_close(difference, expected, rtol=1e-6, atol=1e-6)


def test_colors_are_those_of_colour(cube):
    colour = pytest.importorskip("colour")
    x = cube[:3].double() / 1.2
    x[:, 0, 0] = 0
    x[:, 0, 1] = 0.003  # below the cube root
    white = colour.CCS_ILLUMINANTS["CIE 1931 2 Degree Standard Observer"]["D65"]
    xyz = colour.RGB_to_XYZ(x.permute(1, 2, 0).numpy() / 0.8, "sRGB")
    expected = torch.from_numpy(colour.XYZ_to_Lab(xyz, white)).permute(2, 0, 1)
    matrix = torch.from_numpy(xyz_of_srgb(np.eye(3), is_encoded=False))
    lab = to_lab(x, matrix, white=0.8)
    torch.testing.assert_close(lab, expected, rtol=0, atol=0.1)  # rounded matrices
    question = ColorDifference(matrix, (50.0, 20.0, -10.0), white=0.8)
    reference = np.array([50.0, 20.0, -10.0])
    theirs = colour.delta_E(expected.permute(1, 2, 0).numpy(), reference, method="CIE 2000")
    torch.testing.assert_close(question(x), torch.from_numpy(theirs), rtol=0, atol=0.1)
    assert torch.allclose(
        to_lab(torch.ones(3, 1, 1), matrix).flatten()[1:], torch.zeros(2), atol=1e-4
    )
