"""Estimate the place of a mask, the light and the band offsets of a camera from any frames."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from torch import Tensor

from cassi.camera.displacement import ALONG_DISPERSION, BLURS, DISPLACEMENTS
from cassi.camera.light_model import (
    ONE_LINE_PER_BAND,
    PITCH_PIXELS,
    SIMULATED_LINES,
    SIMULATED_TAPS,
    LightModel,
)
from cassi.camera.place import COARSE_PARAMETERS, MaskPlacement, PlaceFit
from cassi.camera.window_model import MAX_WINDOWS, State
from cassi.systems import SDCassi, System

COARSE_STEPS, STEPS, FINAL_STEPS = 8, 5, 6
"""Largest numbers of steps of Fisher scoring.

first: for few parameters; second: for all parameters; third: for all parameters with the estimated
trust."""
HALF_PIXEL_PITCH, LIGHT_STEPS = 0.5, 8
"""Fit of the light. first: pixels between offsets; second: largest number of steps."""
MAX_OFFSETS = 100
"""Approximate largest number of offsets of the light. Time and memory rise with its square."""
MAX_LINE_WINDOWS = 128
"""Windows of a fit to sums of bands. Such frames are simulated and fit the model, so more windows
help than in broadband light."""
TRIAL_PIXELS = (-0.6, 0.0, 0.6)
"""Trial values of step and curve, pixels at the outermost bands."""
MAX_STARTS = 3
"""This many of the likeliest states of a search are fitted."""
SHARED_SHIFTS = (-0.5, -0.25, 0.25, 0.5)
"""Trial shifts of the bands along the dispersion, pixels. The mask moves back by as much."""
ALIGNMENT_KEYS = ("across", "along", "rotation", "magnification", "blur")
"""Parameters of an alignment: they move the mask and leave the bands on their pixels."""
MIN_ALIGNMENT_RATIO = 3.0
"""An alignment is significant if it differs from the nominal one by more standard errors than this.
It is also the limit of the camera check, `MIN_STANDARD_ERRORS`."""
MIN_ALIGNMENT_WINDOWS = 16
"""Fewest windows of an alignment. With fewer windows the standard errors themselves have a relative
error of about a fifth or more."""
SHARP_VARIANCE = 0.05
"""Variance of the blur of a sharp mask, pixels². A fit that starts with a sharp mask can tell a
shift of the mask by a fraction of a pixel from such a shift of the bands."""
MIN_SHARED_GAIN = 2.0
"""A shift shared by mask and bands is used if it gains more nats. A value that differs from 0 by
two standard errors gains 2."""
# Windows of the coarse search: few, because it evaluates the evidence at many places.
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
        wavelengths: nm, one per band; None: even from 450 to 650 nm.
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
    """Estimate the place of the mask, and the light along the dispersion at every half pixel.

    Args:
        y: frames `(B, K, H', W')`.
        system: the nominal camera, see `can_be_placed`.
        good_pixels: pixels that count, shaped like y; None: all.
        wavelengths: nm, one per band; None: even from 450 to 650 nm.

    Raises:
        ValueError: too few windows are lit.
    """
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

    Simulations and sums of monochromator frames have such light. Lamps do not.

    Args:
        y: frames `(B, K, H', W')`.
        system: the nominal camera.
        place: the placement of the mask in broadband light, see `find_light`.
        good_pixels: pixels that count, shaped like y; None: all.
        wavelengths: nm, one per band.

    Returns:
        The placement; None if the frame is more probable in broadband light.
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
    # `place` has the evidence of broadband light with an offset at every pixel, see `place_mask`.
    # Light with an offset at every half pixel can imitate lines. If its evidence were used here,
    # cameras in narrow-band light would gain 2.1 dB in place of 3.4
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

    1. Shifts, steps and curves are searched with few windows and a blurred mask. The likeliest
       states are fitted.
    2. Fractions of a pixel are interpolated linearly, as in simulations. The blur of the mask
       depends on the fraction of its shift, the blur of a band on that of its offset. So the fit
       can tell a shift of the mask from a shift of the bands.
    3. The best state is fitted with more windows and all parameters of the displacement.
    4. Values that are not significant go back to the means of their priors.

    Args:
        y: frames `(B, K, H', W')`.
        system: the nominal camera.
        good_pixels: pixels that count, shaped like y; None: all.
        wavelengths: nm, one per band.
        points: for each sample, the place of its narrow-band light in the spectrum, in bands; None:
            light anywhere in the spectrum. Empty: None for all samples.
        radius: radius of the search for shifts, pixels.

    Raises:
        ValueError: too few windows are lit.
    """
    search, fit = (
        PlaceFit(y, system, good_pixels, wavelengths, count, SIMULATED_TAPS._replace(points=points))
        for count in (MAX_WINDOWS, MAX_LINE_WINDOWS)
    )
    curve_keys = ("step", "curve") if system.bands > 2 else ()
    lines = SIMULATED_LINES._replace(points=points)
    coarse_fit = PlaceFit(y, system, good_pixels, wavelengths, _COARSE_WINDOWS, lines)
    start, best = _search_shifts(coarse_fit, radius, curve_keys)
    direction = 1 if system.offsets[-1] > system.offsets[0] else -1
    best, keys = _fit_best(search, _list_starts(search, start, best, curve_keys, direction))
    best = search.climb(best, [key for key in keys if key in ALONG_DISPERSION])
    shift_key = "bands" if "bands" in keys else "along"
    all_keys = (*(key for key in fit.keys if key not in ("along", "bands")), shift_key)
    state = fit.fit_noise(fit.run(fit.fit_noise(fit.resume(best), 3), all_keys, STEPS))
    state = fit.run(fit.with_trust(state, all_keys), all_keys, FINAL_STEPS, min_gain=0.1)
    return _keep_significant(fit, state, all_keys)


