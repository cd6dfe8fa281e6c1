"""Do bands lie where a camera has them? Asked of plain scenes, where light comes in lines."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cassi.calibration.fit import LEAST_WINDOWS, PlainScenes
from cassi.calibration.geometry import moved_offsets
from cassi.calibration.lines import ASKED, SHADES, compare_light, compare_moved, tells_dispersion
from cassi.calibration.parameters import PLACE
from cassi.calibration.search import NOMINAL, fit_curves
from cassi.calibration.windows import Frame, Windows, has_one_mask
from cassi.systems import System
from cassi.systems.dispersion import is_even

AWAY = 1.5
"""Pixels by which a band must lie elsewhere; less is for a calibration to find."""
LEAST_BANDS = 8
LEAST_SPAN = 12
"""Pixels of dispersion."""
SHOWN = 0.2
"""In objective, by which lines fit better where they show the places of bands. Light of all
wavelengths through a wrong curve reached 0.1."""
MADE_UP = 0.5
"""Of what lines gain from a mask that is moved, in objective: what light of all wavelengths gains
without that. Where lines then fit better it is 0.1 to 0.6 for masks that are off, and 0.8 to 1.05
for wrong curves, which half a pixel makes up for."""
_RADIUS = 2  # pixels
_LESS = 0.01
"""In objective, by which light in lines must fit better along a prism's curve than the other light,
for other curves to be searched: `tells_dispersion` asks for as much in the end. Of 42 lines of
drawn cameras 18 fit so much better, among them all nine whose light shows the curve."""


@dataclass(frozen=True)
class Bands:
    """What light says of the places of the bands.

    Attributes:
        shown: it comes in lines, which show them; light of all wavelengths does not.
        away: pixels by which a band lies elsewhere, at most.
        offsets: where they lie, pixels.
    """

    shown: bool
    away: float = 0.0
    offsets: tuple[float, ...] = ()


def find_bands(y: Tensor, system: System) -> Bands | None:
    """Look for a curve of dispersion where light in lines does not fall on even bands.

    Light of all wavelengths does not care where bands are. Where plain scenes fit better with it,
    light may come in lines that lie elsewhere: a fifth of a second for 256 × 256 pixels. So it does
    where the mask is off; then lines fit better as soon as the mask is moved. Else curves are
    searched, as a calibration does: those of prisms, a second, and, where they fit better than the
    other light, the rest, which takes four.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera.

    Returns:
        Where bands lie; None for another camera than an `SDCassi` with one mask, and where the
        bands are not even (somebody knows the curve) or too few, or the frame too dark or small.
    """
    camera = system.plain
    if not has_one_mask(camera):
        return None
    if not is_even(camera.offsets):
        return None
    if camera.bands < LEAST_BANDS or max(camera.offsets) - min(camera.offsets) < LEAST_SPAN:
        return None
    good = None if system.good_pixels is None else system.good_pixels.expand_as(y)
    y = system.without_bad_pixels(y)
    frame, every = (Frame.snapshot(y, camera.bands, good, shades) for shades in (1, SHADES))
    lines, other = (Windows(each, camera, most=ASKED) for each in (frame, every))
    if len(lines) < LEAST_WINDOWS:
        return None
    worse = compare_light([lines], NOMINAL, [other], NOMINAL)
    if worse <= 0:
        return Bands(shown=worse < -SHOWN)
    scenes = PlainScenes([frame], camera)
    still = scenes.fit(NOMINAL, PLACE[:-1])
    moved = compare_moved(scenes, still.geometry)
    gain = still.objectives[0] - still.objective
    if moved == 0 or (moved < 0 and worse < MADE_UP * gain):
        return Bands(shown=False)
    asked = still.objective - moved - _LESS  # of the other light, where the mask fits it best
    found = fit_curves(scenes, _RADIUS, True, still, asked)[0]
    if found is still or not scenes.is_surer(found, still):
        return Bands(shown=False)
    best = found.geometry
    if not tells_dispersion([frame], camera, best, still.geometry, certain=True):
        return Bands(shown=False)
    offsets = moved_offsets(camera, best)
    away = (offsets - torch.tensor(camera.offsets).to(offsets)).abs()
    if float(away[[0, -1]].max()) >= AWAY:  # where light ends is known better than the curve
        return Bands(shown=False)
    return Bands(True, float(away.max()), tuple(offsets.tolist()))


def say_offsets(offsets: Sequence[float]) -> str:
    """Return offsets as a setting has them."""
    return f"[{','.join(f'{value:.2f}' for value in offsets)}]"
