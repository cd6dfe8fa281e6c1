"""Attention among the pixels of a window, and among the channels of an image."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.layers import PixelNorm, PointwiseConv, depthwise_conv, pointwise_depthwise

# Pixels along each side of a window, as in all published networks here that use windows.
WINDOW = 8


def to_windows(x: Tensor) -> Tensor:
    """Cut images into windows: `(B, H, W, c)` → `(B, windows, pixels, c)`."""
    batch, height, width, channels = x.shape
    rows, columns = height // WINDOW, width // WINDOW
    windows = x.reshape(batch, rows, WINDOW, columns, WINDOW, channels).transpose(2, 3)
    return windows.reshape(batch, rows * columns, WINDOW * WINDOW, channels)


def from_windows(x: Tensor, height: int, width: int) -> Tensor:
    """Put windows together again: `(B, windows, pixels, c)` → `(B, H, W, c)`."""
    batch, _, _, channels = x.shape
    rows, columns = height // WINDOW, width // WINDOW
    windows = x.reshape(batch, rows, columns, WINDOW, WINDOW, channels).transpose(2, 3)
    return windows.reshape(batch, height, width, channels)


def apply_in_windows(layer: Callable[[Tensor], Tensor], x: Tensor, shift: int = 0) -> Tensor:
    """Apply a function of windows `(B, windows, pixels, c)` to images `(B, H, W, c)`.

    The images are first rolled down and to the right by `shift` pixels, and the results are rolled
    back. A negative shift rolls up and to the left.
    """
    if shift:
        images = x.roll((shift, shift), (1, 2))
        return apply_in_windows(layer, images).roll((-shift, -shift), (1, 2))
    return from_windows(layer(to_windows(x)), *x.shape[1:3])


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Return softmax(qkᵀ/√d + bias) v of `(…, heads, n, d)`; bias is `(heads, n, n)`."""
    *batch, tokens, width = q.shape
    # baddbmm adds the bias within the matrix product. The fused attention of torch is not used,
    # because it gives the bias no gradient.
    biases = bias.expand(*batch, tokens, tokens).reshape(-1, tokens, tokens)
    q, k, v = (value.reshape(-1, tokens, width) for value in (q, k, v))
    scores = torch.baddbmm(biases, q, k.mT, alpha=width**-0.5)
    return torch.bmm(scores.softmax(-1), v).reshape(*batch, tokens, width)


class ChannelAttention(nn.Module):
    """Attention whose tokens are channels.

        q, k, v = depthwise(W x),   A = softmax(τ (q/|q|)ᵀ(k/|k|)) per head,   out = v Aᵀ W_p

    q, k and v are flattened to `(h·w, c)`. W and W_p are 1×1 convolutions, τ is a learned
    temperature, and |·| are norms of columns. The small matrix Aᵀ W_p is computed first, so v is
    multiplied only once.

    `heads` is the number of groups of channels. The channels of a group attend to each other. If
    `norm` is true, x first passes a `PixelNorm` that does not subtract the mean.

    Source: Zamir et al., "Restormer", CVPR 2022, equations 1 and 2.
    """

    norm: PixelNorm | None

    def __init__(self, dim: int, heads: int, norm: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.norm = PixelNorm(dim, subtract_mean=False) if norm else None
        self.qkv, self.qkv_dwconv = PointwiseConv(dim, 3 * dim), depthwise_conv(3 * dim)
        self.project_out = PointwiseConv(dim, dim)

    def forward(self, x: Tensor, factor: Tensor | None = None) -> Tensor:
        """Attend within each image `(N, h, w, c)`; `factor` `(N, h, w, 1)` multiplies q, k, v."""
        x = x if self.norm is None else self.norm(x)
        parts = pointwise_depthwise(x, self.qkv, self.qkv_dwconv, 3)
        if factor is not None:
            parts = [part * factor for part in parts]
        q, k, v = (part.flatten(1, 2) for part in parts)
        return torch.bmm(v, self._mixture(q, k).to(v.dtype)).view(x.shape)

    def _mixture(self, q: Tensor, k: Tensor) -> Tensor:  # (N, n, c) → Aᵀ W_p (N, c, c)
        # After the transposition to (N·heads, c/heads, n), the pixels of a channel lie next to each
        # other in memory. So norms and products read memory in order, and the heads are views.
        q, k = (
            F.normalize(part.mT.reshape(-1, part.shape[2] // self.heads, part.shape[1]), dim=-1)
            for part in (q, k)
        )
        cosine = torch.bmm(q, k.mT).unflatten(0, (-1, self.heads))
        attention = (cosine * self.temperature).softmax(-1)
        weight = self.project_out.weight.flatten(1).mT  # (c, c), rows in the order of v
        return (attention.mT @ weight.unflatten(0, (self.heads, -1))).flatten(1, 2)
