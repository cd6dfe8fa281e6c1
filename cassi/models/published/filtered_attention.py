"""Window attention that drops small scores, and the block made with it."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.attention import WINDOW, from_windows, to_windows
from cassi.models.mixing import normalize
from cassi.models.pixelwise import convolve


class Filter(nn.Module):
    """Attention between pixels, zero where a score is not above the threshold of its window.

        S = qkᵀ,   S' = S ⊙ (w_q q + b_q)(w_k k + b_k)ᵀ,   A = softmax(S') ⊙ [S' > θ]

    θ comes from two small networks that see S without its diagonal. No gradient reaches them, in
    the published code neither: they keep what they are loaded with.

    Args:
        dim: channels of queries and keys.
        tokens: pixels of a window.

    Source: Zhang et al., "Dual prior unfolding for snapshot compressive imaging", CVPR 2024,
    section 3.3; names of the weights as in the authors' code.
    """

    def __init__(self, dim: int, tokens: int) -> None:
        super().__init__()
        self.pc_proj_q = nn.Linear(dim, 1, bias=False)
        self.bias_pc_proj_q = nn.Parameter(torch.ones(1))
        self.pc_proj_k = nn.Linear(dim, 1, bias=False)
        self.bias_pc_proj_k = nn.Parameter(torch.ones(1))
        self.mlp1 = nn.Sequential(nn.Linear(tokens, 1, bias=False))
        self.mlp2 = nn.Sequential(
            nn.Linear(tokens, tokens, bias=False),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Linear(tokens, 1, bias=False),
        )
        self.mlp1.requires_grad_(False)
        self.mlp2.requires_grad_(False)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """Weigh: queries and keys `(n, tokens, dim)` → `(n, tokens, tokens)`."""
        theta = self._threshold(q.detach(), k.detach())
        q = q * F.linear(q, self.pc_proj_q.weight, self.bias_pc_proj_q)
        k = k * F.linear(k, self.pc_proj_k.weight, self.bias_pc_proj_k)
        scores = q @ k.mT
        return scores.softmax(-1) * (scores > theta)

    @torch.no_grad()
    def _threshold(self, q: Tensor, k: Tensor) -> Tensor:  # (n, 1, 1)
        # Row i of (S − diag S) w is q_i·(Σ_j w_j k_j) − w_i q_i·k_i: S itself is not needed.
        weight = cast(nn.Linear, self.mlp1[0]).weight  # (1, tokens)
        rows = q @ (weight @ k).mT - weight.mT * (q * k).sum(-1, keepdim=True)
        return cast(Tensor, self.mlp2(rows.mT))


class FilteredAttention(nn.Module):
    """Attention within 8×8 windows by one `Filter`, which all heads of the values share.

    Args:
        dim: channels.
        head: channels of queries and keys.
        shift: cut the windows half a window further, around the borders of the image.

    Source: Zhang et al., "Dual prior unfolding for snapshot compressive imaging", CVPR 2024,
    section 3.3.
    """

    def __init__(self, dim: int, head: int, shift: bool) -> None:
        super().__init__()
        self.offset = WINDOW // 2 if shift else 0
        self.cal_atten = Filter(head, WINDOW * WINDOW)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_qk = nn.Linear(dim, 2 * head, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Attend: `(B, H, W, c)` → the same, H and W multiples of 8."""
        height, width = x.shape[1:3]
        if self.offset:
            x = x.roll((self.offset, self.offset), (1, 2))
        cut = to_windows(x)
        windows = cut.flatten(0, 1)
        q, k = (F.linear(windows, weight) for weight in self.to_qk.weight.chunk(2))
        out = self.to_out(self.cal_atten(q, k) @ self.to_v(windows))
        out = from_windows(out.view(cut.shape), height, width)
        return out.roll((-self.offset, -self.offset), (1, 2)) if self.offset else out


class ParallelMaps(nn.Module):
    """Some maps of the channels side by side, each with a weight per channel before and after.

        Σ_m b_m ⊙ gelu(W_m gelu(a_m ⊙ x))

    Args:
        dim: channels.
        maps: their number.

    Source: Zhang et al., "Dual prior unfolding for snapshot compressive imaging", CVPR 2024,
    section 3.3.
    """

    def __init__(self, dim: int, maps: int = 4) -> None:
        super().__init__()
        inner = dim * maps
        self.pwconv1 = nn.Sequential(nn.Conv2d(dim, inner, 1, groups=dim, bias=False), nn.GELU())
        self.groupconv = nn.Sequential(
            nn.Conv2d(inner, inner, 1, groups=maps, bias=False), nn.GELU()
        )
        self.pwconv2 = nn.Conv2d(inner, dim, 1, groups=dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        channels = x.shape[-1]
        before, between = (
            cast(nn.Conv2d, part[0]).weight for part in (self.pwconv1, self.groupconv)
        )
        # The weights before and after are laid out (c, m), those between (m, c').
        firsts = before.view(channels, -1).to(x.dtype).unbind(1)
        lasts = self.pwconv2.weight.view(channels, -1).to(x.dtype).unbind(1)
        maps = between.view(-1, channels, channels).unbind()
        total = torch.zeros_like(x)
        for first, weight, last in zip(firsts, maps, lasts, strict=True):
            part = F.gelu(F.linear(F.gelu(x * first), weight))
            total = torch.addcmul(total, part, last)
        return total


class FilteredAttentionBlock(nn.Module):
    """x + positions(x), then x + attention(x), then x + maps(x), with norms before the last two.

    Args:
        dim: channels.
        head: channels of queries and keys.
        shift: whether the windows are shifted.
    """

    def __init__(self, dim: int, head: int, shift: bool = False) -> None:
        super().__init__()
        self.pos_emb = nn.Conv2d(dim, dim, 5, padding=2, bias=False, groups=dim)
        self.norm1 = nn.LayerNorm(dim)
        self.fa = FilteredAttention(dim, head, shift)
        self.norm2 = nn.LayerNorm(dim)
        self.mpmlp = ParallelMaps(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same, H and W multiples of 8."""
        x = x + convolve(self.pos_emb, x)
        x = x + self.fa(normalize(self.norm1, x))
        return x + cast(Tensor, self.mpmlp(normalize(self.norm2, x)))
