"""Estimate mask, field and dispersion of a camera from frames through narrow-band filters.

The field is the lit part of the detector.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from cassi.calibration.correlation import Correlation, find_bright_end, flatten
from cassi.calibration.dispersion_curves import CurveFit, FilterPlace, fit_curves

# Strips of a frame that are located one by one. Their errors are independent, so their scatter
# gives the standard error.
_STRIPS = 8
# Least standard error of a place, pixels. The middle wavelength of a 10 nm filter is uncertain by
# as much, and the scatter of the strips does not show this error.
_MIN_ERROR = 0.02
# Standard error of the nominal offsets of the first and the last band, pixels, if there is no
# broadband frame.
_END_ERROR = 0.5
# Standard error of these offsets if a broadband frame shows the shift that both have in common.
_END_ERROR_WITH_LIGHT = 0.2
# Largest difference of the width of the detector and that of the dispersed field, pixels. If the
# difference is larger, the nominal offsets are not those of this camera.
_MAX_GAP_PIXELS = 4
# Standard deviation of the blur of the correlation before its maximum is refined, pixels. Finer
# structures of a sampled mask are aliased.
_BLUR_PIXELS = 0.7
# Largest shift of the mask across the dispersion, pixels.
_MAX_SHIFT_ACROSS = 8
_NEWTON_STEPS = 12
# The field ends where the light falls below this share of the median light of the field.
_FIELD_LEVEL = 0.5
# The value at this quantile of the mask becomes a transmission of 1, because noise makes a few
# pixels brighter.
_OPEN_QUANTILE = 0.99
# From one filter to the next the mask must move by more than this many standard errors.
_MIN_ERRORS_APART = 2.0
# Least correlation of two frames that show the same mask.
_MIN_CORRELATION = 0.1


@dataclass(frozen=True)
class FilteredCamera:
    """A camera as estimated from frames through filters, dispersion along the last axis.

    Attributes:
        mask: transmission `(H, W)`, 1 at open elements.
        offsets: offset of each band from the first column of the detector, pixels, `(C,)`, float64.
        errors: standard errors of the offsets, `(C,)`.
        rows: first row of the field, and the one after its last row.
        first: first column of the field in the reference frame, which is that of the middle
            wavelength.
        places: place of the mask in each frame.
        curves: families of curves that were compared, the most probable first.
    """

    mask: Tensor
    offsets: Tensor
    errors: Tensor
    rows: tuple[int, int]
    first: int
    places: tuple[FilterPlace, ...]
    curves: tuple[CurveFit, ...]


def find_filtered_camera(
    frames: Sequence[Tensor],
    good_pixels: Sequence[Tensor],
    wavelengths: Sequence[float],
    bands: Sequence[float],
    ends: tuple[float, float] | None = None,
    light: tuple[Tensor, Tensor] | None = None,
) -> FilteredCamera:
    r"""Estimate mask, field and dispersion from frames of an even scene through filters.

    The frame of the middle wavelength is taken as the mask. In the other frames the mask is
    shifted. The maximum of their correlation with the mask gives the shift to some hundredths of a
    pixel, and the scatter over strips of a frame gives the standard error of the shift.

    Families of curves are fitted to the shifts: a straight line (a grating), Cauchy's λ⁻² and the
    indices of glasses (a prism), Cauchy's and a line together, Hartmann's a + b/(λ − λ₀), and
    polynomials. Each family has the weight exp(−BIC/2). The offsets are the weighted mean over the
    families. The errors of the offsets include the differences between the families.

    If `ends` are given, the nominal offsets of the first and the last band count as places, too.
    For most cameras the distance between both is known, but not the curve. Both may be shifted by
    half a pixel. The end of the light in a broadband frame shows this shift, see
    `cassi.calibration.correlation.find_bright_end`.

    Args:
        frames: corrected frames `(H', W')`, dispersion along the last axis.
        good_pixels: bool, pixels that count, of the same shapes.
        wavelengths: wavelengths of the frames, nm, in any order.
        bands: wavelengths of the camera, nm, increasing.
        ends: nominal first column of the field in light of the first band, and of the last band.
        light: a frame in broadband light, of a white sheet or of any scene, `(H', W')`, and its
            good pixels.

    Raises:
        ValueError: a wavelength is given twice, the frames do not show one mask, or the mask does
            not move along the dispersion in one direction with the wavelength.

    Source: Hartmann, "A simple interpolation formula for the prismatic spectrum", Astrophysical
    Journal 8, 218 (1898).
    """
    if len(set(wavelengths)) < max(len(frames), 2 - (ends is not None)):
        raise ValueError(
            f"monochromatic: expected frames of different wavelengths, got {list(wavelengths)}"
        )
    order = sorted(range(len(frames)), key=lambda k: wavelengths[k])
    middle = order[len(order) // 2]
    codes = [flatten(y.double(), is_good) for y, is_good in zip(frames, good_pixels, strict=True)]
    places = tuple(_locate(codes[middle], codes[k], wavelengths[k]) for k in order)
    _check_places(places)
    rows, columns = find_field(frames[middle], good_pixels[middle])
    clean_frame = _clean_mask(frames, good_pixels, middle, wavelengths, places)
    clean_frame = clean_frame - _measure_stray_light(clean_frame, rows, columns)
    mask = clean_frame[rows[0] : rows[1], columns[0] : columns[1]]
    mask = (mask / mask.flatten().quantile(_OPEN_QUANTILE).clamp_min(1e-30)).clamp(0, 1)
    end_places = []
    is_required = len(places) == 1
    if ends is not None and _check_ends(ends, mask.shape[1], clean_frame.shape[1], is_required):
        end_places = _place_ends(mask, rows, columns[0], ends, bands, light)
    curve, errors, curves = fit_curves([*places, *end_places], bands)
    return FilteredCamera(mask, columns[0] + curve, errors, rows, columns[0], places, curves)


def centroid(
    wavelength: float, fwhm: float, bands: Sequence[float], light: Sequence[float]
) -> float:
    r"""Return the mean wavelength of the light behind a filter, nm.

        ∫ λ S T dλ / ∫ S T dλ,  T = exp(−4 ln 2 (λ − λ₀)²/w²)

    S is the spectral density of the light that the sensor measures without the filter, and w the
    filter's full width at half maximum. If S is steep, the mean is about a nanometre from the
    middle λ₀ of the filter.

    Args:
        wavelength: middle λ₀ of the filter, nm.
        fwhm: full width w at half maximum, nm.
        bands: wavelengths of the bands, nm, increasing.
        light: light of each band, in any unit.
    """
    samples = wavelength + 2 * fwhm * np.linspace(-1, 1, 801)
    density = np.asarray(light) / np.gradient(np.asarray(bands, dtype=float))
    transmission = np.exp2(-4 * ((samples - wavelength) / fwhm) ** 2)
    density_behind = np.interp(samples, bands, density) * transmission
    return float((samples * density_behind).sum() / density_behind.sum())


def _check_places(places: Sequence[FilterPlace]) -> None:
    """Refuse places that do not move along the dispersion in one direction with the wavelength.

    Warn if red light is dispersed more than blue light, as by no prism.
    """
    spread = max(abs(place.shift_along) for place in places)
    if max(abs(place.shift_across) for place in places) > max(1.0, spread):
        raise ValueError(
            "monochromatic: the code moves across the dispersion from filter to filter; set "
            "system.axis=-2 for dispersion along the rows, -1 along the columns"
        )
    sign = 1 if places[-1].shift_along > places[0].shift_along else -1
    slopes, errors = [], []
    for place, next_place in pairwise(places):
        nanometres = next_place.wavelength - place.wavelength
        error = math.hypot(place.error, next_place.error)
        slopes.append(sign * (next_place.shift_along - place.shift_along) / nanometres)
        errors.append(error / nanometres)
        if slopes[-1] <= _MIN_ERRORS_APART * errors[-1]:
            positions = ", ".join(
                f"{place.wavelength:g} nm at {place.shift_along:.2f}" for place in places
            )
            raise ValueError(
                f"monochromatic: expected a code that moves one way with the wavelength, got "
                f"{positions} px; is a file named twice, or are two files exchanged?"
            )
    if not slopes:
        return
    # The glass of a prism disperses blue light more than red light.
    margin = 2 * _MIN_ERRORS_APART * math.hypot(errors[0], errors[-1])
    if slopes[-1] - 1.1 * slopes[0] > margin:
        warnings.warn(
            f"monochromatic: red light moves more ({slopes[-1]:.3f} px per nm) than blue light "
            f"({slopes[0]:.3f}), but a prism disperses blue light more; are two files exchanged?",
            stacklevel=3,
        )


def _check_ends(ends: tuple[float, float], field: int, detector: int, is_required: bool) -> bool:
    """Tell whether the dispersed field fills the detector. If it must but does not, raise."""
    gap = detector - field - max(ends)
    if is_required and not abs(gap) < _MAX_GAP_PIXELS:
        raise ValueError(
            f"monochromatic: with one filter, expected where the outermost bands fall; up to "
            f"{max(ends):.3g} pixels and a field of {field} leave {gap:.3g} of the "
            f"detector's {detector}; set system.step, or window= so that the "
            f"light of all bands is left, {field + max(ends):.0f} pixels along it"
        )
    return abs(gap) < _MAX_GAP_PIXELS


def _place_ends(
    mask: Tensor,
    rows: tuple[int, int],
    first: int,
    ends: tuple[float, float],
    bands: Sequence[float],
    light: tuple[Tensor, Tensor] | None,
) -> list[FilterPlace]:
    """Return places of the outermost bands, and of the end of the light if there is a frame."""
    # A broadband frame shows the shift of both ends. If there is one, only the distance between the
    # ends is taken from the nominal camera.
    error = _END_ERROR if light is None else _END_ERROR_WITH_LIGHT
    end_places = [
        FilterPlace(nm, end - first, 0.0, error, has_common_shift=light is not None)
        for nm, end in zip((bands[0], bands[-1]), ends, strict=True)
    ]
    if light is None:
        return end_places
    y, good_pixels = (image[None, None, rows[0] : rows[1]] for image in light)
    step = (ends[1] - ends[0]) / (len(bands) - 1)
    offsets = [ends[0] + step * band for band in range(len(bands))]
    end, error = find_bright_end(
        Correlation(y, good_pixels), mask[None].float(), offsets, _MAX_GAP_PIXELS
    )
    is_red_end = abs(end - ends[1]) < abs(end - ends[0])
    end_band, next_band = (bands[-1], bands[-2]) if is_red_end else (bands[0], bands[1])
    return [
        *end_places,
        FilterPlace(end_band + (end_band - next_band) / 2, end - first, 0.0, error),
    ]


def _locate(reference: Tensor, code: Tensor, wavelength: float) -> FilterPlace:
    """Return the place of the mask in a frame relative to a reference, from local contrasts."""
    if code is reference:
        return FilterPlace(wavelength, 0.0, 0.0, _MIN_ERROR)
    height, width = reference.shape
    size = (height + 2 * _MAX_SHIFT_ACROSS, 2 * width)
    cross = torch.fft.rfft2(code, s=size) * torch.fft.rfft2(reference, s=size).conj()
    image = torch.fft.irfft2(cross, s=size)
    rows = torch.arange(-_MAX_SHIFT_ACROSS, _MAX_SHIFT_ACROSS + 1)
    search_window = image[rows % size[0]]
    score = float(search_window.max()) / float(reference.norm() * code.norm())
    if score < _MIN_CORRELATION:
        raise ValueError(
            f"monochromatic: the frame of {wavelength:g} nm does not show the code of the others "
            f"(correlation {score:.2f}): is it of the same camera, evenly lit, and dispersed along "
            "system.axis?"
        )
    row, column = divmod(int(search_window.argmax()), size[1])
    start = (float(row - _MAX_SHIFT_ACROSS), float(column if column < width else column - size[1]))
    shift_across, shift_along = _refine_peak(cross, size, start)
    edges = torch.linspace(0, height, _STRIPS + 1).round().long().tolist()
    strip_shifts = []
    for first, last in pairwise(edges):
        strip_size = (last - first + 2 * _MAX_SHIFT_ACROSS, size[1])
        transforms = [
            torch.fft.rfft2(image[first:last], s=strip_size) for image in (code, reference)
        ]
        strip_cross = transforms[0] * transforms[1].conj()
        strip_shifts.append(_refine_peak(strip_cross, strip_size, (shift_across, shift_along))[1])
    error = torch.tensor(strip_shifts).std() / len(strip_shifts) ** 0.5
    return FilterPlace(wavelength, shift_along, shift_across, max(float(error), _MIN_ERROR))


def _refine_peak(
    cross: Tensor, size: tuple[int, int], start: tuple[float, float]
) -> tuple[float, float]:
    """Return the maximum of a correlation near `start`, by Newton's method on its spectrum."""
    u = 2 * math.pi * torch.fft.fftfreq(size[0], dtype=torch.float64)[:, None]
    v = 2 * math.pi * torch.fft.rfftfreq(size[1], dtype=torch.float64)
    # A real transform has half of the spectrum, so all columns but the first count twice.
    weights = torch.full_like(v, 2.0)
    weights[0] = 1
    cross_spectrum = cross * weights * torch.exp(-(_BLUR_PIXELS**2) * (u.square() + v.square()) / 2)
    position = torch.tensor(start, dtype=torch.float64)
    for _ in range(_NEWTON_STEPS):
        shifted_spectrum = cross_spectrum * torch.exp(1j * (u * position[0] + v * position[1]))
        odd_part, even_part = -shifted_spectrum.imag, shifted_spectrum.real
        gradient = torch.stack([(u * odd_part).sum(), (v * odd_part).sum()])
        uu, uv, vv = ((product * even_part).sum() for product in (u * u, u * v, v * v))
        hessian = -torch.stack([torch.stack([uu, uv]), torch.stack([uv, vv])])
        step = -torch.linalg.solve(hessian, gradient)
        position = position + step.clamp(-0.5, 0.5)
        if float(step.abs().max()) < 1e-4:
            break
    return float(position[0]), float(position[1])


