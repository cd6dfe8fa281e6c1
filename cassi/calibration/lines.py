"""Whether a frame tells the dispersion: it does where light comes in lines, one per band."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cassi.calibration.fit import LEAST_WINDOWS, PlainScenes
from cassi.calibration.geometry import Geometry
from cassi.calibration.parameters import PLACE
from cassi.calibration.windows import Frame, Windows, has_one_mask
from cassi.systems import SDCassi, System

SHADES = 4
"""Wavelengths per band: they stand for all."""
LEAST = 0.007
"""In objective, by which lines and the other light must fit otherwise: less is alike."""
_GAIN = 0.01
"""In objective, what lines gain from the dispersion that was found, beyond what the other light
gains from another: its lower bound at two standard errors. Of drawn cameras it is 0.012 and more
in lines, and at most 0.009 in light of all wavelengths."""
BETTER = 0.05
"""In objective, by which lines fit better wherever they lie."""
SURE = 3.0
"""Standard errors."""
ASKED = 128
"""Windows: enough to tell light in lines from all light."""


def compare_moved(scenes: PlainScenes, geometry: Geometry) -> float:
    """Return how much worse plain scenes fit with light in lines, each light at its best place.

    Light of all wavelengths fits nearly as well either way: bands that lie a few pixels apart stand
    for it. Where both fit alike, curves of dispersion need not be searched.

    Args:
        scenes: with light in lines.
        geometry: the best with the nominal dispersion; light of all wavelengths has its own.

    Returns:
        As `compare_light`; infinite where wavelengths are known, too, see `tells_dispersion`.
    """
    if _is_known(scenes.frames, scenes.system):
        return math.inf
    scenes.watch("light in lines or of all wavelengths")
    other = _in_all_light(scenes)
    own = other.fit(geometry, PLACE[:-1]).geometry
    return compare_light(scenes.parts, geometry, other.parts, own)


def comes_in_lines(y: Tensor, system: System) -> bool:
    """Tell whether plain scenes fit better with light in lines, one per band, than in all light.

    Args:
        y: measurement `(B, K, H', W')`.
        system: its camera; of one that is no `SDCassi` with one mask it is True.
    """
    camera, good = system.plain, system.good_pixels
    if not has_one_mask(camera):
        return True
    y, good = system.without_bad_pixels(y), None if good is None else good.expand_as(y)
    lines, other = (
        Windows(Frame.snapshot(y, camera.bands, good, shades), camera, most=ASKED)
        for shades in (1, SHADES)
    )
    given = Geometry(whole=0)
    return len(lines) < LEAST_WINDOWS or compare_light([lines], given, [other], given) < 0


def compare_light(
    lines: Sequence[Windows], geometry: Geometry, other: Sequence[Windows], own: Geometry
) -> float:
    """Return how much worse windows fit with light in lines than with all wavelengths.

    Args:
        lines: windows of frames with light in lines.
        geometry: how far the camera is off.
        other: the same windows with light of all wavelengths.
        own: the geometry of that.

    Returns:
        Of the objective; 0 where it is less than `LEAST` or than three standard errors.
    """
    fits = [
        torch.cat([windows.variances(place)[0].log() for windows in parts])
        for parts, place in ((lines, geometry), (other, own))
    ]
    worse = fits[0] - fits[1]
    least = max(LEAST, 2 * float(worse.std()) / max(len(worse), 1) ** 0.5)
    return float(worse.mean()) if abs(float(worse.mean())) > least else 0.0


def _in_all_light(scenes: PlainScenes) -> PlainScenes:
    """Return the same snapshots with `SHADES` wavelengths per band, which stand for all."""
    bands = scenes.system.bands
    every = [Frame.snapshot(each.y, bands, each.good, SHADES, each.shift) for each in scenes.frames]
    return PlainScenes(every, scenes.system)


def tells_dispersion(
    frames: Sequence[Frame],
    system: SDCassi,
    found: Geometry,
    straight: Geometry,
    certain: bool = False,
) -> bool | None:
    r"""Tell whether frames show that bands lie where a geometry has them.

    Light of all wavelengths that falls with the density L(o) over offsets o gives the frame
    ∫ L(o) S(o)[m] do. With another curve of dispersion the same L is another spectrum, so that the
    frame tells between which offsets there is light, and not which wavelength falls where. Light in
    lines, one per band, shows the offset of each. So plain scenes are fitted with light in lines
    and with light of all wavelengths, each with its own geometry: lines must fit better, or gain
    more than the other light from a dispersion that is free.

    Args:
        frames: of one camera.
        system: the nominal camera.
        found: with the dispersion that fits best.
        straight: the best with the nominal dispersion.
        certain: lines must also fit better than the other light with the nominal dispersion, by
            `_GAIN`: where both fit alike either may be right.

    Returns:
        True where a frame has light of known wavelengths, or the camera a mask per band, too; None
        where it may: the other light does not fit better by a standard error.
    """
    if _is_known(frames, system):
        return True
    lines = PlainScenes(frames, system)
    kinds = [lines, _in_all_light(lines)]
    own = kinds[1].fit(found).geometry, kinds[1].fit(straight, PLACE[:-1]).geometry
    gains = []
    for lines, other in zip(*(kind.parts for kind in kinds), strict=True):
        (a, place), (c, _) = (lines.variances(each) for each in (found, straight))
        (b, _), (d, _) = (other.variances(each) for each in own)
        a, b, c, d = (each.log() for each in (a, b, c, d))
        each = torch.stack([b - a, b - a - (d - c), d - a])
        gains += [each[:, place == sixteenth].mean(1) for sixteenth in place.unique()]
    fits, falls, beside = torch.stack(gains).unbind(1)
    if certain and float(beside.mean()) <= _GAIN:
        return False
    better = float(fits.mean()) > BETTER and _lower(fits, SURE) > 0
    if better or _lower(falls, 2) > _GAIN:
        return True
    return None if _lower(-fits, 1) < 0 else False


def _is_known(frames: Sequence[Frame], system: SDCassi) -> bool:
    return system.mask.shape[1] > 1 or any(frame.points is not None for frame in frames)


def _lower(gains: Tensor, errors: float) -> float:
    """Return the mean of gains, less so many standard errors."""
    spread = float(gains.std()) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
    return float(gains.mean()) - errors * spread
