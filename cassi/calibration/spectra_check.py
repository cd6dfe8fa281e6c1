"""Are the spectra of a cube those of a scene, and the right way round?"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cassi.calibration.findings import CameraCheck, Finding, reversal_advice
from cassi.calibration.response import Response
from cassi.calibration.spectra import Statistics, comb, strangeness
from cassi.systems import DDCassi, System
from cassi.systems.coded import CodedSystem

REVERSED = -0.1
"""Of `prefer`: below it spectra are taken to be in reverse."""
ORDINARY = 6.0
"""Of the mean spectrum in `strangeness`: beyond, lamp and sensor are in it."""
LIT = 5.5
"""The same in the light of lamps: beyond, the spectra are those of a wrong camera, or of an odd
light. In right cubes of 20 drawn cameras it is 0.3 to 2.7, under lamps above 5.5 in 3 of 120."""
LIT_LESS = 5.0
"""Lamps and sensors differ, so that in their light the direction is so much less sure."""
COMB, COMB_BETWEEN = 0.05, 0.2
"""Share of the spectra that may alternate from band to band: with bands on whole pixels, and
between them, where interpolation blurs every band by another fraction. Of right cameras that were
drawn (`scripts/benchmarks/lab.py`) it was 0.4 to 13 %, of a mask half a pixel off 38 and 40 %."""
UNKNOWN = "Direction: cannot be measured in a frame"


def check_spectra(
    x: Tensor,
    system: System,
    wavelengths: Sequence[float] | None = None,
    white: Response | None = None,
) -> CameraCheck:
    """Ask the spectra of a cube whether its camera can be right.

    Its own light tells more than its reflectances: lamps and sensors have little blue, whichever
    way the bands are. Only in a light that is none of `prefer` reflectances are asked.

    Args:
        x: cube `(1, C, H, W)`, as the camera counts.
        system: the camera.
        wavelengths: nm, one per band, increasing.
        white: what the camera makes of white, where it is known.
    """
    if wavelengths is None and system.codes_frames:
        return CameraCheck()  # the bands are frames, which have no spectra
    warnings = []
    share = comb(x[0])
    offsets = system.offsets if isinstance(system, CodedSystem) else ()
    whole = all(float(offset).is_integer() for offset in offsets)
    if share > (COMB if whole else COMB_BETWEEN):
        message = (
            f"they alternate from band to band by {share:.0%} of the light, as spectra of scenes "
            "do not: look for a mask that is a fraction of a pixel off (calibrate=true), or for "
            "gain that alternates between columns (flat=FILE)"
        )
        warnings.append(Finding("spectra", message))
    numbers: dict[str, object] = {"comb": share}
    score = None if wavelengths is None else prefer(x[0], wavelengths)
    if score is None and wavelengths is not None and white is not None:
        score = prefer(white.scene(x[0]), wavelengths, reflectance=True)
    remedy = _reverse(system)
    if remedy is None:
        return CameraCheck(tuple(warnings), "", numbers)
    numbers["direction"] = score
    if score is None:
        why = "without wavelengths" if wavelengths is None else "like these"
        note = f"Direction: cannot be measured in a frame, nor in spectra {why}."
    elif score < REVERSED:
        note = f"{UNKNOWN}; the recovered spectra look reversed ({score:+.1f})."
        message = (
            "spectra are more like those of ordinary scenes with the bands in reverse "
            f"(by {-score:.1f}), and no frame tells the sign of the step: {remedy}, unless colours "
            "are right as they are; or wavelengths= are not those of the camera"
        )
        warnings.append(Finding("direction", message))
    elif score <= -REVERSED:
        note = f"{UNKNOWN}; the recovered spectra do not show it ({score:+.1f})."
    else:
        note = f"{UNKNOWN}; the recovered spectra are consistent with it ({score:+.1f})."
    return CameraCheck(tuple(warnings), note, numbers)


def prefer(
    x: Tensor,
    wavelengths: Sequence[float],
    reflectance: bool = False,
    known: Statistics | None = None,
) -> float | None:
    """Return by how much spectra are likelier as they are than in reverse.

    It is a difference of logarithms of likelihoods, per independent pixel, of the `strangeness` in
    reverse and as they are. What it knows is that the reds, oranges and yellows of pigments begin
    somewhere and do not end, and where on a scale of wavelengths. Scenes without colour say nothing
    (near 0). Where a mean spectrum is unlike that of ordinary scenes both ways, lamp and sensor are
    in it: it is compared with scenes in the light of lamps. Covariances do not count then, for
    noise and stray light are in those of dark bands.

    Returns:
        The difference of logarithms; None where too few wavelengths are covered, or where spectra
        are unlike those of scenes in any light.
    """
    costs = strangeness(x, wavelengths, known)
    if costs is None:
        return None
    if not reflectance and min(costs, key=sum)[1] > ORDINARY:
        costs = [(0.0, mean) for _, mean in strangeness(x, wavelengths, known, lit=True) or costs]
        if min(costs)[1] > LIT:
            return None
        costs = [(0.0, mean / LIT_LESS) for _, mean in costs]
    return sum(costs[1]) - sum(costs[0])


def _reverse(system: System) -> str | None:
    """Return what reverses the bands; None where a frame tells, or nothing is dispersed."""
    if isinstance(system, DDCassi):
        return reversal_advice(system.mask_offsets)
    if not isinstance(system, CodedSystem) or system.mask.shape[-3] > 1:
        return None
    return reversal_advice(system.offsets)
