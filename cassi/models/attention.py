"""Attention within windows of an image and among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WINDOW = 8
"""Pixels along each side of a window."""


def to_windows(x: Tensor) -> Tensor:
    """Cut images into windows: `(B, H, W, c)` → `(B, windows, pixels, c)`."""
    batch, height, width, channels = x.shape
    rows, columns = height // WINDOW, width // WINDOW
    cut = x.reshape(batch, rows, WINDOW, columns, WINDOW, channels).transpose(2, 3)
    return cut.reshape(batch, rows * columns, WINDOW * WINDOW, channels)


def from_windows(x: Tensor, height: int, width: int) -> Tensor:
    """Put windows together again: `(B, windows, pixels, c)` → `(B, H, W, c)`."""
    batch, _, _, channels = x.shape
    rows, columns = height // WINDOW, width // WINDOW
    cut = x.reshape(batch, rows, columns, WINDOW, WINDOW, channels).transpose(2, 3)
    return cut.reshape(batch, height, width, channels)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Return softmax(qkᵀ/√d + bias) v.

    Args:
        q: queries `(…, heads, n, d)`.
        k: keys, likewise.
        v: values, likewise.
        bias: one table per head, `(heads, n, n)`.

    Returns:
        `(…, heads, n, d)`.
    """
    *batch, tokens, width = q.shape
    # One matrix product that adds the table; the fused attention of torch has no gradient for it.
    table = bias.expand(*batch, tokens, tokens).reshape(-1, tokens, tokens)
    q, k, v = (value.reshape(-1, tokens, width) for value in (q, k, v))
    scores = torch.baddbmm(table, q, k.mT, alpha=width**-0.5)
    return torch.bmm(scores.softmax(-1), v).reshape(*batch, tokens, width)


def resize_table(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Interpolate a table of positions to another grid.

    An entry belongs to the position of a query and to that of a key, both on a grid. It is
    interpolated bicubically over the grid of the keys, then over that of the queries.

    Args:
        table: `(heads, n, n)`, n = rows·columns of the old grid.
        old: rows and columns.
        new: rows and columns.

    Returns:
        `(heads, n', n')`; the table itself where the grids are equal.
    """
    if old == new:
        return table
    heads = table.shape[0]
    for _ in range(2):
        images = table.reshape(-1, 1, *old)
        images = F.interpolate(images, new, mode="bicubic", align_corners=False)
        table = images.reshape(heads, -1, new[0] * new[1]).mT
    return table


class HalfShuffleAttention(nn.Module):
    """Half of the heads attend within 8×8 windows, half among the pixels at one place of a window.

    With one head there are only windows. Positions enter by learned tables that are added to the
    scores: `pos_emb` or `pos_emb1` for the 64 pixels of a window, `pos_emb2` for the grid of
    windows of the feature map for which it was made; for another map it is interpolated, see
    `resize_table`.

    Args:
        dim: channels per head.
        heads: 1, or an even number.
        size: rows and columns of the feature map, multiples of 8.

    Source: Cai et al., "Degradation-aware unfolding half-shuffle transformer for spectral
    compressive imaging", NeurIPS 2022, section 3.2 and figure 3; names of the weights as there.
    """

    def __init__(self, dim: int, heads: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.heads, self.dim = heads, dim
        self.grid = (size[0] // WINDOW, size[1] // WINDOW)
        pixels, windows = WINDOW * WINDOW, self.grid[0] * self.grid[1]
        if heads == 1:
            self.pos_emb = _table(1, heads, pixels, pixels)
        else:
            self.pos_emb1 = _table(1, 1, heads // 2, pixels, pixels)
            self.pos_emb2 = _table(1, 1, heads // 2, windows, windows)
        inner = dim * heads
        self.to_q = nn.Linear(inner, inner, bias=False)
        self.to_kv = nn.Linear(inner, 2 * inner, bias=False)
        self.to_out = nn.Linear(inner, inner)

    def forward(self, x: Tensor) -> Tensor:
        """Attend: `(B, H, W, c)` → `(B, H, W, c)`, c = dim·heads, H and W multiples of 8."""
        _, height, width, _ = x.shape
        weights = (self.to_q.weight, *self.to_kv.weight.chunk(2))
        cut = to_windows(x)
        if self.heads == 1:
            out = self._attend(cut, weights, self.pos_emb[0])
        else:
            near, far = zip(*(weight.chunk(2) for weight in weights), strict=True)
            inside = self._attend(cut, near, self.pos_emb1[0, 0])
            grid = (height // WINDOW, width // WINDOW)
            table = resize_table(self.pos_emb2[0, 0], self.grid, grid)
            among = self._attend(cut.transpose(1, 2).contiguous(), far, table).transpose(1, 2)
            out = torch.cat((inside, among), -1)
        out = self.to_out(out)
        return from_windows(out, height, width)

    def _attend(self, x: Tensor, weights: Sequence[Tensor], table: Tensor) -> Tensor:
        # Three products instead of one: what each gives is compact, which the next products like.
        q, k, v = (
            F.linear(x, weight).unflatten(-1, (-1, self.dim)).transpose(2, 3) for weight in weights
        )
        return attend(q, k, v, table).transpose(2, 3).flatten(3)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # `.to(memory_format=torch.channels_last)` refuses modules that hold 5-D tensors, which the
        # published tables are: show it their last three dimensions only.
        def apply(value: Tensor) -> Tensor:
            return fn(value[0, 0])[None, None] if value.ndim == 5 else fn(value)

        return super()._apply(apply, recurse)


def _table(*shape: int) -> nn.Parameter:
    table = nn.Parameter(torch.empty(shape))
    nn.init.trunc_normal_(table)
    return table
