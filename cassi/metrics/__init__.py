"""Metrics of an estimated cube against a reference: PSNR, SSIM, SAM, RMSE, ERGAS.

The functions take ``(x, truth)``, cubes ``(B, C, H, W)`` or ``(C, H, W)`` of any floating dtype on
any device with float64, and return one float64 number per cube. Papers define PSNR and SSIM in
different ways, so both take a named `Preset`. `MetricSet` collects the scores of scenes.
"""

from cassi.metrics.measures import ergas, psnr, rmse, sam, ssim
from cassi.metrics.presets import (
    DEFAULT_PRESET,
    PRESETS,
    Preset,
    SSIMRule,
    get_preset,
    list_presets,
)
from cassi.metrics.scores import METRICS, MetricSet, Scores, evaluate

__all__ = [
    "DEFAULT_PRESET",
    "METRICS",
    "PRESETS",
    "MetricSet",
    "Preset",
    "SSIMRule",
    "Scores",
    "ergas",
    "evaluate",
    "get_preset",
    "list_presets",
    "psnr",
    "rmse",
    "sam",
    "ssim",
]
