"""Attention among pixels that a random hash makes neighbours, in windows that need it."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from cassi.models.published.spectral_attention import FeedForward, PreNorm


class HashAttention(nn.Module):
    """Attention within clusters of equal size, of several random clusterings.

    Each round sorts the tokens x_i of a head by the random projection

        aᵀx_i + a' √(max_j |x_j|² − |x_i|²) + b

    and cuts the order into clusters. A token's results of the rounds are weighted by the softmax
    of their log-sums of exp(QKᵀ). **Every call draws a, a' and b anew**, from torch's global
    generator, in evaluation too: seed it where results must repeat.

    Args:
        dim: channels.
        heads: number of heads.
        cluster: tokens in a cluster.
        rounds: number of clusterings.

    Source: Lin et al., "Coarse-to-fine sparse transformer for hyperspectral image reconstruction",
    ECCV 2022, section 3.3.
    """

    def __init__(self, dim: int, heads: int, cluster: int, rounds: int = 2) -> None:
        super().__init__()
        self.heads, self.cluster, self.rounds = heads, cluster, rounds
        self.to_q = nn.Linear(dim, 3 * dim, bias=False)
        self.to_k = nn.Linear(dim, 3 * dim, bias=False)
        self.to_v = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attend: windows `(B, N, C)`, N a multiple of the cluster, to the same."""
        b, n, _ = x.shape
        order = self._order(x)  # (rounds, B, heads, N)
        sample = torch.arange(b, device=x.device).view(-1, 1, 1)
        head = torch.arange(self.heads, device=x.device)
        rows = ((sample * n + order) * self.heads + head.view(-1, 1)).flatten()
        q, k, v = (
            to(x)
            .view(b * n * self.heads, -1)
            .index_select(0, rows)
            .unflatten(0, (-1, self.cluster))
            for to in (self.to_q, self.to_k, self.to_v)
        )
        energy = q @ k.mT
        strength = energy.logsumexp(-1).flatten()  # a number per round, head and token, as sorted
        clustered = (energy.softmax(-1).to(v.dtype) @ v).flatten(0, 1)

        places = torch.arange(n, device=x.device).expand_as(order)
        place = torch.empty_like(order).scatter_(-1, order, places).transpose(-1, -2)
        turn = torch.arange(self.rounds, device=x.device).view(-1, 1, 1, 1)
        rows = (((turn * b + sample) * self.heads + head) * n + place).flatten()
        shape = (self.rounds, b, n, self.heads, -1)
        weights = strength.index_select(0, rows).view(shape).softmax(0)
        mixed = (clustered.index_select(0, rows).view(shape) * weights).sum(0)
        return cast(Tensor, self.to_out(mixed.flatten(2)))

    @torch.no_grad()
    def _order(self, x: Tensor) -> Tensor:  # (B, N, C) → positions (rounds, B, heads, N)
        with torch.autocast(x.device.type, enabled=False):
            # Half precision would tie most tokens of a window.
            wide = torch.promote_types(x.dtype, torch.float32)
            tokens = x.to(wide).unflatten(-1, (self.heads, -1))
            size = tokens.shape[-1]
            # The published vectors end in a zero, which takes a random number too.
            a = torch.normal(0.0, 1.0, (size + 2, self.rounds), device=x.device).to(wide)
            b = torch.rand(1, self.rounds, device=x.device).to(wide)
            norm = tokens.norm(dim=-1, keepdim=True)
            rest = (norm.amax(1, keepdim=True).square() - norm.square()).clamp_min(0).sqrt()
            projected = tokens @ a[:size] + rest * a[size] + b  # (B, N, heads, rounds)
            return projected.permute(3, 0, 2, 1).argsort(-1)


class HashBlock(nn.Module):
    """Hash attention within square windows, and a feed-forward network.

    Args:
        dim: channels.
        heads: number of heads.
        window: side of a window, pixels; a cluster has a quarter of its pixels.
        shifted: whether windows begin half a window later.
        sparse: whether only the half of the windows that most needs it attends.
    """

    def __init__(self, dim: int, heads: int, window: int, shifted: bool, sparse: bool) -> None:
        super().__init__()
        self.window, self.sparse = window, sparse
        self.shift = window // 2 if shifted else 0
        self.attn = PreNorm(dim, HashAttention(dim, heads, window**2 // 4))
        self.ffn = PreNorm(dim, FeedForward(dim))

    def forward(self, x: Tensor, need: Tensor | None) -> Tensor:
        """Map `(B, H, W, C)` to the same; `need` is `(B, H, W)`, None where all attend."""
        b, h, w, c = x.shape
        side, back = self.window, (self.shift, self.shift)
        if self.shift:
            x = x.roll((-self.shift, -self.shift), (1, 2))
        grid = (b, h // side, side, w // side, side)
        tokens = x.reshape(*grid, c).transpose(2, 3).reshape(-1, side * side, c)
        if self.sparse and need is not None:
            if self.shift:
                need = need.roll((-self.shift, -self.shift), (1, 2))
            per_window = need.reshape(grid).mean((2, 4)).flatten(1)
            count = per_window.shape[1]
            chosen = per_window.topk(max(1, count // 2), 1).indices
            first = torch.arange(0, b * count, count, device=x.device).unsqueeze(1)
            rows = (chosen + first).flatten()
            some = tokens.index_select(0, rows)
            tokens = tokens.index_copy(0, rows, (self.attn(some) + some).to(tokens.dtype))
        else:
            tokens = self.attn(tokens) + tokens
        x = tokens.view(b, h // side, w // side, side, side, c).transpose(2, 3).reshape(b, h, w, c)
        if self.shift:
            x = x.roll(back, (1, 2))
        return cast(Tensor, self.ffn(x)) + x


class HashBlocks(nn.Module):
    """Blocks of hash attention; every second one has shifted windows."""

    def __init__(self, dim: int, heads: int, count: int, window: int, sparse: bool) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            *(HashBlock(dim, heads, window, i % 2 == 1, sparse) for i in range(count))
        )

    def forward(self, x: Tensor, need: Tensor | None) -> Tensor:
        """Map `(B, C, H, W)` to the same; `need` is `(B, 1, H, W)` or None."""
        x = x.permute(0, 2, 3, 1)
        need = None if need is None else need.squeeze(1)
        for block in self.blocks:
            x = block(x, need)
        return x.permute(0, 3, 1, 2)
