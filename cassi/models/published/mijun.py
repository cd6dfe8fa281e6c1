"""MiJUN: unrolled half-quadratic splitting; its denoiser has attention and three Mamba scans."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi import ops
from cassi.models.attention import WINDOW, attend, from_windows, to_windows
from cassi.models.camera_adapters import NetworkCamera
from cassi.models.layers import GatedFeedForward, depthwise_conv, init_truncated_normal
from cassi.models.published.dernn_lnlt import MULTIPLE, RecurrentSplitting, normed_blocks
from cassi.models.registry import register_model


class WindowedAttention(nn.Module):
    """Attention within windows, plus the value of a global token that attends to all pixels.

        out = W_p (softmax(qkᵀ/√d + table) v + softmax(q k_gᵀ/√d) v_g),   k_g, v_g = W_g g,
        g = softmax(q_t kᵀ/√d) v

    q_t is the query of the token. The table holds a learned bias for every pair of positions. There
    is only one token. So the second softmax is 1, and v_g is added to every pixel.
    """

    relative_position_index: Tensor

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.relative_position_bias_table = nn.Parameter(torch.empty((2 * WINDOW - 1) ** 2, heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)
        self.register_buffer("relative_position_index", relative_positions())
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.kv_global = nn.Linear(dim, 2 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, token: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape; the token is `(B, 1, c)`."""
        height, width = x.shape[1:3]
        q, k, v = self.qkv(x).chunk(3, -1)
        token_query = F.linear(token, self.qkv.weight.chunk(3)[0])
        global_token = self._gather(token_query, k.flatten(1, 2), v.flatten(1, 2))
        global_value = self.kv_global(global_token).chunk(2, -1)[1]  # (B, 1, c)
        q_windows, k_windows, v_windows = (self._split(to_windows(part)) for part in (q, k, v))
        window_values = attend(q_windows, k_windows, v_windows, self._table())
        local_value = from_windows(window_values.transpose(-2, -3).flatten(-2), height, width)
        return self.proj(local_value + global_value.unsqueeze(1))

    def _split(self, x: Tensor) -> Tensor:  # (…, n, c) → (…, heads, n, d)
        return x.unflatten(-1, (self.heads, -1)).transpose(-2, -3)

    def _gather(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # (B, n, c) → (B, 1, c)
        q, k, v = self._split(q), self._split(k), self._split(v)
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)

    def _table(self) -> Tensor:  # (heads, n, n)
        pixels = WINDOW * WINDOW
        table = self.relative_position_bias_table[self.relative_position_index]
        return table.view(pixels, pixels, -1).permute(2, 0, 1)


def relative_positions() -> Tensor:
    """Return the row of the position table for every pair of pixels of a window, `(n²,)`."""
    rows, columns = torch.meshgrid(torch.arange(WINDOW), torch.arange(WINDOW), indexing="ij")
    distances = [
        axis.flatten()[:, None] - axis.flatten()[None] + WINDOW - 1 for axis in (rows, columns)
    ]
    return (distances[0] * (2 * WINDOW - 1) + distances[1]).flatten()


class TokenAttention(nn.Module):
    """Attention of SiLU(depthwise(W LayerNorm(x))), with a learned global token.

    The authors' code creates the layers act_proj, out_proj, cpe1, cpe2 and norm2 and never uses
    them. They are kept here so that the authors' weights load.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.global_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.attn = WindowedAttention(dim, heads)
        self.cpe1 = depthwise_conv(dim, bias=True)
        self.norm1 = nn.LayerNorm(dim)
        self.in_proj = nn.Linear(dim, dim)
        self.act_proj = nn.Linear(dim, dim)
        self.dwc = depthwise_conv(dim, bias=True)
        self.out_proj = nn.Linear(dim, dim)
        self.cpe2 = depthwise_conv(dim, bias=True)
        self.norm2 = nn.LayerNorm(dim)
        # Parameters that require a gradient and get none would stop distributed training.
        for layer in (self.act_proj, self.out_proj, self.cpe1, self.cpe2, self.norm2):
            layer.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape."""
        x = F.silu(self.dwc(self.in_proj(self.norm1(x))))
        return self.attn(x, self.global_token.expand(len(x), -1, -1))


