"""Fit curves of glasses and gratings to places of the mask in light of a few wavelengths."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cassi.systems.dispersion import SELLMEIER, refractive_index

# Prior weight of a parabola if there are three places or fewer. A parabola fits three places
# exactly, but unlike the curves of glasses and gratings it has no physical reason.
_PARABOLA_WEIGHT = 0.1
# Poles λ₀ that are tried in Hartmann's formula, nm.
_HARTMANN_POLES = torch.linspace(-3000.0, 330.0, 334, dtype=torch.float64)


@dataclass(frozen=True)
class FilterPlace:
    """Place of the mask in light of one wavelength.

    Attributes:
        wavelength: nm.
        shift_along: shift along the dispersion relative to the reference frame, pixels.
        shift_across: shift across the dispersion, pixels.
        error: standard error of `shift_along`, pixels.
        has_common_shift: all places with this flag have one unknown shift in common. So only the
            distances between them count.
    """

    wavelength: float
    shift_along: float
    shift_across: float
    error: float
    has_common_shift: bool = False


@dataclass(frozen=True)
class CurveFit:
    """A family of dispersion curves, fitted to places.

    Attributes:
        name: name of the family.
        weight: probability of the family, 0 to 1; the sum over the families is 1.
        misfit: χ² of the places.
        parameters: number of fitted parameters.
    """

    name: str
    weight: float
    misfit: float
    parameters: int


def fit_curves(
    places: Sequence[FilterPlace], bands: Sequence[float]
) -> tuple[Tensor, Tensor, tuple[CurveFit, ...]]:
    """Fit families of curves to places, and return their weighted mean at each band.

    Args:
        places: places of the mask.
        bands: wavelengths of the bands, nm.

    Returns:
        Shifts relative to the reference `(C,)` and standard errors `(C,)`, pixels, both float64,
        and the families, the most probable first.
    """
    wavelengths = torch.tensor([place.wavelength for place in places], dtype=torch.float64)
    y = torch.tensor([place.shift_along for place in places], dtype=torch.float64)
    sigma = torch.tensor([place.error for place in places], dtype=torch.float64)
    has_common_shift = torch.tensor([place.has_common_shift for place in places])
    # One place determines the common shift, so one place less determines the curve.
    count = len(places) - bool(has_common_shift.any())
    band_wavelengths = torch.tensor(list(bands), dtype=torch.float64)
    fits: list[tuple[str, float, float, int, Tensor, Tensor]] = []
    for name, columns, weight in _list_families(count):
        candidates = [
            _least_squares(design, wavelengths, y, sigma, band_wavelengths, has_common_shift)
            for design in columns
        ]
        # A family with several poles or glasses has a candidate for each; the best one counts.
        misfit, values, variance = min(candidates, key=lambda candidate: candidate[0])
        n_parameters = len(columns[0](wavelengths)) + (len(columns) > 1)
        if n_parameters > count:
            continue
        bic = misfit + n_parameters * math.log(count) - 2 * math.log(weight)
        fits.append((name, bic, misfit, n_parameters, values, variance))
    names, bics, misfits, numbers, all_values, all_variances = zip(*fits, strict=True)
    lowest_bic = min(bics)
    weights = torch.tensor([math.exp(-(bic - lowest_bic) / 2) for bic in bics]).double()
    weights = weights / weights.sum()
    values, variances = torch.stack(all_values), torch.stack(all_variances)
    mean = weights @ values
    variance_of_mean = weights @ (variances + (values - mean).square())
    curves = [
        CurveFit(name, float(weight), misfit, number)
        for name, weight, misfit, number in zip(names, weights, misfits, numbers, strict=True)
    ]
    errors = variance_of_mean.sqrt()
    return mean, errors, tuple(sorted(curves, key=lambda curve: -curve.weight))


Columns = Callable[[Tensor], Tensor]
"""A function from wavelengths, nm `(N,)`, to the terms of a curve, `(terms, N)`."""


def _list_families(count: int) -> list[tuple[str, list[Columns], float]]:
    """Return families of curves: the name, the terms of each candidate, and the prior weight."""

    def powers(*exponents: int) -> Columns:
        return lambda nm: torch.stack([(nm / 550) ** exponent for exponent in exponents])

    def glass(name: str) -> Columns:
        return lambda nm: torch.stack(
            [
                torch.ones_like(nm),
                nm.new_tensor([refractive_index(name, value) for value in nm.tolist()]),
            ]
        )

    def hartmann(pole: float) -> Columns:
        return lambda nm: torch.stack([torch.ones_like(nm), 100 / (nm - pole)])

    parabola_weight = _PARABOLA_WEIGHT if count <= 3 else 1.0
    return [
        ("straight line", [powers(0, 1)], 1.0),
        ("Cauchy", [powers(0, -2)], 1.0),
        ("prism", [glass(name) for name in SELLMEIER], 1.0),
        ("Cauchy and a line", [powers(0, 1, -2)], 1.0),
        ("Hartmann", [hartmann(float(pole)) for pole in _HARTMANN_POLES], 1.0),
        ("parabola", [powers(0, 1, 2)], parabola_weight),
        ("third degree", [powers(0, 1, 2, 3)], 1.0),
    ]


def _least_squares(
    columns: Columns,
    wavelengths: Tensor,
    y: Tensor,
    sigma: Tensor,
    band_wavelengths: Tensor,
    has_common_shift: Tensor,
) -> tuple[float, Tensor, Tensor]:
    """Fit a curve to places; return χ², its values at the bands, and their variances."""
    # The common shift is one more parameter. It moves the places with this flag, but no band.
    shift = has_common_shift[None][: int(has_common_shift.any())].to(wavelengths)
    design = (torch.cat([columns(wavelengths), shift]) / sigma).mT
    if len(wavelengths) < design.shape[1]:
        return math.inf, torch.zeros_like(band_wavelengths), torch.zeros_like(band_wavelengths)
    inverse = torch.linalg.pinv(design)
    coefficients = inverse @ (y / sigma)
    misfit = float((design @ coefficients - y / sigma).square().sum())
    band_design = torch.cat(
        [
            columns(band_wavelengths),
            torch.zeros(len(shift), len(band_wavelengths)).to(band_wavelengths),
        ]
    ).mT
    degrees_of_freedom = len(wavelengths) - design.shape[1]
    scale = max(misfit / degrees_of_freedom, 1.0) if degrees_of_freedom else 1.0
    variance = scale * (band_design @ inverse).square().sum(1)
    return misfit, band_design @ coefficients, variance
