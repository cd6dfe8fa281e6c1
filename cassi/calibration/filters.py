"""A camera from frames of its mask in light of several wavelengths: no scene, no search."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from cassi.calibration.correlation import Correlation, find_bright_end, flatten
from cassi.systems.dispersion import SELLMEIER, refractive_index

_STRIPS = 8
"""Parts of a frame that are located by themselves: they err independently."""
_LEAST = 0.02  # pixels, of an error: a filter of 10 nm has its middle elsewhere by so much
_END = 0.5  # pixels, standard error of where the first and the last band fall
_SPAN = 0.2  # the same, where light that ends shows by how much both are shifted
_FITS = 4  # pixels of the detector that bands and field may leave
_BLUR = 0.7  # pixels: finer than that, sampled codes are not what they were
_ACROSS = 8  # pixels, by which the code may move across the dispersion
_NEWTON = 12  # steps
_LIT = 0.5  # of the typical light, where the field ends
_OPEN = 0.99  # quantile of the code that is open
_GUESS = 0.1  # weight of a curve that has no reason, where as many frames fix it
_POLES = torch.linspace(-3000.0, 330.0, 334, dtype=torch.float64)  # nm, of Hartmann's formula
_SURE = 2.0  # standard errors by which the codes of two filters differ at least
_MATCH = 0.1  # least correlation of codes


@dataclass(frozen=True)
class Place:
    """Where the code lies in light of one wavelength.

    Attributes:
        wavelength: nm.
        along: pixels along the dispersion, from the code of the reference frame.
        across: pixels across it.
        error: standard error of `along`, pixels.
        loose: it is known beside other loose places only, all shifted alike.
    """

    wavelength: float
    along: float
    across: float
    error: float
    loose: bool = False


@dataclass(frozen=True)
class CurveFit:
    """A family of dispersion curves, fitted to places.

    Attributes:
        name: of the family.
        weight: how likely it is beside the others, 0 to 1.
        misfit: χ² of the places.
        parameters: how many were fitted.
    """

    name: str
    weight: float
    misfit: float
    parameters: int


@dataclass(frozen=True)
class FilteredCamera:
    """What frames through filters say of a camera; dispersion runs along the last axis.

    Attributes:
        mask: `(H, W)`, transmission, the open elements 1 where it is brightest.
        offsets: `(C,)`, of each band, pixels from the detector's first, float64.
        errors: `(C,)`, standard errors of these.
        rows: first and one after the last row of the field.
        first: column of the frame of the reference where the field begins.
        places: of each frame.
        curves: families that were compared, the likeliest first.
    """

    mask: Tensor
    offsets: Tensor
    errors: Tensor
    rows: tuple[int, int]
    first: int
    places: tuple[Place, ...]
    curves: tuple[CurveFit, ...]


def find_filtered_camera(
    frames: Sequence[Tensor],
    good: Sequence[Tensor],
    wavelengths: Sequence[float],
    bands: Sequence[float],
    ends: tuple[float, float] | None = None,
    light: tuple[Tensor, Tensor] | None = None,
) -> FilteredCamera:
    r"""Find mask, field and dispersion from frames of an even scene through filters.

    The frame of the middle wavelength is the mask. The others are the same code elsewhere: where,
    the maximum of their correlation says, to a few hundredths of a pixel. Strips of the frame, each
    by itself, say how sure that is. Families of curves are fitted to the places: a straight line
    (a grating), Cauchy's λ⁻² and the indices of glasses (a prism), both together, Hartmann's
    a + b/(λ − λ₀), and polynomials. Each counts by exp(−BIC/2); the offsets are the mean over
    families, and their error holds what families differ by.

    With one filter or two, the ends of the bands count as places too: of most cameras is known how
    far apart their first and last band fall, and not the curve between. Both may be shifted by half
    a pixel. A frame of light of all bands shows by how much: where it ends, see
    `cassi.calibration.correlation.find_bright_end`.

    Args:
        frames: `(H', W')` each, corrected, dispersion along the last axis.
        good: bool, pixels that count, of the same shape.
        wavelengths: nm, of the frames, in any order.
        bands: nm, increasing, of the camera.
        ends: where the field begins in light of the first and of the last band, pixels from the
            detector's first.
        light: `(H', W')`, a frame of all bands, of a white sheet or of any scene, and its pixels
            that count.

    Source: Hartmann, "A simple interpolation formula for the prismatic spectrum", Astrophysical
    Journal 8, 218 (1898).
    """
    if len(set(wavelengths)) < max(len(frames), 2 - (ends is not None)):
        raise ValueError(
            f"monochromatic: expected frames of different wavelengths, got {list(wavelengths)}"
        )
    order = sorted(range(len(frames)), key=lambda k: wavelengths[k])
    middle = order[len(order) // 2]
    codes = [flatten(y.double(), ok) for y, ok in zip(frames, good, strict=True)]
    places = tuple(_locate(codes[middle], codes[k], wavelengths[k]) for k in order)
    _check_places(places)
    rows, columns = find_field(frames[middle], good[middle])
    whole = _clean_mask(frames, good, middle, wavelengths, places)
    whole = whole - _stray(whole, rows, columns)
    mask = whole[rows[0] : rows[1], columns[0] : columns[1]]
    mask = (mask / mask.flatten().quantile(_OPEN).clamp_min(1e-30)).clamp(0, 1)
    known = []
    if ends is not None and _ends_fit(ends, mask.shape[1], whole.shape[1], len(places) == 1):
        known = _place_ends(mask, rows, columns[0], ends, bands, light)
    found, errors, curves = fit_curves([*places, *known], bands)
    return FilteredCamera(mask, columns[0] + found, errors, rows, columns[0], places, curves)


def centroid(
    wavelength: float, fwhm: float, bands: Sequence[float], light: Sequence[float]
) -> float:
    r"""Return the mean wavelength of the light that a filter lets through, nm.

        ∫ λ S T dλ / ∫ S T dλ,  T = exp(−4 ln 2 (λ − λ₀)²/w²)

    Where lamp and sensor S rise steeply, that is a nanometre from the filter's middle λ₀,
    whose width w is that at half of its maximum.
    """
    at = wavelength + 2 * fwhm * np.linspace(-1, 1, 801)
    density = np.asarray(light) / np.gradient(np.asarray(bands, dtype=float))
    seen = np.interp(at, bands, density) * np.exp2(-4 * ((at - wavelength) / fwhm) ** 2)
    return float((at * seen).sum() / seen.sum())


def _check_places(places: Sequence[Place]) -> None:
    """Raise ValueError unless light moves along the dispersion, one way with its wavelength.

    A warning is given where red moves more than blue.
    """
    spread = max(abs(each.along) for each in places)
    if max(abs(each.across) for each in places) > max(1.0, spread):
        raise ValueError(
            "monochromatic: the code moves across the dispersion from filter to filter; set "
            "system.axis=-2 for dispersion along the rows, -1 along the columns"
        )
    sign = 1 if places[-1].along > places[0].along else -1
    slopes, errors = [], []
    for one, other in pairwise(places):
        apart, sure = other.wavelength - one.wavelength, math.hypot(one.error, other.error)
        slopes.append(sign * (other.along - one.along) / apart)
        errors.append(sure / apart)
        if slopes[-1] <= _SURE * errors[-1]:
            seen = ", ".join(f"{each.wavelength:g} nm at {each.along:.2f}" for each in places)
            raise ValueError(
                f"monochromatic: expected a code that moves one way with the wavelength, got "
                f"{seen} px; is a file named twice, or are two files exchanged?"
            )
    if slopes and slopes[-1] - 1.1 * slopes[0] > 2 * _SURE * math.hypot(errors[0], errors[-1]):
        warnings.warn(
            f"monochromatic: red light moves more ({slopes[-1]:.3f} px per nm) than blue light "
            f"({slopes[0]:.3f}): of a prism it is the other way; are two files exchanged?",
            stacklevel=3,
        )


def _ends_fit(ends: tuple[float, float], field: int, detector: int, needed: bool) -> bool:
    """Tell whether field and bands fill a detector; raise ValueError if that is needed."""
    beyond = detector - field - max(ends)
    if needed and not abs(beyond) < _FITS:
        raise ValueError(
            f"monochromatic: with one filter, expected where the outermost bands fall; up to "
            f"{max(ends):.3g} pixels and a field of {field} leave {beyond:.3g} of the "
            f"detector's {detector}; set system.step, or window= so that the "
            f"light of all bands is left, {field + max(ends):.0f} pixels along it"
        )
    return abs(beyond) < _FITS


def _place_ends(
    mask: Tensor,
    rows: tuple[int, int],
    first: int,
    ends: tuple[float, float],
    bands: Sequence[float],
    light: tuple[Tensor, Tensor] | None,
) -> list[Place]:
    """Return places of the outermost bands, and of the end of the light if there is a frame."""
    outer = [
        Place(nm, end - first, 0.0, _END if light is None else _SPAN, light is not None)
        for nm, end in zip((bands[0], bands[-1]), ends, strict=True)
    ]
    if light is None:
        return outer
    y, good = (each[None, None, rows[0] : rows[1]] for each in light)
    step = (ends[1] - ends[0]) / (len(bands) - 1)
    offsets = [ends[0] + step * band for band in range(len(bands))]
    end, error = find_bright_end(Correlation(y, good), mask[None].float(), offsets, _FITS)
    red = abs(end - ends[1]) < abs(end - ends[0])
    last, inner = (bands[-1], bands[-2]) if red else (bands[0], bands[1])
    return [*outer, Place(last + (last - inner) / 2, end - first, 0.0, error)]


def _locate(reference: Tensor, code: Tensor, wavelength: float) -> Place:
    """Return by how much a code lies further along and across than a reference's."""
    if code is reference:
        return Place(wavelength, 0.0, 0.0, _LEAST)
    height, width = reference.shape
    size = (height + 2 * _ACROSS, 2 * width)
    cross = torch.fft.rfft2(code, s=size) * torch.fft.rfft2(reference, s=size).conj()
    image = torch.fft.irfft2(cross, s=size)
    rows = torch.arange(-_ACROSS, _ACROSS + 1)
    near = image[rows % size[0]]
    score = float(near.max()) / float(reference.norm() * code.norm())
    if score < _MATCH:
        raise ValueError(
            f"monochromatic: the frame of {wavelength:g} nm does not show the code of the others "
            f"(correlation {score:.2f}): is it of the same camera, evenly lit, and dispersed along "
            "system.axis?"
        )
    down, along = divmod(int(near.argmax()), size[1])
    start = (float(down - _ACROSS), float(along if along < width else along - size[1]))
    across, at = _peak(cross, size, start)
    edges = torch.linspace(0, height, _STRIPS + 1).round().long().tolist()
    parts = []
    for first, last in pairwise(edges):
        own = (last - first + 2 * _ACROSS, size[1])
        pair = [torch.fft.rfft2(each[first:last], s=own) for each in (code, reference)]
        parts.append(_peak(pair[0] * pair[1].conj(), own, (across, at))[1])
    error = torch.tensor(parts).std() / len(parts) ** 0.5
    return Place(wavelength, at, across, max(float(error), _LEAST))


