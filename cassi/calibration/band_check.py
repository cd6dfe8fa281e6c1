"""Do bands lie where a camera has them? Asked of plain scenes, where light comes in lines."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cassi.calibration.fit import LEAST_WINDOWS, PlainScenes
from cassi.calibration.geometry import moved_offsets
from cassi.calibration.lines import LEAST, SHADES, SURE, tells_dispersion
from cassi.calibration.parameters import PLACE
from cassi.calibration.search import NOMINAL, fit_curves
from cassi.calibration.windows import Frame, Windows
from cassi.systems import SDCassi

_ASKED = 128  # windows
_RADIUS = 2  # pixels
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
    falls = lines.variances(NOMINAL)[0].log() - other.variances(NOMINAL)[0].log()
    if float(falls.mean()) < max(LEAST, SURE * float(falls.std()) / len(falls) ** 0.5):
        return None
    scenes = PlainScenes([frame], system)
    still = scenes.fit(NOMINAL, PLACE[:-1])
    found = fit_curves(scenes, _RADIUS, True, still)[0]
    if not scenes.is_surer(found, still):
        return None
    best = found.geometry
    if not tells_dispersion([frame], system, best, still.geometry):
        return None
    offsets = moved_offsets(system, best)
    away = float((offsets - torch.tensor(system.offsets).to(offsets)).abs().max())
    return (away, offsets.tolist()) if away >= _AWAY else None


def say_offsets(offsets: Sequence[float]) -> str:
    """Return offsets as a setting has them."""
    return f"[{','.join(f'{value:.2f}' for value in offsets)}]"