def find_field(y: Tensor, good_pixels: Tensor) -> tuple[tuple[int, int], tuple[int, int]]:
    """Find the lit rows and columns of a frame.

    Args:
        y: corrected frame `(H', W')`.
        good_pixels: bool, pixels that count, `(H', W')`.

    Returns:
        First row and the row after the last one; first column and the column after the last one.
    """
    limits = []
    for axis in (1, 0):
        count = good_pixels.sum(axis).clamp_min(1)
        light = torch.where(good_pixels, y, 0).sum(axis) / count
        # The darkest lines show the rest of a dark level, which is subtracted. If the field fills
        # the frame, no line is dark. So at most a quarter of the median is subtracted.
        light = light - light.quantile(0.01).clamp_max(float(light.median()) / 4)
        positions = (
            (light > _FIELD_LEVEL * light[light > light.max() / 4].median()).nonzero().flatten()
        )
        limits.append((int(positions[0]), int(positions[-1]) + 1))
    return limits[0], limits[1]


def _measure_stray_light(image: Tensor, rows: tuple[int, int], columns: tuple[int, int]) -> float:
    """Return the level of the frame outside of the field; 0 if few pixels lie outside."""
    is_outside = torch.ones_like(image, dtype=torch.bool)
    is_outside[max(rows[0] - 2, 0) : rows[1] + 2, max(columns[0] - 2, 0) : columns[1] + 2] = False
    return float(image[is_outside].median()) if int(is_outside.sum()) > 2 * len(image) else 0.0