def _peak(cross: Tensor, size: tuple[int, int], start: tuple[float, float]) -> tuple[float, float]:
    """Return where a correlation is greatest near `start`, by Newton's method on its spectrum."""
    down = 2 * math.pi * torch.fft.fftfreq(size[0], dtype=torch.float64)[:, None]
    along = 2 * math.pi * torch.fft.rfftfreq(size[1], dtype=torch.float64)
    twice = torch.full_like(along, 2.0)  # the other half of the spectrum
    twice[0] = 1
    weighted = cross * twice * torch.exp(-(_BLUR**2) * (down.square() + along.square()) / 2)
    at = torch.tensor(start, dtype=torch.float64)
    for _ in range(_NEWTON):
        turned = weighted * torch.exp(1j * (down * at[0] + along * at[1]))
        rest, value = -turned.imag, turned.real
        slope = torch.stack([(down * rest).sum(), (along * rest).sum()])
        bend = -torch.stack(
            [
                torch.stack([(down * down * value).sum(), (down * along * value).sum()]),
                torch.stack([(down * along * value).sum(), (along * along * value).sum()]),
            ]
        )
        step = -torch.linalg.solve(bend, slope)
        at = at + step.clamp(-0.5, 0.5)
        if float(step.abs().max()) < 1e-4:
            break
    return float(at[0]), float(at[1])


