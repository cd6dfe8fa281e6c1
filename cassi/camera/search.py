"""Estimate the place of a mask, the light and the bands of a camera from frames of any scenes."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from torch import Tensor

from cassi.camera.displacement import ALONG_DISPERSION, BLURS, DISPLACEMENTS
from cassi.camera.place import COARSE_PARAMETERS, MaskPlacement, PlaceFit
from cassi.camera.window_model import (
    MAX_WINDOWS,
    ONE_LINE_PER_BAND,
    PITCH_PIXELS,
    SIMULATED_LINES,
    SIMULATED_TAPS,
    LightModel,
    State,
)
from cassi.systems import SDCassi, System

COARSE_STEPS, STEPS, FINAL_STEPS = 8, 5, 6
"""Steps of Fisher scoring: of few parameters; of all; and of all with the estimated trust."""
HALF_PIXEL_PITCH, LIGHT_STEPS = 0.5, 8
"""Pixels between offsets in the fit that finds lines and ends of the light, and its steps."""
MAX_OFFSETS = 100
"""Most offsets of the light, roughly: time and memory rise with their square."""
MAX_LINE_WINDOWS = 128
"""Windows of a fit to sums of bands. Simulated frames fit the model, so more windows still help."""
TRIAL_PIXELS, MAX_STARTS = (-0.6, 0.0, 0.6), 3
"""Values of step and curve that are searched, pixels at the outermost bands; places to fit."""
SHARED_SHIFTS = (-0.5, -0.25, 0.25, 0.5)
"""Trial shifts of the bands along the dispersion, pixels. The mask moves back by as much."""
ALIGNMENT_KEYS = ("across", "along", "rotation", "magnification", "blur")
"""Parameters of an alignment: they move the mask and leave the bands on their pixels."""
MIN_ALIGNMENT_RATIO, MIN_ALIGNMENT_WINDOWS = 3.0, 16
"""Standard errors by which an alignment must differ from the nominal one, as for the camera check,
and fewest windows. The scatter of fewer windows has a relative error above a fifth, and so has the
standard error that follows from it."""
SHARP_VARIANCE = 0.05
"""Variance of the blur of a sharp mask, pixels². Fits that start sharp can separate fractions of a
pixel of the mask from those of the bands."""
MIN_SHARED_GAIN = 2.0
"""Nats that a shift shared by mask and bands must gain: those of a value of two standard errors."""
# Windows of the coarse search. It asks for the evidence at many places.
_COARSE_WINDOWS = 24


def can_be_placed(system: System) -> bool:
    """Tell whether a camera is an `SDCassi` with one fixed mask for all bands and samples."""
    if type(system) is not SDCassi or system.mask.ndim != 4:
        return False
    return system.mask.shape[1] == 1 and not system.mask.requires_grad


def place_mask(
    y: Tensor,
    system: SDCassi,
    good_pixels: Tensor | None = None,
    wavelengths: Sequence[float] | None = None,
    count: int = MAX_WINDOWS,
) -> MaskPlacement:
    """Estimate the place of the mask of a camera from frames of any scenes in broadband light.

    Args:
        y: frames `(B, K, H', W')`.
        system: the nominal camera, see `can_be_placed`.
        good_pixels: pixels that count, shaped like y; None: all.
        wavelengths: nm, one per band.
        count: windows of the fit.

    Raises:
        ValueError: too few windows are lit.
    """
    span = max(system.offsets) - min(system.offsets)
    pitch = max(PITCH_PIXELS, span / MAX_OFFSETS)
    coarse_fit = PlaceFit(y, system, good_pixels, wavelengths, _COARSE_WINDOWS, LightModel(pitch))
    state = coarse_fit.run(coarse_fit.start(), (*COARSE_PARAMETERS, *BLURS), COARSE_STEPS)
    fit = PlaceFit(y, system, good_pixels, wavelengths, count, LightModel(pitch))
    state = fit.with_trust(fit.run(fit.resume(state), fit.keys, STEPS), tuple(DISPLACEMENTS))
    return fit.place(fit.run(state, fit.keys, FINAL_STEPS, min_gain=0.1))


def find_light(
    y: Tensor,
    system: SDCassi,
    good_pixels: Tensor | None = None,
    wavelengths: Sequence[float] | None = None,
) -> MaskPlacement:
    """Estimate the place of the mask, and the light along the dispersion at half pixels."""
    place = place_mask(y, system, good_pixels, wavelengths)
    span = max(system.offsets) - min(system.offsets)
    pitch = max(HALF_PIXEL_PITCH, span / (2 * MAX_OFFSETS))
    fit = PlaceFit(y, system, good_pixels, wavelengths, MAX_WINDOWS, LightModel(pitch))
    state = fit.run(replace(fit.start(), values=dict(place.values)), tuple(BLURS), LIGHT_STEPS)
    light_placement = fit.place(state)
    return replace(place, offsets=light_placement.offsets, light=light_placement.light)


def find_lines(
    y: Tensor,
    system: SDCassi,
    place: MaskPlacement,
    good_pixels: Tensor | None = None,
    wavelengths: Sequence[float] | None = None,
) -> MaskPlacement | None:
    """Estimate the bands of a frame whose light may come in one line per band.

    Sums of frames of a monochromator have such light, and simulations. Lamps do not.

    Args:
        y: frames `(B, K, H', W')`.
        system: the nominal camera.
        place: the placement of the mask in broadband light, see `find_light`.
        good_pixels: pixels that count, shaped like y; None: all.
        wavelengths: nm, one per band.

    Returns:
        None where the frame is more probable in broadband light.
    """
    coarse_fit, fit = (
        PlaceFit(y, system, good_pixels, wavelengths, count, ONE_LINE_PER_BAND)
        for count in (_COARSE_WINDOWS, place.windows)
    )
    values = {
        key: value
        for key, value in place.significant.items()
        if key not in (*ALONG_DISPERSION, "width")
    }
    start = coarse_fit.resume(coarse_fit.start(), **values)
    shifts = [shift / 2 for shift in range(-4, 5)]
    starts = _sort_by_evidence(
        coarse_fit, start, along=shifts, step=TRIAL_PIXELS, curve=TRIAL_PIXELS
    )[:MAX_STARTS]
    keys = ("across", "along", "step", "curve", "blur")
    candidates = [coarse_fit.run(state, keys, STEPS) for state in starts]
    best = max(candidates, key=lambda state: float(coarse_fit.nats(state).sum()))
    best = coarse_fit.climb(best, ("along", "step", "curve"))
    all_keys = [key for key in fit.keys if key != "bands"]
    state = fit.run(fit.resume(best), all_keys, STEPS)
    placement = fit.place(
        fit.run(fit.with_trust(state, all_keys), all_keys, FINAL_STEPS, min_gain=0.1), all_keys
    )
    # The rival has light at every pixel, see `place_mask`. Against light at every half pixel, which
    # fits lines better, cameras in lines gain 2.1 dB in place of 3.4
    # (docs/development/experiments/evidence.md).
    return placement if float(placement.nats.sum()) > float(place.nats.sum()) else None


def place_bands(
    y: Tensor,
    system: SDCassi,
    good_pixels: Tensor | None = None,
    wavelengths: Sequence[float] | None = None,
    points: Sequence[float | None] = (),
    radius: int = 2,
) -> MaskPlacement:
    """Estimate the place of mask and bands from sums of bands, as simulations make them.

    1. Shifts, steps and curves are searched by few windows, with a blurred mask. The likeliest are
       fitted.
    2. Fractions of a pixel are interpolated as simulations do. Mask and bands blur each by its own
       fraction, so that both ways to divide a shift are compared.
    3. The best state is fitted by more windows, with all parameters of the displacement.
    4. Values that are not significant go back to the means of their priors.

    Args:
        y: frames `(B, K, H', W')`.
        system: the nominal camera.
        good_pixels: pixels that count, shaped like y; None: all.
        wavelengths: nm, one per band.
        points: for each sample the place in the spectrum of all its light, in bands; None: light
            anywhere in the spectrum.
        radius: of the search for shifts, pixels.
    """
    search, fit = (
        PlaceFit(y, system, good_pixels, wavelengths, count, SIMULATED_TAPS._replace(points=points))
        for count in (MAX_WINDOWS, MAX_LINE_WINDOWS)
    )
    curve_keys = ("step", "curve") if system.bands > 2 else ()
    lines = SIMULATED_LINES._replace(points=points)
    coarse_fit = PlaceFit(y, system, good_pixels, wavelengths, _COARSE_WINDOWS, lines)
    start, best = _search_shifts(coarse_fit, radius, curve_keys)
    # The evidence has many maxima, so several starts are fitted: the mask has the fraction of a
    # pixel; the bands have it; the first band stays; the coarse search before its fit; an alignment
    # of the nominal bands. With shifts by half pixels alone three cameras reach 26.2, 18.6 and 28.9
    # dB, with all these starts 35.3, 23.7 and 31.2 (docs/development/experiments/evidence.md).
    keys, band_keys = ((*COARSE_PARAMETERS, key, *curve_keys, "blur") for key in ("along", "bands"))
    shift = best.values["along"]
    whole_shift = float(round(shift))
    first_band_shift = best.values["step"] * (1 if system.offsets[-1] > system.offsets[0] else -1)
    sharp_start = partial(search.resume, best, blur=SHARP_VARIANCE)
    alignment = search.fit_noise(search.resume(start, step=0.0, curve=0.0), 3)
    starts = [
        (sharp_start(), keys),
        (sharp_start(along=whole_shift, bands=shift - whole_shift), band_keys),
        (sharp_start(along=shift - first_band_shift, bands=first_band_shift), keys),
        (search.resume(start), keys),
        (search.run(alignment, ALIGNMENT_KEYS, STEPS), keys),
    ]
    best, keys = _fit_best(search, starts)
    best = search.climb(best, [key for key in keys if key in ALONG_DISPERSION])
    shift_key = "bands" if "bands" in keys else "along"
    all_keys = (*(key for key in fit.keys if key not in ("along", "bands")), shift_key)
    state = fit.fit_noise(fit.run(fit.fit_noise(fit.resume(best), 3), all_keys, STEPS))
    state = fit.run(fit.with_trust(state, all_keys), all_keys, FINAL_STEPS, min_gain=0.1)
    return _keep_significant(fit, state, all_keys)


def _keep_significant(fit: PlaceFit, state: State, keys: tuple[str, ...]) -> MaskPlacement:
    """Return the placement with the significant values only, fitted once more."""
    placement = fit.place(state, keys)
    significant_keys = tuple(key for key in keys if placement.significant[key])
    state = replace(state, values=placement.significant)
    if significant_keys:
        state = fit.climb(state, [key for key in significant_keys if key in ALONG_DISPERSION])
        state = fit.run(state, significant_keys, STEPS, min_gain=0.1)
    if placement.significant["along"] or placement.significant["step"]:
        state, significant_keys = _share_shift(fit, state, significant_keys)
    errors = dict(placement.errors)
    if significant_keys:
        # Of a shift that mask and bands share only the sum is identifiable. So its error is that of
        # one part, with the other part fixed.
        final = fit.place(state, [key for key in significant_keys if key != "bands" or key in keys])
        errors |= final.errors
        placement = replace(
            final, values=placement.values | {key: state.values[key] for key in significant_keys}
        )
    if "bands" in keys:
        errors["along"] = errors["bands"]
    return replace(placement, errors=errors, significant=dict(state.values))


def _search_shifts(fit: PlaceFit, radius: int, curve_keys: tuple[str, ...]) -> tuple[State, State]:
    """Search shift, step and curve, and fit the likeliest states.

    Returns:
        The likeliest state of the search, and the likeliest one of the fits.
    """
    half_pixels = [step / 2 for step in range(-2 * radius, 2 * radius + 1)]
    start = _sort_by_evidence(fit, fit.start(), across=half_pixels, along=half_pixels)[0]
    starts = _sort_by_evidence(
        fit, start, along=half_pixels, **dict.fromkeys(curve_keys, TRIAL_PIXELS)
    )[:MAX_STARTS]
    keys = (*COARSE_PARAMETERS, "along", *curve_keys, "blur")
    return starts[0], _fit_best(fit, [(state, keys) for state in starts])[0]


def _fit_best(
    fit: PlaceFit, starts: Sequence[tuple[State, tuple[str, ...]]]
) -> tuple[State, tuple[str, ...]]:
    """Fit from several starts, each with its keys, and return the likeliest state."""
    candidates = [
        (fit.fit_noise(fit.run(fit.fit_noise(state, 2), keys, STEPS)), keys)
        for state, keys in starts
    ]
    return max(candidates, key=lambda candidate: float(fit.nats(candidate[0]).sum()))


def find_misalignment(
    y: Tensor, system: SDCassi, good_pixels: Tensor | None = None
) -> dict[str, float] | None:
    """Return the place of the mask, if it differs significantly from that of the camera.

    Returns:
        Values of `PARAMETERS` and `BLURS`, by key; None where no value is significant.

    Raises:
        ValueError: no window is lit.
    """
    # The model of lines serves for any light: it places a mask to a pixel in broadband light, too.
    coarse_fit, fit = (
        PlaceFit(y, system, good_pixels, None, count, SIMULATED_TAPS)
        for count in (_COARSE_WINDOWS, MAX_WINDOWS)
    )
    if len(coarse_fit.windows.y) < MIN_ALIGNMENT_WINDOWS:
        return None
    state = _sort_by_evidence(
        coarse_fit, coarse_fit.start(), across=(-1.0, 0.0, 1.0), along=(-1.0, 0.0, 1.0)
    )[0]
    state = _sort_by_evidence(coarse_fit, state, blur=(state.values["blur"], 0.0))[0]
    # Most masks are right. Where few windows show nothing significant, the rest are not fitted.
    for stage in (coarse_fit, fit):
        state = stage.fit_noise(
            stage.run(stage.fit_noise(stage.resume(state), 3), ALIGNMENT_KEYS, STEPS)
        )
        state = stage.with_trust(state, ALIGNMENT_KEYS)
        significant = stage.place(state, ALIGNMENT_KEYS, MIN_ALIGNMENT_RATIO).significant
        if not any(significant[key] for key in ALIGNMENT_KEYS):
            return None
    significant_keys = [key for key in ALIGNMENT_KEYS if significant[key]]
    return fit.run(replace(state, values=significant), significant_keys, STEPS, min_gain=0.1).values


def _sort_by_evidence(fit: PlaceFit, state: State, **values: Sequence[float]) -> list[State]:
    """Return states with all combinations of the values, the most probable first."""
    states = [
        replace(state, values=state.values | dict(zip(values, combination, strict=True)))
        for combination in product(*values.values())
    ]
    return sorted(states, key=lambda combination: -float(fit.nats(combination).sum()))


def _share_shift(
    fit: PlaceFit, state: State, keys: tuple[str, ...]
) -> tuple[State, tuple[str, ...]]:
    """Return the most probable state in which mask and bands share a shift along the dispersion."""
    shared_keys = tuple(dict.fromkeys((*keys, "along", "bands")))
    nats = float(fit.nats(state).sum())
    candidates = []
    for bands in SHARED_SHIFTS:
        values = state.values | {"bands": bands, "along": state.values["along"] - bands}
        candidates.append(replace(state, values=values))
    best = max(candidates, key=lambda candidate: float(fit.nats(candidate).sum()))
    best = fit.run(best, shared_keys, STEPS, min_gain=0.1)
    gain = state.trust * (float(fit.nats(best).sum()) - nats)
    return (best, shared_keys) if gain > MIN_SHARED_GAIN else (state, keys)
