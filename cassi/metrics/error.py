"""Metrics made of the mean squared error of each band: PSNR, RMSE, ERGAS.

Every metric works band by band in float64, whatever the dtype of the cubes. That is what MATLAB
computes with, it settles on which side of a half a float32 value rounds, and only one band of a
28×660×660 cube is ever held twice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cassi.metrics.checks import check_pair, like_input
from cassi.metrics.presets import DEFAULT_PRESET, Prepare, Preset, get_preset, keep


def _band_mse(x: Tensor, truth: Tensor, prepare: Prepare = keep) -> Tensor:  # (B, C)
    errors = [
        (prepare(a.double()) - prepare(b.double())).square().mean(dim=(-2, -1))
        for a, b in zip(x.unbind(1), truth.unbind(1), strict=True)
    ]
    return torch.stack(errors, dim=1)


def _peak(truth: Tensor, preset: Preset) -> Tensor | float:  # (B, 1) or a number
    if preset.peak is not None:
        return preset.peak
    peak = preset.prepare(truth.amax(dim=(1, 2, 3)).double())[:, None]
    if (peak <= 0).any():
        raise ValueError(
            f"expected a reference with a positive maximum for the preset {preset.name!r}, "
            f"got {peak.min().item()}"
        )
    return peak


def psnr(x: Tensor, truth: Tensor, preset: str | Preset = DEFAULT_PRESET) -> Tensor:
    """Peak signal-to-noise ratio.

    With the prepared values p(·), their peak P and ``MSE_c = mean_hw (p(x_c) − p(truth_c))²``::

        PSNR = mean_c 10 log10(P² / MSE_c)        or, with pooled bands,
        PSNR = 10 log10(P² / mean_c MSE_c)

    One band that is reproduced exactly makes its PSNR, and so the mean over bands, infinite.

    Args:
        x: estimate, ``(B, C, H, W)`` or ``(C, H, W)``, reflectance or radiance in [0, 1].
        truth: reference, same shape.
        preset: a name of `list_presets`, or a `Preset`; its ``prepare`` says what becomes of
            values outside [0, 1].

    Returns:
        dB, float64, ``(B,)``, or 0-d for a single cube; ``inf`` where the compared values agree.

    Raises:
        TypeError: a cube is not a floating-point tensor.
        ValueError: cubes that do not match or are not finite; an unknown preset; a reference
            without a positive value where the preset takes its maximum as the peak.

    Source:
        csnr.m and ``torch_psnr`` in the code of TSA-Net and MST; see `PRESETS`.

    Example:
        >>> truth = torch.full((28, 16, 16), 0.5)
        >>> round(psnr(truth + 0.1, truth, preset="unit").item(), 3)  # 10 log10(1 / 0.1²)
        20.0
    """
    rule = get_preset(preset)
    cube, reference = check_pair(x, truth)
    mse = _band_mse(cube, reference, rule.prepare)
    if rule.pool_bands:
        mse = mse.mean(dim=1, keepdim=True)
    decibels = 10 * torch.log10(_peak(reference, rule) ** 2 / mse)
    return like_input(decibels.mean(dim=1), x)


def rmse(x: Tensor, truth: Tensor) -> Tensor:
    """Root mean squared error over the whole cube, ``sqrt(mean_chw (x − truth)²)``.

    Args:
        x: estimate, ``(B, C, H, W)`` or ``(C, H, W)``, any range; neither clipped nor rounded.
        truth: reference, same shape.

    Returns:
        The unit of the cube, ≥ 0, float64, ``(B,)``, or 0-d for a single cube.

    Raises:
        TypeError: a cube is not a floating-point tensor.
        ValueError: cubes that do not match or are not finite.

    Example:
        >>> truth = torch.zeros(4, 8, 8)
        >>> rmse(truth - 0.25, truth).item()
        0.25
    """
    return like_input(_band_mse(*check_pair(x, truth)).mean(dim=1).sqrt(), x)


def ergas(x: Tensor, truth: Tensor) -> Tensor:
    """Relative error of a cube, ERGAS with resolution ratio 1.

    With ``μ_c = mean_hw truth_c``::

        ERGAS = 100 sqrt( mean_c MSE_c / μ_c² )

    A reference band of mean zero counts as 0 where it is reproduced exactly and makes the result
    infinite otherwise. A common factor on both cubes changes nothing.

    Args:
        x: estimate, ``(B, C, H, W)`` or ``(C, H, W)``, any range; neither clipped nor rounded.
        truth: reference, same shape.

    Returns:
        Per cent, ≥ 0, float64, ``(B,)``, or 0-d for a single cube.

    Raises:
        TypeError: a cube is not a floating-point tensor.
        ValueError: cubes that do not match or are not finite.

    Source:
        L. Wald, "Quality of high resolution synthesised images: is there a simple criterion?",
        Fusion of Earth Data, 2000, with h/l = 1.

    Example:
        >>> truth = torch.full((4, 8, 8), 0.5)
        >>> ergas(truth + 0.125, truth).item()
        25.0
    """
    cube, reference = check_pair(x, truth)
    mse = _band_mse(cube, reference)
    mean = torch.stack([band.double().mean(dim=(-2, -1)) for band in reference.unbind(1)], dim=1)
    relative = torch.where(mse > 0, mse / mean.square(), 0.0)
    return like_input(100 * relative.mean(dim=1).sqrt(), x)