def fit_curves(
    places: Sequence[Place], bands: Sequence[float]
) -> tuple[Tensor, Tensor, tuple[CurveFit, ...]]:
    """Fit families of curves to places, and return their mean at each band.

    Returns:
        Pixels from the reference `(C,)`, standard errors `(C,)`, both float64, and the families,
        the likeliest first.
    """
    at = torch.tensor([each.wavelength for each in places], dtype=torch.float64)
    y = torch.tensor([each.along for each in places], dtype=torch.float64)
    sigma = torch.tensor([each.error for each in places], dtype=torch.float64)
    loose = torch.tensor([each.loose for each in places])
    count = len(places) - bool(loose.any())
    asked = torch.tensor(list(bands), dtype=torch.float64)
    tried: list[tuple[str, float, float, int, Tensor, Tensor]] = []
    for name, columns, weight in _families(count):
        fitted = [_least_squares(each, at, y, sigma, asked, loose) for each in columns]
        # Of a family with a free pole, or of several glasses, the one that fits best.
        misfit, values, variance = min(fitted, key=lambda each: each[0])
        free = len(columns[0](at)) + (len(columns) > 1)
        if free > count:
            continue
        bic = misfit + free * math.log(count) - 2 * math.log(weight)
        tried.append((name, bic, misfit, free, values, variance))
    least = min(each[1] for each in tried)
    weights = torch.tensor([math.exp(-(each[1] - least) / 2) for each in tried]).double()
    weights = weights / weights.sum()
    values, variances = (torch.stack([each[k] for each in tried]) for k in (4, 5))  # type: ignore[misc]
    mean = weights @ values
    spread = weights @ (variances + (values - mean).square())
    curves = [
        CurveFit(each[0], float(weight), each[2], each[3])
        for each, weight in zip(tried, weights, strict=True)
    ]
    return mean, spread.sqrt(), tuple(sorted(curves, key=lambda each: -each.weight))


