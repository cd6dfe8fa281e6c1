"""PSNR, RMSE, ERGAS, SAM and SSIM of two cubes.

Every metric works band by band in float64, whatever the dtype of the cubes. MATLAB computes in
float64 too, so both round values near a half to the same level. Only one band of a cube is copied
at a time, which saves memory: a cube of 28×660×660 values has 98 MB in float64.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.metrics.presets import DEFAULT_PRESET, Prepare, Preset, SSIMRule, get_preset, keep

# Side of the Gaussian window, pixels.
WINDOW_SIZE = 11
# Standard deviation of the Gaussian window, pixels.
WINDOW_SIGMA = 1.5
# Constants of SSIM over the data range, as in Wang et al.
K1, K2 = 0.01, 0.03


def psnr(x: Tensor, truth: Tensor, preset: str | Preset = DEFAULT_PRESET) -> Tensor:
    """Peak signal-to-noise ratio.

    With the prepared values p(·), their peak P and ``MSE_c = mean_hw (p(x_c) − p(truth_c))²``::

        PSNR = mean_c 10 log10(P² / MSE_c)        or, with pooled bands,
        PSNR = 10 log10(P² / mean_c MSE_c)

    A band that is reproduced exactly has an infinite PSNR, and so has the mean over bands.
    A black band that is reproduced exactly is left out of the mean, unless all bands are exact.

    Args:
        x: estimate, ``(B, C, H, W)`` or ``(C, H, W)``, reflectance or radiance in [0, 1].
        truth: reference, same shape.
        preset: a name of `list_presets`, or a `Preset`; its ``prepare`` treats values outside of
            [0, 1].

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
    preset_rule = get_preset(preset)
    cube, reference = check_pair(x, truth)
    mse = compute_band_mse(cube, reference, preset_rule.prepare)
    return _match_input(psnr_of_mse(mse, reference, preset_rule), x)


def psnr_of_mse(mse: Tensor, reference: Tensor, preset: Preset) -> Tensor:
    """Return the PSNR, dB `(B,)`, from the mean squared error of each prepared band, `(B, C)`."""
    if preset.pool_bands:
        mse = mse.mean(dim=1, keepdim=True)
    decibels = 10 * torch.log10(_find_peak(reference, preset) ** 2 / mse)
    is_counted = mse > 0
    if preset.pool_bands:
        is_counted.fill_(True)
    elif not is_counted.all():
        is_counted |= ~torch.stack([is_black(band) for band in reference.unbind(1)], 1)
    # If all bands are exact, all of them count, and the result is infinite.
    is_counted |= ~is_counted.any(dim=1, keepdim=True)
    return decibels.where(is_counted, 0).sum(dim=1) / is_counted.sum(dim=1)


def explain_infinite_ergas(x: Tensor, truth: Tensor) -> str | None:
    """Return why ERGAS of a cube `(C, H, W)` is infinite; None if it is finite."""
    bands = [b for b, (a, t) in enumerate(zip(x, truth, strict=True), 1) if not t.any() and a.any()]
    if not bands:
        return None
    rest_text = f" (and {len(bands) - 1} more)" if len(bands) > 1 else ""
    return f"ERGAS is infinite, because band {bands[0]}{rest_text} of the truth is black"


def is_black(bands: Tensor) -> Tensor:
    """Tell for each band `(…, H, W)` whether all its values are 0."""
    return (bands == 0).flatten(-2).all(-1)


def rmse(x: Tensor, truth: Tensor) -> Tensor:
    """Root mean squared error over the whole cube, ``sqrt(mean_chw (x − truth)²)``.

    The values may have any range, and are neither clipped nor rounded.

    Args:
        x: estimate, ``(B, C, H, W)`` or ``(C, H, W)``.
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
    return _match_input(rmse_of_mse(compute_band_mse(*check_pair(x, truth))), x)


def rmse_of_mse(mse: Tensor) -> Tensor:
    """Return the RMSE `(B,)` from the mean squared error of each band, `(B, C)`."""
    return mse.mean(dim=1).sqrt()


def ergas(x: Tensor, truth: Tensor) -> Tensor:
    """Relative error of a cube, ERGAS with resolution ratio 1.

    With ``μ_c = mean_hw truth_c``::

        ERGAS = 100 sqrt( mean_c MSE_c / μ_c² )

    A reference band of mean zero counts as 0 if the estimate reproduces it exactly; otherwise the
    result is infinite. A common factor on both cubes changes nothing.

    The values may have any range, and are neither clipped nor rounded.

    Args:
        x: estimate, ``(B, C, H, W)`` or ``(C, H, W)``.
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
    return _match_input(ergas_of_mse(compute_band_mse(cube, reference), reference), x)


def ergas_of_mse(mse: Tensor, reference: Tensor) -> Tensor:
    """Return ERGAS `(B,)`, per cent, from the mean squared error of each band, `(B, C)`."""
    mean = torch.stack([band.double().mean(dim=(-2, -1)) for band in reference.unbind(1)], dim=1)
    relative = torch.where(mse > 0, mse / mean.square(), 0.0)
    return 100 * relative.mean(dim=1).sqrt()


