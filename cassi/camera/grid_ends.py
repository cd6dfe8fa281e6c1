"""Choose how far the spectral grid of a frame extends, by the frame's log evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from cassi.camera.evidence import Evidence, Optics
from cassi.systems import SDCassi
from cassi.systems.base import System
from cassi.systems.grid import SpectralGrid, has_grid

MARGINS_PIXELS = (0, 1, 2, 4, 6)
"""Margins that are compared: widths of the light beyond the outermost bands, pixels."""
PITCH_PIXELS = 1.0
"""Pixels from band to band of a grid. On random cameras of two generators, `auto` is worse with
other pitches than with 1.0: by 0.5 and 0.8 dB with 1.3, by 0.2 and 0.2 dB with 0.75
(docs/development/experiments/dispersion.md)."""


@torch.no_grad()
def find_grid(y: Tensor, system: System) -> SpectralGrid | None:
    """Return the spectral grid on which the cube of a measurement is computed.

    The grid reaches from the first to the last band, and beyond both by a margin. It is unknown how
    far the light extends, because this depends on lamp, filters and errors of the wavelengths. So
    the function takes the margin of `MARGINS_PIXELS` with the highest log evidence.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera.

    Returns:
        The grid; None if the camera needs no grid, see `has_grid`.
    """
    if not has_grid(system):
        return None
    camera = system.base_camera
    assert isinstance(camera, SDCassi)
    grids = [
        SpectralGrid.from_bands(camera.offsets, PITCH_PIXELS, margin) for margin in MARGINS_PIXELS
    ]
    try:
        evidence = Evidence(y, camera, system.good_pixels)
    except ValueError:
        # No window is lit, so the frame gives no reason for a wider grid.
        return grids[0]
    mask = camera.mask.detach()
    optics = Optics(
        camera.orient(mask[0] if mask.ndim == 5 else mask).float().cpu(), torch.zeros(0)
    )
    return max(grids, key=lambda grid: _log_evidence(evidence, optics, grid.offsets))


def _log_evidence(evidence: Evidence, optics: Optics, offsets: Sequence[float]) -> float:
    # The wavelengths of the offsets are unknown. Evenly spaced visible wavelengths replace them.
    evidence.set_wavelengths(np.linspace(450, 650, len(offsets)).tolist())
    return evidence(replace(optics, offsets=torch.tensor(offsets, dtype=torch.float64))).total