class Mamba(nn.Module):
    """A gated state-space model of a sequence.

        x, z = halves of W_in t,   u = SiLU(causal depthwise(x)),   Δ, b, c = W_x u,
        out = W_out (SiLU(z) ⊙ (scan(u, softplus(W_Δ Δ + bias), −exp(A_log), b, c) + D u))

    Source: Gu and Dao, "Mamba: linear-time sequence modeling with selective state spaces", COLM
    2024; names and initial values of the weights as in its code.
    """

    def __init__(self, dim: int, states: int = 16, taps: int = 4, expand: int = 2) -> None:
        super().__init__()
        channels, rank = expand * dim, math.ceil(dim / 16)
        self.rank, self.states = rank, states
        rates = torch.arange(1, states + 1, dtype=torch.float32).log()
        self.A_log = nn.Parameter(rates.repeat(channels, 1))
        self.D = nn.Parameter(torch.ones(channels))
        self.in_proj = nn.Linear(dim, 2 * channels, bias=False)
        self.conv1d = nn.Conv1d(channels, channels, taps, groups=channels, padding=taps - 1)
        self.x_proj = nn.Linear(channels, rank + 2 * states, bias=False)
        self.dt_proj = nn.Linear(rank, channels)
        self.out_proj = nn.Linear(channels, dim, bias=False)
        self.draw_steps()

    def draw_steps(self, smallest: float = 1e-3, largest: float = 0.1) -> None:
        """Draw W_Δ, and a bias whose softplus is log-uniform in [smallest, largest]."""
        nn.init.uniform_(self.dt_proj.weight, -(self.rank**-0.5), self.rank**-0.5)
        span = math.log(largest / smallest)
        steps = torch.exp(torch.rand(self.dt_proj.out_features) * span) * smallest
        with torch.no_grad():
            # The inverse of softplus, ln(eˢ − 1), in a form that does not overflow.
            self.dt_proj.bias.copy_(steps + torch.log(-torch.expm1(-steps)))

    def forward(self, tokens: Tensor) -> Tensor:
        """Map `(B, L, dim)` to the same shape."""
        x, gate = self.in_proj(tokens).chunk(2, -1)
        u = F.silu(self.conv1d(x.mT)[..., : x.shape[1]].mT)
        step, b, c = self.x_proj(u).split((self.rank, self.states, self.states), -1)
        delta = F.softplus(self.dt_proj(step))
        y = ops.selective_scan(u, delta, -self.A_log.float().exp(), b, c)
        return self.out_proj((y + self.D * u) * F.silu(gate))


class ThreeScans(nn.Module):
    """The mean of three scans of an image: along its pixels, and twice across its bands.

    The first scan goes over the pixels, row by row. A step gets the c channels of one pixel. The
    other two scans share their weights. A step gets one column of one channel in the second scan,
    and one row of one channel in the third.

    Source: Mei et al., AAAI 2025, section 3.3.
    """

    def __init__(self, dim: int, side: int) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(side)
        self.mamba, self.mamba2 = Mamba(dim), Mamba(side)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape."""
        columns, rows = x.permute(0, 3, 2, 1), x.permute(0, 3, 1, 2)  # (B, c, W, H), (B, c, H, W)
        pixels = self.mamba(self.norm(x.flatten(1, 2))).view(x.shape)
        band_scans = [
            self.mamba2(self.norm2(image.flatten(1, 2))).view(image.shape)
            for image in (columns, rows)
        ]
        return (pixels + band_scans[0].permute(0, 3, 2, 1) + band_scans[1].permute(0, 2, 3, 1)) / 3


@register_model("mijun_3stg", stages=3)
@register_model("mijun_5stg", stages=5)
@register_model("mijun_9stg", stages=9)
class MiJUN(RecurrentSplitting):
    """Unrolled half-quadratic splitting with momentum and one set of weights for all stages.

        v = z_k + Φᵀ(ΦΦᵀ + ρI)⁻¹(y − Φẑ),   ẑ = z_k + ½(z_k − z_{k−1}),   z_{k+1} = denoise(v, σ)

    Φ, ρ and σ are estimated from z_k, as in DERNN-LNLT. The denoiser scans whole rows and columns.
    For this reason its weights fit square images of one size only.

    Args:
        bands: see `UnrolledNetwork`.
        stages: see `UnrolledNetwork`.
        checkpointing: see `UnrolledNetwork`.
        size: rows and columns of the image, two equal numbers; rounded up to a multiple of 32.
            Smaller scenes are mirrored up to that size, larger scenes are refused. The published
            weights are for (256, 256).

    Raises:
        ValueError: a count below 1, or a size that is not square.

    Source: Mei et al., "Detail matters: Mamba-inspired joint unfolding network for snapshot
    spectral compressive imaging", AAAI 2025; names of the weights as in its code.
    """

    momentum = 0.5

    def __init__(
        self,
        bands: int = 28,
        stages: int = 5,
        size: tuple[int, int] = (256, 256),
        checkpointing: bool = False,
    ) -> None:
        super().__init__(bands, stages, checkpointing)
        sides = [int(side) + -int(side) % MULTIPLE for side in size]
        if len(sides) != 2 or sides[0] != sides[1] or sides[0] < 1:
            raise ValueError(f"MiJUN size: expected as many rows as columns, got {tuple(size)}")
        self.side = sides[0]

        def make_block(scale: int) -> nn.Sequential:
            dim, heads, side = bands << scale, 1 << scale, self.side >> scale
            layers = (TokenAttention(dim, heads), ThreeScans(dim, side))
            return normed_blocks(dim, (*layers, GatedFeedForward(dim, bias=True)))

        self.build(make_block, self.side)
        init_truncated_normal(self, nn.Linear)
        for module in self.modules():
            if isinstance(module, Mamba):
                module.draw_steps()

    def recover(self, y: Tensor, system: NetworkCamera) -> Tensor:
        """Reconstruct from a camera with axis -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        self._check_size(*system.mask.shape[-2:])
        return super().recover(y, system)

    def _check_size(self, height: int, width: int) -> None:
        if max(height, width) > self.side:
            raise ValueError(
                f"MiJUN: expected a scene of at most {self.side} x {self.side} pixels, the size of "
                f"its weights, got {height} x {width}; make the network for another size, "
                "create_model(…, size=(N, N)), or take one for any size, such as dernn_lnlt_9stg"
            )
