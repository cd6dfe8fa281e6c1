"""Attention among pixels near each other, and among distant parts of an image."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cassi.models.attention import WINDOW, attend, from_windows, to_windows
from cassi.models.pixelwise import mix, widen

PARTS = 8
"""Parts of an image along each side, for attention among them."""


class PixelAttention(nn.Module):
    """Attention with q, k, v = depthwise(W x), and a table of positions; a base class.

    Args:
        dim: channels.
        heads: number of heads.
        tokens: how many attend to each other.

    Source: Dong et al., "Degradation estimation recurrent neural network with local and non-local
    priors", AAAI 2024, section 3.3; names of the weights as in its code.
    """

    def __init__(self, dim: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.heads = heads
        self.pos_emb = nn.Parameter(torch.empty(1, heads, tokens, tokens))
        nn.init.trunc_normal_(self.pos_emb)
        self.qkv = nn.Conv2d(dim, 3 * dim, 1, bias=False)
        self.qkv_dwconv = nn.Conv2d(3 * dim, 3 * dim, 3, padding=1, groups=3 * dim, bias=False)
        self.project_out = nn.Conv2d(dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Attend: `(B, H, W, c)` → the same."""
        q, k, v = (
            self.cut(part).unflatten(-1, (self.heads, -1)).transpose(-2, -3)
            for part in widen(x, self.qkv, self.qkv_dwconv, 3)
        )
        mixed = attend(q, k, v, self.pos_emb[0]).transpose(-2, -3).flatten(-2)
        return mix(self.project_out, self.join(mixed, x))

    def cut(self, x: Tensor) -> Tensor:
        """Cut an image into tokens: `(B, H, W, c)` → `(…, tokens, length)`."""
        raise NotImplementedError

    def join(self, tokens: Tensor, like: Tensor) -> Tensor:
        """Undo `cut`: `(…, tokens, length)` → an image as large as another."""
        raise NotImplementedError


class LocalAttention(PixelAttention):
    """Attention among the pixels of each 8×8 window; H and W are multiples of 8."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads, WINDOW * WINDOW)

    def cut(self, x: Tensor) -> Tensor:
        """Cut an image into pixels by window: `(B, H, W, c)` → `(B, windows, 64, c)`."""
        return to_windows(x)

    def join(self, tokens: Tensor, like: Tensor) -> Tensor:
        """Undo `cut`."""
        return from_windows(tokens, like.shape[1], like.shape[2])


class NonLocalAttention(PixelAttention):
    """Attention among 8×8 equal parts of an image; H and W are multiples of 8.

    A head sees some of the rows of each part.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads, PARTS * PARTS)

    def cut(self, x: Tensor) -> Tensor:
        """Cut an image into parts: `(B, H, W, c)` → `(B, 64, H/8·W/8·c)`."""
        batch, height, width, channels = x.shape
        parts = x.reshape(batch, PARTS, height // PARTS, PARTS, width // PARTS, channels)
        return parts.transpose(2, 3).reshape(batch, PARTS * PARTS, -1)

    def join(self, tokens: Tensor, like: Tensor) -> Tensor:
        """Undo `cut`."""
        batch, height, width, channels = like.shape
        parts = tokens.reshape(batch, PARTS, PARTS, height // PARTS, width // PARTS, channels)
        return parts.transpose(2, 3).reshape(like.shape)