Columns = Callable[[Tensor], Tensor]


def _families(count: int) -> list[tuple[str, list[Columns], float]]:
    """Return families of curves: name, columns of their designs, and weight."""

    def powers(*exponents: int) -> Columns:
        return lambda at: torch.stack([(at / 550) ** each for each in exponents])

    def glass(name: str) -> Columns:
        return lambda at: torch.stack(
            [
                torch.ones_like(at),
                at.new_tensor([refractive_index(name, value) for value in at.tolist()]),
            ]
        )

    def hartmann(pole: float) -> Columns:
        return lambda at: torch.stack([torch.ones_like(at), 100 / (at - pole)])

    guess = _GUESS if count <= 3 else 1.0
    return [
        ("straight line", [powers(0, 1)], 1.0),
        ("Cauchy", [powers(0, -2)], 1.0),
        ("prism", [glass(name) for name in SELLMEIER], 1.0),
        ("Cauchy and a line", [powers(0, 1, -2)], 1.0),
        ("Hartmann", [hartmann(float(pole)) for pole in _POLES], 1.0),
        ("parabola", [powers(0, 1, 2)], guess),
        ("third degree", [powers(0, 1, 2, 3)], 1.0),
    ]


def _least_squares(
    columns: Columns, at: Tensor, y: Tensor, sigma: Tensor, asked: Tensor, loose: Tensor
) -> tuple[float, Tensor, Tensor]:
    """Return χ², the values that are asked for, and their variances."""
    shift = loose[None][: int(loose.any())].to(at)
    design = (torch.cat([columns(at), shift]) / sigma).mT
    if len(at) < design.shape[1]:
        return math.inf, torch.zeros_like(asked), torch.zeros_like(asked)
    inverse = torch.linalg.pinv(design)
    found = inverse @ (y / sigma)
    misfit = float((design @ found - y / sigma).square().sum())
    wanted = torch.cat([columns(asked), torch.zeros(len(shift), len(asked)).to(asked)]).mT
    free = len(at) - design.shape[1]
    scale = max(misfit / free, 1.0) if free else 1.0
    variance = scale * (wanted @ inverse).square().sum(1)
    return misfit, wanted @ found, variance


def find_field(y: Tensor, good: Tensor) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the rows and columns that are lit in a frame, each first and one after the last."""
    found = []
    for across in (1, 0):
        count = good.sum(across).clamp_min(1)
        light = torch.where(good, y, 0).sum(across) / count
        light = light - light.quantile(0.01).clamp_max(float(light.median()) / 4)
        lit = (light > _LIT * light[light > light.max() / 4].median()).nonzero().flatten()
        found.append((int(lit[0]), int(lit[-1]) + 1))
    return found[0], found[1]


def _stray(image: Tensor, rows: tuple[int, int], columns: tuple[int, int]) -> float:
    """Return the light beside the field, where there is some of the frame beside it."""
    beside = torch.ones_like(image, dtype=torch.bool)
    beside[max(rows[0] - 2, 0) : rows[1] + 2, max(columns[0] - 2, 0) : columns[1] + 2] = False
    return float(image[beside].median()) if int(beside.sum()) > 2 * len(image) else 0.0


def _clean_mask(
    frames: Sequence[Tensor],
    good: Sequence[Tensor],
    middle: int,
    wavelengths: Sequence[float],
    places: Sequence[Place],
) -> Tensor:
    """Return the frame of the middle with its bad pixels as the other frames show them."""
    image, bad = frames[middle].double(), ~good[middle]
    if not bool(bad.any()):
        return image
    filled, weight = torch.zeros_like(image), torch.zeros_like(image)
    typical = float(image[~bad].mean())
    by_wavelength = {each.wavelength: each for each in places}
    for k, (y, ok) in enumerate(zip(frames, good, strict=True)):
        if k == middle:
            continue
        place = by_wavelength[wavelengths[k]]
        scale = typical / float(y[ok].mean().clamp_min(1e-30))
        first, part = math.floor(place.along), place.along - math.floor(place.along)
        for move, share in ((first, 1 - part), (first + 1, part)):
            shown = (ok * share * torch.ones_like(image)).roll(-move, -1)
            filled += shown * (scale * y.double()).roll(-move, -1)
            weight += shown
    near = avg_pool2d(torch.where(bad, 0, image)[None, None], 3, 1, 1)
    near = near / avg_pool2d((~bad).double()[None, None], 3, 1, 1).clamp_min(1e-6)
    return torch.where(bad, torch.where(weight > 0.5, filled / weight, near[0, 0]), image)