def sam(x: Tensor, truth: Tensor) -> Tensor:
    """Spectral angle, the mean over pixels of the angle between two spectra.

    With the unit spectra ``u = x/‖x‖`` and ``t = truth/‖truth‖`` of a pixel::

        angle = 2 atan2(‖u − t‖, ‖u + t‖) · 180/π

    It equals ``acos(uᵀt)``, and stays exact near 0, where the cosine of a small angle rounds to 1.
    A zero spectrum has no direction: it counts as 0° from another zero spectrum, and as 90° from
    any other. A factor > 0 on a pixel's spectrum changes nothing.

    The values may have any range, and are neither clipped nor rounded.

    Args:
        x: estimate, ``(B, C, H, W)`` or ``(C, H, W)``.
        truth: reference, same shape.

    Returns:
        Degrees in [0, 180], in [0, 90] for cubes without negative values; float64, ``(B,)``, or
        0-d for a single cube.

    Raises:
        TypeError: a cube is not a floating-point tensor.
        ValueError: cubes that do not match or are not finite.

    Source:
        R. Yuhas, A. Goetz, J. Boardman, "Discrimination among semi-arid landscape endmembers using
        the spectral angle mapper (SAM) algorithm", 1992. The angle: W. Kahan, "How futile are
        mindless assessments of roundoff in floating-point computation?", 2006, section 12.

    Example:
        >>> truth = torch.tensor([1.0, 0.0]).reshape(2, 1, 1)
        >>> round(sam(torch.ones(2, 1, 1), truth).item(), 6)
        45.0
    """
    cube, reference = check_pair(x, truth)
    # The sums over bands need no stacked unit spectra, so no float64 copy of a whole cube.
    scale_x, scale_t = _compute_reciprocal_norm(cube), _compute_reciprocal_norm(reference)
    difference_squared, sum_squared = torch.zeros_like(scale_x), torch.zeros_like(scale_t)
    for a, b in zip(cube.unbind(1), reference.unbind(1), strict=True):
        unit_x, unit_t = a.double() * scale_x, b.double() * scale_t
        difference_squared = difference_squared + (unit_x - unit_t).square()
        sum_squared = sum_squared + (unit_x + unit_t).square()
    angle = 2 * torch.atan2(difference_squared.sqrt(), sum_squared.sqrt())
    return _match_input(torch.rad2deg(angle).mean(dim=(-2, -1)), x)


def ssim(x: Tensor, truth: Tensor, preset: str | Preset = DEFAULT_PRESET) -> Tensor:
    """Structural similarity with an 11×11 Gaussian window, σ = 1.5 pixels.

    μ, σ² and σ_xt are the means, population variances and covariance under the window, of the
    prepared values; L is the data range of the preset::

        SSIM = mean_chw  (2 μ_x μ_t + c₁)/(μ_x² + μ_t² + c₁) · (2 σ_xt + c₂)/(σ_x² + σ_t² + c₂)
        c₁ = (0.01 L)²,  c₂ = (0.03 L)²

    Args:
        x: estimate, as for `psnr`.
        truth: reference, same shape.
        preset: a name of `list_presets`, or a `Preset`.

    Returns:
        Float64 in [-1, 1], 1 for equal cubes, ``(B,)``, or 0-d for a single cube.

    Raises:
        TypeError: as `psnr`.
        ValueError: as `psnr`; a preset without SSIM; an image smaller than the window, where the
            window must lie inside.

    Source:
        Z. Wang et al., "Image quality assessment: from error visibility to structural similarity",
        IEEE TIP 13(4), 2004, eq. (13), and its ssim_index.m.

    Example:
        >>> truth = torch.rand(28, 16, 16)
        >>> ssim(truth, truth).item()
        1.0
    """
    preset_rule = get_preset(preset)
    cube, reference = check_pair(x, truth)
    reason = explain_undefined(preset_rule, cube.shape)
    if preset_rule.ssim is None or reason is not None:
        raise ValueError(reason)
    pairs = zip(cube.unbind(1), reference.unbind(1), strict=True)
    bands = torch.stack([_measure_band_ssim(a, b, preset_rule.ssim) for a, b in pairs], dim=1)
    return _match_input(bands.mean(dim=1), x)


def explain_undefined(preset: Preset, shape: torch.Size) -> str | None:
    """Return why a cube of this shape has no SSIM under a preset; None if it has an SSIM."""
    height, width = shape[-2:]
    if preset.ssim is None:
        return f"expected a preset that defines SSIM, got {preset.name!r}, which does not"
    if not preset.ssim.zero_padding and min(height, width) < WINDOW_SIZE:
        return (
            f"expected an image of at least {WINDOW_SIZE}x{WINDOW_SIZE} pixels, the SSIM window of "
            f"the preset {preset.name!r}, got {height}x{width}"
        )
    return None


