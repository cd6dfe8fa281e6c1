"""The metrics of a cube that is read in parts."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from cassi import metrics
from cassi.data.formats.stacks import Stack

Readable: TypeAlias = "Stack | Tensor"
"""A cube `(C, H, W)`, in a file or in memory."""
_ROWS = 64  # at a time, for spectral angles
Scores = dict[str, float | None]


def read(cube: Readable, bands: slice = slice(None), rows: slice = slice(None)) -> np.ndarray:
    """Return bands and rows of a cube, float32."""
    if isinstance(cube, Stack):
        return cube.read(bands, rows)
    return cube[bands, rows].cpu().numpy()


def score_bands(cube: Readable, truth: Readable) -> dict[str, Scores]:
    """Compute every metric under every preset with one band, or a few rows, in memory.

    The metrics are means over bands (PSNR, SSIM), of squares over bands (RMSE, ERGAS) or over
    pixels (SAM); they come out as `metrics.evaluate` gives them, to rounding. A preset whose peak
    is the truth's maximum has the maximum of all bands, as there.
    """
    names = metrics.list_presets()
    rows: dict[str, list[Scores]] = {name: [] for name in names}
    tops = []
    for band in range(cube.shape[0]):
        x, t = (torch.from_numpy(read(c, slice(band, band + 1))) for c in (cube, truth))
        tops.append(t.max())
        for name in names:
            rows[name].append(metrics.evaluate(x, t, name))
    angle = _spectral_angle(cube, truth)
    return {name: _join(name, rows[name], tops, angle) for name in names}


def _join(name: str, bands: list[Scores], tops: list[Tensor], angle: float) -> Scores:
    preset = metrics.get_preset(name)
    levels = [score["psnr"] for score in bands if score["psnr"] is not None]
    if preset.peak is None:  # each band was measured against its own
        prepared = [float(preset.prepare(top.double())) for top in tops]
        best = max(prepared)
        levels = [v + 20 * math.log10(best / p) for v, p in zip(levels, prepared, strict=True)]
    if preset.pool_bands:
        psnr = -10 * math.log10(max(_mean([10 ** (-level / 10) for level in levels]), 1e-300))
    else:
        psnr = _mean(levels)
    similar = [score["ssim"] for score in bands]
    known = [value for value in similar if value is not None]
    return {
        "psnr": psnr,
        "ssim": _mean(known) if len(known) == len(similar) else None,
        "sam": angle,
        "rmse": math.sqrt(_mean([(score["rmse"] or 0.0) ** 2 for score in bands])),
        "ergas": math.sqrt(_mean([(score["ergas"] or 0.0) ** 2 for score in bands])),
    }


def _spectral_angle(cube: Readable, truth: Readable) -> float:
    total, height = 0.0, cube.shape[1]
    for first in range(0, height, _ROWS):
        rows = slice(first, min(first + _ROWS, height))
        x, t = (torch.from_numpy(read(c, rows=rows)) for c in (cube, truth))
        total += float(metrics.sam(x, t)) * x.shape[1]
    return total / height


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)
