"""Check that the spectra of a cube are those of a scene, and that its bands are in order."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cassi.calibration.findings import CameraCheck, Finding, reversal_advice
from cassi.calibration.response import Response
from cassi.calibration.spectra import Statistics, alternation, distances_from_scenes
from cassi.systems import DDCassi, System
from cassi.systems.coded import CodedSystem

MIN_DIRECTION_SCORE = -0.1
"""If the `direction_score` is lower, the bands are probably in reverse."""
MAX_ORDINARY = 6.0
"""Largest second number of `distances_from_scenes` for a reflectance. If it is larger, the cube
includes lamp and sensor."""
MAX_IN_LAMP_LIGHT = 5.5
"""Largest distance in the light of lamps. A larger distance means a wrong camera or an unusual
lamp. Right cubes of 20 random cameras have 0.3 to 2.7; under lamps 3 of 120 have more than 5.5."""
LAMP_LIGHT_DIVISOR = 5.0
"""Divisor of the score in the light of lamps: lamps and sensors differ more than scenes do."""
MAX_ALTERNATION = 0.05
"""Largest `alternation` of spectra from band to band, if all bands lie on whole pixels."""
MAX_ALTERNATION_BETWEEN = 0.2
"""Largest `alternation` if bands lie between pixels. Interpolation blurs each band differently.

The alternation is 0.4 to 13 % for right random cameras (`scripts/benchmarks/lab.py`), and 38 and
40 % for two with a mask that is half a pixel off."""
UNKNOWN = "Direction: cannot be measured in a frame"


def check_spectra(
    x: Tensor,
    system: System,
    wavelengths: Sequence[float] | None = None,
    white: Response | None = None,
) -> CameraCheck:
    """Test a camera against the spectra of a cube.

    If a cube includes lamp and sensor, it shows the direction of the bands better than reflectances
    do, because lamps and sensors have little blue. So reflectances are judged only if the cube does
    not include a lamp.

    Args:
        x: cube `(1, C, H, W)`, in the unit of the camera.
        system: the camera.
        wavelengths: nm, one per band, increasing; None: the direction is not checked.
        white: response of the camera; None: reflectances are not judged.
    """
    if wavelengths is None and system.codes_frames:
        # The bands are frames of a video, so their values are no spectra.
        return CameraCheck()
    warnings = []
    share = alternation(x[0])
    offsets = system.offsets if isinstance(system, CodedSystem) else ()
    is_on_pixels = all(float(offset).is_integer() for offset in offsets)
    if share > (MAX_ALTERNATION if is_on_pixels else MAX_ALTERNATION_BETWEEN):
        message = (
            f"they alternate from band to band by {share:.0%} of the light, as spectra of scenes "
            "do not: look for a mask that is a fraction of a pixel off (calibrate=true), or for "
            "gain that alternates between columns (flat=FILE)"
        )
        warnings.append(Finding("spectra", message))
    numbers: dict[str, object] = {"comb": share}
    score = None if wavelengths is None else direction_score(x[0], wavelengths)
    if score is None and wavelengths is not None and white is not None:
        score = direction_score(white.scene(x[0]), wavelengths, reflectance=True)
    remedy = _reversal_remedy(system)
    if remedy is None:
        return CameraCheck(tuple(warnings), "", numbers)
    numbers["direction"] = score
    if score is None:
        reason = "without wavelengths" if wavelengths is None else "like these"
        note = f"Direction: cannot be measured in a frame, nor in spectra {reason}."
    elif score < MIN_DIRECTION_SCORE:
        note = f"{UNKNOWN}; the recovered spectra look reversed ({score:+.1f})."
        message = (
            "spectra are more like those of ordinary scenes with the bands in reverse "
            f"(by {-score:.1f}), and no frame tells the sign of the step: {remedy}, unless colours "
            "are right as they are; or wavelengths= are not those of the camera"
        )
        warnings.append(Finding("direction", message))
    elif score <= -MIN_DIRECTION_SCORE:
        note = f"{UNKNOWN}; the recovered spectra do not show it ({score:+.1f})."
    else:
        note = f"{UNKNOWN}; the recovered spectra are consistent with it ({score:+.1f})."
    return CameraCheck(tuple(warnings), note, numbers)


def direction_score(
    x: Tensor,
    wavelengths: Sequence[float],
    reflectance: bool = False,
    statistics: Statistics | None = None,
) -> float | None:
    """Return how much more probable the spectra of a cube are than these spectra in reverse.

    The score is the distance of the reversed spectra from ordinary scenes, minus the distance of
    the spectra, see `distances_from_scenes`. This is a difference of log likelihoods per
    independent pixel. It relies on red, orange and yellow pigments, because these reflect all
    wavelengths above an edge. If a scene has no colour, its score is near 0.

    Args:
        x: cube `(C, H, W)`.
        wavelengths: nm, one per band, increasing.
        reflectance: x is a reflectance, without the light of a lamp.
        statistics: statistics of ordinary scenes; None: those of the package.

    Returns:
        The score; None if too few wavelengths are covered, or if the spectra are unlike those of
        scenes in any light.
    """
    costs = distances_from_scenes(x, wavelengths, statistics)
    if costs is None:
        return None
    # If the mean spectrum is far from that of scenes in both orders of the bands, the cube includes
    # lamp and sensor. Then its mean spectrum is compared with those of scenes in the light of
    # lamps. The covariance is left out: in dark bands it is mostly noise and stray light, and a
    # wrong camera changes it more than the mean.
    if not reflectance and min(costs, key=sum)[1] > MAX_ORDINARY:
        costs = [
            (0.0, mean)
            for _, mean in distances_from_scenes(x, wavelengths, statistics, in_lamp_light=True)
            or costs
        ]
        if min(costs)[1] > MAX_IN_LAMP_LIGHT:
            return None
        costs = [(0.0, mean / LAMP_LIGHT_DIVISOR) for _, mean in costs]
    return sum(costs[1]) - sum(costs[0])


def _reversal_remedy(system: System) -> str | None:
    """Return the setting that reverses the bands; None if a frame shows their direction."""
    if isinstance(system, DDCassi):
        return reversal_advice(system.mask_offsets)
    if not isinstance(system, CodedSystem) or system.mask.shape[-3] > 1:
        return None
    return reversal_advice(system.offsets)
