"""Structural similarity, band by band in float64."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.metrics.checks import check_pair, like_input
from cassi.metrics.presets import DEFAULT_PRESET, Preset, SSIMRule, get_preset

WINDOW_SIZE = 11
"""Side of the Gaussian window, pixels."""
WINDOW_SIGMA = 1.5
"""Standard deviation of the Gaussian window, pixels."""
K1, K2 = 0.01, 0.03


def _window() -> list[float]:
    radius = WINDOW_SIZE // 2
    weights = [math.exp(-0.5 * (i / WINDOW_SIGMA) ** 2) for i in range(-radius, radius + 1)]
    return [weight / math.fsum(weights) for weight in weights]


def _filter_valid(a: Tensor, dim: int) -> Tensor:
    # A sum of shifted views: convolutions in float64 have no fast kernel and copy their input
    # eleven times.
    size = a.shape[dim] - WINDOW_SIZE + 1
    first, *rest = _window()
    out = a.narrow(dim, 0, size) * first
    for shift, weight in enumerate(rest, start=1):
        out = out.add_(a.narrow(dim, shift, size), alpha=weight)
    return out


def _ssim_band(x: Tensor, truth: Tensor, rule: SSIMRule) -> Tensor:  # (B, H, W) twice -> (B,)
    x, truth = rule.prepare(x.double()), rule.prepare(truth.double())
    moments = torch.stack([x, truth, x * x, truth * truth, x * truth])
    if rule.zero_padding:
        moments = F.pad(moments, [WINDOW_SIZE // 2] * 4)
    mean_x, mean_t, xx, tt, xt = _filter_valid(_filter_valid(moments, -1), -2)
    c1, c2 = (K1 * rule.data_range) ** 2, (K2 * rule.data_range) ** 2
    product, squares = mean_x * mean_t, mean_x * mean_x + mean_t * mean_t
    luminance = (2 * product + c1) / (squares + c1)
    structure = (2 * (xt - product) + c2) / (xx + tt - squares + c2)
    return (luminance * structure).mean(dim=(-2, -1))


def explain_undefined(preset: Preset, shape: torch.Size) -> str | None:
    """Return why a cube of this shape has no SSIM under a preset, None if it has one."""
    height, width = shape[-2:]
    if preset.ssim is None:
        return f"expected a preset that defines SSIM, got {preset.name!r}, which does not"
    if not preset.ssim.zero_padding and min(height, width) < WINDOW_SIZE:
        return (
            f"expected an image of at least {WINDOW_SIZE}x{WINDOW_SIZE} pixels, the SSIM window of "
            f"the preset {preset.name!r}, got {height}x{width}"
        )
    return None


def ssim(x: Tensor, truth: Tensor, preset: str | Preset = DEFAULT_PRESET) -> Tensor:
    """Structural similarity with an 11×11 Gaussian window, σ = 1.5 pixels.

    With μ, σ² and σ_xt the means, population variances and covariance under the window, of the
    values prepared and with the data range L of the preset::

        SSIM = mean_chw  (2 μ_x μ_t + c₁)/(μ_x² + μ_t² + c₁) · (2 σ_xt + c₂)/(σ_x² + σ_t² + c₂)
        c₁ = (0.01 L)²,  c₂ = (0.03 L)²

    Args:
        x: estimate, ``(B, C, H, W)`` or ``(C, H, W)``, reflectance or radiance in [0, 1].
        truth: reference, same shape.
        preset: a name of `list_presets`, or a `Preset`.

    Returns:
        Float64 in [-1, 1], 1 for equal cubes, ``(B,)``, or 0-d for a single cube.

    Raises:
        TypeError: a cube is not a floating-point tensor.
        ValueError: cubes that do not match or are not finite; an unknown preset or one without
            SSIM; an image smaller than the window where it has to fit inside.

    Source:
        Z. Wang et al., "Image quality assessment: from error visibility to structural similarity",
        IEEE TIP 13(4), 2004, eq. (13), and its ssim_index.m.

    Example:
        >>> truth = torch.rand(28, 16, 16)
        >>> ssim(truth, truth).item()
        1.0
    """
    named = get_preset(preset)
    cube, reference = check_pair(x, truth)
    reason = explain_undefined(named, cube.shape)
    if named.ssim is None or reason is not None:
        raise ValueError(reason)
    pairs = zip(cube.unbind(1), reference.unbind(1), strict=True)
    bands = torch.stack([_ssim_band(a, b, named.ssim) for a, b in pairs], dim=1)
    return like_input(bands.mean(dim=1), x)