def check_pair(x: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Return two cubes ``(B, C, H, W)`` or ``(C, H, W)`` as ``(B, C, H, W)``."""
    for name, cube in (("x", x), ("truth", truth)):
        if not isinstance(cube, Tensor):
            raise TypeError(f"expected {name} to be a tensor, got {type(cube).__name__}")
        if not cube.is_floating_point():
            raise TypeError(
                f"expected {name} to be floating point with values in [0, 1], got {cube.dtype}; "
                "divide by the largest level first"
            )
    if x.ndim not in (3, 4) or x.numel() == 0:
        raise ValueError(
            f"expected cubes (B, C, H, W) or (C, H, W) with at least one value, "
            f"got x of shape {tuple(x.shape)}"
        )
    if x.shape != truth.shape:
        raise ValueError(
            f"expected truth of the shape of x, {tuple(x.shape)}, got {tuple(truth.shape)}"
        )
    if x.device != truth.device:
        raise ValueError(f"expected truth on the device of x, {x.device}, got {truth.device}")
    for name, cube in (("x", x), ("truth", truth)):
        # A sum takes a tenth of the time. It is finite only if all values are.
        if not torch.isfinite(cube.sum()) and not torch.isfinite(cube).all():
            raise ValueError(f"expected finite values, got NaN or infinity in {name}")
    return (x, truth) if x.ndim == 4 else (x[None], truth[None])


def _match_input(values: Tensor, x: Tensor) -> Tensor:
    """Return ``(B,)`` for a batch, a 0-d tensor for a single cube ``x``."""
    return values if x.ndim == 4 else values[0]


def compute_band_mse(x: Tensor, truth: Tensor, prepare: Prepare = keep) -> Tensor:
    """Return the mean squared error of each band, `(B, C)`."""
    errors = [
        (prepare(a.double()) - prepare(b.double())).square().mean(dim=(-2, -1))
        for a, b in zip(x.unbind(1), truth.unbind(1), strict=True)
    ]
    return torch.stack(errors, dim=1)


def _find_peak(truth: Tensor, preset: Preset) -> Tensor | float:
    """Return the peak of PSNR, a number or `(B, 1)`."""
    if preset.peak is not None:
        return preset.peak
    peak = preset.prepare(truth.amax(dim=(1, 2, 3)).double())[:, None]
    if (peak <= 0).any():
        raise ValueError(
            f"expected a reference with a positive maximum for the preset {preset.name!r}, "
            f"got {peak.min().item()}"
        )
    return peak


def _compute_reciprocal_norm(x: Tensor) -> Tensor:
    """Return 1 over the norm of each spectrum: `(B, C, H, W)` → `(B, H, W)`."""
    squared_norm = torch.zeros_like(x[:, 0], dtype=torch.float64)
    for band in x.unbind(1):
        squared_norm = squared_norm + band.double().square()
    # A zero spectrum stays zero: its angle to any other spectrum is then 90°.
    return torch.where(squared_norm > 0, squared_norm, 1.0).rsqrt()


def _make_window() -> list[float]:
    """Return the weights of the Gaussian window along one axis, of sum 1."""
    radius = WINDOW_SIZE // 2
    weights = [math.exp(-0.5 * (i / WINDOW_SIGMA) ** 2) for i in range(-radius, radius + 1)]
    return [weight / math.fsum(weights) for weight in weights]


def _filter_axis(a: Tensor, dim: int) -> Tensor:
    """Filter an axis by the window; the result has only windows inside the axis."""
    # This is a sum of shifted views, because a convolution in float64 has no fast kernel and copies
    # its input once for each of the eleven weights.
    size = a.shape[dim] - WINDOW_SIZE + 1
    first, *other_weights = _make_window()
    result = a.narrow(dim, 0, size) * first
    for shift, weight in enumerate(other_weights, start=1):
        result = result.add_(a.narrow(dim, shift, size), alpha=weight)
    return result


def _measure_band_ssim(x: Tensor, truth: Tensor, rule: SSIMRule) -> Tensor:
    """Return the SSIM of one band: `(B, H, W)` twice → `(B,)`."""

    def blur(moment: Tensor) -> Tensor:
        # One moment at a time stays in the processor's cache.
        if rule.zero_padding:
            moment = F.pad(moment, [WINDOW_SIZE // 2] * 4)
        return _filter_axis(_filter_axis(moment, -1), -2)

    x, truth = rule.prepare(x.double()), rule.prepare(truth.double())
    mean_x, mean_t = blur(x), blur(truth)
    cross_moment, square_moment = blur(x * truth), blur(x * x + truth * truth)
    c1, c2 = (K1 * rule.data_range) ** 2, (K2 * rule.data_range) ** 2
    product, squares = mean_x * mean_t, mean_x * mean_x + mean_t * mean_t
    luminance = (2 * product + c1) / (squares + c1)
    structure = (2 * (cross_moment - product) + c2) / (square_moment - squares + c2)
    return (luminance * structure).mean(dim=(-2, -1))
