"""The calibration of a dual disperser: its mask and the dispersion across it."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from cassi.calibration.calibrate import Calibration
from cassi.calibration.fit import Fit, PlainScenes
from cassi.calibration.geometry import Geometry, moved_mask
from cassi.calibration.parameters import FURTHER, PARAMETERS, PLACE, SHARED, changed
from cassi.calibration.search import fit_curves, fit_places, with_richer
from cassi.calibration.windows import Frame
from cassi.systems import DDCassi, SDCassi, System

_TRIED = 4
"""Fits of plain scenes that are tried by reconstructions."""
_STEPS = (-0.05, 0.0, 0.05)
"""Pixels per band that the step may be off, where fits with a mask between pixels start."""
_SCALES = (1.0, 0.5, 0.25)
"""Of the steps of `Parameter.step`, a tenth of a pixel, one round each."""


@torch.no_grad()
def calibrate_dual(
    frame: Frame, nominal: DDCassi, misses: Callable[[System], float], radius: int = 2
) -> Calibration:
    r"""Find how far mask and dispersion of a dual disperser are off.

    A plain scene, whose spectrum is the same everywhere, shows what moves against what: the mask
    against the detector, by −o(c) for band c. A single disperser with these offsets has the same
    frame of it. So plain scenes are fitted as for that camera, see `calibrate`, which gives the
    shift and the rotation of the mask and the step across it. Of several fits that one is taken
    with which a reconstruction predicts pixels held out best. Parabolas lower that error further.

    Args:
        frame: snapshots of any scenes.
        nominal: the camera as it is thought to be.
        misses: tells how badly a reconstruction through a camera predicts pixels held out.
        radius: of the search for the shift, whole pixels.

    Returns:
        What was found. Its dispersion is that across the mask; `system` is a `DDCassi`.

    Raises:
        ValueError: there is a mask per sample, or the frame has too few bright windows.
    """
    if nominal.mask.ndim != 4:
        raise ValueError("calibration: expected one mask for all samples, got a mask per sample")
    twin = SDCassi(
        nominal.coding.detach(),
        nominal.bands,
        axis=nominal.axis,
        offsets=[-offset for offset in nominal.mask_offsets],
        detector=nominal.detector,
    )
    scenes = PlainScenes([frame], twin)
    still = fit_places(scenes, radius)[0]
    curves = fit_curves(scenes, radius, bent=False, still=still)
    fits = with_richer(scenes, curves, radius, FURTHER)
    fits += _between_pixels(scenes, still.geometry)
    tried = {}
    for fit in sorted(fits, key=lambda fit: fit.objective)[:_TRIED]:
        # The whole shift is the mask's: the scene lies where the detector has it.
        place = {key: PARAMETERS[key].read(fit.geometry) for key in PLACE}
        tried[changed(Geometry(), place)] = fit
    errors = {geometry: misses(moved_dual(nominal, twin, geometry)) for geometry in tried}
    start = min(errors, key=lambda geometry: errors[geometry])
    best = tried[start]
    geometry, after = _polished(
        start, errors[start], twin, lambda each: misses(moved_dual(nominal, twin, each))
    )
    before = misses(nominal)
    lower = after < before
    across = replace(geometry, dispersion=tuple(-each for each in geometry.dispersion))
    return Calibration(
        across if lower else Geometry(),
        PLACE if lower else (),
        {key: best.errors[key] for key in PLACE},
        moved_dual(nominal, twin, geometry) if lower else nominal,
        [],
        before,
        min(after, before),
        best.windows,
        searched={"down": radius, "right": radius},
    )


def _between_pixels(scenes: PlainScenes, still: Geometry) -> list[Fit]:
    """Fit plain scenes with a mask between pixels, from several steps on.

    A mask that is off by a fraction of a pixel is interpolated once more than its bands. Without
    this blur in the model, a step that is off to the other side fits best.
    """
    along = still.along(scenes.system.axis)
    whole = math.floor(along)
    between = replace(still, whole=whole, interpolated=along - whole)
    starts = [replace(between, dispersion=(step,)) for step in _STEPS]
    return [scenes.fit(start, (*PLACE, *SHARED)) for start in starts]


def _polished(
    geometry: Geometry, lowest: float, twin: SDCassi, misses: Callable[[Geometry], float]
) -> tuple[Geometry, float]:
    """Lower the held-out error along one parameter after the other, by parabolas."""
    for scale in _SCALES:
        for key in PLACE:
            value, step = PARAMETERS[key].read(geometry), scale * PARAMETERS[key].step(twin)
            sides = [misses(changed(geometry, {key: value + way * step})) for way in (-1, 1)]
            bend = sides[0] + sides[1] - 2 * lowest
            slope = (sides[1] - sides[0]) / 2
            moved = -slope / bend if bend > 0 else -math.copysign(math.inf, slope)
            there = changed(geometry, {key: value + min(max(moved, -3.0), 3.0) * step})
            if (found := misses(there)) < lowest:
                geometry, lowest = there, found
    return geometry, lowest


def moved_dual(nominal: DDCassi, twin: SDCassi, geometry: Geometry) -> DDCassi:
    """Return a dual disperser whose plain scenes are those of the moved single disperser."""
    offsets = -geometry.offsets(twin.offsets)
    # Offsets begin at 0: what they lack, the mask has.
    least = float(offsets.min())
    off, along = geometry.split_shift(nominal.axis)
    mask = moved_mask(twin, geometry.with_shift(off, along - least, nominal.axis))
    return DDCassi(
        mask,
        nominal.bands,
        axis=nominal.axis,
        width=nominal.detector,
        offsets=(offsets - least).tolist(),
    )
