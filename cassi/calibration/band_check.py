"""Do bands lie where a camera has them? Asked of plain scenes, where light comes in lines."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cassi.calibration.fit import LEAST_WINDOWS, PlainScenes
from cassi.calibration.geometry import Geometry, moved_offsets
from cassi.calibration.lines import LEAST, SHADES, SURE, tells_dispersion
from cassi.calibration.parameters import PLACE
from cassi.calibration.search import search_prisms, search_start
from cassi.calibration.windows import Frame, Windows
from cassi.systems import SDCassi

_ASKED = 128  # windows
_RADIUS = 2  # pixels
_BENT = 0.5  # pixels at the last band
_TRIED = 2  # starts of each kind
_AWAY = 1.5  # pixels: less is for a calibration to find


def find_bands(y: Tensor, system: SDCassi, good: Tensor | None) -> tuple[float, list[float]] | None:
    """Look for a curve of dispersion where lines of light do not fall as a camera has them.

    Light of all wavelengths does not care where bands are. Where plain scenes fit better with it,
    light may come in lines that lie elsewhere: a fifth of a second for 256 × 256 pixels. Only then
    curves are searched, as a calibration does, in a few seconds.

    Args:
        y: measurement `(B, K, H', W')`, finite.
        system: the camera, with one mask for all bands.
        good: bool, shaped like y, pixels that count; None for all.

    Returns:
        By how many pixels a band lies elsewhere, at most, and the offsets; None where bands lie
        where they should, or nothing tells.
    """
    frame = Frame.snapshot(y, system.bands, good)
    every = Frame.snapshot(y, system.bands, good, SHADES)
    lines, other = (Windows(each, system, most=_ASKED) for each in (frame, every))
    if len(lines) < LEAST_WINDOWS:
        return None
    nominal = Geometry(whole=0)
    falls = lines.variances(nominal)[0].log() - other.variances(nominal)[0].log()
    if float(falls.mean()) < max(LEAST, SURE * float(falls.std()) / len(falls) ** 0.5):
        return None
    scenes = PlainScenes([frame], system)
    straight = scenes.fit(nominal, PLACE[:-1])
    starts = search_start([frame], system, nominal, _RADIUS, bent=_BENT)[:_TRIED]
    prisms = search_prisms([frame], system, nominal, _RADIUS, straight.geometry)[:_TRIED]
    fits = [scenes.fit(start) for start in (*starts, *prisms)]
    best = min(fits, key=lambda fit: fit.objective).geometry
    if scenes.sureness(best, straight.geometry) < SURE:
        return None
    if not tells_dispersion([frame], system, best, straight.geometry):
        return None
    offsets = moved_offsets(system, best)
    away = float((offsets - torch.tensor(system.offsets).to(offsets)).abs().max())
    return (away, offsets.tolist()) if away >= _AWAY else None


def say_offsets(offsets: Sequence[float]) -> str:
    """Return offsets as a setting has them."""
    return f"[{','.join(f'{value:.2f}' for value in offsets)}]"