def _clean_mask(
    frames: Sequence[Tensor],
    good_pixels: Sequence[Tensor],
    middle: int,
    wavelengths: Sequence[float],
    places: Sequence[FilterPlace],
) -> Tensor:
    """Return the middle frame, with its bad pixels filled from the other frames.

    Pixels that are bad in all frames get the mean of their neighbours.
    """
    image, is_bad = frames[middle].double(), ~good_pixels[middle]
    if not bool(is_bad.any()):
        return image
    total, weight = torch.zeros_like(image), torch.zeros_like(image)
    typical = float(image[~is_bad].mean())
    by_wavelength = {place.wavelength: place for place in places}
    for k, (y, is_good) in enumerate(zip(frames, good_pixels, strict=True)):
        if k == middle:
            continue
        place = by_wavelength[wavelengths[k]]
        scale = typical / float(y[is_good].mean().clamp_min(1e-30))
        first, fraction = (
            math.floor(place.shift_along),
            place.shift_along - math.floor(place.shift_along),
        )
        for shift, share in ((first, 1 - fraction), (first + 1, fraction)):
            weight_here = (is_good * share * torch.ones_like(image)).roll(-shift, -1)
            total += weight_here * (scale * y.double()).roll(-shift, -1)
            weight += weight_here
    neighbours = avg_pool2d(torch.where(is_bad, 0, image)[None, None], 3, 1, 1)
    neighbours = neighbours / avg_pool2d((~is_bad).double()[None, None], 3, 1, 1).clamp_min(1e-6)
    return torch.where(is_bad, torch.where(weight > 0.5, total / weight, neighbours[0, 0]), image)
