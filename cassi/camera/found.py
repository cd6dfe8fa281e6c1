"""Where a mask lies and which light there is, by frames of any scenes."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from torch import Tensor

from cassi.camera.displacement import ALONG, BLURS, DISPLACEMENTS
from cassi.camera.place import ROUGHLY, Place, PlaceFit
from cassi.camera.window_model import LINES, PITCH, SIMULATED, TAPS, WINDOWS, Light, State
from cassi.systems import SDCassi, System

ROUGH_STEPS, STEPS, TRUSTED_STEPS = 8, 5, 6
"""Steps of Fisher scoring: of few parameters, of all, and of all with the trust they deserve."""
FINE_PITCH, FINE_STEPS = 0.5, 8
"""Pixels between offsets at which lines and ends of the light are read, and steps."""
MOST_OFFSETS = 100
"""Offsets that the light has at most, roughly: time and memory rise with their square."""
LINE_WINDOWS = 128
"""Windows of a fit to sums of bands, whose errors have no other limit."""
BENT, STARTS = (-0.6, 0.0, 0.6), 3
"""Pixels at the outermost bands, of step and curve, that are searched; places that are fitted."""
HALVES = (-0.5, -0.25, 0.25, 0.5)
"""Pixels by which bands alone may lie farther along, and the mask less far."""
ALIGNED = ("across", "along", "rotation", "magnification", "blur")
"""What an alignment asks for: it moves the mask, and leaves the bands on their pixels."""
ALIGNED_SURE, ALIGNED_LEAST = 3.0, 16
"""Standard errors by which a mask must lie elsewhere, as of the camera check, and windows: of fewer
an error, which is their scatter, is itself known to a fifth at best."""
SHARP = 0.05
"""Pixels², of a mask that is as sharp as its file: from there a fit tells fractions apart."""
SHARED = 2.0
"""Nats that this must gain, as a sure value does."""
_FEW = 24  # windows that a mask is roughly placed by


def can_be_placed(system: System) -> bool:
    """Tell whether a camera has one mask for all bands, samples and gradients: an `SDCassi`."""
    if type(system) is not SDCassi or system.mask.ndim != 4:
        return False
    return system.mask.shape[1] == 1 and not system.mask.requires_grad


def place_mask(
    y: Tensor,
    system: SDCassi,
    good: Tensor | None = None,
    wavelengths: Sequence[float] | None = None,
    count: int = WINDOWS,
) -> Place:
    """Place the mask of a camera by frames of any scenes, in light of all wavelengths."""
    span = max(system.offsets) - min(system.offsets)
    pitch = max(PITCH, span / MOST_OFFSETS)
    few = PlaceFit(y, system, good, wavelengths, _FEW, Light(pitch))
    state = few.run(few.start(), (*ROUGHLY, *BLURS), ROUGH_STEPS)
    fit = PlaceFit(y, system, good, wavelengths, count, Light(pitch))
    state = fit.weighed(fit.run(fit.resume(state), fit.keys, STEPS), tuple(DISPLACEMENTS))
    return fit.place(fit.run(state, fit.keys, TRUSTED_STEPS, least=0.1))


def find_light(
    y: Tensor,
    system: SDCassi,
    good: Tensor | None = None,
    wavelengths: Sequence[float] | None = None,
) -> Place:
    """Return the light along the dispersion, in half pixels, and the place of the mask."""
    place = place_mask(y, system, good, wavelengths)
    span = max(system.offsets) - min(system.offsets)
    pitch = max(FINE_PITCH, span / (2 * MOST_OFFSETS))
    fit = PlaceFit(y, system, good, wavelengths, WINDOWS, Light(pitch))
    state = fit.run(replace(fit.start(), values=dict(place.values)), tuple(BLURS), FINE_STEPS)
    fine = fit.place(state)
    return replace(place, offsets=fine.offsets, light=fine.light)


def find_lines(
    y: Tensor,
    system: SDCassi,
    place: Place,
    good: Tensor | None = None,
    wavelengths: Sequence[float] | None = None,
) -> Place | None:
    """Place the bands of a frame in which light comes in one line per band.

    Lamps have no such light; frames of a monochromator that are summed have it, and simulations.

    `place` is that of the mask in light of all wavelengths, see `find_light`.

    Returns:
        None where the frame is more probable in light of all wavelengths.
    """
    few, fit = (
        PlaceFit(y, system, good, wavelengths, count, LINES) for count in (_FEW, place.windows)
    )
    values = {key: value for key, value in place.kept.items() if key not in (*ALONG, "width")}
    start = few.resume(few.start(), **values)
    along = [shift / 2 for shift in range(-4, 5)]
    tried = _likeliest(few, start, along=along, step=BENT, curve=BENT)[:STARTS]
    keys = ("across", "along", "step", "curve", "blur")
    made = [few.run(state, keys, STEPS) for state in tried]
    best = max(made, key=lambda state: float(few.nats(state).sum()))
    best = few.climb(best, ("along", "step", "curve"))
    every = [key for key in fit.keys if key != "bands"]
    state = fit.run(fit.resume(best), every, STEPS)
    found = fit.place(fit.run(fit.weighed(state, every), every, TRUSTED_STEPS, least=0.1), every)
    return found if float(found.nats.sum()) > float(place.nats.sum()) else None


def place_bands(
    y: Tensor,
    system: SDCassi,
    good: Tensor | None = None,
    wavelengths: Sequence[float] | None = None,
    points: Sequence[float | None] = (),
    radius: int = 2,
) -> Place:
    """Place mask and bands by frames that are sums of bands, as simulations make them.

    Shifts, steps and curves are searched by few windows, in a mask that is blurred. The likeliest
    are fitted. Then fractions of a pixel are interpolated as simulations do, which tells those of
    the mask from those of the bands: either may have them. The best is fitted by more windows, with
    all that displaces a mask, and the values that are not sure go.

    `points` are, of each sample, where in the spectrum all of its light is, in bands; None:
    anywhere. Shifts are searched up to `radius` pixels.
    """
    few, fit = (
        PlaceFit(y, system, good, wavelengths, count, TAPS._replace(points=points))
        for count in (WINDOWS, LINE_WINDOWS)
    )
    bent = ("step", "curve") if system.bands > 2 else ()
    rough = PlaceFit(y, system, good, wavelengths, _FEW, SIMULATED._replace(points=points))
    start, best = _search(rough, radius, bent)
    # Either the mask has the fraction of a pixel, or the bands, or the first band stays.
    keys, other = ((*ROUGHLY, key, *bent, "blur") for key in ("along", "bands"))
    along = best.values["along"]
    whole = float(round(along))
    first = best.values["step"] * (1 if system.offsets[-1] > system.offsets[0] else -1)
    best, keys = _best(
        few,
        [
            (few.resume(best, blur=SHARP), keys),
            (few.resume(best, blur=SHARP, along=whole, bands=along - whole), other),
            (few.resume(best, blur=SHARP, along=along - first, bands=first), keys),
            (few.resume(start), keys),
            (few.run(few.suited(few.resume(start, step=0.0, curve=0.0), 3), ALIGNED, STEPS), keys),
        ],
    )
    best = few.climb(best, [key for key in keys if key in ALONG])
    free = "bands" if "bands" in keys else "along"
    every = (*(key for key in fit.keys if key not in ("along", "bands")), free)
    state = fit.suited(fit.run(fit.suited(fit.resume(best), 3), every, STEPS))
    state = fit.run(fit.weighed(state, every), every, TRUSTED_STEPS, least=0.1)
    return _keep_sure(fit, state, every)


def _keep_sure(fit: PlaceFit, state: State, keys: tuple[str, ...]) -> Place:
    """Return the place without the values that are not sure; the others are fitted once more."""
    found = fit.place(state, keys)
    sure = tuple(key for key in keys if found.kept[key])
    state = replace(state, values=found.kept)
    if sure:
        state = fit.climb(state, [key for key in sure if key in ALONG])
        state = fit.run(state, sure, STEPS, least=0.1)
    if found.kept["along"] or found.kept["step"]:
        state, sure = _shared(fit, state, sure)
    errors = dict(found.errors)
    if sure:
        # Of a shift that mask and bands share the sum is known.
        final = fit.place(state, [key for key in sure if key != "bands" or key in keys])
        errors |= final.errors
        found = replace(final, values=found.values | {key: state.values[key] for key in sure})
    if "bands" in keys:
        errors["along"] = errors["bands"]
    return replace(found, errors=errors, kept=dict(state.values))


def _search(fit: PlaceFit, radius: int, bent: tuple[str, ...]) -> tuple[State, State]:
    """Search shift, step and curve, and fit the likeliest places.

    Returns:
        The likeliest place of the search, and what the best one became.
    """
    halves = [step / 2 for step in range(-2 * radius, 2 * radius + 1)]
    start = _likeliest(fit, fit.start(), across=halves, along=halves)[0]
    tried = _likeliest(fit, start, along=halves, **dict.fromkeys(bent, BENT))[:STARTS]
    keys = (*ROUGHLY, "along", *bent, "blur")
    return tried[0], _best(fit, [(each, keys) for each in tried])[0]


def _best(
    fit: PlaceFit, starts: Sequence[tuple[State, tuple[str, ...]]]
) -> tuple[State, tuple[str, ...]]:
    """Fit from several starts, each with its keys, and return the likeliest state."""
    made = [
        (fit.suited(fit.run(fit.suited(state, 2), keys, STEPS)), keys) for state, keys in starts
    ]
    return max(made, key=lambda each: float(fit.nats(each[0]).sum()))


def is_off(y: Tensor, system: SDCassi, good: Tensor | None = None) -> dict[str, float] | None:
    """Return where the mask lies, if that is surely elsewhere than the camera has it.

    Few windows are asked first. Where they tell nothing, or are less than 16, nothing moves. Light
    is taken as in one line per band: for a mask that is off by a pixel all light is the same.

    Returns:
        Values of `PARAMETERS` and `BLURS`, by key.

    Raises:
        ValueError: no window is lit.
    """
    few, fit = (PlaceFit(y, system, good, None, count, TAPS) for count in (_FEW, WINDOWS))
    if len(few.windows.y) < ALIGNED_LEAST:
        return None
    state = _likeliest(few, few.start(), across=(-1.0, 0.0, 1.0), along=(-1.0, 0.0, 1.0))[0]
    state = _likeliest(few, state, blur=(state.values["blur"], 0.0))[0]
    for each in (few, fit):
        state = each.suited(each.run(each.suited(each.resume(state), 3), ALIGNED, STEPS))
        state = each.weighed(state, ALIGNED)
        kept = each.place(state, ALIGNED, ALIGNED_SURE).kept
        if not any(kept[key] for key in ALIGNED):
            return None
    sure = [key for key in ALIGNED if kept[key]]
    return fit.run(replace(state, values=kept), sure, STEPS, least=0.1).values


def _likeliest(fit: PlaceFit, state: State, **values: Sequence[float]) -> list[State]:
    """Return states with all combinations of values, the likeliest first."""
    made = [
        replace(state, values=state.values | dict(zip(values, each, strict=True)))
        for each in product(*values.values())
    ]
    return sorted(made, key=lambda each: -float(fit.nats(each).sum()))


def _shared(fit: PlaceFit, state: State, keys: tuple[str, ...]) -> tuple[State, tuple[str, ...]]:
    """Return the likeliest state in which mask and bands share a shift along the dispersion."""
    more = tuple(dict.fromkeys((*keys, "along", "bands")))
    nats = float(fit.nats(state).sum())
    tried = []
    for bands in HALVES:
        values = state.values | {"bands": bands, "along": state.values["along"] - bands}
        tried.append(replace(state, values=values))
    best = max(tried, key=lambda each: float(fit.nats(each).sum()))
    best = fit.run(best, more, STEPS, least=0.1)
    gain = state.trust * (float(fit.nats(best).sum()) - nats)
    return (best, more) if gain > SHARED else (state, keys)
