"""How layers of unrolled networks start, normalize, and shrink an image to a few numbers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def normalize(norm: nn.LayerNorm | nn.GroupNorm, x: Tensor) -> Tensor:
    """Apply a norm in the dtype of its weights, and return to that of x.

    `LayerNorm` sees the channels of a pixel, `GroupNorm` those of an image, which with one channel
    per group are those of an instance norm.
    """
    wide = x.to(norm.weight.dtype)
    if isinstance(norm, nn.GroupNorm):
        normed: Tensor = norm(wide.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    else:
        normed = norm(wide)
    return normed.to(x.dtype)


def initialize_linear(module: nn.Module) -> None:
    """Draw the weights of a linear map from a narrow normal distribution, with no bias.

    Taken by `nn.Module.apply`; layers of other kinds stay as they are.
    """
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def initialize_convolution(module: nn.Module) -> None:
    """Draw the weights of a convolution from a narrow normal distribution, with no bias."""
    if isinstance(module, nn.Conv2d):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def pooled_mlp(width: int, outputs: int, bias: bool) -> nn.Sequential:
    """Return the maps of pooled features `(B, width, 1, 1)` that end a net of parameters."""
    return nn.Sequential(
        nn.Conv2d(width, width, 1),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 1),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, outputs, 1, bias=bias),
    )


def pool_rectified(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Return the mean over all pixels of relu(1×1 convolution): `(B, C, H, W)` → `(B, c, 1, 1)`."""
    mixed = torch.relu_(F.linear(x.permute(0, 2, 3, 1), layer.weight.flatten(1), layer.bias))
    return mixed.mean((1, 2))[..., None, None]
