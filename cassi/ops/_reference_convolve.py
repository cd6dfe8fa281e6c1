"""Pure-torch 3×3 convolution with what comes after it: the specification of the compiled kernel.

Canonical shapes: image `(B, C, H, W)`, weight `(O, C, 3, 3)`, bias `(O,)`, residual `(B, O, H, W)`.
Sums run in float32 at least, and the result has the dtype of the image.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def plain(
    image: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, rectify: bool
) -> Tensor:
    """Convolve with torch's convolution, in the dtype of the image."""
    y = F.conv2d(image, weight, bias, padding=1)
    if residual is not None:
        y = y + residual
    return F.relu(y, inplace=True) if rectify else y


def convolve3x3(
    image: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, rectify: bool
) -> Tensor:
    """Convolve images; channels are innermost in the result's memory."""
    dtype = torch.float64 if torch.float64 in (image.dtype, weight.dtype) else torch.float32
    wide = residual if residual is None else residual.to(dtype)
    y = plain(image.to(dtype), weight.to(dtype), bias.to(dtype), wide, rectify)
    return y.to(image.dtype, memory_format=torch.channels_last)
