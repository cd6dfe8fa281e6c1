"""The calibration of a dual disperser: its mask and the dispersion across it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from cassi.calibration.calibrate import Calibration
from cassi.calibration.fit import PlainScenes
from cassi.calibration.geometry import Geometry, moved_mask
from cassi.calibration.parameters import PLACE
from cassi.calibration.search import search_start
from cassi.calibration.windows import Frame
from cassi.systems import DDCassi, SDCassi, System


@torch.no_grad()
def calibrate_dual(
    frame: Frame, nominal: DDCassi, misses: Callable[[System], float], radius: int = 2
) -> Calibration:
    r"""Find how far mask and dispersion of a dual disperser are off.

    A plain scene, whose spectrum is the same everywhere, shows what moves against what: the mask
    against the detector, by −o(c) for band c. A single disperser with these offsets has the same
    frame of it. So plain scenes are fitted as for that camera, see `calibrate`, which gives the
    shift and the rotation of the mask and the step across it. They are taken if a reconstruction
    predicts pixels held out better through them.

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
    starts = search_start([frame], twin, Geometry(whole=0), radius)
    fits = [scenes.fit(start, PLACE) for start in starts]
    best = min(fits, key=lambda fit: fit.objective)
    # The whole shift is the mask's: the scene lies where the detector has it.
    geometry = replace(best.geometry, whole=None, interpolated=0.0)
    camera = moved_dual(nominal, twin, geometry)
    before, after = misses(nominal), misses(camera)
    across = replace(geometry, dispersion=tuple(-each for each in geometry.dispersion))
    lower = after < before
    return Calibration(
        across if lower else Geometry(),
        PLACE if lower else (),
        best.errors,
        camera if lower else nominal,
        [],
        before,
        after if lower else before,
        best,
        searched={"down": radius, "right": radius},
    )


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