def _list_starts(
    search: PlaceFit, start: State, best: State, curve_keys: tuple[str, ...], direction: int
) -> list[tuple[State, tuple[str, ...]]]:
    """Return starts of the fit with linear interpolation, each with its keys.

    `start` is the likeliest state of the search, `best` that of the fits after the search.
    `direction` is the sign of the step.
    """
    # The evidence has many maxima, so five starts are fitted, in the order of the list below:
    # 1. the mask takes the whole shift; 2. the bands take its fraction of a pixel; 3. the first
    # band stays in place; 4. the coarse search before its fit; 5. an alignment with nominal bands.
    # With shifts by half pixels alone, three cameras reach 26.2, 18.6 and 28.9 dB; with all these
    # starts 35.3, 23.7 and 31.2 dB (docs/development/experiments/evidence.md).
    keys, band_keys = ((*COARSE_PARAMETERS, key, *curve_keys, "blur") for key in ("along", "bands"))
    shift = best.values["along"]
    whole_shift = float(round(shift))
    first_band_shift = best.values["step"] * direction
    sharp_start = partial(search.resume, best, blur=SHARP_VARIANCE)
    alignment = search.fit_noise(search.resume(start, step=0.0, curve=0.0), 3)
    return [
        (sharp_start(), keys),
        (sharp_start(along=whole_shift, bands=shift - whole_shift), band_keys),
        (sharp_start(along=shift - first_band_shift, bands=first_band_shift), keys),
        (search.resume(start), keys),
        (search.run(alignment, ALIGNMENT_KEYS, STEPS), keys),
    ]


def _keep_significant(fit: PlaceFit, state: State, keys: tuple[str, ...]) -> MaskPlacement:
    """Reset insignificant values, fit the significant ones once more, and return the placement."""
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
        # If mask and bands share a shift, only the sum of their two shifts is identifiable. So the
        # error is computed for one of them, with the other one fixed.
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

    Args:
        y: frames `(B, K, H', W')`.
        system: the camera, see `can_be_placed`.
        good_pixels: pixels that count, shaped like y; None: all.

    Returns:
        Values of `PARAMETERS` and `BLURS`, by key. None if no value is significant, or if fewer
        than `MIN_ALIGNMENT_WINDOWS` are lit.

    Raises:
        ValueError: no window is lit.
    """
    # The model is that of one line per band. It places a mask to a pixel even in broadband light.
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
    # Most masks are right. If the few windows of the first stage show nothing significant, the
    # second stage is skipped.
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
    return sorted(states, key=lambda candidate: -float(fit.nats(candidate).sum()))


def _share_shift(
    fit: PlaceFit, state: State, keys: tuple[str, ...]
) -> tuple[State, tuple[str, ...]]:
    """Let mask and bands share a shift along the dispersion, if that raises the evidence enough."""
    shared_keys = tuple(dict.fromkeys((*keys, "along", "bands")))
    nats = float(fit.nats(state).sum())
    candidates = []
    for shift in SHARED_SHIFTS:
        values = state.values | {"bands": shift, "along": state.values["along"] - shift}
        candidates.append(replace(state, values=values))
    best = max(candidates, key=lambda candidate: float(fit.nats(candidate).sum()))
    best = fit.run(best, shared_keys, STEPS, min_gain=0.1)
    gain = state.trust * (float(fit.nats(best).sum()) - nats)
    return (best, shared_keys) if gain > MIN_SHARED_GAIN else (state, keys)
