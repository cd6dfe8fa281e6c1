"""Named presets: the ways in which published work computes PSNR and SSIM of two cubes.

The papers differ in clipping, rounding, peak and averaging. That changes PSNR by more than the
methods differ from each other, so every figure states the name of its preset.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from cassi.checks import did_you_mean

# Elementwise map from cube values to the values that are compared.
Prepare = Callable[[Tensor], Tensor]


def keep(x: Tensor) -> Tensor:
    """Return the values as they are."""
    return x


def clamp_unit(x: Tensor) -> Tensor:
    """Clamp to [0, 1]."""
    return x.clamp(0, 1)


def quantize_uint8(x: Tensor) -> Tensor:
    """Clip to [0, 1] and round to the levels 0..255, as MATLAB's ``im2uint8`` does.

    MATLAB rounds half away from zero, hence ``floor(255 x + 1/2)``; `torch.round` rounds half to
    even.

    Example:
        >>> import torch
        >>> quantize_uint8(torch.tensor([0.5 / 255, 2.5 / 255, 1.2], dtype=torch.float64)).tolist()
        [1.0, 3.0, 255.0]
    """
    return x.clamp(0, 1).mul_(255).add_(0.5).floor_()


def quantize_256(x: Tensor) -> Tensor:
    """Multiply by 256 and round half to even, without clipping."""
    return (x * 256).round_()


@dataclass(frozen=True)
class SSIMRule:
    """The way in which a preset measures SSIM.

    Attributes:
        prepare: function that is applied to both cubes first.
        data_range: L of the constants ``(0.01 L)²`` and ``(0.03 L)²``, in the unit of the prepared
            values.
        zero_padding: whether windows that reach beyond the image count, with zeros outside;
            otherwise only windows inside the image count ("valid area").
    """

    prepare: Prepare
    data_range: float
    zero_padding: bool = False


@dataclass(frozen=True)
class Preset:
    """One published way to measure PSNR and SSIM.

    Attributes:
        name: its name in configs, tables and figures.
        used_by: the codes and tables that measure this way.
        prepare: function that is applied to both cubes before PSNR.
        peak: the peak of PSNR, in the unit of the prepared values; None takes the maximum of the
            prepared reference over all its bands.
        pool_bands: whether PSNR has one mean squared error for the whole cube; otherwise PSNR is
            computed for each band and averaged.
        ssim: the rule for SSIM; None if the source defines no SSIM.
    """

    name: str
    used_by: str
    prepare: Prepare
    peak: float | None
    pool_bands: bool = False
    ssim: SSIMRule | None = None


_UINT8_SSIM = SSIMRule(quantize_uint8, data_range=255.0)

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            "matlab-uint8",
            "the published tables (MATLAB, Cal_quality_assessment.m of TSA-Net, MST and others)",
            prepare=quantize_uint8,
            peak=255.0,
            ssim=_UINT8_SSIM,
        ),
        Preset(
            # The values reach 256 but the peak is 255, as in the authors' logs.
            "torch-256",
            "the training logs of MST, RDLUF, PADUT, DERNN",
            prepare=quantize_256,
            peak=255.0,
            ssim=SSIMRule(keep, data_range=1.0, zero_padding=True),
        ),
        Preset("unit", "DPU, SSR", prepare=clamp_unit, peak=1.0, ssim=_UINT8_SSIM),
        Preset("ref-max", "TSA-Net, the first GAP-Net", prepare=keep, peak=None),
        Preset("global", "PnP-CASSI", prepare=keep, peak=1.0, pool_bands=True),
        Preset("global-unit", "InverseNet", prepare=clamp_unit, peak=1.0, pool_bands=True),
    )
}
"""Every preset by name, the default first."""

DEFAULT_PRESET = "matlab-uint8"
"""The preset of the published tables."""


def list_presets() -> list[str]:
    """Return the names of the presets, the default first.

    Example:
        >>> list_presets()
        ['matlab-uint8', 'torch-256', 'unit', 'ref-max', 'global', 'global-unit']
    """
    return list(PRESETS)


def get_preset(preset: str | Preset) -> Preset:
    """Return the preset with a name, or a `Preset` as it is.

    Raises:
        ValueError: no preset has that name.
    """
    if isinstance(preset, Preset):
        return preset
    if preset in PRESETS:
        return PRESETS[preset]
    hint = did_you_mean(preset, PRESETS)
    raise ValueError(f"expected a metric preset among {list_presets()}, got {preset!r}{hint}")
